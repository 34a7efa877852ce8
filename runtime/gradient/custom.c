/*
 * Recording what kiln_custom_gradient is given: the function, and templates of its derivative (custom.h).
 *
 * Compiled with -fexceptions, as body.c is.
 */
#define KILN_NO_LOCATIONS
#include "runtime/gradient/custom.h"
#include "ir/base/os.h"
#include "ir/base/path.h"
#include "jit/options.h"
#include "runtime/device/device.h"
#include "runtime/gradient/body.h"
#include "runtime/gradient/param.h"
#include "ir/base/pointer_map.h"
#include "runtime/gradient/recording.h"

#include <stdio.h>
#include <string.h>

#define CLEANUP(function) __attribute__((cleanup(function)))

/* What is made until the results are there. All nodes are references, but for those of `in`. */
typedef struct Making {
    const char *api;
    const char *file;
    int line;
    kiln_function_body *f;
    kiln_vjp_body *vjp;
    kiln_jvp_body *jvp;
    void *user;
    uint32_t n_in, n_out;
    RtNode **in, **out;    /* given to f, and made by it */
    RtNode **place;        /* inputs, results, cotangents, tangents; NULL: what does not flow */
    RtNode **given[2];     /* by the rules: a cotangent of each input, a tangent of each result */
    kiln_tensor **between; /* room for n_out handles */
    Custom *custom;
    uint32_t n_plain;           /* of bodies: see Custom */
    bool of_bodies, missing[2]; /* ... and these rules cannot be recorded */
} Making;

static uint32_t n_places(const Making *m) { return 2 * (m->n_in + m->n_out); }

static void release_all(RtNode **node, size_t n)
{
    for (size_t k = 0; node && k < n; k++)
        node_release(node[k]);
}

void custom_release(Custom *custom)
{
    if (!custom || atomic_fetch_sub(&custom->held.refs, 1) != 1)
        return;
    release_all(custom->held.node, custom->held.n);
    os_free(custom);
}

static void end_making(Making *m)
{
    release_all(m->out, m->n_out);
    release_all(m->place, n_places(m));
    release_all(m->given[0], m->n_in);
    release_all(m->given[1], m->n_out);
    custom_release(m->custom);
    os_free(m->in); /* and what lies behind it */
    os_free(m->between);
}

static bool any_tracked(const Making *m)
{
    bool any = false;
    for (uint32_t i = 0; i < m->n_in; i++)
        any |= custom_flows(m->in[i]) && m->in[i]->tracked;
    return any;
}

/* ---- f ---- */

static void call_function(kiln_tensor **in, kiln_tensor **out, void *with)
{
    const Making *m = with;
    m->f(in, out, m->user);
}

static bool is_among(const RtNode *node, RtNode *const *of, uint32_t n)
{
    bool found = false;
    for (uint32_t i = 0; i < n && !found; i++)
        found = of[i] == node;
    return found;
}

/* Gradients do not go through f, so what it takes from outside must be no variable. */
static Status check_captured(Arena *arena, void *with)
{
    const Making *m = with;
    PointerMap seen = {0};
    VEC(const RtNode *) stack = {0};
    for (uint32_t k = 0; k < m->n_out; k++)
        VEC_PUSH(arena, stack, m->out[k]);
    while (stack.n) {
        const RtNode *node = stack.at[--stack.n];
        if (!node->tracked || node->stop || is_among(node, m->in, m->n_in) || pointer_map_get(&seen, node) != NOT_MAPPED)
            continue;
        pointer_map_put(arena, &seen, node, 0);
        if (node->leaf || !node->inside) {
            return fail(
                ST_INVALID,
                "the function uses a parameter, or a value computed from one, that is not among its inputs (%s%s%s:%d): no gradient "
                "would flow to it; make it an input, or call kiln_stop_gradient",
                node->api ? node->api : "a tensor", node->loc.file ? " at " : "", path_name(node->loc.file), node->loc.line);
        }
        for (uint32_t k = 0; k < node->n_in; k++)
            VEC_PUSH(arena, stack, node->in[k]);
    }
    return ST_OK;
}

/* ---- the rules ---- */

