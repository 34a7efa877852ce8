/* Looking for the first value that is not finite: see finite.h. */
#define KILN_NO_LOCATIONS
#include "runtime/mode/finite.h"
#include "ir/base/os.h"
#include "ir/base/path.h"
#include "runtime/device/device.h"
#include "runtime/gradient/custom.h"
#include "runtime/gradient/pointer_map.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Of a place: 2 * the element's number + 1 if it is a NaN. */
#define ALL_FINITE INT64_MAX

enum { NONE = NOT_MAPPED };

typedef struct Check {
    RtNode *value; /* references, until the next sync point */
    RtNode *place; /* NULL: it is known */
    bool finite;   /* a number's; a check's, once it is computed */
    bool given;    /* it was there before: nobody's fault */
    uint32_t n_from, *from;
} Check;

struct Finite {
    Arena arena;
    VEC(Check) check; /* in the order of recording */
    PointerMap at;    /* of each value */
};

static Finite *finite_of(const kiln_mode *mode) { return mode->state; }

/* Lets go of all checks. */
static void clear(Finite *f)
{
    for (size_t i = 0; i < f->check.n; i++) {
        node_release(f->check.at[i].value);
        node_release(f->check.at[i].place);
    }
    arena_free(&f->arena);
    memset(&f->check, 0, sizeof f->check);
    f->at = (PointerMap){0};
}

/* ---- recording ---- */

/* The place of the first element that is not finite, as a node; a reference. An error is kept and jumps. */
static RtNode *place_of(Finite *f, const Rec *r, RtNode *x)
{
    Rec q = rec_begin(r->api, r->loc.file, r->loc.line);
    q.loc = r->loc;
    RtNode *number = x->rank ? rec_iota(&q, node_elements(x)) : rec_int(&q, DT_I64, 0);
    if (x->rank > 1)
        number = rec_split(&q, number, 0, x->rank, x->dim);
    RtNode *twice = rec_ew2(&q, OP_MUL, number, rec_int(&q, DT_I64, 2));
    RtNode *told = rec_ew2(&q, OP_ADD, twice, rec_cast(&q, rec_ew1(&q, OP_ISNAN, x), DT_I64));
    RtNode *place = rec_ew3(&q, OP_WHERE, rec_ew1(&q, OP_ISFINITE, x), rec_int(&q, DT_I64, ALL_FINITE), told);
    if (x->rank && place)
        place = rec_reduce(&q, OP_REDUCE_MIN, place, (uint8_t)((1u << x->rank) - 1), false);
    if (place)
        node_retain(place);
    rec_end(&q, NULL);
    if (!place)
        longjmp(*f->arena.oom, 1);
    return place;
}

static uint32_t add(Finite *f, RtNode *value, Check check)
{
    uint32_t at = (uint32_t)f->check.n;
    check.value = value;
    VEC_PUSH(&f->arena, f->check, check);
    node_retain(value);
    pointer_map_put(&f->arena, &f->at, value, at);
    return at;
}

/* The check of an operand; NONE: it is finite, whatever its elements are. */
static uint32_t check_of(Finite *f, const Rec *r, RtNode *x)
{
    uint32_t at = pointer_map_get(&f->at, x);
    if (at != NOT_MAPPED || !dtype_is_float(node_dtype(x)) || node_elements(x) == 0)
        return at;
    if (x->op == OP_SCALAR && node_pending(x))
        return add(f, x, (Check){.finite = isfinite(scalar_to_double(node_dtype(x), x->scalar)), .given = true});
    at = add(f, x, (Check){.given = true});
    f->check.at[at].place = place_of(f, r, x);
    return at;
}

typedef struct Recorded {
    Finite *finite;
    const Rec *rec;
    const OpCall *call;
    RtNode *node;
} Recorded;

static void check_result(const Recorded *x)
{
    Finite *f = x->finite;
    const OpCall *call = x->call;
    if (op_class(call->op) == CLS_VIEW && call->n_in == 1) { /* the same elements */
        uint32_t at = check_of(f, x->rec, call->in[0]);
        if (at != NONE)
            pointer_map_put(&f->arena, &f->at, x->node, at);
        return;
    }
    uint32_t *from = ARENA_ARRAY(&f->arena, uint32_t, call->n_in), n = 0;
    for (uint32_t k = 0; k < call->n_in; k++) {
        from[n] = check_of(f, x->rec, call->in[k]);
        n += from[n] != NONE;
    }
    uint32_t at = add(f, x->node, (Check){.from = from, .n_from = n});
    f->check.at[at].place = place_of(f, x->rec, x->node);
}

