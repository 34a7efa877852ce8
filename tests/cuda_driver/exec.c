// Blocks, warps, lanes: who runs next, where paths join, barriers. exec.h tells how.
#include "tests/cuda_driver/exec.h"
#include "tests/cuda_driver/driver.h"
#include "tests/cuda_driver/race.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// branches backwards; instructions before another warp's turn, and the most of them where blocks run together
enum { SPIN_LIMIT = 4096, TURN = 200000, SHORT_TURN = 64 };

const Run exec_runs[OP_COUNT] = {
#define OP(name, text, run, operands, classes, types) [OP_##name] = run,
#include "tests/cuda_driver/ptx_ops.def"
};

void exec_violation(Warp *w, const Inst *in, int lane, CUresult code, const char *format, ...)
{
    char what[1024], where[256] = "";
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    Block *b = w->block;
    Launch *launch = b->launch;
    const uint32_t *n = launch->block;
    if (lane >= 0) {
        uint32_t thread = w->index * LANES + (uint32_t)lane;
        snprintf(where, sizeof where, ", thread (%u,%u,%u)", thread % n[0], thread / n[0] % n[1], thread / n[0] / n[1]);
    }
    counters.violations++;
    report("kernel %s, ptx line %u (%s), block (%u,%u,%u)%s: %s", launch->kernel->name, in ? in->line : 0,
           in ? ptx_op_names[in->op] : "end", b->id[0], b->id[1], b->id[2], where, what);
    launch->result = code;
    longjmp(launch->stop, 1);
}

// ---- lanes ----

static uint32_t unfinished(const Warp *w) { return w->lanes & ~w->exited; }

static uint32_t runnable(const Warp *w) { return unfinished(w) & ~w->blocked; }

static void set_pc(Warp *w, uint32_t lanes, uint32_t pc)
{
    for (; lanes; lanes &= lanes - 1)
        w->pc[__builtin_ctz(lanes)] = pc;
}

// Chooses the lanes that run: those furthest behind. *stop: where the next other lane waits in the code.
static uint32_t choose_lanes(Warp *w, uint32_t *stop)
{
    uint32_t ready = runnable(w), from = ready & ~w->deferred, mask = 0;
    if (!from) {
        w->deferred = 0;
        from = ready;
    }
    w->now = UINT32_MAX;
    for (uint32_t left = from; left; left &= left - 1) {
        uint32_t lane = (uint32_t)__builtin_ctz(left);
        if (w->pc[lane] < w->now) {
            w->now = w->pc[lane];
            mask = 0;
        }
        if (w->pc[lane] == w->now)
            mask |= 1u << lane;
    }
    *stop = UINT32_MAX;
    for (uint32_t left = ready & ~mask; left; left &= left - 1) {
        uint32_t pc = w->pc[__builtin_ctz(left)];
        if (pc > w->now && pc < *stop)
            *stop = pc;
    }
    return mask;
}

static uint32_t guarded(const Warp *w, const Inst *in, uint32_t mask)
{
    if (in->guard == NO_SLOT)
        return mask;
    const uint64_t *p = w->slot[in->guard];
    uint32_t on = 0;
    for (uint32_t l = 0; l < LANES; l++)
        on |= (uint32_t)(p[l] != 0) << l;
    return mask & (in->guard_negate ? ~on : on);
}

static bool changes_control(const Inst *in)
{
    switch ((PtxOp)in->op) {
    case OP_BRA:
    case OP_EXIT:
    case OP_RET:
    case OP_TRAP:
    case OP_BRKPT:
    case OP_BAR:
    case OP_BARRIER:
    case OP_SHFL:
    case OP_VOTE:
    case OP_MATCH:
    case OP_REDUX:
    case OP_ELECT:
    case OP_LDMATRIX:
    case OP_STMATRIX:
    case OP_MMA:
    case OP_NANOSLEEP: return true;
    default: return false;
    }
}

RUN(run_bra)
{
    set_pc(w, w->mask, in->target);
    if (in->target > w->now)
        return;
    if (++w->spins > SPIN_LIMIT) {
        w->spins = 0;
        w->deferred |= w->mask; // they may wait for what other lanes do
    }
}

