// Instructions in which lanes see each other's registers: shfl, vote, match, redux, elect.
//
// They exchange values and wait for each other; they do not order memory accesses (that is bar.warp.sync).
#include "tests/cuda_driver/exec.h"

#include <string.h>

static void act_shfl(Warp *w, const Inst *in, uint32_t lanes)
{
    const uint64_t *a = source(w, in, 1), *b = source(w, in, 2), *c = source(w, in, 3);
    const Arg *to = &in->arg[in->first[0]], *flag = in->count[0] > 1 ? to + 1 : NULL;
    Slot value = {0}, valid = {0};
    FOR_LANES(w, l)
    {
        uint32_t clamp = c[l] & 31, segment = c[l] >> 8 & 31, n = b[l] & 31;
        uint32_t most = (l & segment) | (clamp & ~segment), least = l & segment, from;
        bool ok;
        switch (in->mod[C_SHUFFLE]) {
        case M_SHUFFLE_up: // here the clamp is the lowest lane
            from = l - n;
            ok = (int32_t)from >= (int32_t)most;
            break;
        case M_SHUFFLE_down:
            from = l + n;
            ok = from <= most;
            break;
        case M_SHUFFLE_bfly:
            from = l ^ n;
            ok = from <= most;
            break;
        default:
            from = least | (n & ~segment);
            ok = from <= most;
            break;
        }
        if (!ok)
            from = l;
        if (!(lanes >> from & 1))
            exec_violation(w, in, (int)l, CUDA_ERROR_LAUNCH_FAILED, "shuffle from lane %u, which does not take part", from);
        value[l] = a[from] & in->mask;
        valid[l] = ok;
    }
    FOR_LANES(w, l)
    {
        if (to->slot != NO_SLOT)
            w->slot[to->slot][l] = value[l];
        if (flag && flag->slot != NO_SLOT)
            w->slot[flag->slot][l] = valid[l];
    }
}

RUN(run_shfl) { exec_collective(w, in, 4, act_shfl); }

static void act_vote(Warp *w, const Inst *in, uint32_t lanes)
{
    const Arg *p = &in->arg[in->first[1]];
    uint32_t yes = 0;
    FOR_LANES(w, l)
    yes |= (uint32_t)((w->slot[p->slot][l] != 0) != p->negate) << l;
    uint64_t r;
    switch (in->mod[C_VOTE]) {
    case M_VOTE_all: r = yes == lanes; break;
    case M_VOTE_any: r = yes != 0; break;
    case M_VOTE_uni: r = yes == lanes || yes == 0; break;
    default: r = yes; break;
    }
    uint64_t *out = result(w, in, 0);
    FOR_LANES(w, l)
    out[l] = r;
}

RUN(run_vote) { exec_collective(w, in, 2, act_vote); }

static void act_match(Warp *w, const Inst *in, uint32_t lanes)
{
    const uint64_t *a = source(w, in, 1);
    const Arg *to = &in->arg[in->first[0]], *flag = in->count[0] > 1 ? to + 1 : NULL;
    bool all = in->mod[C_VOTE] == M_VOTE_all;
    uint32_t same[LANES] = {0};
    FOR_LANES(w, l)
    for (uint32_t o = 0; o < LANES; o++)
        same[l] |= (uint32_t)(lanes >> o & 1 && a[o] == a[l]) << o;
    FOR_LANES(w, l)
    {
        bool everywhere = same[l] == lanes;
        if (to->slot != NO_SLOT)
            w->slot[to->slot][l] = all && !everywhere ? 0 : same[l];
        if (flag && flag->slot != NO_SLOT)
            w->slot[flag->slot][l] = everywhere;
    }
}

RUN(run_match) { exec_collective(w, in, 2, act_match); }

static void act_redux(Warp *w, const Inst *in, uint32_t lanes)
{
    (void)lanes;
    const uint64_t *a = source(w, in, 1);
    bool first = true;
    uint64_t r = 0;
    FOR_LANES(w, l)
    {
        uint64_t v = in->is_signed ? (uint64_t)(int64_t)(int32_t)a[l] : a[l];
        bool less = in->is_signed ? (int64_t)v < (int64_t)r : v < r;
        switch (in->mod[C_ATOMIC]) {
        case M_ATOMIC_and: r = first ? v : r & v; break;
        case M_ATOMIC_or: r |= v; break;
        case M_ATOMIC_xor: r ^= v; break;
        case M_ATOMIC_min: r = first || less ? v : r; break;
        case M_ATOMIC_max: r = first || !less ? v : r; break;
        default: r += v; break;
        }
        first = false;
    }
    uint64_t *out = result(w, in, 0);
    FOR_LANES(w, l)
    out[l] = r & in->mask;
}

RUN(run_redux) { exec_collective(w, in, 2, act_redux); }

static void act_elect(Warp *w, const Inst *in, uint32_t lanes)
{
    const Arg *to = &in->arg[in->first[0]], *flag = in->count[0] > 1 ? to + 1 : NULL;
    uint32_t leader = (uint32_t)__builtin_ctz(lanes);
    FOR_LANES(w, l)
    {
        if (to->slot != NO_SLOT)
            w->slot[to->slot][l] = leader;
        if (flag && flag->slot != NO_SLOT)
            w->slot[flag->slot][l] = l == leader;
    }
}

RUN(run_elect) { exec_collective(w, in, 1, act_elect); }

RUN(run_activemask)
{
    uint64_t *out = result(w, in, 0);
    FOR_LANES(w, l)
    out[l] = w->mask;
}
