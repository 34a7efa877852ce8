// Loads, stores, atomics, asynchronous copies. Every access goes through `access`: inside one live allocation or variable,
// naturally aligned, not of bytes that nobody wrote, and in order with those of other threads (race.c).
#include "tests/cuda_driver/driver.h"
#include "tests/cuda_driver/exec.h"
#include "tests/cuda_driver/race.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct Place {
    uint8_t *bytes, *written; // written may be NULL: all is
} Place;

static const char *const space_names[] = {"generic", "global", "shared", "local", "param", "const"};

Space exec_space(const Inst *in)
{
    switch (in->mod[C_SPACE]) {
    case M_SPACE_global: return SPACE_GLOBAL;
    case M_SPACE_shared:
    case M_SPACE_shared_cta: return SPACE_SHARED;
    case M_SPACE_local: return SPACE_LOCAL;
    case M_SPACE_const: return SPACE_CONST;
    case M_SPACE_param:
    case M_SPACE_param_entry:
    case M_SPACE_param_func: return SPACE_PARAM;
    default: return SPACE_GENERIC;
    }
}

// Does one variable hold all of [offset, offset + size)?
static bool inside_one(const Variable *v, uint64_t offset, unsigned size)
{
    for (; v; v = v->next)
        if (offset >= v->address && offset + size <= v->address + v->size)
            return true;
    return false;
}

static bool inside_shared(const Launch *launch, uint64_t offset, unsigned size)
{
    const Kernel *k = launch->kernel;
    if (k->has_dynamic && offset >= k->dynamic_offset)
        return offset + size <= k->dynamic_offset + launch->dynamic_shared;
    return inside_one(k->shared, offset, size);
}

static Place find_place(Warp *w, const Inst *in, uint32_t lane, Space *space, uint64_t *address, unsigned size, bool writes)
{
    Launch *launch = w->block->launch;
    if (*space == SPACE_GENERIC) {
        *space = *address - SHARED_WINDOW < WINDOW_SIZE  ? SPACE_SHARED
                 : *address - LOCAL_WINDOW < WINDOW_SIZE ? SPACE_LOCAL
                 : *address - PARAM_WINDOW < WINDOW_SIZE ? SPACE_PARAM
                                                         : SPACE_GLOBAL;
        if (*space != SPACE_GLOBAL)
            *address %= WINDOW_SIZE;
    }
    unsigned long long at = *address;
    if (at % size)
        exec_violation(w, in, (int)lane, CUDA_ERROR_MISALIGNED_ADDRESS, "address 0x%llx of the .%s space is no multiple of %u", at,
                       space_names[*space], size);
    switch (*space) {
    case SPACE_SHARED:
        if (!inside_shared(launch, at, size))
            exec_violation(w, in, (int)lane, CUDA_ERROR_ILLEGAL_ADDRESS,
                           "%u bytes at 0x%llx of the .shared space are in no variable (dynamic shared memory: %u bytes at 0x%zx)", size,
                           at, launch->dynamic_shared, launch->kernel->dynamic_offset);
        return (Place){w->block->shared + at, w->block->shared_written + at};
    case SPACE_LOCAL: {
        size_t frame = launch->kernel->local_extent;
        if (!inside_one(launch->kernel->local, at, size))
            exec_violation(w, in, (int)lane, CUDA_ERROR_ILLEGAL_ADDRESS, "%u bytes at 0x%llx of the .local space are in no variable", size,
                           at);
        return (Place){w->local + lane * frame + at, w->local_written + lane * frame + at};
    }
    case SPACE_PARAM:
        if (writes || at + size > launch->kernel->param_bytes)
            exec_violation(w, in, (int)lane, CUDA_ERROR_ILLEGAL_ADDRESS, "%u bytes at %llu of %zu bytes of parameters", size, at,
                           launch->kernel->param_bytes);
        return (Place){(uint8_t *)(uintptr_t)launch->params + at, NULL};
    case SPACE_GENERIC:
    case SPACE_GLOBAL:
    case SPACE_CONST: break;
    }
    Allocation *a = w->last;
    if (!a || at < a->address || at - a->address >= a->size) {
        a = memory_find(at);
        if (!a)
            exec_violation(w, in, (int)lane, CUDA_ERROR_ILLEGAL_ADDRESS, "%s of %u bytes at 0x%llx: %s", writes ? "write" : "read", size,
                           at, memory_describe(at, size));
        w->last = a;
    }
    if (at - a->address + size > a->size)
        exec_violation(w, in, (int)lane, CUDA_ERROR_ILLEGAL_ADDRESS, "%s of %u bytes at 0x%llx: %s", writes ? "write" : "read", size, at,
                       memory_describe(at, size));
    if (a->kind != ALLOCATION_HOST && a->device != launch->device)
        exec_violation(w, in, (int)lane, CUDA_ERROR_ILLEGAL_ADDRESS, "memory of device %d, the kernel runs on device %d", a->device,
                       launch->device);
    if ((a->kind == ALLOCATION_CONST && writes) || (*space == SPACE_CONST && a->kind != ALLOCATION_CONST))
        exec_violation(w, in, (int)lane, CUDA_ERROR_ILLEGAL_ADDRESS, "0x%llx is %s", at, writes ? "constant" : "no constant variable");
    return (Place){a->bytes + (at - a->address), a->written ? a->written + (at - a->address) : NULL};
}