/* x[k] as what belongs to `like`, one after the other; an error is kept. */
static void fit(const Making *m, uint32_t n, kiln_tensor **x, RtNode *const *like, const char *name)
{
    Rec r = rec_begin(m->api, m->file, m->line);
    char text[64];
    for (uint32_t k = 0; k < n && r.status == ST_OK; k++) {
        if (!x[k])
            continue;
        snprintf(text, sizeof text, "%s[%u]", name, k);
        if (!custom_flows(like[k]))
            rec_fail(&r, ST_DTYPE, "%s was set, and what it belongs to is %s: leave it NULL", text,
                     node_text(like[k], (char[SHAPE_TEXT]){0}));
        else
            x[k] = rec_out(&r, rec_like(&r, x[k], like[k], text));
    }
    rec_end(&r, NULL);
}

static void call_vjp(kiln_tensor **place, kiln_tensor **grads, void *with)
{
    const Making *m = with;
    kiln_tensor **out = place + m->n_in, **cotangents = out + m->n_out;
    m->vjp(place, out, cotangents, grads, m->user);
    fit(m, m->n_in, grads, m->in, "grads");
}

static void call_jvp(kiln_tensor **place, kiln_tensor **along, void *with)
{
    const Making *m = with;
    kiln_tensor **out = place + m->n_in, **tangents = out + 2 * (size_t)m->n_out;
    m->jvp(place, out, tangents, along, m->user);
    fit(m, m->n_out, along, m->out, "out_tangents");
}

/* Reverse mode where the user knows forward mode: what is linear in the tangents has a transpose. */
static void transpose_jvp(kiln_tensor **place, kiln_tensor **grads, void *with)
{
    const Making *m = with;
    kiln_tensor **cotangents = place + m->n_in + m->n_out, **tangents = cotangents + m->n_out;
    int n = 0, n_in = 0;
    uint64_t errors = errors_raised();
    call_jvp(place, m->between, with);
    for (uint32_t k = 0; k < m->n_out; k++)
        if (m->between[k]) {
            cotangents[n] = cotangents[k];
            m->between[n++] = m->between[k];
        }
    for (uint32_t i = 0; i < m->n_in; i++)
        if (tangents[i])
            tangents[n_in++] = tangents[i];
    if (errors_since(errors) || kiln_vjp_at(n, m->between, cotangents, n_in, tangents, 0, grads, m->file, m->line) != KILN_OK)
        return;
    for (uint32_t i = m->n_in; i-- > 0;) /* back to where they belong */
        grads[i] = custom_flows(m->in[i]) ? grads[--n_in] : NULL;
}

/* Something that stands for a value that is not known yet. */
static RtNode *placeholder(const RtNode *like, const char *api, Loc loc)
{
    RtNode *node = node_new(OP_INPUT, node_dtype(like), like->rank, like->dim, 0, 0);
    if (!node)
        return NULL;
    node->device = (uint8_t)node_device(like);
    node->inside = INSIDE_RULE;
    node->api = api;
    node->loc = loc;
    if (dtype_is_float(node_dtype(like))) { /* derivatives may be asked for in a rule, too */
        node->tracked = true;
        node->leaf = param_new_id();
    }
    return node;
}

static Status make_places(Making *m)
{
    const Loc loc = {m->file, m->line};
    uint32_t n = m->n_in + m->n_out;
    for (uint32_t p = 0; p < 2 * n; p++) {
        const RtNode *like = p < m->n_in        ? m->in[p]
                             : p < n            ? m->out[p - m->n_in]
                             : p < n + m->n_out ? m->out[p - n]
                                                : m->in[p - n - m->n_out];
        if (p < n && like->weak) /* a number, copied into what is recorded */
            m->place[p] = node_retain((RtNode *)(uintptr_t)like);
        else if ((p < n || custom_flows(like)) && !(m->place[p] = placeholder(like, m->api, loc)))
            return ST_OUT_OF_MEMORY;
    }
    return ST_OK;
}

static Status run_rule(Making *m, bool forward)
{
    BodyRun run = {.api = m->api,
                   .loc = {m->file, m->line},
                   .n_in = n_places(m),
                   .n_out = forward ? m->n_out : m->n_in,
                   .in = m->place,
                   .out = m->given[forward],
                   .call = forward  ? call_jvp
                           : m->vjp ? call_vjp
                                    : transpose_jvp,
                   .with = m,
                   .custom = INSIDE_RULE,
                   .sparse = true};
    return body_run(&run);
}

