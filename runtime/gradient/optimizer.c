/*
 * Optimisers: composites that record new values of parameters and state, and assign them.
 *
 *   kiln_optimizer_new    state: zeros like each parameter, in the dtype that its update is computed in, and the number of steps
 *   kiln_optimizer_step   records the update of every parameter, then assigns: all of it or, after an error, nothing
 *
 * A step is recorded like anything else, so in a kiln_function loss, gradients and updates are one program, which overwrites parameters and state
 * where they lie. What changes from step to step is a tensor (learning rate, number of steps), never part of the graph; betas and the like are
 * scalars, which are arguments of compiled code. No gradient flows through an update: what it reads is a constant (`param_constant`), so that
 * no step keeps the one before it alive.
 */
#define KILN_NO_LOCATIONS
#include "ir/base/os.h"
#include "runtime/function/trace.h"
#include "runtime/gradient/param.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { STATES = 2, STATE_NAME = 40 };

struct kiln_optimizer {
    kiln_optimizer_options options;
    int n, n_state;
    kiln_tensor **param; /* [n], retained, as all below */
    kiln_tensor *steps;  /* i64: how many were made; NULL where the kind needs no such number */
    struct State {
        kiln_tensor *tensor;
        char name[STATE_NAME];
    } * state; /* [n * number of states of the kind], those of one parameter together */
};

/* ---- recording an update ---- */

/* What all parameters of one dtype share. */
typedef struct Shared {
    RtNode *rate, *bias1, *bias2; /* learning rate; Adam: 1 - beta^steps */
} Shared;

typedef struct Step {
    Rec *r;
    const kiln_optimizer *opt;
    RtNode *rate, *steps; /* steps: this one included */
    Shared shared[2];     /* in f32, in f64 */
} Step;

/* A parameter and its state, before or after; in the dtype of the computation. */
typedef struct Values {
    RtNode *p, *state[STATES];
} Values;

static RtNode *add(Rec *r, RtNode *a, RtNode *b) { return rec_ew2(r, OP_ADD, a, b); }
static RtNode *sub(Rec *r, RtNode *a, RtNode *b) { return rec_ew2(r, OP_SUB, a, b); }
static RtNode *mul(Rec *r, RtNode *a, RtNode *b) { return rec_ew2(r, OP_MUL, a, b); }
static RtNode *scaled(Rec *r, RtNode *x, double c) { return x ? mul(r, x, rec_scalar(r, node_dtype(x), c)) : NULL; }

/* a + c b */
static RtNode *plus(Rec *r, RtNode *a, double c, RtNode *b) { return add(r, a, scaled(r, b, c)); }

/* 1 - beta^steps, as -expm1(steps log beta): in f32 nothing is left of 1 - 0.999^1 otherwise. */
static RtNode *bias(Rec *r, RtNode *steps, double beta)
{
    if (!steps || beta == 0)
        return steps ? rec_scalar(r, node_dtype(steps), 1) : NULL;
    return rec_ew1(r, OP_NEG, rec_ew1(r, OP_EXPM1, scaled(r, steps, log(beta))));
}

static const Shared *shared_of(Step *s, DType dtype)
{
    Shared *shared = &s->shared[dtype == DT_F64];
    const kiln_optimizer_options *o = &s->opt->options;
    if (shared->rate)
        return shared;
    shared->rate = rec_cast(s->r, s->rate, dtype);
    if (s->steps) {
        RtNode *steps = rec_cast(s->r, s->steps, dtype);
        shared->bias1 = bias(s->r, steps, o->beta1);
        shared->bias2 = bias(s->r, steps, o->beta2);
    }
    return shared;
}

/* Momentum as Sutskever et al. 2013 have it in PyTorch's form, where the learning rate is outside. */
static Values sgd(Step *s, const Shared *shared, Values old, RtNode *g)
{
    const kiln_optimizer_options *o = &s->opt->options;
    Values new = {.p = NULL};
    if (o->weight_decay > 0)
        g = plus(s->r, g, o->weight_decay, old.p);
    if (o->momentum > 0) {
        new.state[0] = add(s->r, scaled(s->r, old.state[0], o->momentum), g);
        g = o->nesterov ? plus(s->r, g, o->momentum, new.state[0]) : new.state[0];
    }
    new.p = sub(s->r, old.p, mul(s->r, shared->rate, g));
    return new;
}

