/*
 * The derivative of kiln_scan (loop.c).
 *
 * With KILN_REMAT=memory not all that the steps were given is kept of a long scan. It is cut into about as many pieces as a piece has steps. On
 * the way back it runs once more forward, which keeps what each piece begins with; then a scan back over pieces runs each of them once more, which
 * keeps what its own steps were given, and goes back through it. What is left over behind whole pieces is one more. Sums of cotangents go
 * from piece to piece, so they are added up in the order that they always have.
 */
#define KILN_NO_LOCATIONS
#include "ir/base/os.h"
#include "jit/options.h"
#include "runtime/gradient/loop.h"

#include <string.h>

typedef struct Pieces {
    const Work *w;
    int64_t n, steps, rest;        /* pieces, steps of each, steps behind them */
    kiln_tensor *first;            /* the number of the first step at work; NULL: 0 */
    bool keeps;                    /* what each step was given */
    int n_carry, n_xs, n_ys;       /* of the way back */
    uint32_t n_flowing, handed_on; /* carries of it: cotangents, then captured values */
} Pieces;

static kiln_tensor *step_number(const Pieces *p, kiln_tensor *i) { return p->first ? loop_sum(p->w, i, p->first) : i; }

/* One step back: the order of carries, xs and ys is that of scan_back. */
static void step_back(kiln_tensor *i, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **carry_out, kiln_tensor **y, void *user)
{
    const Pieces *p = user;
    const Work *w = p->w;
    Room room = loop_room(w);
    if (!room.at)
        return;
    uint32_t n = w->carries + w->xs, at = 0;
    kiln_tensor **in = take(&room, n + 1), **captured = take(&room, w->n_captured + 1), **out = take(&room, w->body->n_outputs + 1);
    kiln_tensor **of = take(&room, n + w->n_captured + 1), **grads = take(&room, n + w->n_captured + 1);
    kiln_tensor **cotangents = carry;
    Pairs with = {take(&room, w->body->n_outputs + 1), take(&room, w->body->n_outputs + 1), 0};
    in[0] = step_number(p, i);
    memcpy(in + 1, x, sizeof *in * n);
    for (uint32_t k = 0; k < w->carries; k++)
        at += flows(w->d->in[k]);
    uint32_t n_flowing = at, n_captured = 0;
    for (uint32_t k = 0; k < w->n_captured; k++)
        captured[k] = wanted(w, n + k) ? carry[n_flowing + n_captured++] : w->in[n + k];
    if (loop_inline_body(w, in, captured, out)) {
        at = 0;
        for (uint32_t k = 0; k < w->carries; k++)
            if (flows(w->d->in[k]))
                add_pair(&with, out[k], cotangents[at++]);
        at = n;
        for (uint32_t k = 0; k < w->ys && !w->d->of_stacked; k++)
            if (dtype_is_float((DType)w->d->type[w->carries + k].dtype))
                add_pair(&with, out[w->carries + k], x[at++]);
        int n_of = 0;
        for (uint32_t k = 0; k < w->carries; k++)
            if (flows(w->d->in[k]))
                of[n_of++] = in[1 + k];
        for (uint32_t k = w->carries; k < n; k++)
            if (wanted(w, k))
                of[n_of++] = in[1 + k];
        memcpy(of + n_of, carry + n_flowing, sizeof *of * n_captured);
        if (loop_differentiate(w, &with, n_of + (int)n_captured, of, grads)) {
            for (uint32_t k = 0; k < n_flowing; k++)
                carry_out[k] = w->d->of_stacked ? loop_sum(w, grads[k], x[n + k]) : grads[k];
            memcpy(y, grads + n_flowing, sizeof *grads * ((size_t)n_of - n_flowing));
            memcpy(carry_out + n_flowing, carry + n_flowing, sizeof *carry * n_captured);
            for (uint32_t k = 0; k < n_captured; k++)
                carry_out[n_flowing + n_captured + k] = loop_sum(w, carry[n_flowing + n_captured + k], grads[n_of + (int)k]);
        }
    }
    os_free(room.at);
}

