// exec.h: a launch as it runs: blocks one after another, the warps of a block in turns, 32 lanes at a time.
//
// Lanes have a program counter each. A warp always runs the lanes that are furthest behind in the code, together, so lanes
// that diverged meet again where their paths join; after SPIN_LIMIT branches backwards it lets the others go first, so a lane
// may wait for another one. A lane that waits for a barrier or for the other lanes of a .sync instruction is `blocked`.
#ifndef TEST_CUDA_EXEC_H
#define TEST_CUDA_EXEC_H

#include "tests/cuda_driver/cuda_api.h"
#include "tests/cuda_driver/ptx.h"

typedef uint64_t Slot[LANES];

enum { MAX_WARPS = 32, MAX_BARRIERS = 16, SPACE_START = 1024, SPACE_GAP = 32 };

// Generic addresses: windows for shared, local and parameter memory that no allocation uses.
#define SHARED_WINDOW UINT64_C(0x0100000000000000)
#define LOCAL_WINDOW UINT64_C(0x0200000000000000)
#define PARAM_WINDOW UINT64_C(0x0300000000000000)
#define WINDOW_SIZE UINT64_C(0x0000000100000000)

struct Allocation;

typedef struct AsyncCopy { // cp.async that has not been waited for
    uint64_t to, from;
    uint8_t size, taken; // bytes to write, bytes read (the rest is zeros)
    uint8_t lane;
    uint32_t group; // of the lane, counted from 0
    const Inst *in;
} AsyncCopy;

typedef struct Warp {
    struct Block *block;
    uint32_t index; // in the block
    uint32_t lanes; // that exist
    uint32_t exited;
    uint32_t blocked;    // at a barrier or a .sync instruction
    uint32_t at_barrier; // those of them that wait for a barrier of the block
    uint32_t pc[LANES];
    uint32_t mask; // lanes that run now, all at pc `now`
    uint32_t now, next;
    uint32_t spins;            // branches backwards since other lanes ran
    uint32_t deferred;         // lanes that let others go first
    uint32_t sync_mask[LANES]; // member mask that a blocked lane gave
    uint8_t barrier[LANES];    // that it waits for
    Slot *slot;
    uint8_t *local; // LANES frames of local memory, and as many of flags "written"
    uint8_t *local_written;
    uint8_t carry[LANES];
    AsyncCopy *copies;
    size_t copy_count, copy_room;
    uint32_t copy_group[LANES];
    // ordering of memory accesses (race.c)
    uint32_t time;                     // barriers of the block passed
    uint32_t known[MAX_WARPS];         // time of each warp of the block that this one has seen
    uint32_t lane_known[LANES][LANES]; // the same for lanes of this warp; [l][l] is the lane's own time
    struct Allocation *last;           // found last: the next access is mostly there
} Warp;

typedef struct Barrier {
    uint32_t expected;     // threads, 0: not in use
    uint32_t arrived;      // threads, counted by whole warps
    uint32_t warps;        // that take part: their memory is ordered when it opens
    uint32_t predicate[2]; // bar.red: count of true, count of all
    const Inst *first;     // instruction that came first
} Barrier;

typedef struct Block {
    struct Launch *launch;
    uint32_t id[3];
    uint32_t linear;
    Warp *warp;
    uint32_t warps;
    uint8_t *shared, *shared_written;
    size_t shared_size;
    Barrier barrier[MAX_BARRIERS];
} Block;

typedef struct Launch {
    Kernel *kernel;
    uint32_t grid[3], block[3];
    uint32_t threads; // per block
    uint32_t dynamic_shared;
    const uint8_t *params;
    struct Context *context;
    uint64_t graph; // serial number of the instance of a graph that it belongs to, 0: none
    int device;
    uint32_t multiprocessors;
    uint64_t id;    // counts launches
    uint64_t steps; // warp instructions so far
    uint64_t turn;  // of a warp, before another's
    uint64_t thread_instructions;
    struct RaceState *races;
    CUresult result; // CUDA_SUCCESS until a violation ends the launch
    jmp_buf stop;
} Launch;