RUN(run_yield)
{
    (void)in;
    w->deferred |= w->mask;
}

RUN(run_nothing) { (void)w, (void)in; }

RUN(run_trap) { exec_violation(w, in, __builtin_ctz(w->mask), CUDA_ERROR_LAUNCH_FAILED, "trap"); }

static void settle_barrier(Warp *w, const Inst *in);

RUN(run_exit)
{
    w->exited |= w->mask;
    if (w->at_barrier && unfinished(w) == w->at_barrier)
        settle_barrier(w, in); // the lanes that are left all wait
}

// Runs a warp until none of its lanes can go on, or its turn is over.
static void run_warp(Warp *w)
{
    Launch *launch = w->block->launch;
    const Inst *code = launch->kernel->code;
    uint64_t end = launch->steps + launch->turn;
    while (runnable(w) && launch->steps < end) {
        uint32_t stop, group = choose_lanes(w, &stop);
        for (;;) {
            const Inst *in = &code[w->now];
            w->mask = guarded(w, in, group);
            launch->steps++;
            launch->thread_instructions += (uint64_t)__builtin_popcount(group);
            if (changes_control(in))
                break;
            if (w->mask)
                in->run(w, in);
            if (++w->now == stop)
                break;
        }
        if (launch->steps > settings.steps)
            exec_violation(w, &code[w->now], -1, CUDA_ERROR_LAUNCH_TIMEOUT, "the launch ran for more than %llu steps",
                           (unsigned long long)settings.steps);
        if (w->now == stop) {
            set_pc(w, group, w->now);
            continue;
        }
        set_pc(w, group, w->now + 1);
        if (w->mask)
            code[w->now].run(w, &code[w->now]);
    }
}

// ---- barriers ----

static void open_barrier(Block *b, uint32_t id)
{
    Barrier *barrier = &b->barrier[id];
    race_barrier(b, barrier->warps);
    for (uint32_t i = 0; i < b->warps; i++) {
        Warp *w = &b->warp[i];
        uint32_t lanes = 0;
        for (uint32_t left = w->at_barrier; left; left &= left - 1) {
            uint32_t lane = (uint32_t)__builtin_ctz(left);
            if (w->barrier[lane] != id)
                continue;
            lanes |= 1u << lane;
            const Inst *in = &b->launch->kernel->code[w->pc[lane]];
            if (in->mod[C_SYNC] == M_SYNC_red && in->arg[0].slot != NO_SLOT) {
                uint32_t yes = barrier->predicate[0], all = barrier->predicate[1];
                w->slot[in->arg[0].slot][lane] = in->mod[C_REDUCE] == M_REDUCE_popc  ? yes
                                                 : in->mod[C_REDUCE] == M_REDUCE_and ? yes == all
                                                                                     : yes > 0;
            }
            w->pc[lane]++;
        }
        w->at_barrier &= ~lanes;
        w->blocked &= ~lanes;
    }
    *barrier = (Barrier){0};
}

static uint32_t block_exited(const Block *b)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < b->warps; i++)
        n += (uint32_t)__builtin_popcount(b->warp[i].exited);
    return n;
}

static bool whole_block(const Inst *in)
{
    unsigned counts = in->mod[C_SYNC] == M_SYNC_red ? 4 : 2;
    return in->operands < counts;
}