static void check_written(Warp *w, const Inst *in, uint32_t lane, Space space, uint64_t address, unsigned size, const Place *place)
{
    if (!place->written || settings.uninit == UNINIT_OFF || (space == SPACE_LOCAL && settings.uninit != UNINIT_ON))
        return;
    const uint8_t *hole = memchr(place->written, 0, size);
    if (hole)
        exec_violation(w, in, (int)lane, CUDA_ERROR_LAUNCH_FAILED,
                       "read of memory that nobody wrote: %u bytes at 0x%llx of the .%s space, byte %u (%s)", size,
                       (unsigned long long)address, space_names[space], (unsigned)(hole - place->written),
                       space == SPACE_GLOBAL ? memory_describe(address, size) : "a variable of the kernel");
}

// The bytes of one access of a lane. A write must give what it will store in `fresh`; its bytes count as written then.
uint8_t *exec_access(Warp *w, const Inst *in, uint32_t lane, Space space, uint64_t address, unsigned size, AccessKind kind,
                     const void *fresh)
{
    Place place = find_place(w, in, lane, &space, &address, size, access_writes(kind));
    if (access_reads(kind))
        check_written(w, in, lane, space, address, size, &place);
    if (space == SPACE_SHARED || space == SPACE_GLOBAL)
        race_access(w, in, lane, space, address, size, kind, place.bytes, fresh);
    if (access_writes(kind) && place.written)
        memset(place.written, 1, size);
    return place.bytes;
}

static uint64_t address_of(const Warp *w, const Inst *in, int operand, uint32_t lane)
{
    const Arg *arg = &in->arg[in->first[operand]];
    return (arg->slot == NO_SLOT ? 0 : w->slot[arg->slot][lane]) + (uint64_t)arg->offset;
}

static uint64_t load_bits(const uint8_t *from, unsigned bytes)
{
    uint64_t v = 0;
    memcpy(&v, from, bytes);
    return v;
}

// Loads and stores with an order of their own take part in synchronisation: they are no races.
static AccessKind kind_of(const Inst *in, AccessKind plain)
{
    switch (in->mod[C_SEMANTICS]) {
    case M_SEMANTICS_volatile:
    case M_SEMANTICS_relaxed:
    case M_SEMANTICS_acquire:
    case M_SEMANTICS_release: return plain == ACCESS_READ ? ACCESS_STRONG_READ : ACCESS_STRONG_WRITE;
    default: return plain;
    }
}

