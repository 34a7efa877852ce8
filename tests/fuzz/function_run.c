/* Running the plans of fuzz_function.c: the state that a body captures, the body, the calls and what happens between them. */
#include "tests/fuzz/function_plan.h"
#include "tests/support/stats.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { OUTS = RECIPE_OUTPUTS + MORE, NUMBERS = 3, KEPT = 64, PLACED = 400 };

const Option options[OPTIONS] = {
    {"mode", "jit"},        {"mode", "eager"},      {"mode", "interp"},      {"check", "pure"}, {"check", "off"},      {"dynamic", "auto"},
    {"dynamic", "never"},   {"dynamic", "always"},  {"fuse", "0"},           {"fuse", "1"},     {"max_variants", "2"}, {"threads", "1"},
    {"async_compile", "1"}, {"async_compile", "0"}, {"cache_bytes", "4096"}, {"rewrite", "0"},
};

/* --- state ------------------------------------------------------------------------------------------------- */

typedef struct Run {
    const Plan *plan;
    Log *log;
    bool through; /* kiln_functions; else directly */
    kiln_function *f, *inner;
    kiln_tensor *captured[RECIPE_NODES][SETS], *number[NUMBERS], *count;          /* retained, each with a second handle beside it ... */
    kiln_tensor *saved[RECIPE_NODES][SETS], *saved_number[NUMBERS], *saved_count; /* ... for the value before a call */
    int arg[RECIPE_NODES], n_in, n_out, now;
    bool eager;
    kiln_tensor **in;                            /* the body's, while it runs ... */
    int set;                                     /* ... and the sizes that it sees */
    kiln_tensor *kept[KEPT], *late[CALLS][OUTS]; /* retained */
    struct {
        uint8_t call, index;
    } kept_at[KEPT];
    int n_kept, kept_now;
    Placed placed[PLACED];
    int n_placed;
} Run;

static void failed(Run *r, const char *what)
{
    if (!r->log->why[0])
        snprintf(r->log->why, sizeof r->log->why, "call %d: %s: %s", r->now, what, kiln_error_message());
    kiln_clear_error();
}

static Entry *new_entry(Run *r, int call, const char *what, int index)
{
    Log *log = r->log;
    Entry *e = &log->entry[log->n < READS - 1 ? log->n++ : READS - 1];
    *e = (Entry){.call = (uint8_t)call, .index = (uint8_t)index};
    snprintf(e->what, sizeof e->what, "%s", what);
    return e;
}

static void read_value(Run *r, int call, const char *what, int index, kiln_tensor *x, bool kept)
{
    kiln_dtype dtype = kiln_dtype_of(x);
    int64_t n = kiln_numel(x);
    size_t bytes = (size_t)n * kiln_dtype_size(dtype);
    void *data = malloc(bytes + 1);
    Entry *e = new_entry(r, call, what, index);
    char shape[96];
    e->kept = kept;
    if (kiln_read(x, dtype, data, bytes) != KILN_OK)
        failed(r, what);
    else if (n)
        value_text(dtype, data, 0, e->first);
    e->hash = values_hash(dtype, n, data);
    snprintf(e->kind, sizeof e->kind, "%s%s", kiln_is_weak(x) ? "weak " : "", shape_text(dtype, kiln_shape_of(x), shape));
    free(data);
}

static kiln_tensor *made(const Run *r, int k, int set, kiln_dtype dtype, uint64_t data_seed)
{
    const RecipeNode *node = &r->plan->recipe.node[k];
    kiln_shape shape = recipe_input_shape(node, r->plan->sizes[set]);
    int64_t n = shape_elements(shape);
    void *data = malloc((size_t)n * 8 + 8);
    values_fill(dtype, (Values)node->values, 1, data_seed + (uint64_t)k, n, data);
    kiln_tensor *x = kiln_from(dtype, shape, data);
    free(data);
    return x;
}

static bool is_captured(const Run *r, int k)
{
    int from = r->plan->from[k];
    return r->plan->recipe.node[k].op == R_INPUT && (from == CAPTURED || from == SHARED);
}

static bool same_kind(kiln_tensor *a, kiln_tensor *b)
{
    return a && b && kiln_dtype_of(a) == kiln_dtype_of(b) && shape_equal(kiln_shape_of(a), kiln_shape_of(b));
}