// A warp has arrived, all its lanes that have not ended.
static void arrive(Warp *w, const Inst *in, uint32_t id, uint32_t lane)
{
    Block *b = w->block;
    Barrier *barrier = &b->barrier[id];
    unsigned operand = in->mod[C_SYNC] == M_SYNC_red ? 2 : 1;
    uint32_t expected = whole_block(in) ? b->warps * LANES : (uint32_t)source(w, in, (int)operand)[lane];
    if (expected == 0 || expected % LANES || expected > b->warps * LANES)
        exec_violation(w, in, (int)lane, CUDA_ERROR_LAUNCH_FAILED, "barrier %u for %u threads of a block of %u", id, expected,
                       b->launch->threads);
    if (barrier->expected && barrier->expected != expected)
        exec_violation(w, in, (int)lane, CUDA_ERROR_LAUNCH_FAILED, "barrier %u for %u threads here, for %u at line %u", id, expected,
                       barrier->expected, barrier->first->line);
    if (!barrier->expected)
        barrier->first = in;
    barrier->expected = expected;
    if (barrier->warps >> w->index & 1)
        exec_violation(w, in, (int)lane, CUDA_ERROR_LAUNCH_FAILED, "warp %u arrives twice at barrier %u", w->index, id);
    barrier->warps |= 1u << w->index;
    barrier->arrived += LANES;
    if (!settings.exited_allowed && whole_block(in) && block_exited(b))
        exec_violation(w, in, (int)lane, CUDA_ERROR_LAUNCH_FAILED,
                       "divergent barrier: %u threads of the block have ended and will never arrive", block_exited(b));
    if (barrier->arrived >= barrier->expected)
        open_barrier(b, id);
}

// All lanes of the warp that have not ended wait at a barrier: at the same instruction, if it is an aligned one.
static void settle_barrier(Warp *w, const Inst *in)
{
    uint32_t first = (uint32_t)__builtin_ctz(w->at_barrier);
    const Inst *code = w->block->launch->kernel->code, *at = &code[w->pc[first]];
    for (uint32_t left = w->at_barrier; left; left &= left - 1) {
        uint32_t lane = (uint32_t)__builtin_ctz(left);
        const Inst *other = &code[w->pc[lane]];
        bool aligned = at->op == OP_BAR || at->flags & FLAG(aligned) || other->op == OP_BAR;
        if (w->barrier[lane] != w->barrier[first] || (aligned && other != at))
            exec_violation(w, other, (int)lane, CUDA_ERROR_LAUNCH_FAILED, "divergent barrier: other threads of the warp wait at line %u",
                           at->line);
    }
    (void)in;
    arrive(w, at, w->barrier[first], first);
}

static void act_nothing(Warp *w, const Inst *in, uint32_t lanes)
{
    (void)in;
    race_warp(w, lanes);
}

RUN(run_barrier)
{
    Block *b = w->block;
    if (in->mod[C_SCOPE] == M_SCOPE_warp) {
        exec_collective(w, in, 0, act_nothing);
        return;
    }
    bool red = in->mod[C_SYNC] == M_SYNC_red;
    const uint64_t *ids = source(w, in, red ? 1 : 0);
    uint32_t first = (uint32_t)__builtin_ctz(w->mask);
    FOR_LANES(w, l)
    {
        if (ids[l] >= MAX_BARRIERS || ids[l] != ids[first])
            exec_violation(w, in, (int)l, CUDA_ERROR_LAUNCH_FAILED, "barrier %llu", (unsigned long long)ids[l]);
        w->barrier[l] = (uint8_t)ids[l];
        if (red) {
            const Arg *p = &in->arg[in->first[in->operands - 1]];
            b->barrier[ids[l]].predicate[0] += (w->slot[p->slot][l] != 0) != p->negate;
            b->barrier[ids[l]].predicate[1]++;
        }
    }
    if (in->mod[C_SYNC] == M_SYNC_arrive) { // goes on at once
        if (w->mask != unfinished(w))
            exec_violation(w, in, (int)first, CUDA_ERROR_LAUNCH_FAILED, "divergent barrier: part of a warp arrives");
        arrive(w, in, (uint32_t)ids[first], first);
        return;
    }
    set_pc(w, w->mask, w->now);
    w->blocked |= w->mask;
    w->at_barrier |= w->mask;
    if (unfinished(w) == w->at_barrier)
        settle_barrier(w, in);
}

// ---- instructions for several lanes of a warp together ----