/* A scan of the rule. `back`: against the direction of the user's. Inside of a body, too, those of a rule have none themselves yet. */
static bool scan_of(const Pieces *p, kiln_scan_body *body, int64_t length, bool back, int n_carry, kiln_tensor **init, kiln_tensor **last,
                    int n_xs, kiln_tensor **xs, int n_ys, kiln_tensor **ys)
{
    const DifferentiableBodies *d = p->w->d;
    const unsigned flags = d->node->attr.loop.reverse != back ? KILN_SCAN_REVERSE : 0;
    RtThread *t = d->r->thread;
    const uint8_t custom = t->custom;
    t->custom = INSIDE_RULE;
    kiln_status status =
        kiln_scan_at(body, length, flags, n_carry, init, last, n_xs, xs, n_ys, ys, (void *)(uintptr_t)p, d->r->loc.file, d->r->loc.line);
    t->custom = custom;
    return status == KILN_OK;
}

/* A step of the user's loop once more. */
static void step_again(kiln_tensor *i, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **carry_out, kiln_tensor **y, void *user)
{
    const Pieces *p = user;
    const Work *w = p->w;
    const uint32_t n = w->carries + w->xs;
    Room room = loop_room(w);
    if (!room.at)
        return;
    kiln_tensor **in = take(&room, n + 1), **out = take(&room, w->body->n_outputs + 1);
    in[0] = step_number(p, i);
    memcpy(in + 1, carry, sizeof *in * w->carries);
    memcpy(in + 1 + w->carries, x, sizeof *in * w->xs);
    if (loop_inline_body(w, in, w->in + n, out))
        memcpy(carry_out, out, sizeof *out * w->carries);
    if (p->keeps)
        memcpy(y, carry, sizeof *carry * w->carries);
    os_free(room.at);
}

static Pieces one_piece(const Pieces *p, kiln_tensor *number, bool keeps)
{
    Pieces one = *p;
    one.first = kiln_mul(number, kiln_int(p->steps));
    one.keeps = keeps;
    return one;
}

static void piece_again(kiln_tensor *number, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **carry_out, kiln_tensor **y, void *user)
{
    const Pieces one = one_piece(user, number, false);
    const int carries = (int)one.w->carries;
    memcpy(y, carry, sizeof *carry * one.w->carries);
    (void)scan_of(&one, step_again, one.steps, false, carries, carry, carry_out, (int)one.w->xs, x, 0, NULL);
}

/* Through so many steps forward, which keeps what they were given, and back. xs: what the first one was given, then as those of scan_back. */
static bool forth_and_back(const Pieces *p, int64_t steps, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **carry_out, kiln_tensor **y)
{
    const Work *w = p->w;
    const int carries = (int)w->carries;
    Room room = loop_room(w);
    if (!room.at)
        return false;
    kiln_tensor **xs = take(&room, (size_t)p->n_xs + 1), **end = take(&room, w->carries + 1);
    memcpy(xs, x, sizeof *xs * (size_t)p->n_xs);
    bool good = scan_of(p, step_again, steps, false, carries, x, end, (int)w->xs, x + carries, carries, xs) &&
                scan_of(p, step_back, steps, true, p->n_carry, carry, carry_out, p->n_xs, xs, p->n_ys, y);
    if (good)
        memcpy(carry_out + p->n_flowing, carry + p->n_flowing, sizeof *carry * p->handed_on);
    os_free(room.at);
    return good;
}

static void piece_back(kiln_tensor *number, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **carry_out, kiln_tensor **y, void *user)
{
    const Pieces one = one_piece(user, number, true);
    (void)forth_and_back(&one, one.steps, carry, x, carry_out, y);
}