/* The captured tensor that node k reads. */
static kiln_tensor *captured_of(const Run *r, int k, int set)
{
    for (int j = 0; j < k && r->plan->from[k] == SHARED; j++)
        if (is_captured(r, j) && same_kind(r->captured[j][set], r->captured[k][set]))
            return r->captured[j][set];
    return r->captured[k][set];
}

/* One of those of the set; NULL: there are none. */
static kiln_tensor *some_captured(const Run *r, int set, int which)
{
    int list[RECIPE_NODES], n = 0;
    for (int k = 0; k < r->plan->recipe.n; k++)
        if (is_captured(r, k) && r->captured[k][set])
            list[n++] = k;
    return n ? r->captured[list[which % n]][set] : NULL;
}

static void assign(Run *r, kiln_tensor *p, kiln_tensor *value)
{
    if (p && value && kiln_assign(p, value) != KILN_OK)
        failed(r, "assign");
}

/* All state that the body may assign to, into the second handles or (back) from them. */
static void save_state(Run *r, bool back)
{
    for (int k = 0; k < r->plan->recipe.n; k++)
        for (int set = 0; set < SETS; set++)
            assign(r, back ? r->captured[k][set] : r->saved[k][set], back ? r->saved[k][set] : r->captured[k][set]);
    for (int i = 0; i < NUMBERS; i++)
        assign(r, back ? r->number[i] : r->saved_number[i], back ? r->saved_number[i] : r->number[i]);
    assign(r, back ? r->count : r->saved_count, back ? r->saved_count : r->count);
}

static void begin_state(Run *r)
{
    for (int k = 0; k < r->plan->recipe.n; k++) {
        r->arg[k] = -1;
        if (r->plan->recipe.node[k].op == R_INPUT && r->plan->from[k] == ARGUMENT)
            r->arg[k] = r->n_in++;
        for (int set = 0; set < SETS && is_captured(r, k); set++) {
            kiln_shape shape = recipe_input_shape(&r->plan->recipe.node[k], r->plan->sizes[set]);
            if (shape_elements(shape) > RECIPE_MAX_ELEMENTS)
                continue;
            kiln_dtype dtype = (kiln_dtype)r->plan->recipe.node[k].dtype;
            r->captured[k][set] = kiln_retain(made(r, k, set, dtype, (uint64_t)set));
            r->saved[k][set] = kiln_retain(kiln_zeros(dtype, shape));
        }
    }
    for (int i = 0; i < NUMBERS; i++) {
        r->number[i] = kiln_retain(i == 1 ? kiln_int(2) : kiln_scalar(0.5 * i));
        r->saved_number[i] = kiln_retain(i == 1 ? kiln_int(0) : kiln_scalar(0));
    }
    r->count = kiln_retain(kiln_zeros(KILN_I64, KILN_SHAPE()));
    r->saved_count = kiln_retain(kiln_zeros(KILN_I64, KILN_SHAPE()));
    r->n_out = r->plan->recipe.n_out + r->plan->n_more;
}

static void release(kiln_tensor *x)
{
    if (x)
        kiln_release(x);
}

static void end_state(Run *r)
{
    for (int k = 0; k < r->plan->recipe.n; k++)
        for (int set = 0; set < SETS; set++) {
            release(r->captured[k][set]);
            release(r->saved[k][set]);
        }
    for (int i = 0; i < NUMBERS; i++) {
        release(r->number[i]);
        release(r->saved_number[i]);
    }
    release(r->count);
    release(r->saved_count);
    for (int i = 0; i < r->n_kept; i++)
        release(r->kept[i]);
    for (int i = 0; i < CALLS; i++)
        for (int k = 0; k < OUTS; k++)
            release(r->late[i][k]);
    kiln_function_free(r->f);
    kiln_function_free(r->inner);
}

/* --- the body ------------------------------------------------------------------------------------------------ */

/* x as a value of p's dtype and shape: its elements where there are as many, else its first one. */
static kiln_tensor *fit(kiln_tensor *x, kiln_tensor *p)
{
    kiln_shape shape = kiln_shape_of(p);
    if (kiln_numel(x) == kiln_numel(p))
        x = kiln_reshape(x, shape);
    else if (kiln_numel(x) == 0)
        return p;
    else
        x = kiln_expand(kiln_reshape(kiln_slice_axis(kiln_flatten(x), 0, 0, 1, 1), KILN_SHAPE()), shape);
    return kiln_cast(x, kiln_dtype_of(p));
}