/* ---- templates ---- */

/* Not in a template: it depends on no place. */
enum { INDEPENDENT = NOT_MAPPED - 1 };

typedef struct Template {
    const Making *making;
    bool forward;
    Arena *arena;
    PointerMap slot; /* of nodes: a Slot or INDEPENDENT */
    PointerMap captured_at;
    VEC(RtNode *) made, captured, stack;
    VEC(Slot) operand, result;
} Template;

/* What an operand is in the template. */
static Slot operand_slot(Template *t, RtNode *node)
{
    uint32_t slot = pointer_map_get(&t->slot, node);
    if (slot != INDEPENDENT)
        return slot;
    uint32_t at = pointer_map_get(&t->captured_at, node);
    if (at == NOT_MAPPED) {
        at = (uint32_t)t->captured.n;
        pointer_map_put(t->arena, &t->captured_at, node, at);
        VEC_PUSH(t->arena, t->captured, node);
    }
    return slot_of(SLOT_CAPTURED, at);
}

static void complete(Template *t, RtNode *node)
{
    bool depends = false;
    for (uint32_t k = 0; k < node->n_in && node->inside == INSIDE_RULE; k++)
        depends |= pointer_map_get(&t->slot, node->in[k]) != INDEPENDENT;
    for (uint32_t k = 0; k < node->n_in && depends; k++) {
        Slot slot = operand_slot(t, node->in[k]);
        VEC_PUSH(t->arena, t->operand, slot);
    }
    pointer_map_put(t->arena, &t->slot, node, depends ? slot_of(SLOT_MADE, t->made.n) : INDEPENDENT);
    if (depends)
        VEC_PUSH(t->arena, t->made, node);
}

/* Is it a place that this rule must not read? */
static Status check_place(const Template *t, const RtNode *node)
{
    const Making *m = t->making;
    if (node->op != OP_INPUT || node->inside != INSIDE_RULE || !node_pending(node))
        return ST_OK;
    if (is_among(node, m->place + n_places(m) - m->n_in, m->n_in))
        return fail(ST_INVALID, "with vjp = NULL the jvp has to be linear in its tangents: what it gave is no sum of products with them");
    return fail(ST_INVALID, "the rule uses a tensor that another kiln_custom_gradient's rule was called with");
}

static Status find_template(Template *t, RtNode *root)
{
    VEC_PUSH(t->arena, t->stack, root);
    while (t->stack.n) {
        RtNode *node = t->stack.at[t->stack.n - 1];
        bool known = pointer_map_get(&t->slot, node) != NOT_MAPPED, ready = true;
        if (!known)
            TRY(check_place(t, node));
        for (uint32_t k = 0; k < node->n_in && !known && node->inside == INSIDE_RULE; k++)
            if (pointer_map_get(&t->slot, node->in[k]) == NOT_MAPPED) {
                VEC_PUSH(t->arena, t->stack, node->in[k]);
                ready = false;
            }
        if (!ready)
            continue;
        t->stack.n--;
        if (!known)
            complete(t, node);
    }
    return ST_OK;
}

static Status make_template(Template *t, const Making *m, bool forward)
{
    uint32_t n = forward ? m->n_out : m->n_in, n_values = m->n_in + m->n_out;
    *t = (Template){.making = m, .forward = forward, .arena = t->arena};
    for (uint32_t p = 0; p < n_places(m); p++) {
        bool readable = p < n_values || (p < n_values + m->n_out) == !forward;
        if (m->place[p] && !m->place[p]->weak && readable)
            pointer_map_put(t->arena, &t->slot, m->place[p], slot_of(SLOT_PLACE, p));
    }
    for (uint32_t k = 0; k < n; k++) {
        RtNode *node = m->given[forward][k];
        if (node)
            TRY(find_template(t, node));
        Slot slot = node ? operand_slot(t, node) : SLOT_NONE;
        VEC_PUSH(t->arena, t->result, slot);
    }
    return ST_OK;
}

/* Room behind the Custom, of its one block. */
static void *room(char **at, size_t bytes)
{
    void *here = *at;
    *at += (bytes + 15) & ~(size_t)15;
    return here;
}

static RtNode **hold(Custom *custom, RtNode *const *node, size_t n)
{
    RtNode **at = custom->held.node + custom->held.n;
    for (size_t k = 0; k < n; k++)
        at[k] = node_retain(node[k]);
    custom->held.n += (uint32_t)n;
    return at;
}

