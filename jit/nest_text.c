/* A nest as text: a line a loop, indented by what it is in; statements of one body in a line. */
#include "jit/kernel_text.h"
#include "jit/nest.h"

#include <inttypes.h>

static const char *const kind_word[] = {
#define NEST(id, role, text) text,
#include "jit/nest.def"
#undef NEST
};

typedef struct Print {
    const Nest *n;
    const KernelFacts *f;
    Str *out;
    bool split; /* of this phase */
} Print;

static void line(Print *p, int depth) { str_printf(p->out, "\n%*s", 2 * depth, ""); }

/* The folds that end in this stage; nothing where there are none. */
static void print_folds(Print *p, const NestNode *node, int depth)
{
    bool any = false;
    for (VRef v = 0; v < p->f->k->inst.n; v++) {
        const Statement *s = &p->n->does[v];
        if (s->kind != STATEMENT_STEP || s->body != node->number)
            continue;
        if (!any)
            line(p, depth), str_printf(p->out, "%s", kind_word[node->kind]);
        NestFold how = nest_fold(p->n, p->f, v);
        str_printf(p->out, " v%u", v);
        if (node->kind == NEST_START && how.slots > 1)
            str_printf(p->out, " (%u slots)", how.slots);
        else if (node->kind == NEST_START && how.extreme)
            str_printf(p->out, " (extreme)");
        any = true;
    }
}

static const char *effect_word(const KInst *x) { return x->kind == KI_STORE ? "store" : x->kind == KI_SCATTER ? "scatter" : "check"; }

static void print_body(Print *p, const NestNode *node, int depth)
{
    static const char *const word[] = {
        [STATEMENT_RUN] = "run", [STATEMENT_SAVE] = "save", [STATEMENT_STEP] = "step", [STATEMENT_NEXT] = "next"};
    bool x_points = node->number == p->f->n_stages;
    int printed = 0;
    for (int kind = STATEMENT_RUN; kind <= STATEMENT_NEXT; kind++)
        for (VRef v = 0; v < p->f->k->inst.n; v++) {
            const Statement *s = &p->n->does[v];
            const KInst *x = &p->f->k->inst.at[v];
            bool save = kind == STATEMENT_SAVE && s->saved && p->f->info[v].stage == node->number;
            if (!save && (s->kind != kind || s->body != node->number || (x_points && kind != STATEMENT_EFFECT)))
                continue;
            if (!nest_body_has(p->f->k, node->own, v))
                continue;
            if (printed++)
                str_printf(p->out, "; ");
            else
                line(p, depth);
            if (kind != STATEMENT_EFFECT)
                str_printf(p->out, "%s v%u", word[kind], v);
            else if (x->kind == KI_BOUND)
                str_printf(p->out, "check v%u", v);
            else
                str_printf(p->out, "%s a%u", effect_word(x), x->arg);
        }
}

static void print_axes(Print *p, uint32_t axes)
{
    str_printf(p->out, " ");
    for (uint32_t a = 0; a < p->f->k->axes.n; a++)
        if (axes >> a & 1)
            str_printf(p->out, "%c", kernel_axis_letters[a]);
}

static void print_loop(Print *p, const NestNode *node, int depth)
{
    static const char *const tail[] = {
        "", " tail mask", " tail scalar", " tail halves", " tail passes", " tail registers", " tail earlier"};
    line(p, depth);
    if (!node->axes) {
        str_printf(p->out, "once%s", node->task ? " task" : "");
        return;
    }
    str_printf(p->out, "for");
    print_axes(p, node->axes);
    if (node->by != 1 && node->kind != NEST_CANONICAL)
        str_printf(p->out, " by %" PRId64, node->by);
    if (*kind_word[node->kind] && !(node->by == 1 && node->kind == NEST_TILES))
        str_printf(p->out, " %s", kind_word[node->kind]);
    if (node->kind == NEST_CANONICAL)
        str_printf(p->out, " %" PRId64, node->by);
    if (node->points && node->kind != NEST_SQUARES)
        str_printf(p->out, " %" PRId64, node->points);
    str_printf(p->out, "%s%s%s", node->task ? " task" : "", node->inside ? " inside" : "", tail[node->tail]);
    if (node->whole == NEST_WHOLE_SHORT)
        str_printf(p->out, ", whole vectors where rows are few");
    else if (node->whole == NEST_WHOLE_NONE)
        str_printf(p->out, ", no whole vectors");
    if (node->few)
        str_printf(p->out,
                   p->n->node.at[node->child].kind == NEST_CHAIN_TILES ? ", fewer than %" PRId64 " rows" : ", %" PRId64 " rows and more",
                   node->few);
    if (node->ends)
        str_printf(p->out, " while its carry says so");
}

