/*
 * Random small array programs as plain data (recipes), for the fuzzer.
 *
 *     Recipe r;
 *     recipe_random(seed, &r);                     the same recipe for the same seed, everywhere
 *     kiln_tensor *out[RECIPE_OUTPUTS];
 *     int n = recipe_build(&r, sizes, inputs, out, NULL);     records it through the public interface
 *
 * A node's operands are earlier nodes; its numbers (axes, bounds, shapes) are hints that the builder fits to the
 * operands at hand (an axis is taken modulo the rank, ...). So every recipe means something whatever its sizes are, and a shrinker may
 * change it freely. Nodes that cannot be recorded (operands that do not fit) are NULL; outputs that are NULL are left out.
 * The sizes of inputs are indices into a palette, so that one recipe can run with several palettes: one structure, many sizes.
 *
 * The sign of a NaN is nobody's promise, so builders hide it from the functions that would show it (signbit, copysign).
 */
#ifndef TESTS_SUPPORT_RANDOM_GRAPH_H
#define TESTS_SUPPORT_RANDOM_GRAPH_H

#include "tests/support/compare.h"
#include <stdio.h>

enum {
    RECIPE_NODES = 40,
    RECIPE_OUTPUTS = 4,
    RECIPE_RANK = 8,
    PALETTE = 4,
    RECIPE_MAX_ELEMENTS = 60000,
    RECIPE_LARGE_ELEMENTS = 180000,
    RECIPE_MAX_PRODUCTS = 30000000
};

typedef enum RecipeOp {
    R_INPUT,
    R_WEAK,
    R_FULL,
    R_ARANGE,
    R_RANDOM, /* leaves */
    R_UNARY,
    R_BINARY,
    R_CAST,
    R_WHERE,
    R_CLAMP,
    R_REDUCE,
    R_ARG,
    R_VAR,
    R_RESHAPE,
    R_PERMUTE,
    R_EXPAND,
    R_SQUEEZE,
    R_SLICE,
    R_UNFOLD,
    R_FLIP,
    R_PAD,
    R_CONCAT,
    R_STACK,
    R_ROLL,
    R_TILE,
    R_TRIANGLE,
    R_TAKE,
    R_TAKE_ALONG,
    R_SCATTER,
    R_SORT,
    R_CUMSUM,
    R_MATMUL,
    R_SOFTMAX,
    R_NORMALIZE,
    R_SCAN,
    R_WHILE,
    R_COND,
    R_MAP,
    R_CUSTOM, /* ops of the user's: host functions and decompositions, also in bodies */
    R_NEARLY, /* random_graph_networks.c, as the next nine */
    R_CONV,
    R_POOL,
    R_ATTENTION,
    R_RESIZE,
    R_EINSUM,
    R_GROUP_NORM,
    R_ROTARY,
    R_PRODUCTS,
    R_GRADIENT,
    R_ALIAS, /* the first operand itself: left by the shrinker */
    R_OPS
} RecipeOp;

typedef struct RecipeNode {
    uint8_t op;
    uint8_t dtype;             /* leaves and casts */
    uint8_t values;            /* inputs: Values */
    uint8_t rank;              /* leaves */
    uint8_t size[RECIPE_RANK]; /* leaves: palette indices; PALETTE means 1 */
    int16_t in[3];             /* earlier nodes */
    int32_t p[4];
} RecipeNode;

typedef struct Recipe {
    uint64_t seed;
    bool smooth; /* only continuous functions of floats of moderate size: results may be compared with a tolerance */
    bool large;  /* matrices that products pack as they compute them, of few nodes */
    int n, n_out;
    RecipeNode node[RECIPE_NODES];
    int16_t out[RECIPE_OUTPUTS];
    int64_t sizes[PALETTE];
} Recipe;

void recipe_random(uint64_t seed, Recipe *recipe);
kiln_shape recipe_input_shape(const RecipeNode *node, const int64_t *sizes);

/* Gives the tensor of input node `node` (number `k` of the recipe). */
typedef kiln_tensor *RecipeInput(const Recipe *recipe, int k, kiln_shape shape, void *user);

/* What the nodes of a recipe became. */
typedef struct RecipeMade {
    bool ok[RECIPE_NODES];
    kiln_dtype dtype[RECIPE_NODES];
    kiln_shape shape[RECIPE_NODES];
} RecipeMade;

/* Records the recipe with the palette `sizes`; out gets the outputs that could be recorded, in order; returns their number. `made`
 * and `text` may be NULL; text gets the recipe as C. Leaves no error kept. */
int recipe_build(const Recipe *recipe, const int64_t *sizes, RecipeInput *input, void *user, kiln_tensor **out, RecipeMade *made,
                 FILE *text);

/* Drops the nodes that no output needs. */
void recipe_compact(Recipe *recipe);

#endif