RtNode *finite_op(Rec *r, kiln_mode *mode, const OpCall *call)
{
    RtNode *node = mode_next(r, call);
    bool look = node && dtype_is_float(node_dtype(node)) && node_elements(node) > 0;
    if (!look || trace_current || r->thread->custom >= INSIDE_RULE) /* in a trace, a rule or a body there are no values */
        return node;
    const Recorded recorded = {finite_of(mode), r, call, node};
    kiln_mode *below = r->thread->mode;
    jmp_buf no_memory;
    bool worked = true;
    r->thread->mode = NULL; /* the checks themselves are nothing to look at */
    recorded.finite->arena.oom = &no_memory;
    if (setjmp(no_memory) == 0)
        check_result(&recorded);
    else
        worked = false;
    r->thread->mode = below;
    return worked && !r->status ? node : rec_fail(r, ST_OUT_OF_MEMORY, "out of memory");
}

/* ---- sync points ---- */

static const kiln_mode *next_finite(const kiln_mode *mode)
{
    while (mode && !mode_is(mode, LAYER_FINITE))
        mode = mode->below;
    return mode;
}

Status finite_roots(const RtThread *t, RtNode *const *nodes, uint32_t *n, RtNode ***all)
{
    size_t more = 0;
    *all = NULL;
    for (const kiln_mode *mode = next_finite(t->mode); mode; mode = next_finite(mode->below))
        more += finite_of(mode)->check.n;
    if (!more)
        return ST_OK;
    if (!(*all = os_alloc(sizeof **all * (*n + more))))
        return fail(ST_OUT_OF_MEMORY, "out of memory");
    memcpy(*all, nodes, sizeof *nodes * *n);
    for (const kiln_mode *mode = next_finite(t->mode); mode; mode = next_finite(mode->below))
        for (size_t i = 0; i < finite_of(mode)->check.n; i++)
            if (finite_of(mode)->check.at[i].place)
                (*all)[(*n)++] = finite_of(mode)->check.at[i].place;
    return ST_OK;
}

/* "kiln_log (net.c:42) made a NaN of finite operands, first at [3,17]" */
static Status tell(const RtNode *value, int64_t place)
{
    char where[320] = "", at[MAX_RANK * 24] = "[";
    int64_t number = place / 2, inner = node_elements(value);
    size_t used = 1;
    if (value->loc.file)
        snprintf(where, sizeof where, " (%s:%d)", path_name(value->loc.file), value->loc.line);
    for (int d = 0; d < value->rank; d++) {
        inner /= value->dim[d];
        used += (size_t)snprintf(at + used, sizeof at - used, "%s%" PRId64, d ? "," : "", number / inner);
        number %= inner;
    }
    return fail(ST_INVALID, "%s%s made %s of finite operands, first at %s]", value->api ? value->api : op_name((Op)value->op), where,
                place & 1 ? "a NaN" : "an infinity", at);
}

static Status judge(Finite *f)
{
    for (size_t i = 0; i < f->check.n; i++) {
        Check *check = &f->check.at[i];
        int64_t place = ALL_FINITE;
        bool blameless = check->given;
        if (!check->place)
            continue;
        Status status = device_read(atomic_load(&check->place->storage), check->place->data, &place, sizeof place);
        blameless |= status == ST_INDEX; /* told to who asks for the value */
        if (status != ST_OK && status != ST_INDEX)
            return status;
        check->finite = status == ST_OK && place == ALL_FINITE;
        for (uint32_t k = 0; k < check->n_from && !blameless; k++)
            blameless = !f->check.at[check->from[k]].finite;
        if (!check->finite && !blameless)
            return tell(check->value, place);
    }
    return ST_OK;
}

void finite_forget(const RtThread *t)
{
    for (const kiln_mode *mode = next_finite(t->mode); mode; mode = next_finite(mode->below))
        clear(finite_of(mode));
}

Status finite_judge(const RtThread *t)
{
    Status status = ST_OK;
    for (const kiln_mode *mode = next_finite(t->mode); mode && status == ST_OK; mode = next_finite(mode->below))
        status = judge(finite_of(mode));
    finite_forget(t);
    return status;
}

/* ---- the layer ---- */

void finite_end(kiln_mode *mode)
{
    clear(finite_of(mode));
    os_free(mode->state);
}

kiln_mode *kiln_finite_check_push(void)
{
    static const char api[] = "kiln_finite_check_push";
    const Loc nowhere = {NULL, 0};
    if (trace_current) {
        (void)error_keep(fail(ST_INVALID, "inside a kiln_function there are no values to look at: push it around the call"), api, nowhere);
        return NULL;
    }
    Finite *f = os_calloc(1, sizeof *f);
    kiln_mode *mode = f ? mode_push(LAYER_FINITE, nowhere) : NULL;
    if (!mode) {
        os_free(f);
        (void)error_keep(fail(ST_OUT_OF_MEMORY, "out of memory"), api, nowhere);
        return NULL;
    }
    arena_init(&f->arena, NULL);
    mode->state = f;
    return mode;
}