void exec_collective(Warp *w, const Inst *in, int member_operand, Act act)
{
    const uint64_t *members = member_operand >= 0 ? source(w, in, member_operand) : NULL;
    uint32_t waiting = w->blocked & ~w->at_barrier, arrived = w->mask, done = 0;
    for (uint32_t left = waiting; left; left &= left - 1)
        arrived |= w->pc[__builtin_ctz(left)] == w->now ? left & (0 - left) : 0;
    FOR_LANES(w, l)
    {
        w->sync_mask[l] = members ? (uint32_t)members[l] : UINT32_MAX;
        if (!(w->sync_mask[l] >> l & 1))
            exec_violation(w, in, (int)l, CUDA_ERROR_LAUNCH_FAILED, "the member mask 0x%08x does not contain the thread's lane",
                           w->sync_mask[l]);
    }
    uint32_t ran = w->mask;
    for (uint32_t left = arrived; left; left &= left - 1) {
        uint32_t lane = (uint32_t)__builtin_ctz(left), need = w->sync_mask[lane] & unfinished(w);
        if (done >> lane & 1 || need & ~arrived)
            continue;
        for (uint32_t others = need; others; others &= others - 1)
            if (w->sync_mask[__builtin_ctz(others)] != w->sync_mask[lane])
                exec_violation(w, in, (int)lane, CUDA_ERROR_LAUNCH_FAILED, "threads give different member masks, 0x%08x and 0x%08x",
                               w->sync_mask[lane], w->sync_mask[__builtin_ctz(others)]);
        w->mask = need;
        act(w, in, need);
        done |= need;
    }
    w->mask = ran;
    w->blocked = (w->blocked | arrived) & ~done;
    set_pc(w, arrived & ~done, w->now);
    set_pc(w, done, w->now + 1);
}

// ---- blocks ----

static void set_specials(Warp *w)
{
    const Block *b = w->block;
    const Launch *launch = b->launch;
    const Kernel *k = launch->kernel;
    const uint32_t *n = launch->block, *g = launch->grid;
    for (uint32_t l = 0; l < LANES; l++) {
        uint32_t t = w->index * LANES + l;
        const uint64_t value[SPECIAL_COUNT] = {
            // clocks are read by instructions of their own
            [SPECIAL_TID_X] = t % n[0],
            [SPECIAL_TID_Y] = t / n[0] % n[1],
            [SPECIAL_TID_Z] = t / n[0] / n[1],
            [SPECIAL_NTID_X] = n[0],
            [SPECIAL_NTID_Y] = n[1],
            [SPECIAL_NTID_Z] = n[2],
            [SPECIAL_CTAID_X] = b->id[0],
            [SPECIAL_CTAID_Y] = b->id[1],
            [SPECIAL_CTAID_Z] = b->id[2],
            [SPECIAL_NCTAID_X] = g[0],
            [SPECIAL_NCTAID_Y] = g[1],
            [SPECIAL_NCTAID_Z] = g[2],
            [SPECIAL_LANEID] = l,
            [SPECIAL_WARPID] = w->index,
            [SPECIAL_NWARPID] = b->warps,
            [SPECIAL_SMID] = b->linear % launch->multiprocessors,
            [SPECIAL_NSMID] = launch->multiprocessors,
            [SPECIAL_GRIDID] = launch->id,
            [SPECIAL_LANEMASK_EQ] = UINT64_C(1) << l,
            [SPECIAL_LANEMASK_LE] = (UINT64_C(2) << l) - 1,
            [SPECIAL_LANEMASK_LT] = (UINT64_C(1) << l) - 1,
            [SPECIAL_LANEMASK_GE] = UINT32_MAX & ~((UINT64_C(1) << l) - 1),
            [SPECIAL_LANEMASK_GT] = UINT32_MAX & ~((UINT64_C(2) << l) - 1),
            [SPECIAL_DYNAMIC_SMEM] = launch->dynamic_shared,
            [SPECIAL_TOTAL_SMEM] = k->shared_bytes + launch->dynamic_shared,
        };
        for (size_t i = 0; i < k->special_count; i++)
            w->slot[k->specials[i].slot][l] = value[k->specials[i].special];
    }
}