static void keep(Run *r, kiln_tensor *x)
{
    if (r->n_kept == KEPT)
        return;
    r->kept_at[r->n_kept].call = (uint8_t)r->now;
    r->kept_at[r->n_kept].index = (uint8_t)r->kept_now++;
    r->kept[r->n_kept++] = kiln_retain(x);
}

/* Other handles of the same values, as a body gets its arguments (then not weak) and its caller the results. */
static void own_handles(Run *r, kiln_tensor *const *x, int n, bool weak, kiln_tensor **own)
{
    for (int i = 0; i < n; i++) {
        kiln_dtype dtype = kiln_dtype_of(x[i]);
        kiln_tensor *handle = !weak || !kiln_is_weak(x[i]) ? kiln_zeros(dtype, kiln_shape_of(x[i]))
                              : dtype == KILN_BOOL         ? kiln_bool(0)
                              : dtype == KILN_I64          ? kiln_int(0)
                                                           : kiln_scalar(0);
        assign(r, handle, x[i]);
        own[i] = handle;
    }
}

/* Draws, counts its calls in a captured tensor, which it also gives, uses a captured number, assigns to its argument. */
static void inner_body(kiln_tensor **in, kiln_tensor **out, void *user)
{
    Run *r = user;
    assign(r, r->count, kiln_add(r->count, kiln_int(1)));
    assign(r, in[0], kiln_cast(kiln_add(in[0], kiln_int(1)), kiln_dtype_of(in[0])));
    out[0] = kiln_where(kiln_lt(in[0], r->number[1]), kiln_cast(in[0], KILN_F32), kiln_uniform(KILN_F32, kiln_shape_of(in[0]), 0, 1));
    out[1] = r->count;
    in[0] = NULL; /* the array is the body's own */
}

static kiln_tensor *call_inner(Run *r, kiln_tensor *x, int which)
{
    kiln_tensor *in[1] = {x}, *out[2];
    if (r->through) {
        if (kiln_function_call(r->inner, in, out) != KILN_OK)
            failed(r, "inner");
    } else {
        own_handles(r, in, 1, false, in);
        inner_body(in, out, r);
        own_handles(r, out, 2, true, out);
    }
    return out[which];
}

static kiln_tensor *feed_input(const Recipe *recipe, int k, kiln_shape shape, void *user)
{
    Run *r = user;
    kiln_dtype dtype = (kiln_dtype)recipe->node[k].dtype;
    kiln_tensor *x = NULL;
    switch ((From)r->plan->from[k]) {
    case ARGUMENT: x = r->in[r->arg[k]]; break;
    case CAPTURED:
    case SHARED: x = captured_of(r, k, r->set); break;
    case NUMBER: x = r->number[k % NUMBERS]; break;
    case CONSTANT:
    case FROMS: x = made(r, k, r->set, dtype, 77); break;
    case DRAWN:
        x = dtype == KILN_BOOL ? NULL : dtype_is_float(dtype) ? kiln_normal(dtype, shape, 1, 2) : kiln_randint(dtype, shape, 0, 9);
        break;
    }
    kiln_tensor *p = some_captured(r, r->set, k * 7);
    double value;
    kiln_scope *scope;
    switch (x ? (Before)r->plan->before[k] : PLAINLY) {
    case ASSIGN_BEFORE:
        if (p)
            assign(r, p, k & 1 ? fit(x, p) : kiln_where(kiln_lt(fit(x, p), p), p, fit(x, p)));
        break;
    case DRAW_BEFORE: (void)kiln_uniform(KILN_F32, KILN_SHAPE(3), 0, 1); break;
    case KEEP_BEFORE: keep(r, k & 1 ? x : kiln_logical_not(x)); break;
    case SCOPE_BEFORE:
        scope = kiln_scope_begin();
        x = kiln_keep(kiln_where(kiln_isnan(x), kiln_int(1), x));
        kiln_scope_end(scope);
        break;
    case ITEM_BEFORE:
        if (kiln_item(kiln_any(x), &value) != KILN_OK)
            failed(r, "item");
        else if (value > 0)
            x = kiln_flip(x, kiln_rank(x) ? KILN_AXES(0) : KILN_AXES());
        break;
    case EVAL_BEFORE:
        if (kiln_eval(x) != KILN_OK)
            failed(r, "eval inside");
        break;
    case SEED_BEFORE: kiln_seed((uint64_t)k); break;
    case PLAINLY:
    case BEFORES: break;
    }
    return x;
}