/* Of what has a slice for each step: those of the pieces, [n, steps, ..], or of the rest. */
static kiln_tensor *slices(const Pieces *p, kiln_tensor *x, bool rest)
{
    const int64_t end = p->n * p->steps;
    kiln_shape shape = {.rank = kiln_rank(x) + 1, .dim = {p->n, p->steps}};
    if (rest)
        return kiln_slice_axis(x, 0, end, end + p->rest, 1);
    for (int a = 1; a < shape.rank - 1; a++)
        shape.dim[a + 1] = kiln_dim(x, a);
    return kiln_reshape(p->rest ? kiln_slice_axis(x, 0, 0, end, 1) : x, shape);
}

/* Both together again. */
static kiln_tensor *joined(const Pieces *p, kiln_tensor *pieces, kiln_tensor *rest)
{
    kiln_shape shape = {.rank = kiln_rank(pieces) - 1, .dim = {p->n * p->steps}};
    for (int a = 1; a < shape.rank; a++)
        shape.dim[a] = kiln_dim(pieces, a + 1);
    kiln_tensor *both[] = {kiln_reshape(pieces, shape), rest};
    return rest ? kiln_concat(both, 2, 0) : both[0];
}

/* What scan_back's loop does, piece by piece. xs[0..carries) are not read. */
static bool back_in_pieces(Pieces *p, kiln_tensor **init, kiln_tensor **last, kiln_tensor **xs, kiln_tensor **ys)
{
    const Work *w = p->w;
    const bool reverse = w->d->node->attr.loop.reverse, rest_is_last = !reverse;
    Room room = loop_room(w);
    if (!room.at)
        return false;
    const int carries = (int)w->carries, n_xs = p->n_xs;
    kiln_tensor **of_pieces = take(&room, (size_t)n_xs + 1), **of_rest = take(&room, (size_t)n_xs + 1);
    kiln_tensor **middle = take(&room, (size_t)p->n_carry + 1), **ys_of_rest = take(&room, (size_t)p->n_ys + 1),
                **end = take(&room, w->carries + 1);
    for (int k = carries; k < n_xs; k++) {
        of_pieces[k] = slices(p, xs[k], false);
        of_rest[k] = p->rest ? slices(p, xs[k], true) : NULL;
    }
    Pieces rest = *p;
    rest.first = kiln_int(p->n * p->steps);
    rest.keeps = false;
    bool good = true;
    kiln_tensor **before = w->in; /* what the pieces begin with, all together */
    memcpy(of_rest, w->in, sizeof *of_rest * w->carries);
    if (p->rest && !rest_is_last) {
        good = scan_of(&rest, step_again, p->rest, false, carries, w->in, end, (int)w->xs, of_rest + carries, 0, NULL);
        before = end;
    }
    kiln_tensor **after = take(&room, w->carries + 1);
    good = good && scan_of(p, piece_again, p->n, false, carries, before, after, (int)w->xs, of_pieces + carries, carries, of_pieces);
    if (rest_is_last)
        memcpy(of_rest, after, sizeof *of_rest * w->carries);
    rest.keeps = true;
    if (p->rest && rest_is_last) {
        good = good && forth_and_back(&rest, p->rest, init, of_rest, middle, ys_of_rest);
        init = middle;
    }
    kiln_tensor **to = p->rest && !rest_is_last ? middle : last;
    good = good && scan_of(p, piece_back, p->n, true, p->n_carry, init, to, n_xs, of_pieces, p->n_ys, ys);
    if (p->rest && !rest_is_last && good) {
        memcpy(middle + p->n_flowing, init + p->n_flowing, sizeof *init * p->handed_on);
        good = forth_and_back(&rest, p->rest, middle, of_rest, last, ys_of_rest);
    }
    for (int k = 0; k < p->n_ys && good; k++)
        ys[k] = joined(p, ys[k], p->rest ? ys_of_rest[k] : NULL);
    os_free(room.at);
    return good;
}