static void start_block(Block *b, uint32_t linear)
{
    Launch *launch = b->launch;
    const Kernel *k = launch->kernel;
    b->linear = linear;
    b->id[0] = linear % launch->grid[0];
    b->id[1] = linear / launch->grid[0] % launch->grid[1];
    b->id[2] = linear / launch->grid[0] / launch->grid[1];
    memset(b->shared, 0xa5, b->shared_size);
    memset(b->shared_written, 0, b->shared_size);
    memset(b->barrier, 0, sizeof b->barrier);
    for (uint32_t i = 0; i < b->warps; i++) {
        Warp *w = &b->warp[i];
        uint32_t left = launch->threads - i * LANES;
        w->lanes = left >= LANES ? UINT32_MAX : (1u << left) - 1;
        w->exited = w->blocked = w->at_barrier = w->deferred = w->spins = 0;
        memset(w->pc, 0, sizeof w->pc);
        memset(w->carry, 0, sizeof w->carry);
        memset(w->copy_group, 0, sizeof w->copy_group);
        w->copy_count = 0;
        memset(w->local, 0xff, LANES * k->local_extent);
        memset(w->local_written, 0, LANES * k->local_extent);
        set_specials(w);
    }
    race_block(b);
}

// No warp can go on, yet some lanes have not ended: say what they wait for.
static _Noreturn void stuck(Block *b)
{
    const Inst *code = b->launch->kernel->code;
    for (uint32_t i = 0; i < b->warps; i++) {
        Warp *w = &b->warp[i];
        uint32_t sync = w->blocked & ~w->at_barrier;
        if (sync) {
            uint32_t lane = (uint32_t)__builtin_ctz(sync);
            exec_violation(w, &code[w->pc[lane]], (int)lane, CUDA_ERROR_LAUNCH_FAILED,
                           "divergent warp instruction: the threads of mask 0x%08x never meet here (only 0x%08x do)", w->sync_mask[lane],
                           sync);
        }
    }
    for (uint32_t i = 0; i < b->warps; i++) {
        Warp *w = &b->warp[i];
        if (!w->at_barrier)
            continue;
        uint32_t lane = (uint32_t)__builtin_ctz(w->at_barrier);
        const Inst *in = &code[w->pc[lane]];
        const Barrier *barrier = &b->barrier[w->barrier[lane]];
        if (w->at_barrier != unfinished(w))
            continue;
        exec_violation(w, in, (int)lane, CUDA_ERROR_LAUNCH_FAILED,
                       "divergent barrier: barrier %u waits for %u threads, %u have arrived, %u threads of the block have ended",
                       w->barrier[lane], barrier->expected, barrier->arrived, block_exited(b));
    }
    abort(); // a lane is blocked for one of the two
}

// With exited=allow: a warp that has ended counts as arrived at barriers for the whole block.
static bool arrive_for_ended(Block *b)
{
    if (!settings.exited_allowed)
        return false;
    for (uint32_t id = 0; id < MAX_BARRIERS; id++) {
        Barrier *barrier = &b->barrier[id];
        if (!barrier->expected || !whole_block(barrier->first))
            continue;
        uint32_t ended = 0;
        for (uint32_t i = 0; i < b->warps; i++)
            ended += unfinished(&b->warp[i]) == 0 && !(barrier->warps >> i & 1);
        if (barrier->arrived + ended * LANES >= barrier->expected) {
            open_barrier(b, id);
            return true;
        }
    }
    return false;
}

// A turn for each warp. false: the block has ended.
static bool run_some(Block *b)
{
    bool ran = false, left = false;
    for (uint32_t i = 0; i < b->warps; i++) {
        Warp *w = &b->warp[i];
        if (runnable(w)) {
            run_warp(w);
            ran = true;
        }
        left |= unfinished(w) != 0;
    }
    if (left && !ran && !arrive_for_ended(b))
        stuck(b);
    return left;
}

// ---- launches ----