/* What is done when all is recorded. */
static void do_after(Run *r, int i, kiln_tensor **in, kiln_tensor **out)
{
    int a = r->plan->after[i].a, k = r->plan->after[i].k;
    kiln_tensor **o = &out[a % r->n_out], *p = some_captured(r, r->set, k), *q = some_captured(r, r->set, k / 7), *old;
    double value;
    switch ((After)r->plan->after[i].kind) {
    case ASSIGN_AFTER:
        if (p)
            assign(r, p,
                   k % 3 == 0   ? fit(*o, p)
                   : k % 3 == 1 ? kiln_where(kiln_lt(p, fit(*o, p)), fit(*o, p), p)
                                : kiln_flip(p, KILN_ALL_AXES));
        break;
    case SWAP:
        if (p && p != q && same_kind(p, q)) {
            old = kiln_zeros_like(p);
            assign(r, old, p);
            assign(r, p, q);
            assign(r, q, old);
        }
        break;
    case ASSIGN_ARGUMENT:
        if (r->n_in)
            assign(r, in[a % r->n_in], fit(*o, in[a % r->n_in]));
        break;
    case NEXT_NUMBER: assign(r, r->number[2], kiln_add(r->number[2], kiln_scalar(1))); break;
    case NESTED:
        if (kiln_numel(*o) <= RECIPE_MAX_ELEMENTS)
            *o = call_inner(r, *o, k & 1);
        break;
    case KEEP_AFTER: keep(r, *o); break;
    case FAIL:
        if (r->set == k % SETS && k & 1)
            *o = kiln_add(kiln_zeros(KILN_F32, KILN_SHAPE(2)), kiln_zeros(KILN_F32, KILN_SHAPE(3)));
        else if (r->set == k % SETS)
            *o = NULL;
        break;
    case STEER:
        if (kiln_item(kiln_any(*o), &value) != KILN_OK)
            failed(r, "item");
        else if (value > 0)
            *o = out[0];
        break;
    case NOTHING:
    case AFTERS: break;
    }
}

/* The sizes are those of the first set that fits the arguments: another signature, another trace. */
static int set_of(const Run *r, kiln_tensor **in)
{
    for (int set = 0; set < SETS; set++) {
        bool fits = true;
        for (int k = 0; k < r->plan->recipe.n; k++)
            fits &= r->arg[k] < 0 ||
                    shape_equal(kiln_shape_of(in[r->arg[k]]), recipe_input_shape(&r->plan->recipe.node[k], r->plan->sizes[set]));
        if (fits)
            return set;
    }
    return 0;
}

static void body(kiln_tensor **in, kiln_tensor **out, void *user)
{
    Run *r = user;
    const Plan *plan = r->plan;
    r->log->runs++;
    r->in = in;
    r->set = set_of(r, in);
    r->kept_now = 0;
    int n = recipe_build(&plan->recipe, plan->sizes[r->set], feed_input, r, out, NULL, NULL);
    for (; n < plan->recipe.n_out; n++)
        out[n] = kiln_full(KILN_I32, KILN_SHAPE(2), 7);
    for (int i = 0; i < plan->n_more; i++, n++) {
        kiln_tensor *p = some_captured(r, r->set, i);
        out[n] = plan->more[i] == AN_ARGUMENT && r->n_in ? in[i % r->n_in]
                 : plan->more[i] == A_CAPTURED && p      ? p
                 : plan->more[i] == A_NUMBER             ? r->number[i]
                 : plan->more[i] == TWICE                ? out[0]
                                                         : kiln_full(KILN_F16, KILN_SHAPE(3), 0.5);
    }
    for (int i = 0; i < AFTER; i++) {
        do_after(r, i, in, out);
        for (int k = 0; k < n; k++)
            if (!out[k])
                return;
    }
}

/* --- calls ------------------------------------------------------------------------------------------------- */

