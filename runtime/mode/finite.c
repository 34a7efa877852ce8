/*
 * Looking for the first value that is not finite: see finite.h.
 *
 * In the body of a loop or branch the checks of its ops are nodes of the body, and come together in one more result of it, the report: i64
 * of [id, place, iteration at depth 1, at depth 2, ...], where id says which op was the first, -1: none was. A loop carries it from step to
 * step. An id is the number of an op as it is told (Told), so that what is recorded again and again has the ids that it had.
 */
#define KILN_NO_LOCATIONS
#include "runtime/mode/finite.h"
#include "ir/base/hash.h"
#include "ir/base/os.h"
#include "ir/base/path.h"
#include "ir/body.h"
#include "runtime/device/device.h"
#include "runtime/gradient/custom.h"
#include "ir/base/pointer_map.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Of a place: 2 * the element's number + 1 if it is a NaN. */
#define ALL_FINITE INT64_MAX

enum { NONE = NOT_MAPPED, REPORT_ID = 0, REPORT_PLACE, REPORT_ITERATIONS, REPORT_WORDS = REPORT_ITERATIONS + MAX_BODY_DEPTH };

typedef struct Check {
    RtNode *value; /* references, until the next sync point */
    RtNode *place; /* NULL: it is known */
    bool finite;   /* a number's; a check's, once it is computed */
    bool given;    /* it was there before: nobody's fault */
    bool report;   /* of a loop or branch: value and place are both its report */
    uint32_t n_from, *from;
} Check;

/* An op as it is told. */
typedef struct Told {
    const char *api;
    Loc loc;
    Op op;
    Shape type;
} Told;

typedef struct Finite Finite;

struct FiniteChecks {
    Finite *of; /* NULL: it is gone */
    Arena arena;
    VEC(Check) check; /* in the order of recording */
    PointerMap at;    /* of each value */
    uint32_t body;    /* of a body: its id, and the checks of the one around it */
    FiniteChecks *outer;
};

enum { BUCKETS = 256 };
typedef struct KnownOp {
    Told told;
    uint32_t next; /* of its bucket: a number + 1 */
} KnownOp;

struct Finite {
    FiniteChecks now;     /* of what is recorded outside of bodies, until the next sync point */
    FiniteChecks *inside; /* of the innermost body that is recorded; NULL: there is none */
    Arena arena;          /* until the layer is popped: */
    VEC(KnownOp) op;      /* of bodies, by id */
    uint32_t bucket[BUCKETS];
};

static Finite *finite_of(const kiln_mode *mode) { return mode->state; }

/* Lets go of all checks. */
static void clear(FiniteChecks *f)
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
static RtNode *place_of(FiniteChecks *f, const Rec *r, RtNode *x)
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

static uint32_t add(FiniteChecks *f, RtNode *value, Check check)
{
    uint32_t at = (uint32_t)f->check.n;
    check.value = value;
    VEC_PUSH(&f->arena, f->check, check);
    node_retain(value);
    pointer_map_put(&f->arena, &f->at, value, at);
    return at;
}

/* The check of an operand; NONE: it is finite, whatever its elements are. */
static uint32_t check_of(FiniteChecks *f, const Rec *r, RtNode *x)
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
    FiniteChecks *into;
    const Rec *rec;
    const OpCall *call;
    RtNode *node;
} Recorded;