static void print_node(Print *p, NestRef at, int depth);

static void print_children(Print *p, NestRef first, int depth)
{
    for (NestRef at = first; at != NEST_NONE; at = p->n->node.at[at].next)
        print_node(p, at, depth);
}

/* Does it stand for nothing: the one phase, rows of no axes whose tiles are tasks, an axis that a product does not have? */
static bool unseen(const Print *p, const NestNode *node)
{
    const NestNode *child = node->child == NEST_NONE ? NULL : &p->n->node.at[node->child];
    if (node->kind == NEST_PHASE)
        return p->n->node.at[p->n->phase].next == NEST_NONE;
    if (node->kind == NEST_MULTIPLY || node->kind == NEST_LAST || node->kind == NEST_PRODUCT || node->kind == NEST_SHARES)
        return false;
    return nest_role((NestKind)node->kind) == NEST_ROLE_SCOPE ||
           (!node->axes && (node->kind >= NEST_TASK_ROWS || (node->kind == NEST_ROWS && child && child->task)));
}

static void print_scope(Print *p, const NestNode *node, int depth)
{
    line(p, depth);
    if (node->kind == NEST_MULTIPLY || node->kind == NEST_LAST) {
        str_printf(p->out, "%s", kind_word[node->kind]);
    } else if (node->kind == NEST_PRODUCT) {
        str_printf(p->out, "%s %u", kind_word[node->kind], node->number);
    } else if (node->kind == NEST_SHARES) {
        str_printf(p->out, "%" PRId64 " %s task", node->points, kind_word[node->kind]);
    } else if (node->kind == NEST_PHASE && node->split) {
        str_printf(p->out, "phase %u", node->number);
    } else if (node->kind == NEST_PHASE) {
        bool joins = p->f->schedule->join_below;
        str_printf(p->out, "phase of launches %s",
                   node->joined ? "with few points a row"
                   : joins      ? "with more points a row"
                                : "that are not split");
    } else {
        str_printf(p->out, "piece %u of", node->number);
        print_axes(p, node->axes);
        if (node->points >= 0)
            str_printf(p->out, ": %" PRId64, node->points);
    }
}

static void print_node(Print *p, NestRef at, int depth)
{
    const NestNode *node = &p->n->node.at[at];
    NestRef child = node->child;
    p->split = node->kind == NEST_PHASE ? node->split : p->split;
    if (node->kind == NEST_BODY) {
        print_body(p, node, depth);
    } else if (node->kind == NEST_STRIP_KEEP) {
        print_loop(p, node, depth);
        for (VRef v = 0; v < p->f->k->inst.n; v++)
            if (nest_kept(p->f, v) && p->f->info[v].stage == node->number + 1)
                str_printf(p->out, " v%u", v);
    } else if (node->kind >= NEST_PACK_ROWS) {
        line(p, depth);
        str_printf(p->out, "%s v%u", kind_word[node->kind], node->number);
    } else if (nest_role((NestKind)node->kind) == NEST_ROLE_DO) {
        print_folds(p, node, depth);
    } else if (nest_role((NestKind)node->kind) == NEST_ROLE_SCOPE && (node->kind == NEST_PIECE || !unseen(p, node))) {
        print_scope(p, node, depth++);
    } else if (!unseen(p, node)) {
        if (child != NEST_NONE && p->n->node.at[child].kind == NEST_STRIPS) {
            print_node(p, child, depth);
            child = p->n->node.at[child].next;
        }
        print_loop(p, node, depth++);
    }
    print_children(p, child, depth);
}

void nest_print(const Nest *n, const KernelFacts *f, Str *out)
{
    Print p = {.n = n, .f = f, .out = out};
    str_printf(out, "nest");
    print_children(&p, n->phase, 1);
    str_printf(out, "\n");
}
