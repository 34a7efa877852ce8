/* Questions about facts: what is asked, what needs no question, what is taken back. */
#include "ir/query.h"
#include "tests/unit/graphs.h"

TestSuite(query, .init = open_arena, .fini = close_arena);

/* Answers from the graph; refuses facts in `varies`; counts what is on record. */
typedef struct Recorder {
    Query query; /* first */
    Graph *g;
    uint32_t varies; /* bit set of facts */
    bool scalars_vary;
    uint32_t asked, on_record;
} Recorder;

static bool record_int(Query *q, uint32_t fact, const char *who, int64_t *value)
{
    Recorder *r = (Recorder *)q;
    (void)who;
    r->asked++;
    *value = r->g->shared->ints.at[fact].value;
    if (r->varies >> fact & 1)
        return false;
    r->on_record++;
    return true;
}

static bool record_same(Query *q, const Graph *g, Dim a, Dim b, const char *who)
{
    (void)g, (void)a, (void)b, (void)who;
    ((Recorder *)q)->asked++;
    ((Recorder *)q)->on_record++;
    return true;
}

static bool record_range(Query *q, const Graph *g, Dim d, int64_t min, int64_t max, const char *who)
{
    (void)min, (void)max;
    return record_same(q, g, d, d, who);
}

static void no_bounds(Query *q, const Graph *g, Dim d, int64_t *min, int64_t *max)
{
    (void)q, (void)g, (void)d;
    *min = INT64_MIN;
    *max = INT64_MAX;
}

static bool record_scalar(Query *q, uint32_t scalar, const char *who, uint64_t *bits)
{
    Recorder *r = (Recorder *)q;
    (void)who;
    r->asked++;
    *bits = r->g->shared->scalars.at[scalar].bits;
    r->on_record += !r->scalars_vary;
    return !r->scalars_vary;
}

static uint32_t record_mark(Query *q) { return ((Recorder *)q)->on_record; }

static void record_undo(Query *q, uint32_t mark) { ((Recorder *)q)->on_record = mark; }

static Recorder recorder(Graph *g)
{
    return (Recorder){.query = {record_int, record_same, record_range, no_bounds, record_scalar, record_mark, record_undo}, .g = g};
}

static Dim fact(Graph *g, int64_t value) { return dim_fact(g, value, FACT_DIM, 0, REF_NONE); }

Test(query, without_one_the_facts_at_hand_answer)
{
    Graph *g = graph_new(&arena);
    Dim a = fact(g, 8), b = fact(g, 8);
    int64_t value;
    cr_assert(spec_dim(g, dim_mul(g, a, b), "t", &value) && value == 64);
    cr_assert(spec_dim_eq(g, a, 8, "t") && !spec_dim_eq(g, a, 9, "t"));
    cr_assert(spec_dim_same(g, a, b, "t"));
    cr_assert(spec_range(g, a, 1, 8, "t") && !spec_range(g, a, 9, 10, "t"));
}

Test(query, what_structure_proves_is_not_asked)
{
    Graph *g = graph_new(&arena);
    Dim a = fact(g, 8), b = fact(g, 8), c = fact(g, 1);
    Recorder r = recorder(g);
    int64_t value;
    g->shared->query = &r.query;
    dim_unify(g, a, b);
    dim_unify(g, c, dim_const(g, 1));
    cr_assert(spec_dim(g, c, "t", &value) && value == 1);
    cr_assert(spec_dim_same(g, a, b, "t"));
    cr_assert(spec_range(g, c, 1, 1, "t"));
    cr_assert_eq(r.asked, 0);
    cr_assert_not(spec_dim_eq(g, a, 9, "t"));
    cr_assert_not(spec_dim_same(g, a, c, "t"));
    cr_assert_not(spec_range(g, a, 9, 10, "t"));
    cr_assert_eq(r.asked, 0, "nor what is false now");
}

Test(query, a_size_is_specialised_whole_or_not_at_all)
{
    Graph *g = graph_new(&arena);
    Dim a = fact(g, 2), b = fact(g, 3), c = fact(g, 5), sum = dim_add(g, dim_mul(g, a, b), dim_mul(g, c, a));
    Recorder r = recorder(g);
    int64_t value;
    g->shared->query = &r.query;
    cr_assert(spec_dim(g, sum, "t", &value) && value == 16);
    cr_assert_eq(r.on_record, 3, "each fact once");
    r = recorder(g);
    r.varies = 1u << 2;
    cr_assert_not(spec_dim(g, sum, "t", &value));
    cr_assert_eq(r.on_record, 0, "taken back");
    cr_assert_not(spec_dim_eq(g, c, 5, "t"));
}

Test(query, one_fact_answers_for_its_class)
{
    Graph *g = graph_new(&arena);
    Dim a = fact(g, 4), b = fact(g, 4), c = fact(g, 4);
    Recorder r = recorder(g);
    int64_t value;
    g->shared->query = &r.query;
    dim_unify(g, c, b);
    dim_unify(g, b, a);
    cr_assert(spec_dim(g, dim_mul(g, c, b), "t", &value) && value == 16);
    cr_assert_eq(r.asked, 1);
}

Test(query, scalars)
{
    Graph *g = parse("graph g(%0: f32[2]) { %1 = scalar f32 0.1 %2 = const f32 2 %3 = scalar i8 3 %4 = scalar f32 -0\n"
                     "%5 = scalar bool true %6 = scalar i64 9007199254740993 %7 = scalar f32 nan return %0 }");
    Recorder r = recorder(g);
    uint64_t bits;
    g->shared->query = &r.query;
    cr_assert(spec_scalar_eq(g, 2, 2, "t"));
    cr_assert_eq(r.asked, 0, "a constant");
    cr_assert(spec_scalar_eq(g, 1, 0.1, "t"), "rounded to its dtype");
    cr_assert_not(spec_scalar_eq(g, 1, 0.25, "t"));
    cr_assert_eq(r.asked, 1);
    cr_assert(spec_scalar_eq(g, 3, 3, "t") && !spec_scalar_eq(g, 3, 3.5, "t"));
    cr_assert(spec_scalar_eq(g, 4, -0.0, "t") && !spec_scalar_eq(g, 4, 0.0, "t"));
    cr_assert(spec_scalar_eq(g, 5, 1, "t") && !spec_scalar_eq(g, 5, 0, "t"));
    cr_assert_not(spec_scalar_eq(g, 6, 9007199254740992.0, "t"), "not the nearest double");
    cr_assert_not(spec_scalar_eq(g, 7, 0, "t"));
    cr_assert_not(spec_scalar(g, 0, "t", &bits), "an input is no scalar");
    r.scalars_vary = true;
    cr_assert_not(spec_scalar_eq(g, 1, 0.1, "t"));
    cr_assert(spec_scalar(g, 2, "t", &bits));
}