static void check_result(const Recorded *x)
{
    FiniteChecks *f = x->into;
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

/* Where what is recorded now is checked; NULL: it is not. In a trace, or a rule, there are no values. */
static FiniteChecks *checks_of(const RtThread *t, Finite *f)
{
    bool here = f->inside && t->loop && f->inside->body == t->loop->id && t->custom == INSIDE_BODY;
    return trace_current ? NULL : here ? f->inside : t->custom >= INSIDE_RULE ? NULL : &f->now;
}

/* `work` with the memory of `into`, seen by no layer: the checks themselves are nothing to look at. false: an error is kept. */
static bool unseen(Rec *r, FiniteChecks *into, void (*work)(const Recorded *), const Recorded *with)
{
    kiln_mode *below = r->thread->mode;
    jmp_buf no_memory;
    bool worked = true;
    r->thread->mode = NULL;
    into->arena.oom = &no_memory;
    if (setjmp(no_memory) == 0)
        work(with);
    else
        worked = false;
    r->thread->mode = below;
    if (!worked && !r->status)
        rec_fail(r, ST_OUT_OF_MEMORY, "out of memory");
    return !r->status;
}

static Status judge(Finite *f);

/* With mode=eager each op is a sync point and told there: who asks for its value later has nothing to compute. false: an error is kept. */
static bool passes(Rec *r, Finite *f, const FiniteChecks *into)
{
    Status status = ST_OK;
    if (into != &f->now || !rec_is_eager(r))
        return true;
    for (size_t i = 0; i < f->now.check.n && status == ST_OK; i++)
        if (f->now.check.at[i].place)
            status = eval_nodes_on(r->device, &f->now.check.at[i].place, 1, r->api, r->loc);
    if (status == ST_OK)
        status = judge(f);
    clear(&f->now);
    if (status != ST_OK)
        rec_failed(r, status);
    return status == ST_OK;
}

RtNode *finite_op(Rec *r, kiln_mode *mode, const OpCall *call)
{
    RtNode *node = mode_next(r, call);
    FiniteChecks *into = checks_of(r->thread, finite_of(mode));
    if (!node || !into || !dtype_is_float(node_dtype(node)) || node_elements(node) == 0)
        return node;
    const Recorded recorded = {into, r, call, node};
    return unseen(r, into, check_result, &recorded) && passes(r, finite_of(mode), into) ? node : NULL;
}

/* ---- sync points ---- */

static const kiln_mode *next_finite(const kiln_mode *mode)
{
    while (mode && !mode_is(mode, LAYER_FINITE))
        mode = mode->below;
    return mode;
}

bool finite_pushed(const RtThread *t) { return next_finite(t->mode) != NULL; }

Status finite_roots(const RtThread *t, RtNode *const *nodes, uint32_t *n, RtNode ***all)
{
    size_t more = 0;
    *all = NULL;
    for (const kiln_mode *mode = next_finite(t->mode); mode; mode = next_finite(mode->below))
        more += finite_of(mode)->now.check.n;
    if (!more)
        return ST_OK;
    if (!(*all = os_alloc(sizeof **all * (*n + more))))
        return fail(ST_OUT_OF_MEMORY, "out of memory");
    memcpy(*all, nodes, sizeof *nodes * *n);
    for (const kiln_mode *mode = next_finite(t->mode); mode; mode = next_finite(mode->below))
        for (size_t i = 0; i < finite_of(mode)->now.check.n; i++)
            if (finite_of(mode)->now.check.at[i].place)
                (*all)[(*n)++] = finite_of(mode)->now.check.at[i].place;
    return ST_OK;
}

static Told told_of(const RtNode *node)
{
    Told told;
    memset(&told, 0, sizeof told); /* it is compared by its bytes */
    told.api = node->api;
    told.loc.file = node->loc.file;
    told.loc.line = node->loc.line;
    told.op = (Op)node->op;
    told.type.rank = node->rank;
    memcpy(told.type.dim, node->dim, sizeof *node->dim * node->rank);
    return told;
}

static const char *place_text(Loc loc, char text[320])
{
    text[0] = 0;
    if (loc.file)
        snprintf(text, 320, " (%s:%d)", path_name(loc.file), loc.line);
    return text;
}

/* "kiln_log (net.c:42) made a NaN of finite operands, first at [3,17]" and what `where` says */
static Status tell(const Told *told, int64_t place, const char *where)
{
    char text[320], at[SHAPE_TEXT];
    return fail(ST_INVALID, "%s%s made %s of finite operands, first at %s%s", told->api ? told->api : op_name(told->op),
                place_text(told->loc, text), place & 1 ? "a NaN" : "an infinity", index_text(&told->type, place / 2, at), where);
}

/* ", in iteration 4 of kiln_scan (net.c:50)": of loops in loops the outermost first. */
static Status tell_report(const Finite *f, const RtNode *body, const int64_t *report)
{
    char text[512] = "", loc[320];
    size_t used = 0;
    for (int k = REPORT_ITERATIONS; k < REPORT_WORDS; k++)
        if (report[k] >= 0)
            used += (size_t)snprintf(text + used, sizeof text - used, "%s%" PRId64, used ? ", " : ", in iteration ", report[k]);
    snprintf(text + used, sizeof text - used, "%s%s%s", used ? " of " : ", in ", body->api ? body->api : "a body",
             place_text(body->loc, loc));
    return tell(&f->op.at[report[REPORT_ID]].told, report[REPORT_PLACE], text);
}

static Status judge(Finite *f)
{
    for (size_t i = 0; i < f->now.check.n; i++) {
        Check *check = &f->now.check.at[i];
        int64_t word[REPORT_WORDS] = {ALL_FINITE};
        bool blameless = check->given;
        if (!check->place)
            continue;
        size_t bytes = check->report ? sizeof word : sizeof *word;
        Status status = device_read(atomic_load(&check->place->storage), check->place->data, word, bytes);
        blameless |= status == ST_INDEX; /* told to who asks for the value */
        if (status != ST_OK && status != ST_INDEX)
            return status;
        if (check->report && !blameless && word[REPORT_ID] >= 0)
            return tell_report(f, check->value, word);
        check->finite = status == ST_OK && word[0] == ALL_FINITE;
        for (uint32_t k = 0; k < check->n_from && !blameless; k++)
            blameless = !f->now.check.at[check->from[k]].finite;
        if (!check->finite && !blameless && !check->report) {
            const Told told = told_of(check->value);
            return tell(&told, word[0], "");
        }
    }
    return ST_OK;
}

void finite_forget(const RtThread *t)
{
    for (const kiln_mode *mode = next_finite(t->mode); mode; mode = next_finite(mode->below))
        clear(&finite_of(mode)->now);
}

Status finite_judge(const RtThread *t)
{
    Status status = ST_OK;
    for (const kiln_mode *mode = next_finite(t->mode); mode && status == ST_OK; mode = next_finite(mode->below))
        status = judge(finite_of(mode));
    finite_forget(t);
    return status;
}

/* ---- bodies ---- */

bool finite_watches(const RtThread *t)
{
    bool watches = !trace_current && next_finite(t->mode);
    for (const LoopBody *loop = t->loop; loop && watches; loop = loop->outer)
        watches = !loop->again;
    return watches;
}

FiniteChecks *finite_body_begin(Rec *r)
{
    Finite *f = finite_of(next_finite(r->thread->mode));
    FiniteChecks *body = os_calloc(1, sizeof *body);
    if (!body) {
        rec_fail(r, ST_OUT_OF_MEMORY, "out of memory");
        return NULL;
    }
    arena_init(&body->arena, NULL);
    body->of = f;
    body->body = r->thread->loop->id;
    body->outer = f->inside;
    f->inside = body;
    return body;
}

void finite_body_end(FiniteChecks **body)
{
    if (!*body)
        return;
    if ((*body)->of)
        (*body)->of->inside = (*body)->outer;
    clear(*body);
    os_free(*body);
}

/* The number of an op as it is told. */
static uint32_t id_of(Finite *f, jmp_buf *no_memory, const RtNode *node)
{
    const Told told = told_of(node);
    uint32_t *bucket = &f->bucket[hash64(&told, sizeof told) % BUCKETS];
    for (uint32_t at = *bucket; at; at = f->op.at[at - 1].next)
        if (memcmp(&f->op.at[at - 1].told, &told, sizeof told) == 0)
            return at - 1;
    f->arena.oom = no_memory;
    VEC_PUSH(&f->arena, f->op, ((KnownOp){told, *bucket}));
    *bucket = (uint32_t)f->op.n;
    return *bucket - 1;
}

static RtNode *filled(Rec *r, int64_t value) { return rec_expand(r, rec_int(r, DT_I64, value), 1, (const int64_t[]){REPORT_WORDS}); }

/* Does a report tell something? */
static RtNode *tells(Rec *r, RtNode *report)
{
    RtNode *id = rec_drop(r, rec_slice(r, report, 0, REPORT_ID, 1, 1), 1);
    return rec_ew2(r, OP_GE, id, rec_int(r, DT_I64, 0));
}

/* Did this op make something that is not finite of finite operands? NULL: it never is to blame. */
static RtNode *is_to_blame(Rec *r, const FiniteChecks *body, const Check *check)
{
    RtNode *all = rec_int(r, DT_I64, ALL_FINITE), *blame = NULL;
    bool ever = !check->given && check->place;
    for (uint32_t k = 0; k < check->n_from; k++)
        ever &= body->check.at[check->from[k]].place || body->check.at[check->from[k]].finite;
    if (ever)
        blame = rec_ew2(r, OP_NE, check->place, all);
    for (uint32_t k = 0; k < check->n_from && ever; k++)
        if (body->check.at[check->from[k]].place)
            blame = rec_ew2(r, OP_AND, blame, rec_ew2(r, OP_EQ, body->check.at[check->from[k]].place, all));
    return blame;
}

typedef struct Reporting {
    Rec *r;
    FiniteChecks *body;
    RtNode *before, *i;
} Reporting;

/* The first one last, so that it is the one that stays. */
static RtNode *report_of(const Reporting *x)
{
    Rec *r = x->r;
    FiniteChecks *body = x->body;
    RtNode *report = filled(r, -1), *number = rec_iota(r, REPORT_WORDS);
    int64_t depth = 0;
    for (const LoopBody *loop = r->thread->loop->outer; loop; loop = loop->outer)
        depth++;
    for (size_t n = body->of ? body->check.n : 0; n-- > 0 && r->status == ST_OK;) {
        const Check *check = &body->check.at[n];
        RtNode *blame = check->report ? tells(r, check->value) : is_to_blame(r, body, check), *told = check->value;
        if (!blame)
            continue;
        if (!check->report) {
            RtNode *place = rec_ew3(r, OP_WHERE, rec_ew2(r, OP_EQ, number, rec_int(r, DT_I64, REPORT_PLACE)), check->place, filled(r, -1));
            RtNode *id = rec_int(r, DT_I64, id_of(body->of, body->arena.oom, check->value));
            told = rec_ew3(r, OP_WHERE, rec_ew2(r, OP_EQ, number, rec_int(r, DT_I64, REPORT_ID)), id, place);
        }
        report = rec_ew3(r, OP_WHERE, blame, told, report);
    }
    if (x->i)
        report = rec_ew3(r, OP_WHERE, rec_ew2(r, OP_EQ, number, rec_int(r, DT_I64, REPORT_ITERATIONS + depth)), x->i, report);
    return x->before ? rec_ew3(r, OP_WHERE, tells(r, x->before), x->before, report) : report;
}

RtNode *finite_body_report(Rec *r, FiniteChecks *body, RtNode *before, RtNode *i)
{
    const Reporting x = {r, body, before, i};
    kiln_mode *mode = r->thread->mode;
    jmp_buf no_memory;
    RtNode *volatile report = NULL;
    r->thread->mode = NULL;
    body->arena.oom = &no_memory;
    if (setjmp(no_memory) == 0)
        report = report_of(&x);
    else
        rec_fail(r, ST_OUT_OF_MEMORY, "out of memory");
    r->thread->mode = mode;
    return report;
}

RtNode *finite_no_report(Rec *r)
{
    kiln_mode *mode = r->thread->mode;
    r->thread->mode = NULL;
    RtNode *report = filled(r, -1);
    r->thread->mode = mode;
    return report;
}

Shape finite_report_type(void) { return (Shape){.dtype = DT_I64, .rank = 1, .dim = {REPORT_WORDS}}; }

static void add_report(const Recorded *x)
{
    uint32_t at = add(x->into, x->node, (Check){.report = true});
    x->into->check.at[at].place = node_retain(x->node);
}

void finite_reported(Rec *r, RtNode *report)
{
    const kiln_mode *mode = next_finite(r->thread->mode);
    FiniteChecks *into = mode ? checks_of(r->thread, finite_of(mode)) : NULL;
    const Recorded recorded = {.into = into, .rec = r, .node = report};
    if (into && unseen(r, into, add_report, &recorded))
        (void)passes(r, finite_of(mode), into);
}

/* ---- the layer ---- */

void finite_end(kiln_mode *mode)
{
    Finite *f = finite_of(mode);
    for (FiniteChecks *body = f->inside; body; body = body->outer) /* it is popped in a function of a loop or branch */
        body->of = NULL;
    clear(&f->now);
    arena_free(&f->arena);
    os_free(f);
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
    arena_init(&f->now.arena, NULL);
    f->now.of = f;
    mode->state = f;
    return mode;
}