/* Kingma and Ba 2015; with decay beside the gradient and not in it, Loshchilov and Hutter 2019. */
static Values adam(Step *s, const Shared *shared, Values old, RtNode *g)
{
    const kiln_optimizer_options *o = &s->opt->options;
    Rec *r = s->r;
    Values new;
    RtNode *p = old.p;
    if (o->weight_decay > 0 && o->kind == KILN_ADAM)
        g = plus(r, g, o->weight_decay, p);
    if (o->weight_decay > 0 && o->kind == KILN_ADAMW)
        p = sub(r, p, mul(r, scaled(r, shared->rate, o->weight_decay), p));
    new.state[0] = plus(r, scaled(r, old.state[0], o->beta1), 1 - o->beta1, g);
    new.state[1] = plus(r, scaled(r, old.state[1], o->beta2), 1 - o->beta2, rec_ew1(r, OP_SQUARE, g));
    RtNode *root = rec_ew1(r, OP_SQRT, rec_ew2(r, OP_DIV, new.state[1], shared->bias2));
    RtNode *divisor = root ? add(r, root, rec_scalar(r, node_dtype(root), o->eps)) : NULL;
    new.p = sub(r, p, mul(r, rec_ew2(r, OP_DIV, shared->rate, shared->bias1), rec_ew2(r, OP_DIV, new.state[0], divisor)));
    return new;
}

static const struct Kind {
    const char *state[STATES];
    bool counts; /* does it need the number of steps? */
    Values (*update)(Step *s, const Shared *shared, Values old, RtNode *g);
} kinds[] = {
    [KILN_SGD] = {{"momentum"}, false, sgd},
    [KILN_ADAM] = {{"m", "v"}, true, adam},
    [KILN_ADAMW] = {{"m", "v"}, true, adam},
};

/* How many tensors of state a parameter has. */
static int states_of(const kiln_optimizer_options *o)
{
    int n = 0;
    while (n < STATES && kinds[o->kind].state[n] && (o->kind != KILN_SGD || o->momentum > 0))
        n++;
    return n;
}

/* ---- making and freeing ---- */

/* Defaults put in; false: an error was kept. */
static bool check_options(Rec *r, kiln_optimizer_options *o)
{
    if ((unsigned)o->kind >= sizeof kinds / sizeof *kinds)
        rec_fail(r, ST_INVALID, "kind %d does not exist", (int)o->kind);
    rec_reserved(r, o->reserved);
    o->beta1 = o->beta1 == 0 ? 0.9 : o->beta1;
    o->beta2 = o->beta2 == 0 ? 0.999 : o->beta2;
    o->eps = o->eps == 0 ? 1e-8 : o->eps;
    const struct {
        const char *name;
        double value, end;
    } numbers[] = {
        {"momentum", o->momentum, 1},
        {"beta1", o->beta1, 1},
        {"beta2", o->beta2, 1},
        {"eps", o->eps, HUGE_VAL},
        {"weight_decay", o->weight_decay, HUGE_VAL},
    };
    for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++)
        if (!(numbers[k].value >= 0 && numbers[k].value < numbers[k].end))
            rec_fail(r, ST_INVALID, "%s is %g: a number, at least 0 and below %g, is needed", numbers[k].name, numbers[k].value,
                     numbers[k].end);
    if (o->nesterov && o->momentum == 0)
        rec_fail(r, ST_INVALID, "nesterov needs a momentum");
    return r->status == ST_OK;
}

static bool check_params(Rec *r, kiln_tensor *const *params, int n)
{
    char name[64];
    if (n < 0 || (n && !params))
        rec_fail(r, ST_INVALID, "params and n (%d): an array of n >= 0 parameters is needed", n);
    else if (trace_current)
        rec_fail(r, ST_INVALID, "inside a kiln_function: its state would be made anew at each call; make it outside");
    for (int i = 0; i < n && r->status == ST_OK; i++) {
        snprintf(name, sizeof name, "params[%d]", i);
        if (rec_in(r, params[i], name) && !params[i]->param)
            rec_fail(r, ST_INVALID, "%s is no parameter: call kiln_param", name);
        for (int k = 0; k < i && r->status == ST_OK; k++)
            if (params[k] == params[i])
                rec_fail(r, ST_INVALID, "params[%d] and %s are one tensor", k, name);
    }
    return r->status == ST_OK;
}