static Slot *keep_slots(char **at, const Slot *slot, size_t n)
{
    Slot *here = room(at, sizeof *slot * n);
    if (n)
        memcpy(here, slot, sizeof *slot * n);
    return here;
}

static Status make_custom(Arena *arena, void *with)
{
    Making *m = with;
    Template both[2] = {{.arena = arena}, {.arena = arena}};
    size_t held = (size_t)m->n_in + m->n_out, bytes = sizeof(Custom) + 15;
    for (int mode = 0; mode < 2; mode++) {
        Template *t = &both[mode];
        if ((mode == 0 || m->jvp) && !m->missing[mode])
            TRY(make_template(t, m, mode));
        held += t->made.n + t->captured.n;
        bytes += sizeof(Slot) * (t->operand.n + t->result.n) + 2 * 15;
    }
    bytes += sizeof(RtNode *) * held + 15;
    Custom *custom = os_alloc(bytes);
    if (!custom)
        return fail(ST_OUT_OF_MEMORY, "out of memory");
    char *at = (char *)custom;
    (void)room(&at, sizeof *custom);
    *custom = (Custom){.n_in = m->n_in, .n_out = m->n_out, .n_plain = m->of_bodies ? m->n_plain : m->n_out, .of_bodies = m->of_bodies};
    atomic_init(&custom->held.refs, 1);
    custom->held.node = room(&at, sizeof(RtNode *) * held);
    custom->in = hold(custom, m->in, m->n_in);
    for (int mode = 0; mode < 2; mode++)
        custom->rule[mode].captured = hold(custom, both[mode].captured.at, both[mode].captured.n);
    custom->n_behind = custom->held.n;
    custom->out = hold(custom, m->out, m->n_out);
    for (int mode = 0; mode < 2; mode++) {
        const Template *t = &both[mode];
        Rule *rule = &custom->rule[mode];
        rule->given = (mode == 0 || m->jvp) && !m->missing[mode];
        rule->n_made = (uint32_t)t->made.n;
        rule->n_captured = (uint32_t)t->captured.n;
        rule->n_results = (uint32_t)t->result.n;
        rule->made = hold(custom, t->made.at, t->made.n);
        rule->operand = keep_slots(&at, t->operand.at, t->operand.n);
        rule->result = keep_slots(&at, t->result.at, t->result.n);
    }
    m->custom = custom;
    return ST_OK;
}

/* ---- results ---- */

RtNode *custom_result(Rec *r, const Custom *custom, uint32_t k)
{
    RtNode *node = rec_same(r, custom->out[k]);
    if (!node)
        return NULL;
    bool recorded = node->tracked; /* in a recording, if one is open */
    node->held = (Held *)(uintptr_t)&custom->held;
    atomic_fetch_add(&node->held->refs, 1);
    node->scalar = k;
    node->tracked = true;
    node->keep |= option_int(OPT_MODE) == MODE_EAGER;
    if (!recorded && r->thread->keeper && !recording_add(r->thread->keeper, node))
        return rec_fail(r, ST_OUT_OF_MEMORY, "out of memory");
    return node;
}

/* One block, with the same slots and templates. */
static Custom *copy_custom(const Custom *of, RtNode *const *instead)
{
    size_t bytes = sizeof(Custom) + 15 + sizeof(RtNode *) * of->held.n + 15;
    uint32_t n_operands[2] = {0};
    for (int mode = 0; mode < 2; mode++) {
        const Rule *rule = &of->rule[mode];
        for (uint32_t k = 0; k < rule->n_made; k++)
            n_operands[mode] += rule->made[k]->n_in;
        bytes += sizeof(Slot) * ((size_t)n_operands[mode] + rule->n_results) + 2 * 15;
    }
    Custom *custom = os_alloc(bytes);
    if (!custom)
        return NULL;
    char *at = (char *)custom;
    (void)room(&at, sizeof *custom);
    *custom = (Custom){.n_in = of->n_in,
                       .n_out = of->n_out,
                       .n_behind = of->n_behind,
                       .n_plain = of->n_plain,
                       .of_bodies = of->of_bodies,
                       .order = of->order};
    atomic_init(&custom->held.refs, 1);
    custom->held.node = room(&at, sizeof(RtNode *) * of->held.n);
    uint32_t others = of->n_behind + of->n_out;
    (void)hold(custom, instead, others);
    (void)hold(custom, of->held.node + others, of->held.n - others);
#define MOVED(list) (custom->held.node + ((list)-of->held.node))
    custom->in = MOVED(of->in);
    custom->out = MOVED(of->out);
    for (int mode = 0; mode < 2; mode++) {
        Rule *rule = &custom->rule[mode];
        *rule = of->rule[mode];
        rule->captured = MOVED(rule->captured);
        rule->made = rule->made ? MOVED(rule->made) : NULL;
        rule->operand = keep_slots(&at, rule->operand, n_operands[mode]);
        rule->result = keep_slots(&at, rule->result, rule->n_results);
    }
#undef MOVED
    return custom;
}