RUN(run_ld)
{
    Space space = exec_space(in);
    unsigned bytes = in->bits / 8u, n = in->count[0];
    const Arg *to = &in->arg[in->first[0]];
    AccessKind kind = kind_of(in, ACCESS_READ);
    FOR_LANES(w, l)
    {
        const uint8_t *from = exec_access(w, in, l, space, address_of(w, in, 1, l), bytes * n, kind, NULL);
        for (unsigned i = 0; i < n; i++) {
            if (to[i].slot == NO_SLOT)
                continue;
            uint64_t v = load_bits(from + i * bytes, bytes);
            if (in->is_signed && in->bits < 64)
                v = (uint64_t)((int64_t)(v << (64 - in->bits)) >> (64 - in->bits));
            w->slot[to[i].slot][l] = v & in->mask;
        }
    }
}

RUN(run_st)
{
    Space space = exec_space(in);
    unsigned bytes = in->bits / 8u, n = in->count[1];
    const Arg *from = &in->arg[in->first[1]];
    AccessKind kind = kind_of(in, ACCESS_WRITE);
    FOR_LANES(w, l)
    {
        uint8_t value[64];
        for (unsigned i = 0; i < n; i++)
            memcpy(value + i * bytes, &w->slot[from[i].slot][l], bytes);
        memcpy(exec_access(w, in, l, space, address_of(w, in, 0, l), bytes * n, kind, value), value, bytes * n);
    }
}

// ---- atomics ----

static uint64_t flush_f32(uint64_t bits) { return bits & 0x7f800000u ? bits : bits & 0x80000000u; }

static uint64_t add_floats(PtxType type, uint64_t a, uint64_t b)
{
    double x = float_widen(type, a), y = float_widen(type, b);
    if (type == T_F32) { // one rounding, in the format itself
        float r = (float)x + (float)y;
        return float_narrow(T_F32, (double)r, M_ROUND_rn);
    }
    if (type == T_F64)
        return float_narrow(T_F64, x + y, M_ROUND_rn);
    return float_narrow(type, float_fma_odd(x, 1, y), M_ROUND_rn);
}

static uint64_t atomic_result(const Inst *in, PtxType type, Space space, uint64_t old, uint64_t b, uint64_t c)
{
    bool is_float = ptx_types[type].cls == 'f';
    unsigned shift = 64u - in->bits;
    bool less = in->is_signed ? (int64_t)(b << shift) < (int64_t)(old << shift) : b < old;
    switch (in->mod[C_ATOMIC]) {
    case M_ATOMIC_and: return old & b;
    case M_ATOMIC_or: return old | b;
    case M_ATOMIC_xor: return old ^ b;
    case M_ATOMIC_exch: return b;
    case M_ATOMIC_cas: return old == b ? c : old;
    case M_ATOMIC_inc: return old >= b ? 0 : old + 1;
    case M_ATOMIC_dec: return old == 0 || old > b ? b : old - 1;
    case M_ATOMIC_min: return less ? b : old;
    case M_ATOMIC_max: return less ? old : b;
    default: break;
    }
    if (!is_float)
        return old + b;
    if (ptx_types[type].lanes == 2) {
        PtxType half = type == T_F16X2 ? T_F16 : T_BF16;
        return add_floats(half, old & 0xffff, b & 0xffff) | add_floats(half, old >> 16, b >> 16) << 16;
    }
    if (type == T_F32 && space != SPACE_SHARED) // documented: subnormals are flushed in global memory, kept in shared
        return flush_f32(add_floats(type, flush_f32(old), flush_f32(b)));
    return add_floats(type, old, b);
}

RUN(run_atom)
{
    PtxType type = (PtxType)in->type[0];
    unsigned bytes = in->bits / 8u;
    int m = in->op == OP_RED ? 0 : 1; // operand of the address
    const uint64_t *b = source(w, in, m + 1), *c = in->operands > m + 2 ? source(w, in, m + 2) : b;
    FOR_LANES(w, l)
    {
        uint64_t address = address_of(w, in, m, l);
        Space space = exec_space(in);
        uint8_t *at = exec_access(w, in, l, space, address, bytes, ACCESS_ATOMIC, NULL);
        if (space == SPACE_GENERIC && address - SHARED_WINDOW < WINDOW_SIZE)
            space = SPACE_SHARED;
        uint64_t old = load_bits(at, bytes), fresh = atomic_result(in, type, space, old, b[l] & in->mask, c[l] & in->mask);
        memcpy(at, &fresh, bytes);
        if (m && in->arg[0].slot != NO_SLOT)
            w->slot[in->arg[0].slot][l] = old;
    }
}