static kiln_dtype argument_dtype(const RecipeNode *node, int type)
{
    bool is_float = dtype_is_float((kiln_dtype)node->dtype);
    return type == 0 ? (kiln_dtype)node->dtype : type == 1 ? is_float ? KILN_F64 : KILN_I64 : is_float ? KILN_I16 : KILN_F32;
}

static void make_arguments(Run *r, const Call *call, kiln_tensor **in)
{
    for (int k = 0; k < r->plan->recipe.n; k++) {
        if (r->arg[k] < 0)
            continue;
        const RecipeNode *node = &r->plan->recipe.node[k];
        kiln_dtype dtype = argument_dtype(node, call->type);
        kiln_shape shape = recipe_input_shape(node, r->plan->sizes[call->set]);
        kiln_tensor **x = &in[r->arg[k]];
        if (shape_elements(shape) > RECIPE_MAX_ELEMENTS)
            shape = KILN_SHAPE(1); /* of no set */
        int64_t n = shape_elements(shape);
        void *data = malloc((size_t)n * 8 + 8);
        values_fill(dtype, (Values)node->values, 1, call->data + (uint64_t)k, n, data);
        if (call->layout && r->n_placed < PLACED) {
            r->placed[r->n_placed] = place(dtype, shape, data, (Layout)call->layout);
            *x = r->placed[r->n_placed++].tensor;
        } else
            *x = kiln_from(dtype, shape, data);
        free(data);
        if (call->pending)
            *x = kiln_flip(*x, KILN_ALL_AXES);
        if (call->weak && shape.rank == 0)
            *x = k % 3 == 0 ? kiln_scalar(call->data) : k % 3 == 1 ? kiln_mul(kiln_scalar(call->data), kiln_scalar(0.5)) : kiln_int(3);
        for (int j = 0; j < r->arg[k] && call->same; j++)
            if (same_kind(in[j], *x))
                *x = in[j];
        for (int j = 0; j < r->plan->recipe.n && call->alias; j++)
            if (same_kind(r->captured[j][call->set], *x))
                *x = r->captured[j][call->set];
    }
}

static kiln_status call_directly(Run *r, kiln_tensor *const *in, kiln_tensor **out)
{
    kiln_tensor *own[RECIPE_NODES] = {0};
    save_state(r, false);
    own_handles(r, in, r->n_in, false, own);
    kiln_clear_error();
    body(own, out, r);
    kiln_status status = KILN_OK;
    for (int i = 0; i < r->n_out && status == KILN_OK; i++)
        if (!out[i])
            status = kiln_error_status() ? kiln_error_status() : KILN_INVALID;
    if (status == KILN_OK)
        status = kiln_eval_many(out, r->n_out);
    if (status != KILN_OK) {
        save_state(r, true);
        memset(out, 0, sizeof *out * (size_t)r->n_out);
    } else
        own_handles(r, out, r->n_out, true, out);
    return status;
}

static void new_function(Run *r)
{
    kiln_function_free(r->f);
    r->f = kiln_function_new(body, r->n_in, r->n_out, r);
}