RtNode *custom_again(Rec *r, CustomsAgain *all, const RtNode *of, RtNode *const *instead)
{
    uint32_t i = 0;
    while (i < all->n && all->at[i].of != custom_of(of))
        i++;
    if (i == all->cap) {
        struct CustomAgain *more = os_realloc(all->at, sizeof *more * (all->cap + 8));
        if (!more)
            return rec_fail(r, ST_OUT_OF_MEMORY, "out of memory");
        all->at = more;
        all->cap += 8;
    }
    if (i == all->n) {
        Custom *now = copy_custom(custom_of(of), instead);
        if (!now)
            return rec_fail(r, ST_OUT_OF_MEMORY, "out of memory");
        all->at[all->n++] = (struct CustomAgain){custom_of(of), now};
    }
    r->api = of->api;
    r->loc = of->loc;
    return custom_result(r, all->at[i].now, custom_number(of));
}

void customs_again_end(CustomsAgain *all)
{
    for (uint32_t i = 0; i < all->n; i++)
        custom_release(all->at[i].now);
    os_free(all->at);
}

static Status make_results(Making *m)
{
    Rec r = rec_begin(m->api, m->file, m->line);
    for (uint32_t k = 0; k < m->n_out && r.status == ST_OK; k++) {
        RtNode *node = custom_flows(m->out[k]) ? custom_result(&r, m->custom, k) : m->out[k];
        if (node && node != m->out[k]) {
            node_release(m->out[k]);
            m->out[k] = node_retain(node);
        }
    }
    rec_end(&r, NULL);
    return r.status;
}

/* ---- the public function ---- */

/* What the rules record, which are asked for; where one is missing that is no error of those that kiln has. */
static Status make_rules(Making *m)
{
    const Loc loc = {m->file, m->line};
    m->place = m->out + m->n_out;
    m->given[0] = m->place + n_places(m);
    m->given[1] = m->given[0] + m->n_in;
    Status status = make_places(m);
    if (status != ST_OK)
        return error_keep(status, m->api, loc);
    for (int mode = 0; mode < 2; mode++) {
        const ErrorMark mark = errors_mark();
        if ((mode == 0 || m->jvp) && !m->missing[mode])
            status = run_rule(m, mode);
        if (status == ST_UNSUPPORTED && m->of_bodies) {
            errors_back_to(mark);
            m->missing[mode] = true;
            status = ST_OK;
        }
        if (status != ST_OK)
            return status; /* kept */
    }
    return error_keep(with_arena(make_custom, m), m->api, loc);
}

static Status make(Making *m)
{
    const BodyRun run = {.api = m->api,
                         .loc = {m->file, m->line},
                         .n_in = m->n_in,
                         .n_out = m->n_out,
                         .in = m->in,
                         .out = m->out,
                         .call = call_function,
                         .with = m,
                         .custom = INSIDE_FUNCTION};
    const Loc loc = {m->file, m->line};
    Status status = body_run(&run);
    if (status != ST_OK)
        return status; /* kept */
    status = with_arena(check_captured, m);
    if (status != ST_OK || !any_tracked(m))
        return error_keep(status, m->api, loc);
    TRY(make_rules(m));
    return make_results(m);
}

