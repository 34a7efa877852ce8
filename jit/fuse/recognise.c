/* A function for each RECOGNISED row of jit/fuse/recognise.def, true of a node that the row is about. They ask the finished plan, and decide nothing. */
#include "jit/fuse/recognise.h"
#include "jit/fuse/fuse.h"

typedef struct Known {
    const Fuser *f;
    Ref n;
    const Node *node;
    const Attention *attention; /* that it is the product of; NULL: of none */
    const PlanStep *step;       /* that makes it, the last one; NULL: it has none of its own */
    bool united;                /* made by a kernel of several products */
    bool placed;                /* its buffer is a part of a bucket's */
    bool turned;                /* a step copies it for the lanes of another one */
} Known;

static bool recognises_attention(const Known *k) { return k->attention && !k->attention->chain; }

static bool recognises_chain(const Known *k) { return k->attention && k->attention->chain; }

static bool recognises_share(const Known *k) { return k->attention && k->attention->share != REF_NONE; }

static bool recognises_hidden(const Known *k) { return k->attention && k->attention->zero; }

static bool recognises_few(const Known *k) { return k->attention && k->attention->parts; }

static bool recognises_rows(const Known *k) { return k->step && k->step->band && !k->step->folds; }

static bool recognises_summed_rows(const Known *k) { return k->step && k->step->band && k->step->folds; }

static bool recognises_epilogue(const Known *k)
{
    const Fuser *f = k->f;
    bool found = false;
    for (uint32_t u = f->user_at[k->n]; u < f->user_at[k->n + 1] && k->node->op == OP_MATMUL; u++)
        found |= f->contract_of[f->users[u]] == k->n && f->contract_of[k->n] == k->n;
    return found;
}

static bool recognises_packed(const Known *k)
{
    return k->f->flags[k->n] & NODE_PACKED && class_of(k->f, k->n) == CLS_EW && k->node->op != OP_CAST && !has_buffer(k->f, k->n);
}

static bool recognises_united(const Known *k) { return k->united; }

static bool recognises_vector(const Known *k)
{
    return k->node->op == OP_MATMUL && !(k->f->flags[k->n] & NODE_ATTENDED) && !k->attention && sums_products(k->f, k->node);
}

static bool recognises_sorted(const Known *k) { return k->f->flags[k->n] & NODE_SORTED; }

static bool is_kernel(const Known *k) { return k->node->op == OP_LOOP && k->step && k->step->kind == STEP_KERNEL; }

static bool recognises_counted(const Known *k) { return is_kernel(k) && k->node->n_bodies == 1; }

static bool recognises_until(const Known *k) { return is_kernel(k) && k->node->n_bodies == 2 && !k->node->attr.loop.settles; }

static bool recognises_settling(const Known *k) { return is_kernel(k) && k->node->n_bodies == 2 && k->node->attr.loop.settles; }

static bool recognises_placed(const Known *k) { return k->placed; }

static bool recognises_placed_there(const Known *k)
{
    const Fuser *f = k->f;
    const Ref source = strip_reshape(f->g, k->n);
    bool found = false;
    for (uint32_t u = f->user_at[k->n]; u < f->user_at[k->n + 1]; u++)
        found |= f->flags[f->users[u]] & NODE_BUCKET && graph_node(f->g, source)->op != OP_INPUT && !has_buffer(f, source);
    return found;
}

static bool recognises_turned(const Known *k) { return k->turned; }

static const struct {
    bool (*recognises)(const Known *); /* NULL: NAMED */
    const char *sentence;
} rows[] = {
#define RECOGNISED(id, sentence) {recognises_##id, sentence},
#define NAMED(id, name, sentence) {NULL, sentence},
#include "jit/fuse/recognise.def"
#undef NAMED
#undef RECOGNISED
};

const char *recognised_sentence(RecognisedId id) { return rows[id].sentence; }

void recognised_print(const Fuser *f, Str *out)
{
    const PlanStep **step = ARENA_ARRAY(f->arena, const PlanStep *, f->n + 1);
    bool *united = ARENA_ARRAY(f->arena, bool, f->n + 1), *turned = ARENA_ARRAY(f->arena, bool, f->n + 1);
    for (uint32_t s = 0; s < f->plan->steps.n; s++) {
        const PlanStep *at = &f->plan->steps.at[s];
        turned[at->node] |= at->turns;
        if (!at->turns)
            step[at->node] = at;
        for (uint32_t a = 0; a < at->args.n && at->kind == STEP_KERNEL && kernel_beside(at->kernel); a++)
            if (at->kernel->args.at[a].written)
                united[f->plan->buffers.at[at->args.at[a].buffer].node] = true;
    }
    bool *placed = ARENA_ARRAY(f->arena, bool, f->n + 1);
    for (uint32_t i = 0; i < f->plan->buffers.n; i++)
        placed[f->plan->buffers.at[i].node] |= f->plan->buffers.at[i].within != NO_BUFFER;
    for (Ref n = 0; n < f->n; n++) {
        Known k = {.f = f, .n = n, .node = graph_node(f->g, n), .attention = attention_of(f, n), .step = step[n]};
        k.united = united[n];
        k.placed = placed[n];
        k.turned = turned[n];
        for (RecognisedId id = 0; id < RECOGNISED_ROWS && f->flags[n] & NODE_LIVE; id++)
            if (rows[id].recognises ? rows[id].recognises(&k) : named_as(f, n, id))
                str_printf(out, "recognised: %%%u %s: %s\n", n, op_name((Op)k.node->op), rows[id].sentence);
    }
}
