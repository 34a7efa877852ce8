/* What the builders of a recipe's nodes have in common: random_graph.c, random_graph_networks.c. */
#ifndef TESTS_SUPPORT_RANDOM_GRAPH_AT_H
#define TESTS_SUPPORT_RANDOM_GRAPH_AT_H

#include "tests/support/random_graph.h"

#include <inttypes.h>
#include <stdarg.h>

/* The node being built. */
typedef struct At {
    const Recipe *recipe;
    const RecipeNode *node;
    const int64_t *sizes;
    int k;
    kiln_tensor *a, *b, *c; /* operands; NULL where there are none */
    RecipeInput *input;
    void *user;
    FILE *text;
} At;

static inline void say(const At *at, const char *format, ...) __attribute__((format(printf, 2, 3)));
static inline void say(const At *at, const char *format, ...)
{
    if (!at->text)
        return;
    va_list args;
    va_start(args, format);
    vfprintf(at->text, format, args);
    va_end(args);
}

static inline int32_t modulo(int32_t value, int n) { return n < 1 ? 0 : (value % n + n) % n; }

/* Few enough elements. */
bool recipe_is_small(const At *at, kiln_shape shape);

/* Which node may be differentiated: the ops of recipes without leaves. Records node->op of at's operands. NULL: they do not fit. */
kiln_tensor *recipe_build_node(At *at);

/* What networks are made of. */
kiln_tensor *build_nearly(At *at);
kiln_tensor *build_conv(At *at);
kiln_tensor *build_pool(At *at);
kiln_tensor *build_attention(At *at);
kiln_tensor *build_resize(At *at);
kiln_tensor *build_einsum(At *at);
kiln_tensor *build_group_norm(At *at);
kiln_tensor *build_rotary(At *at);
kiln_tensor *build_products(At *at);
kiln_tensor *build_gradient(At *at);

#endif