/* Room for a function of kiln's. ST_OUT_OF_MEMORY is kept. */
static Status begin_of_bodies(Making *m, const CustomFunction *function, uint32_t n_in, RtNode *const *in, uint32_t n_out)
{
    size_t more = 4 * ((size_t)n_in + n_out) + 1;
    m->f = function->f;
    m->vjp = function->vjp;
    m->jvp = function->jvp;
    m->user = function->user;
    m->n_plain = function->n_plain;
    m->of_bodies = true;
    m->in = os_calloc(n_in + n_out + more, sizeof *m->in);
    m->between = os_calloc((size_t)n_out + 1, sizeof *m->between);
    if (!m->in || !m->between)
        return error_keep(fail(ST_OUT_OF_MEMORY, "out of memory"), m->api, (Loc){m->file, m->line});
    memcpy(m->in, in, sizeof *in * n_in);
    m->n_in = n_in;
    m->n_out = n_out;
    m->out = m->in + n_in;
    return ST_OK;
}

Status custom_of_results(const char *api, Loc loc, const CustomFunction *function, bool forward, uint32_t n_in, RtNode *const *in,
                         uint32_t n_out, RtNode *const *out, Custom **custom)
{
    Making m CLEANUP(end_making) = {.api = api, .file = loc.file, .line = loc.line, .missing = {forward, !forward}};
    TRY(begin_of_bodies(&m, function, n_in, in, n_out));
    for (uint32_t k = 0; k < n_out; k++)
        m.out[k] = node_retain(out[k]);
    TRY(make_rules(&m));
    m.custom->of_results = true;
    *custom = m.custom;
    m.custom = NULL;
    return ST_OK;
}

Status custom_of_bodies(const char *api, Loc loc, const CustomFunction *function, uint32_t n_in, RtNode *const *in, uint32_t n_out,
                        RtNode **result)
{
    Making m CLEANUP(end_making) = {.api = api, .file = loc.file, .line = loc.line};
    TRY(begin_of_bodies(&m, function, n_in, in, n_out));
    TRY(make(&m));
    for (uint32_t k = 0; k < n_out; k++) {
        result[k] = m.out[k];
        m.out[k] = NULL;
    }
    return ST_OK;
}

kiln_status kiln_custom_gradient(kiln_function_body *f, kiln_vjp_body *vjp, kiln_jvp_body *jvp, int n_in, kiln_tensor *const *in, int n_out,
                                 kiln_tensor **out, void *user)
{
    return kiln_custom_gradient_at(f, vjp, jvp, n_in, in, n_out, out, user, NULL, 0);
}

kiln_status kiln_custom_gradient_at(kiln_function_body *f, kiln_vjp_body *vjp, kiln_jvp_body *jvp, int n_in, kiln_tensor *const *in,
                                    int n_out, kiln_tensor **out, void *user, const char *file, int line)
{
    return custom_gradient("kiln_custom_gradient", (Loc){file, line}, f, vjp, jvp, n_in, in, n_out, out, user);
}

kiln_status custom_gradient(const char *api, Loc loc, kiln_function_body *f, kiln_vjp_body *vjp, kiln_jvp_body *jvp, int n_in,
                            kiln_tensor *const *in, int n_out, kiln_tensor **out, void *user)
{
    Rec r = rec_begin(api, loc.file, loc.line);
    size_t n = n_in > 0 ? (size_t)n_in : 0, more = 3 * (n + (n_out > 0 ? (size_t)n_out : 0));
    Making m CLEANUP(end_making) = {.api = r.api, .file = r.loc.file, .line = r.loc.line, .f = f, .vjp = vjp, .jvp = jvp, .user = user};
    m.in = body_arguments(&r, f && (vjp || jvp), n_in, in, n_out, out, more);
    if (r.status == ST_OK && r.thread->custom == INSIDE_RULE)
        rec_fail(&r, ST_UNSUPPORTED, "inside a rule of another kiln_custom_gradient: call what it computes plainly");
    if (r.status == ST_OK && !(m.between = os_calloc((size_t)n_out + 1, sizeof *m.between)))
        rec_fail(&r, ST_OUT_OF_MEMORY, "out of memory");
    rec_end(&r, NULL);
    if (r.status != ST_OK)
        return (kiln_status)r.status;
    m.n_in = (uint32_t)n_in;
    m.n_out = (uint32_t)n_out;
    m.out = m.in + n_in;
    Status status = make(&m);
    return (kiln_status)(status == ST_OK ? body_hand_out(m.api, (Loc){m.file, m.line}, m.n_out, m.out, out) : status);
}