static bool make_state(Rec *r, kiln_optimizer *opt)
{
    const struct Kind *kind = &kinds[opt->options.kind];
    int each = states_of(&opt->options);
    if (kind->counts && !(opt->steps = state_new(r, rec_int(r, DT_I64, 0), 0, NULL)))
        return false;
    for (int i = 0; i < opt->n; i++)
        for (int k = 0; k < each; k++) {
            const RtNode *p = opt->param[i]->node;
            struct State *state = &opt->state[opt->n_state];
            snprintf(state->name, sizeof state->name, "%s.%d", kind->state[k], i);
            if (!(state->tensor = state_new(r, rec_bits(r, compute_dtype(node_dtype(p)), 0), p->rank, p->dim)))
                return false;
            opt->n_state++;
        }
    return true;
}

kiln_optimizer *kiln_optimizer_new(kiln_tensor *const *params, int n, const kiln_optimizer_options *options)
{
    return kiln_optimizer_new_at(params, n, options, NULL, 0);
}

kiln_optimizer *kiln_optimizer_new_at(kiln_tensor *const *params, int n, const kiln_optimizer_options *options, const char *file, int line)
{
    Rec r = REC(kiln_optimizer_new);
    kiln_optimizer *opt = NULL;
    kiln_optimizer_options o = {.kind = KILN_SGD};
    if (options)
        o = *options;
    else
        rec_fail(&r, ST_INVALID, "options is NULL");
    if (r.status == ST_OK && check_options(&r, &o) && check_params(&r, params, n)) {
        opt = os_calloc(1, sizeof *opt);
        if (opt) {
            opt->options = o;
            opt->param = os_calloc((size_t)n + 1, sizeof(kiln_tensor *));
            opt->state = os_calloc((size_t)n * (size_t)states_of(&o) + 1, sizeof *opt->state);
        }
        bool made = opt && opt->param && opt->state;
        for (int i = 0; i < n && made; i++)
            opt->param[opt->n++] = kiln_retain(params[i]);
        if (!made || !make_state(&r, opt)) {
            if (r.status == ST_OK)
                rec_fail(&r, ST_OUT_OF_MEMORY, "out of memory");
            kiln_optimizer_free(opt);
            opt = NULL;
        }
    }
    rec_end(&r, NULL);
    return opt;
}

void kiln_optimizer_free(kiln_optimizer *opt)
{
    if (!opt)
        return;
    for (int i = 0; i < opt->n; i++)
        kiln_release(opt->param[i]);
    for (int i = 0; i < opt->n_state; i++)
        kiln_release(opt->state[i].tensor);
    kiln_release(opt->steps);
    os_free(opt->param);
    os_free(opt->state);
    os_free(opt);
}

kiln_tensor *kiln_optimizer_state(const kiln_optimizer *opt, int i, const char **name)
{
    bool steps = opt && opt->steps;
    int at = i - steps;
    const struct State *state = opt && at >= 0 && at < opt->n_state ? &opt->state[at] : NULL;
    bool first = steps && i == 0;
    if (name)
        *name = first ? "steps" : state ? state->name : NULL;
    return first ? opt->steps : state ? state->tensor : NULL;
}

/* ---- a step ---- */

/* A number of rank 0. */
static RtNode *number_in(Rec *r, kiln_tensor *x, const char *name)
{
    char text[SHAPE_TEXT];
    RtNode *in = rec_in(r, x, name);
    if (in && in->rank != 0)
        return rec_fail(r, ST_SHAPE, "%s is %s: one number, of rank 0, is needed", name, node_text(in, text));
    return param_constant(r, in);
}

/* The gradient of parameter i, in the dtype of the computation. */
static RtNode *gradient_in(Rec *r, kiln_tensor *grad, const RtNode *p, int i)
{
    char name[64], left[SHAPE_TEXT], right[SHAPE_TEXT];
    snprintf(name, sizeof name, "grads[%d]", i);
    RtNode *g = rec_in(r, grad, name);
    if (!g || !p)
        return NULL;
    bool same = g->rank == p->rank && memcmp(g->dim, p->dim, sizeof *p->dim * p->rank) == 0;
    if (!same || g->weak || !dtype_is_float(node_dtype(g)))
        return rec_fail(r, same && !g->weak ? ST_DTYPE : ST_SHAPE, "%s is %s, and its parameter is %s", name, node_text(g, left),
                        node_text(p, right));
    return rec_cast(r, param_constant(r, g), compute_dtype(node_dtype(p)));
}