// Runs the launch to its end; the configuration has been checked. CUDA_SUCCESS, or what the violation means; its text is
// with faults.c.
CUresult exec_run(Launch *launch);

// Ends the launch: text with the kernel, line, block and thread added. lane < 0: no lane in particular.
_Noreturn void exec_violation(Warp *w, const Inst *in, int lane, CUresult code, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

// Runs `act` for groups of lanes that are all at this instruction and name each other in their member masks (source
// `member_operand`; -1: the whole warp); other lanes wait. Lanes that have ended are not waited for.
typedef void (*Act)(Warp *w, const Inst *in, uint32_t lanes);
void exec_collective(Warp *w, const Inst *in, int member_operand, Act act);

// Strong accesses (.volatile, .relaxed, ...) and atomics never race with each other.
typedef enum AccessKind { ACCESS_READ, ACCESS_WRITE, ACCESS_STRONG_READ, ACCESS_STRONG_WRITE, ACCESS_ATOMIC } AccessKind;

static inline bool access_reads(AccessKind kind) { return kind == ACCESS_READ || kind == ACCESS_STRONG_READ || kind == ACCESS_ATOMIC; }

static inline bool access_writes(AccessKind kind) { return kind == ACCESS_WRITE || kind == ACCESS_STRONG_WRITE || kind == ACCESS_ATOMIC; }

// The bytes of one access of a lane after all checks (exec_memory.c); `fresh` is what a write stores.
uint8_t *exec_access(Warp *w, const Inst *in, uint32_t lane, Space space, uint64_t address, unsigned size, AccessKind kind,
                     const void *fresh);
Space exec_space(const Inst *in);

Eval exec_eval(PtxOp op, PtxType type);
extern const Run exec_runs[OP_COUNT];

static inline const uint64_t *source(const Warp *w, const Inst *in, int operand) { return w->slot[in->arg[in->first[operand]].slot]; }

static inline uint64_t *result(Warp *w, const Inst *in, int operand) { return w->slot[in->arg[in->first[operand]].slot]; }

#define FOR_LANES(w, lane) \
    for (uint32_t todo_ = (w)->mask, lane; todo_ && (lane = (uint32_t)__builtin_ctz(todo_), true); todo_ &= todo_ - 1)

#define RUN(name) void name(Warp *w, const Inst *in)
RUN(run_alu);
RUN(run_carry);
RUN(run_setp);
RUN(run_set);
RUN(run_testp);
RUN(run_cvt);
RUN(run_mov);
RUN(run_mov_vector);
RUN(run_clock);
RUN(run_cvta);
RUN(run_isspacep);
RUN(run_ld);
RUN(run_st);
RUN(run_atom);
RUN(run_nothing);
RUN(run_fence);
RUN(run_cp_async);
RUN(run_barrier);
RUN(run_shfl);
RUN(run_vote);
RUN(run_match);
RUN(run_redux);
RUN(run_activemask);
RUN(run_elect);
RUN(run_ldmatrix);
RUN(run_stmatrix);
RUN(run_mma);
RUN(run_bra);
RUN(run_exit);
RUN(run_trap);
RUN(run_yield);
RUN(run_set_conditional); // graph.c: a call of cudaGraphSetConditional, whose arguments lie at the offsets of its two operands

// What is wrong with the shape, types or number of registers of a matrix instruction (mma.c); NULL: nothing.
const char *mma_problem(const Inst *in);

// Numbers (exec_float.c): the bits of a small float as a double, and a double rounded to a format.
double float_widen(PtxType type, uint64_t bits);
uint64_t float_narrow(PtxType type, double value, int mode); // mode: M_ROUND_*
double float_fma_odd(double a, double b, double c);          // a * b + c, rounded to odd: may be rounded once more

#endif
