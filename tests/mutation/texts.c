/*
 * The guards of whole programs say what they check: random graphs are compiled at several sizes, static and generalised, and the guards
 * of all programs in the cache are evaluated twice, by guards_hold and from their text, on random facts and near every number they name.
 * A run takes a slice of the graphs (support/slice.h).
 */
#include "tests/mutation/programs.h"
#include "tests/support/random_graph.h"
#include "tests/support/slice.h"

#include <inttypes.h>
#include <stdlib.h>

enum { RECIPES = 400, FACTS = 40 };

static kiln_tensor *input(const Recipe *recipe, int k, kiln_shape shape, void *user)
{
    (void)user;
    const RecipeNode *node = &recipe->node[k];
    int64_t n = shape_elements(shape);
    void *data = malloc((size_t)n * kiln_dtype_size((kiln_dtype)node->dtype) + 1);
    values_fill((kiln_dtype)node->dtype, (Values)node->values, 5, recipe->seed + (uint64_t)k, n, data);
    kiln_tensor *x = kiln_from((kiln_dtype)node->dtype, shape, data);
    free(data);
    return x;
}

static void compile_at(const Recipe *recipe, const int64_t *sizes)
{
    kiln_tensor *out[RECIPE_OUTPUTS];
    kiln_scope *scope = kiln_scope_begin();
    kiln_seed(recipe->seed);
    int n = recipe_build(recipe, sizes, input, NULL, out, NULL, NULL);
    if (n && kiln_eval_many(out, n) != KILN_OK)
        kiln_clear_error(); /* an index out of bounds */
    kiln_scope_end(scope);
}

/* n slices with equal bounds, met at three lengths: merged under guards that the bounds are the same, which random graphs seldom have. */
static void equal_slices(int n)
{
    for (int64_t length = 20; length < 50; length += 11) {
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *x = kiln_ones(KILN_F32, KILN_SHAPE(100)), *sum = kiln_scalar(0);
        for (int i = 0; i < n && kiln_eval(x) == KILN_OK; i++)
            sum = kiln_add(sum, kiln_exp(kiln_slice_axis(x, 0, 0, length, 1)));
        if (kiln_eval(sum) != KILN_OK)
            kiln_clear_error();
        kiln_scope_end(scope);
    }
}

/* Products of few rows and of more, in programs for a range of them each: a slice of random graphs may have none such. */
static void products_of_rows(void)
{
    for (int64_t rows = 2; rows < 12; rows += 3) {
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *x = kiln_ones(KILN_F32, KILN_SHAPE(rows, 200)), *w = kiln_ones(KILN_F32, KILN_SHAPE(200, 210));
        if (kiln_eval(x) != KILN_OK || kiln_eval(w) != KILN_OK || kiln_eval(kiln_matmul(x, w)) != KILN_OK)
            kiln_clear_error();
        kiln_scope_end(scope);
    }
}

static void say(void *user, const char *what)
{
    (void)user;
    printf("FAIL %s\n", what);
}

int main(int argc, char **argv)
{
    int all = argc > 1 ? atoi(argv[1]) : RECIPES, recipes = 0;
    static const char *const dynamic[] = {"auto", "always", "never"};
    for (int i = 0; i < all; i++) {
        Recipe recipe;
        if (!slice_takes((uint64_t)i))
            continue;
        recipes++;
        recipe_random(5000 + (uint64_t)i, &recipe);
        if (kiln_set_option("dynamic", dynamic[i % 3]) != KILN_OK)
            return 2;
        int64_t other[PALETTE];
        for (int round = 0; round < 3; round++) {
            for (int p = 0; p < PALETTE; p++)
                other[p] = recipe.sizes[p] + (round && p != i % PALETTE ? round : 0);
            compile_at(&recipe, other);
        }
    }
    if (kiln_set_option("dynamic", "auto") != KILN_OK)
        return 2;
    for (int n = 2; n < 6; n++)
        equal_slices(n);
    products_of_rows();
    Agreement a = programs_guards_agree(FACTS, say, NULL);
    printf("texts: %" PRId64 " programs, %" PRId64 " guards (", a.programs, a.guards);
    for (int k = 0; k < PROGRAMS_KINDS; k++)
        printf("%s%s %" PRId64, k ? ", " : "", programs_kind(k), a.of_kind[k]);
    printf("); %" PRId64 " times both said yes, %" PRId64 " no, %" PRId64 " cut short, %" PRId64 " disagreements\n", a.held, a.broke, a.cut,
           a.disagreed);
    bool enough = a.programs > recipes && a.held > 50 * recipes && a.broke > 30 * recipes && a.cut * 100 < a.held + a.broke;
    for (int k = 0; k < PROGRAMS_KINDS; k++)
        enough &= a.of_kind[k] >= 2;
    if (!enough)
        printf("FAIL too little was compared\n");
    return a.disagreed || !enough;
}