/* Is a scan cut into pieces? Those of equal length without a rest where there is such a number near the root. */
static bool is_cut(const Work *w, Pieces *p)
{
    enum { LEAST = 16 };
    const int64_t length = w->d->node->facts[0];
    bool cut = option_int(OPT_REMAT) == REMAT_MEMORY && !w->d->of_stacked && w->carries && length >= LEAST;
    for (uint32_t k = 0; k < w->xs; k++)
        cut &= w->d->in[w->carries + k]->rank < MAX_RANK;
    for (uint32_t k = 0; k < w->ys; k++)
        cut &= w->d->type[w->carries + k].rank < MAX_RANK;
    if (!cut)
        return false;
    int64_t root = 1;
    while (root * root < length)
        root++;
    p->steps = root;
    for (int64_t steps = root; steps <= 2 * root; steps++)
        if (length % steps == 0) {
            p->steps = steps;
            break;
        }
    p->n = length / p->steps;
    p->rest = length % p->steps;
    return true;
}

void scan_back(kiln_tensor **in, kiln_tensor **out, kiln_tensor **cotangents, kiln_tensor **grads, void *user)
{
    const DifferentiableBodies *d = user;
    const RtNode *node = d->node;
    Work w = {.d = d, .in = in, .body = &bodies_of(node)->body[0], .carries = node->attr.loop.carries, .xs = node->attr.loop.xs};
    w.ys = d->n_results - 2 * w.carries;
    uint32_t n = w.carries + w.xs;
    w.n_captured = node->n_in - n;
    Room room = loop_room(&w);
    if (!room.at)
        return;
    int n_carry = 0, n_xs = 0, n_ys = 0;
    kiln_tensor **init = take(&room, n + 2 * (size_t)w.n_captured + 1), **last = take(&room, n + 2 * (size_t)w.n_captured + 1);
    kiln_tensor **xs = take(&room, n + w.ys + 1), **ys = take(&room, w.xs + 1);
    for (uint32_t k = 0; k < w.carries; k++)
        if (flows(d->in[k]))
            init[n_carry++] = d->of_stacked ? loop_zeros_like(&w, d->in[k]) : cotangents[k];
    uint32_t n_flowing = (uint32_t)n_carry;
    for (uint32_t k = 0; k < w.n_captured; k++)
        if (wanted(&w, n + k))
            init[n_carry++] = in[n + k];
    uint32_t n_captured = (uint32_t)n_carry - n_flowing;
    for (uint32_t k = 0; k < w.n_captured; k++)
        if (wanted(&w, n + k))
            init[n_carry++] = loop_zeros_like(&w, d->in[n + k]);
    for (uint32_t k = 0; k < w.carries; k++)
        xs[n_xs++] = out[w.carries + w.ys + k];
    for (uint32_t k = 0; k < w.xs; k++) {
        xs[n_xs++] = in[w.carries + k];
        n_ys += wanted(&w, w.carries + k);
    }
    const uint32_t first = d->of_stacked ? w.ys : 0, n_seeds = d->of_stacked ? w.carries : w.ys;
    for (uint32_t k = first; k < first + n_seeds; k++)
        if (dtype_is_float((DType)d->type[w.carries + k].dtype))
            xs[n_xs++] = cotangents[w.carries + k];
    Pieces p = {.w = &w, .n_carry = n_carry, .n_xs = n_xs, .n_ys = n_ys, .n_flowing = n_flowing, .handed_on = n_captured};
    if (is_cut(&w, &p) ? back_in_pieces(&p, init, last, xs, ys)
                       : scan_of(&p, step_back, node->facts[0], true, n_carry, init, last, n_xs, xs, n_ys, ys)) {
        uint32_t at = 0, of_ys = 0, of_captured = n_flowing + n_captured;
        for (uint32_t k = 0; k < node->n_in; k++)
            if (k < w.carries)
                grads[k] = flows(d->in[k]) ? last[at++] : NULL;
            else if (wanted(&w, k))
                grads[k] = k < n ? ys[of_ys++] : last[of_captured++];
    }
    os_free(room.at);
}