static void do_event(Run *r, const Call *call, int i)
{
    int a = call->event[i].a, k = call->event[i].k, set = k % 4 ? call->set : k / 4 % SETS, last = r->now - 1;
    kiln_tensor *p = some_captured(r, set, a), *q = some_captured(r, set, k / 3);
    switch ((Event)call->event[i].event) {
    case ASSIGN_DATA:
        for (int j = 0; j < r->plan->recipe.n && p; j++)
            if (r->captured[j][set] == p)
                assign(r, p, made(r, j, set, kiln_dtype_of(p), (uint64_t)k));
        break;
    case ASSIGN_PENDING: assign(r, p, p ? kiln_where(kiln_isnan(p), fit(kiln_int(k), p), kiln_flip(p, KILN_ALL_AXES)) : NULL); break;
    case ASSIGN_OTHER:
        for (int j = 0; j < 8 && p; j++, q = some_captured(r, set, k + j))
            if (q != p && same_kind(p, q)) {
                assign(r, p, q);
                break;
            }
        break;
    case ASSIGN_VIEW: /* a strided one, whose memory is the caller's */
        for (int j = 0; j < r->plan->recipe.n && p && r->n_placed < PLACED; j++)
            if (r->captured[j][set] == p) {
                kiln_shape shape = kiln_shape_of(p);
                int64_t n = shape_elements(shape);
                void *data = malloc((size_t)n * 8 + 8);
                values_fill(kiln_dtype_of(p), (Values)r->plan->recipe.node[j].values, 1, (uint64_t)k, n, data);
                Placed *placed = &r->placed[r->n_placed++];
                *placed = place(kiln_dtype_of(p), shape, data, (Layout)(LAYOUT_STRIDED + k % 5));
                assign(r, p, placed->tensor);
                free(data);
            }
        break;
    case ASSIGN_RESULT:
        for (int j = 0; j < OUTS && p && last >= 0; j++)
            if (same_kind(p, r->late[last][j]) && !kiln_is_weak(r->late[last][j]))
                assign(r, p, r->late[last][j]);
        break;
    case SET_NUMBER:
        if (a % NUMBERS == 1)
            assign(r, r->number[1], k & 1 ? kiln_int(k % 5) : kiln_mul(kiln_int(k % 5), kiln_int(2)));
        else
            assign(r, r->number[a % NUMBERS], k & 1 ? kiln_scalar(k % 5) : kiln_add(kiln_scalar(k % 5), kiln_scalar(0.25)));
        if (k % 3 == 0 && kiln_eval(r->number[a % NUMBERS]) != KILN_OK)
            failed(r, "eval");
        break;
    case SET_OPTION:
        if (!r->through)
            break;
        if (kiln_set_option(options[k % OPTIONS].name, options[k % OPTIONS].value) != KILN_OK)
            failed(r, "option");
        if (strcmp(options[k % OPTIONS].name, "mode") == 0)
            r->eager = strcmp(options[k % OPTIONS].value, "eager") == 0;
        break;
    case DRAW: read_value(r, r->now, "draw", i, kiln_uniform(KILN_F32, KILN_SHAPE(3), 0, 1), false); break;
    case SEED: kiln_seed((uint64_t)k); break;
    case READ:
        if (p)
            read_value(r, r->now, "read", i, p, false);
        break;
    case EVAL:
        if (p && kiln_eval(p) != KILN_OK)
            failed(r, "eval");
        break;
    case MARK:
        if (p && (k & 1) && kiln_mark_constant(p) != KILN_OK)
            failed(r, "mark");
        if (p && !(k & 1) && kiln_rank(p) && kiln_mark_dynamic(p, k / 2 % kiln_rank(p), 0, INT64_MAX) != KILN_OK)
            failed(r, "mark");
        break;
    case NEW_FUNCTION: new_function(r); break;
    case CALL_INNER: read_value(r, r->now, "inner", i, call_inner(r, p ? p : r->count, k & 1), false); break;
    case NONE:
    case EVENT_KINDS: break;
    }
}

/* Nothing but values differs from the call before. */
static bool is_quiet(const Plan *plan, int i)
{
    if (i == 0)
        return false;
    Call a = plan->call[i], b = plan->call[i - 1];
    b.data = a.data;
    b.late = a.late;
    memset(b.event, 0, sizeof b.event);
    return memcmp(&a, &b, sizeof a) == 0;
}

/* Does the body compute values, or leave other numbers, or other tensors alike, than it found? Then it may be run at each call. */
static bool runs_often(const Plan *plan)
{
    bool any = false;
    for (int k = 0; k < plan->recipe.n; k++)
        any |= plan->recipe.node[k].op == R_INPUT && plan->before[k] >= ITEM_BEFORE;
    for (int i = 0; i < AFTER; i++)
        any |= plan->after[i].kind == STEER || plan->after[i].kind == NEXT_NUMBER || plan->after[i].kind == SWAP;
    return any;
}

