/*
 * Bytes as the text of a graph: refused with line and column, or a graph that the verifier accepts, that prints as it parses, and
 * that the interpreter can run.
 */
#include "target.h"

#include "ir/interp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_BYTES = 1 << 16, MOST_ELEMENTS = 4096, MOST_NODES = 200 };

static char *print(const Graph *g)
{
    Str out;
    str_init(&out, g->arena);
    graph_print(g, "g", &out);
    return out.text;
}

/* Bytes of data that the k-th input reaches: 0 where its strides lead outside what a test may hold. */
static size_t input_bytes(const Graph *g, const Node *n)
{
    int64_t last = 0;
    for (int d = 0; d < n->rank; d++) {
        int64_t dim = dim_hint(g, n->dim[d]), stride = n->attr.flag ? dim_hint(g, n->fact[n->rank + d]) : 0;
        if (dim > MOST_ELEMENTS || stride < 0 || stride > MOST_ELEMENTS)
            return 0;
        last += (dim > 0 ? dim - 1 : 0) * stride;
    }
    if (last > 16 * MOST_ELEMENTS)
        return 0;
    return ((size_t)last + MOST_ELEMENTS) * dtype_bytes((DType)n->dtype);
}

static bool small(const Graph *g)
{
    if (g->nodes.n > MOST_NODES)
        return false;
    for (Ref r = 0; r < g->nodes.n; r++)
        if (node_hint_numel(g, r) > MOST_ELEMENTS || (graph_node(g, r)->op == OP_MATMUL && node_hint_numel(g, r) > 256))
            return false;
    for (uint32_t k = 0; k < g->inputs.n; k++)
        if (!input_bytes(g, graph_node(g, g->inputs.at[k])))
            return false;
    return true;
}

static void run(const Graph *g)
{
    const void **in = ARENA_ARRAY(g->arena, const void *, g->inputs.n + 1);
    void **out = ARENA_ARRAY(g->arena, void *, g->outputs.n + 1);
    for (uint32_t k = 0; k < g->inputs.n; k++)
        in[k] = arena_alloc(g->arena, input_bytes(g, graph_node(g, g->inputs.at[k])));
    for (uint32_t k = 0; k < g->outputs.n; k++)
        out[k] = arena_alloc(g->arena,
                             (size_t)node_hint_numel(g, g->outputs.at[k]) * dtype_bytes((DType)graph_node(g, g->outputs.at[k])->dtype));
    const Node *bad;
    Status status = interp_run(g, INTERP_NATIVE, MATH_STRICT, ORDER_HOST, in, out, &bad);
    REQUIRE(status == ST_OK || status == ST_INDEX || status == ST_OUT_OF_MEMORY, "%s: %s", status_name(status), fail_message());
}

static void parse(const char *text, Arena *arena)
{
    Graph *g = NULL, *again = NULL;
    Status status = graph_parse(text, arena, &g);
    if (status != ST_OK) {
        int line, column;
        REQUIRE(status == ST_FORMAT && !g && sscanf(fail_message(), "%d:%d: ", &line, &column) == 2, "%s: %s", status_name(status),
                fail_message());
        return;
    }
    REQUIRE(graph_verify(g) == ST_OK, "%s", fail_message());
    const char *printed = print(g);
    REQUIRE(graph_parse(printed, arena, &again) == ST_OK, "%s\n%s", fail_message(), printed);
    REQUIRE(strcmp(print(again), printed) == 0, "printed anew:\n%s\nfirst:\n%s", print(again), printed);
    if (small(g))
        run(g);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    if (n > MOST_BYTES)
        return 0;
    char *text = malloc(n + 1); /* of its own, so that a sanitizer sees its end */
    REQUIRE(text, "memory");
    if (n)
        memcpy(text, bytes, n);
    text[n] = '\0';
    Arena arena;
    jmp_buf oom;
    arena_init(&arena, &oom);
    if (setjmp(oom) == 0)
        parse(text, &arena);
    arena_free(&arena);
    free(text);
    return 0;
}