RUN(run_fence)
{
    if (in->mod[C_SCOPE] == M_SCOPE_cta)
        return; // orders within a block only: nothing that the checks rely on
    FOR_LANES(w, l)
    race_fence(w, l);
}

// ---- cp.async ----
//
// A copy may read and write at any time from its issue until it is waited for. Races are looked for at both ends; it lands when it
// is waited for, so who reads too early reads memory that nobody wrote, or with async=early at once.

static void move_copy(Warp *w, const AsyncCopy *copy, bool land)
{
    uint8_t value[16] = {0};
    uint64_t to = copy->to;
    Space space = SPACE_SHARED;
    unsigned step = copy->taken == copy->size ? copy->size : copy->taken % 4 == 0 ? 4 : 1;
    for (unsigned at = 0; at < copy->taken; at += step)
        memcpy(value + at, exec_access(w, copy->in, copy->lane, SPACE_GLOBAL, copy->from + at, step, ACCESS_READ, NULL), step);
    if (land) {
        memcpy(exec_access(w, copy->in, copy->lane, space, to, copy->size, ACCESS_WRITE, value), value, copy->size);
        return;
    }
    Place place = find_place(w, copy->in, copy->lane, &space, &to, copy->size, true);
    race_access(w, copy->in, copy->lane, space, to, copy->size, ACCESS_WRITE, place.bytes, value);
}

// All copies of the lane whose group is older than its last `keep` ones.
static void land_groups(Warp *w, uint32_t lane, uint32_t keep)
{
    size_t left = 0;
    for (size_t i = 0; i < w->copy_count; i++) {
        AsyncCopy *copy = &w->copies[i];
        if (copy->lane == lane && copy->group + keep < w->copy_group[lane])
            move_copy(w, copy, true);
        else
            w->copies[left++] = *copy;
    }
    w->copy_count = left;
}

RUN(run_cp_async)
{
    switch (in->mod[C_ASYNC]) {
    case M_ASYNC_commit_group:
        FOR_LANES(w, l)
        w->copy_group[l]++;
        return;
    case M_ASYNC_wait_group:
        FOR_LANES(w, l)
        land_groups(w, l, (uint32_t)source(w, in, 0)[l]);
        return;
    case M_ASYNC_wait_all:
        FOR_LANES(w, l)
        {
            w->copy_group[l]++;
            land_groups(w, l, 0);
        }
        return;
    default: break;
    }
    FOR_LANES(w, l)
    {
        uint64_t size = source(w, in, 2)[l], taken = in->operands > 3 ? source(w, in, 3)[l] : size;
        uint64_t to = address_of(w, in, 0, l), from = address_of(w, in, 1, l);
        if ((size != 4 && size != 8 && size != 16) || taken > size || (in->mod[C_CACHE] == M_CACHE_cg && size != 16))
            exec_violation(w, in, (int)l, CUDA_ERROR_ILLEGAL_INSTRUCTION, "copy of %llu bytes out of %llu", (unsigned long long)taken,
                           (unsigned long long)size);
        if (to % size || from % size)
            exec_violation(w, in, (int)l, CUDA_ERROR_MISALIGNED_ADDRESS, "asynchronous copy of %llu bytes from 0x%llx to 0x%llx",
                           (unsigned long long)size, (unsigned long long)from, (unsigned long long)to);
        AsyncCopy copy = {to, from, (uint8_t)size, (uint8_t)taken, (uint8_t)l, w->copy_group[l], in};
        move_copy(w, &copy, settings.early);
        if (settings.early)
            continue;
        if (w->copy_count == w->copy_room) {
            size_t room = w->copy_room ? 2 * w->copy_room : 256;
            AsyncCopy *grown = realloc(w->copies, room * sizeof *grown);
            if (!grown)
                exec_violation(w, in, (int)l, CUDA_ERROR_OUT_OF_MEMORY, "no memory for copies in flight");
            w->copies = grown;
            w->copy_room = room;
        }
        w->copies[w->copy_count++] = copy;
    }
}