static bool make_block(Block *b)
{
    const Launch *launch = b->launch;
    const Kernel *k = launch->kernel;
    b->warps = (launch->threads + LANES - 1) / LANES;
    b->warp = calloc(b->warps, sizeof *b->warp);
    size_t end = k->has_dynamic ? k->dynamic_offset + launch->dynamic_shared : k->shared_extent;
    b->shared_size = end + SPACE_GAP;
    b->shared = malloc(b->shared_size);
    b->shared_written = malloc(b->shared_size);
    if (!b->warp || !b->shared || !b->shared_written)
        return false;
    for (uint32_t i = 0; i < b->warps; i++) {
        Warp *w = &b->warp[i];
        w->block = b;
        w->index = i;
        w->slot = malloc((k->slots + 1) * sizeof(Slot));
        w->local = malloc(LANES * k->local_extent);
        w->local_written = malloc(LANES * k->local_extent);
        if (!w->slot || !w->local || !w->local_written)
            return false;
        memset(w->slot, 0x5a,
               (k->slots + 1) * sizeof(Slot)); // registers that nobody wrote hold rubbish, the same each time
        for (size_t c = 0; c < k->constant_count; c++) {
            uint64_t value = k->constants[c].value + (k->constants[c].variable ? k->constants[c].variable->address : 0);
            for (uint32_t l = 0; l < LANES; l++)
                w->slot[k->constants[c].slot][l] = value;
        }
    }
    return true;
}

static void free_block(Block *b)
{
    for (uint32_t i = 0; b->warp && i < b->warps; i++) {
        free(b->warp[i].slot);
        free(b->warp[i].local);
        free(b->warp[i].local_written);
        free(b->warp[i].copies);
    }
    free(b->warp);
    free(b->shared);
    free(b->shared_written);
}

static uint64_t random_next(uint64_t *state)
{
    *state += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t z = *state;
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

// NULL: rising order.
static uint32_t *block_order(uint64_t blocks)
{
    uint32_t *order = settings.order && blocks > 1 ? malloc(blocks * sizeof *order) : NULL;
    if (!order)
        return NULL;
    uint64_t state = settings.order;
    for (uint32_t i = 0; i < blocks; i++) {
        uint32_t j = (uint32_t)(random_next(&state) % (i + 1u));
        order[i] = order[j];
        order[j] = i;
    }
    return order;
}

// All blocks in their order, `together` of them at a time: the next one starts where one has ended.
static void run_blocks(Launch *launch, Block *b, uint32_t together, const uint32_t *order, uint32_t blocks)
{
    uint32_t next = 0, running = 0;
    uint64_t state = settings.order;
    for (; running < together; running++, next++)
        start_block(&b[running], order ? order[next] : next);
    for (uint32_t i = 0; running; i = (i + 1) % running) {
        launch->turn = together > 1 ? 1 + random_next(&state) % SHORT_TURN : TURN;
        if (run_some(&b[i]))
            continue;
        if (next < blocks) {
            start_block(&b[i], order ? order[next] : next);
            next++;
        } else if (--running) {
            Block last = b[running];
            b[running] = b[i];
            b[i] = last;
            for (uint32_t w = 0; w < last.warps; w++)
                b[i].warp[w].block = &b[i];
        } else {
            return;
        }
    }
}

static bool make_blocks(Launch *launch, Block *b, uint32_t n)
{
    bool fine = b != NULL;
    for (uint32_t i = 0; i < n && fine; i++) {
        b[i].launch = launch;
        fine = make_block(&b[i]);
    }
    return fine;
}

CUresult exec_run(Launch *launch)
{
    uint64_t blocks = (uint64_t)launch->grid[0] * launch->grid[1] * launch->grid[2];
    uint32_t together = blocks < settings.together ? (uint32_t)blocks : settings.together;
    Block *volatile b = calloc(together, sizeof(Block));
    uint32_t *volatile order = block_order(blocks);
    launch->result = CUDA_SUCCESS;
    if (!make_blocks(launch, b, together) || !race_start(launch))
        launch->result = CUDA_ERROR_OUT_OF_MEMORY;
    else if (!setjmp(launch->stop))
        run_blocks(launch, b, together, order, (uint32_t)blocks);
    counters.thread_instructions += launch->thread_instructions;
    race_end(launch);
    for (uint32_t i = 0; b && i < together; i++)
        free_block(&b[i]);
    free(b);
    free(order);
    return launch->result;
}