/* `now` where the condition holds (NULL: always), in dtype. */
static RtNode *chosen(Rec *r, RtNode *condition, RtNode *now, RtNode *before, DType dtype)
{
    now = rec_cast(r, now, dtype);
    return condition ? rec_ew3(r, OP_WHERE, condition, now, before) : now;
}

/* Records the new values of parameter i and its state, in the order of `handles`. */
static void record_update(Step *s, int i, RtNode *condition, kiln_tensor *grad, kiln_tensor **handle, RtNode **value)
{
    const kiln_optimizer *opt = s->opt;
    int each = states_of(&opt->options);
    RtNode *p = param_constant(s->r, rec_in(s->r, opt->param[i], "a parameter")), *g = gradient_in(s->r, grad, p, i);
    if (!g)
        return;
    DType dtype = node_dtype(g);
    Values old = {.p = rec_cast(s->r, p, dtype)};
    for (int k = 0; k < each; k++)
        old.state[k] = param_constant(s->r, rec_in(s->r, opt->state[i * each + k].tensor, "a state"));
    Values new = kinds[opt->options.kind].update(s, shared_of(s, dtype), old, g);
    handle[0] = opt->param[i];
    value[0] = chosen(s->r, condition, new.p, p, node_dtype(p));
    for (int k = 0; k < each; k++) {
        handle[1 + k] = opt->state[i * each + k].tensor;
        value[1 + k] = chosen(s->r, condition, new.state[k], old.state[k], dtype);
    }
}

static kiln_status step(Rec r, kiln_optimizer *opt, bool conditional, kiln_tensor *where, kiln_tensor *const *grads, kiln_tensor *rate)
{
    Step s = {.r = &r, .opt = opt};
    RtNode **value = NULL, *condition = NULL;
    kiln_tensor **handle = NULL;
    size_t all = 0;
    if (!opt)
        rec_fail(&r, ST_INVALID, "opt is NULL");
    else if (opt->n && !grads)
        rec_fail(&r, ST_INVALID, "grads is NULL");
    if (conditional && r.status == ST_OK)
        condition = rec_cast(&r, number_in(&r, where, "condition"), DT_BOOL);
    if (r.status == ST_OK)
        s.rate = number_in(&r, rate, "learning_rate");
    if (r.status == ST_OK) {
        all = (size_t)(opt->n + opt->n_state + (opt->steps != NULL));
        value = os_calloc(all + 1, sizeof *value);
        handle = os_calloc(all + 1, sizeof(kiln_tensor *));
        if (!value || !handle)
            rec_fail(&r, ST_OUT_OF_MEMORY, "out of memory");
    }
    if (r.status == ST_OK && opt->steps) {
        RtNode *before = param_constant(&r, rec_in(&r, opt->steps, "steps"));
        s.steps = before ? add(&r, before, rec_int(&r, DT_I64, 1)) : NULL;
        handle[all - 1] = opt->steps;
        value[all - 1] = chosen(&r, condition, s.steps, before, DT_I64);
    }
    for (int i = 0; r.status == ST_OK && i < opt->n; i++) {
        size_t at = (size_t)(i * (1 + states_of(&opt->options)));
        record_update(&s, i, condition, grads[i], handle + at, value + at);
    }
    rec_assign(&r, all, handle, value);
    os_free(value);
    os_free(handle);
    rec_end(&r, NULL);
    return (kiln_status)r.status;
}

API3(kiln_status, kiln_optimizer_step, kiln_optimizer *, opt, kiln_tensor *const *, grads, kiln_tensor *, learning_rate)
{
    return step(REC(kiln_optimizer_step), opt, false, NULL, grads, learning_rate);
}

API4(kiln_status, kiln_optimizer_step_where, kiln_optimizer *, opt, kiln_tensor *, condition, kiln_tensor *const *, grads, kiln_tensor *,
     learning_rate)
{
    return step(REC(kiln_optimizer_step_where), opt, true, condition, grads, learning_rate);
}