static void do_call(Run *r)
{
    const Plan *plan = r->plan;
    const Call *call = &plan->call[r->now];
    kiln_tensor *in[RECIPE_NODES] = {0}, *out[OUTS] = {0};
    for (int i = 0; i < EVENTS; i++)
        do_event(r, call, i);
    make_arguments(r, call, in);
    for (int i = 0; i < r->n_in; i++)
        if (!in[i]) {
            failed(r, "arguments");
            return;
        }
    int runs = r->log->runs, kept = r->n_kept;
    kiln_status status = r->through ? kiln_function_call(r->f, in, out) : call_directly(r, in, out);
    kiln_clear_error();
    char check[8];
    if (r->through && status == KILN_OK && r->log->runs != runs && is_quiet(plan, r->now) && is_quiet(plan, r->now - 1) &&
        !runs_often(plan) && !r->eager && kiln_get_option("check", check, sizeof check) == KILN_OK && strcmp(check, "pure") != 0 &&
        !r->log->why[0])
        snprintf(r->log->why, sizeof r->log->why, "call %d: the body was run, though nothing but values had changed since the last but one",
                 r->now);
    if (status != KILN_OK) {
        while (r->n_kept > kept)
            release(r->kept[--r->n_kept]);
        Entry *e = new_entry(r, r->now, "failed", 0);
        snprintf(e->kind, sizeof e->kind, "%s", kiln_status_name(status));
        e->hash = (uint64_t)status;
        for (int i = 0; i < r->n_out; i++)
            if (out[i])
                failed(r, "outputs are set");
        return;
    }
    for (int i = 0; i < r->n_out; i++) {
        r->late[r->now][i] = kiln_retain(out[i]);
        if (call->late & 1 << i || r->now + 1 == plan->n_calls)
            read_value(r, r->now, "out", i, out[i], false);
    }
}

static void read_all(Run *r)
{
    for (int k = 0; k < r->plan->recipe.n; k++)
        for (int set = 0; set < SETS; set++)
            if (r->captured[k][set])
                read_value(r, r->now, "captured", k * SETS + set, r->captured[k][set], false);
    for (int i = 0; i < NUMBERS; i++)
        read_value(r, r->now, "number", i, r->number[i], false);
    read_value(r, r->now, "count", 0, r->count, false);
    for (int i = 0; i < r->n_kept; i++)
        read_value(r, r->kept_at[i].call, "kept", r->kept_at[i].index, r->kept[i], true);
    for (int i = 0; i < r->plan->n_calls; i++)
        for (int k = 0; k < r->n_out; k++)
            if (r->late[i][k])
                read_value(r, i, "out at end", k, r->late[i][k], false);
    read_value(r, r->now, "next draw", 0, kiln_uniform(KILN_F32, KILN_SHAPE(2), 0, 1), false); /* where the stream is */
}

void plan_options(const char *mode)
{
    static const char *const usual[][2] = {{"math", "strict"},    {"check", "off"}, {"dynamic", "auto"},    {"fuse", "1"},
                                           {"max_variants", "8"}, {"threads", "0"}, {"async_compile", "0"}, {"cache_bytes", "268435456"},
                                           {"rewrite", "1"}};
    bool set = kiln_set_option("mode", mode) == KILN_OK;
    for (size_t i = 0; i < sizeof usual / sizeof *usual; i++)
        set &= kiln_set_option(usual[i][0], usual[i][1]) == KILN_OK;
    if (!set)
        exit(2);
}

void plan_run(const Plan *plan, bool through, Log *log)
{
    static Run r;
    memset(log, 0, sizeof *log);
    r = (Run){.plan = plan, .log = log, .through = through};
    plan_options(through ? "jit" : "interp");
    kiln_seed(plan->recipe.seed);
    kiln_stats before = stats_now();
    kiln_scope *scope = kiln_scope_begin();
    begin_state(&r);
    new_function(&r);
    r.inner = kiln_function_new(inner_body, 1, 2, &r);
    for (; r.now < plan->n_calls; r.now++) {
        kiln_scope *inner = kiln_scope_begin();
        do_call(&r);
        kiln_scope_end(inner);
    }
    read_all(&r);
    end_state(&r);
    kiln_scope_end(scope);
    for (int i = 0; i < r.n_placed; i++) {
        if (!placed_intact(&r.placed[i]))
            failed(&r, "the caller's memory was written to");
        placed_free(&r.placed[i]);
    }
    kiln_stats after = stats_now();
    if (after.fallbacks != before.fallbacks)
        failed(&r, "fell back to the interpreter");
    if (after.live_bytes != before.live_bytes && !log->why[0])
        snprintf(log->why, sizeof log->why, "%" PRId64 " bytes of tensors are left", after.live_bytes - before.live_bytes);
}
