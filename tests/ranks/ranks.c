/*
 * ranks VERB [SEED]: what each of several processes does, started by a launcher of MPI (run.sh). Exit status 0: as it should be. A failure
 * says the rank, and what.
 *
 *   large       64 MB in each collective
 *   matrix      every collective x dtype x size x group against a sequential model
 *   random      random programs, the same on all ranks, values asked for in another order on each; against a model of all ranks. By itself: some
 *   gradients   each against differences of the sum of all ranks' losses
 *   training    a step in a kiln_function with an optimizer: the loss of all data on one rank
 *   buckets     random sets of gradients, each in a bucket: values of a sequential model, sizes that change; and no copies, counted
 *   compiling   with a cache on disk that is cold: programs are compiled by one rank
 *   graphs [HOW]  a step again and again, of large and small collectives and what lies between. HOW: off (rank 1 wants none), sizes (they change now and then), mixed (rank 1
 *               looks at values in between, for a while), differ (in the end rank 1 has another collective there), die, stop, leave (then rank 1 does)
 *   differ WHAT, memory ends, memory waits [SECONDS], leave, die [SECONDS], stop [SECONDS]
 *               failures: prints what the sync point says, exits with 0 when it is KILN_COMM. SECONDS: how long it waits for rank 1
 */
#include "tests/support/stats.h"

#include <kiln.h>

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static kiln_group *world;
static int rank, size;

/* In one piece: several processes have one stderr. */
#define CHECK(condition, ...)                                                                           \
    do {                                                                                                \
        if (!(condition)) {                                                                             \
            char text_[1000];                                                                           \
            snprintf(text_, sizeof text_, __VA_ARGS__);                                                 \
            const char *why_ = kiln_error_message() ? kiln_error_message() : "-";                       \
            fprintf(stderr, "ranks.c:%d: rank %d of %d: %s (%s)\n", __LINE__, rank, size, text_, why_); \
            exit(1);                                                                                    \
        }                                                                                               \
    } while (0)
#define TRY(call) CHECK((call) == KILN_OK, "%s", #call)

static unsigned long long seed = 1;
static unsigned pick(unsigned n)
{
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    return (unsigned)(seed >> 33) % n;
}

static void told(const char *what)
{
    struct timespec now;
    timespec_get(&now, TIME_UTC);
    if (rank == 0)
        printf("%s: at %.2f s\n", what, (double)(now.tv_sec % 1000) + (double)now.tv_nsec * 1e-9);
}

/* ---- matrix ---- */

typedef struct Part {
    kiln_group *group;
    int n, me;
    int world_rank[8]; /* of its ranks */
} Part;

/* What rank r has at i: exact in every dtype, products too. */
static double value(kiln_dtype dtype, int r, int64_t i)
{
    int v = (int)((r * 7 + i * 3 + (int)dtype) % 4);
    return dtype == KILN_BOOL ? v / 2 : v;
}

static kiln_tensor *make(kiln_dtype dtype, int64_t rows, int64_t columns)
{
    double *data = malloc(sizeof *data * (size_t)(rows * columns + 1));
    for (int64_t i = 0; i < rows * columns; i++)
        data[i] = value(dtype, rank, i);
    kiln_tensor *x = kiln_cast(kiln_from(KILN_F64, KILN_SHAPE(rows, columns), data), dtype);
    free(data);
    TRY(kiln_eval(x));
    return x;
}

typedef struct Case {
    const char *name;
    kiln_tensor *y;
    int op, how, axis, to; /* for the model */
} Case;

enum { REDUCE, GATHER, SCATTER, BROADCAST, ALL_TO_ALL, SEND, RECV };

static double reduced(const Part *p, kiln_dtype dtype, int how, int64_t i)
{
    double all = value(dtype, p->world_rank[0], i);
    for (int k = 1; k < p->n; k++) {
        double v = value(dtype, p->world_rank[k], i);
        all = how == KILN_REDUCE_MAX ? fmax(all, v) : how == KILN_REDUCE_MIN ? fmin(all, v) : how == KILN_REDUCE_PROD ? all * v : all + v;
    }
    return how == KILN_REDUCE_MEAN ? all / p->n : all;
}

/* Element (row, column) of the result. rows, columns: of the operand. */
static double model(const Part *p, const Case *c, kiln_dtype dtype, int64_t rows, int64_t columns, int64_t row, int64_t column)
{
    int from;
    switch (c->op) {
    case REDUCE: return reduced(p, dtype, c->how, row * columns + column);
    case GATHER:
        from = (int)(c->axis ? column / columns : row / rows);
        return value(dtype, p->world_rank[from], (c->axis ? row : row % rows) * columns + (c->axis ? column % columns : column));
    case SCATTER:
        return reduced(p, dtype, c->how,
                       (c->axis ? row : row + p->me * (rows / p->n)) * columns + (c->axis ? column + p->me * (columns / p->n) : column));
    case BROADCAST: return value(dtype, p->world_rank[p->n - 1], row * columns + column);
    case SEND: return p->me == 0 && p->n > 1 ? 0 : value(dtype, p->world_rank[p->n > 1 ? p->me - 1 : 0], row * columns + column);
    case RECV: return value(dtype, p->world_rank[p->me ? p->me - 1 : 0], row * columns + column);
    default: /* split along axis, concatenated along `to` */
        if (c->axis == 0) {
            int64_t part = rows / p->n;
            from = (int)(c->to ? column / columns : part ? row / part : 0);
            int64_t r = (c->to ? row : part ? row % part : 0) + p->me * part;
            return value(dtype, p->world_rank[from], r * columns + (c->to ? column % columns : column));
        } else {
            int64_t part = columns / p->n;
            from = (int)(c->to ? (part ? column / part : 0) : row / rows);
            int64_t r = c->to ? row : row % rows, col = (c->to ? (part ? column % part : 0) : column) + p->me * part;
            return value(dtype, p->world_rank[from], r * columns + col);
        }
    }
}

/* What a result may be off by, of 1: a mean over 3 ranks is rounded. */
static double slack(const Part *p, const Case *c, kiln_dtype dtype)
{
    if (c->how != KILN_REDUCE_MEAN || !(p->n & (p->n - 1)))
        return 0;
    return dtype == KILN_BF16 ? 1.0 / 128 : dtype == KILN_F16 ? 1.0 / 1024 : dtype == KILN_F64 ? 1e-15 : 1e-6;
}

static void check_case(const Part *p, const Case *c, kiln_dtype dtype, int64_t rows, int64_t columns, kiln_tensor *wide)
{
    CHECK(wide, "%s", c->name);
    const int64_t n_rows = kiln_dim(c->y, 0), n_columns = kiln_dim(c->y, 1);
    double *got = malloc(sizeof *got * (size_t)(n_rows * n_columns + 1));
    TRY(kiln_read(wide, KILN_F64, got, sizeof *got * (size_t)(n_rows * n_columns)));
    for (int64_t i = 0; i < n_rows * n_columns; i++) {
        double want = model(p, c, dtype, rows, columns, i / n_columns, i % n_columns);
        CHECK(fabs(got[i] - want) <= slack(p, c, dtype) * want, "%s of %s[%d,%d], rank %d of a group of %d: element %d is %g, not %g",
              c->name, kiln_dtype_name(dtype), (int)rows, (int)columns, p->me, p->n, (int)i, got[i], want);
    }
    free(got);
}

/* From each rank to the next one, and from the first to itself. */
static kiln_tensor *passed(const Part *p, kiln_tensor *x)
{
    if (p->me == 0)
        CHECK(kiln_send(p->group, x, 0), "send");
    kiln_tensor *y = kiln_recv(p->group, kiln_dtype_of(x), kiln_shape_of(x), p->me ? p->me - 1 : 0);
    if (p->me + 1 < p->n)
        CHECK(kiln_send(p->group, x, p->me + 1), "send");
    return y;
}

static void check_all(const Part *p, kiln_dtype dtype, int64_t rows, int64_t columns, int large)
{
    static const char *const how[] = {"sum", "prod", "max", "min", "mean"};
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x = make(dtype, rows, columns), *wide[32];
    int from[8], n = 0;
    Case c[32];
    for (int k = 0; k < p->n; k++)
        from[k] = p->n > 1 ? k - 1 : 0;
    for (int h = 0; h <= KILN_REDUCE_MEAN; h++) {
        if (dtype == KILN_BOOL && h <= KILN_REDUCE_PROD)
            continue;
        c[n++] = (Case){how[h], kiln_all_reduce(p->group, x, (kiln_reduce)h), REDUCE, h, 0, 0};
        if (large)
            break;
        c[n++] = (Case){"reduce_scatter", kiln_reduce_scatter(p->group, x, (kiln_reduce)h, h % 2), SCATTER, h, h % 2, 0};
    }
    c[n++] = (Case){"all_gather", kiln_all_gather(p->group, x, 0), GATHER, 0, 0, 0};
    c[n++] = (Case){"broadcast", kiln_broadcast(p->group, x, p->n - 1), BROADCAST, 0, 0, 0};
    c[n++] = (Case){"send_recv", kiln_send_recv(p->group, x, from), SEND, 0, 0, 0};
    c[n++] = (Case){"recv", passed(p, x), RECV, 0, 0, 0};
    c[n++] = (Case){"all_to_all", kiln_all_to_all(p->group, x, 0, 1), ALL_TO_ALL, 0, 0, 1};
    if (!large) {
        c[n++] = (Case){"all_gather", kiln_all_gather(p->group, x, -1), GATHER, 0, 1, 0};
        c[n++] = (Case){"all_to_all", kiln_all_to_all(p->group, x, 1, 0), ALL_TO_ALL, 0, 1, 0};
        c[n++] = (Case){"all_to_all", kiln_all_to_all(p->group, x, 0, 0), ALL_TO_ALL, 0, 0, 0};
    }
    for (int k = 0; k < n; k++) {
        CHECK(c[k].y, "%s", c[k].name);
        wide[k] = kiln_cast(c[k].y, KILN_F64);
    }
    TRY(kiln_eval_many(wide, n));
    for (int k = 0; k < n; k++)
        check_case(p, &c[k], dtype, rows, columns, wide[k]);
    kiln_scope_end(scope);
}

/* Numbers of rank 0, one element. */
static void check_numbers(const Part *p, kiln_dtype dtype)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x = kiln_reshape(make(dtype, 1, 1), KILN_SHAPE());
    double sum, from_last;
    TRY(kiln_item(kiln_all_reduce(p->group, x, dtype == KILN_BOOL ? KILN_REDUCE_MAX : KILN_REDUCE_SUM), &sum));
    TRY(kiln_item(kiln_broadcast(p->group, x, p->n - 1), &from_last));
    CHECK(sum == reduced(p, dtype, dtype == KILN_BOOL ? KILN_REDUCE_MAX : KILN_REDUCE_SUM, 0), "a number of %s: %g", kiln_dtype_name(dtype),
          sum);
    CHECK(from_last == value(dtype, p->world_rank[p->n - 1], 0), "a number of %s: %g", kiln_dtype_name(dtype), from_last);
    kiln_scope_end(scope);
}

static Part whole(void)
{
    Part p = {.group = world, .n = size, .me = rank};
    for (int k = 0; k < size; k++)
        p.world_rank[k] = k;
    return p;
}

/* Ranks of one parity, the last first. */
static Part half(void)
{
    Part p = {.group = kiln_group_split(world, rank % 2, -rank)};
    CHECK(p.group, "split");
    p.n = kiln_group_size(p.group);
    p.me = kiln_group_rank(p.group);
    for (int k = size - 1, at = 0; k >= 0; k--)
        if (k % 2 == rank % 2)
            p.world_rank[at++] = k;
    CHECK(p.world_rank[p.me] == rank, "ranks of a part");
    return p;
}

static void matrix(void)
{
    static const kiln_dtype dtypes[] = {KILN_BOOL, KILN_I8,  KILN_I16, KILN_I32,  KILN_I64, KILN_U8, KILN_U16,
                                        KILN_U32,  KILN_U64, KILN_F16, KILN_BF16, KILN_F32, KILN_F64};
    const int n_dtypes = sizeof dtypes / sizeof *dtypes, m = size % 2 ? 2 * size : size; /* both groups cut what is m long */
    Part parts[] = {whole(), half()};
    /* all by the interpreter, whose time is that of the collectives; compiled ones in slices. On a device all are compiled: what the
     * interpreter gives to others lies in memory of the host; with 8 ranks on few cores a third */
    const char *device = getenv("KILN_DEVICE"), *most = device && !strncmp(device, "cuda", 4) ? "jit" : "interp";
    for (int g = 0; g < 2; g++)
        for (int d = most[0] == 'j' && size == 8 ? (int)seed % 3 : 0; d < n_dtypes; d += most[0] == 'j' && size == 8 ? 3 : 1) {
            TRY(kiln_set_option("mode", most));
            check_numbers(&parts[g], dtypes[d]);
            check_all(&parts[g], dtypes[d], d % 2 ? 0 : m, m, 0);
            if (most[0] == 'i' || (d + 3 * g + (int)seed) % 3 == 0)
                check_all(&parts[g], dtypes[d], 3 * m, 5 * m, 0);
            if (most[0] == 'j' || (d + 3 * g + (int)seed) % 6)
                continue;
            TRY(kiln_set_option("mode", "jit"));
            check_all(&parts[g], dtypes[d], 3 * m, 5 * m, 0);
        }
    TRY(kiln_set_option("mode", "jit"));
    check_all(&parts[0], KILN_F32, 512 / m * m, 512, 1);
    check_all(&parts[1], KILN_BF16, 512 / m * m, 512, 1);
    kiln_group *only = kiln_group_split(world, rank == 0 ? 0 : -1, 0);
    CHECK(!only == (rank != 0), "a split that leaves ranks out");
    for (int d = 0; d < n_dtypes; d++) /* fewer elements than ranks, and parts of which the last ones have fewer or none */
        for (int n = 1; n <= 7; n += 3) {
            double got[7];
            kiln_tensor *all = kiln_from(KILN_F64, KILN_SHAPE(n), (const double[]){1, 0, 1, 1, 0, 1, 1});
            TRY(kiln_read(kiln_cast(kiln_unshard(world, kiln_shard(world, kiln_cast(all, dtypes[d])), KILN_SHAPE(1, n)), KILN_F64),
                          KILN_F64, got, sizeof *got * (size_t)n));
            for (int i = 0; i < n; i++)
                CHECK(got[i] == (i % 3 != 1), "%d elements of %s in parts: %g at %d", n, kiln_dtype_name(dtypes[d]), got[i], i);
        }
    const double nan_and_more[] = {rank == 0 ? NAN : 1, rank == size - 1 ? NAN : 2, rank};
    kiln_tensor *x = kiln_from(KILN_F64, KILN_SHAPE(3), nan_and_more);
    double got[6];
    TRY(kiln_read(
        kiln_concat((kiln_tensor *[]){kiln_all_reduce(world, x, KILN_REDUCE_MAX), kiln_all_reduce(world, x, KILN_REDUCE_MIN)}, 2, 0),
        KILN_F64, got, sizeof got));
    CHECK(isnan(got[0]) && isnan(got[1]) && got[2] == size - 1 && isnan(got[3]) && isnan(got[4]) && got[5] == 0, "NaN");
}

/* ---- random programs ---- */

/* Values of [8, 8] on each rank, and the same of all ranks here. What is added is small and what is multiplied less than 1, in eighths:
 * exact in f64. */
enum { ROWS = 8, COLUMNS = 8, N = ROWS * COLUMNS, VALUES = 8, RANKS = 8 };

typedef struct Simulated {
    double at[RANKS][N];
} Simulated;

static void random_step(kiln_tensor **x, Simulated *m, const Part *p)
{
    Simulated out = {{{0}}};
    int a = (int)pick(VALUES), b = (int)pick(VALUES), to = (int)pick(VALUES), root = (int)pick((unsigned)size), from[RANKS], other;
    kiln_tensor *y;
    (void)p;
#define EACH                       \
    for (int r = 0; r < size; r++) \
        for (int i = 0; i < N; i++)
    switch (pick(10)) {
    case 0:
        y = kiln_add(x[a], x[b]);
        EACH out.at[r][i] = m[a].at[r][i] + m[b].at[r][i];
        break;
    case 1:
        y = kiln_maximum(kiln_minimum(kiln_sub(x[a], 3), x[b]), -50);
        EACH out.at[r][i] = fmax(fmin(m[a].at[r][i] - 3, m[b].at[r][i]), -50);
        break;
    case 2:
        y = kiln_all_reduce(world, x[a], KILN_REDUCE_MAX);
        EACH
        {
            out.at[r][i] = m[a].at[0][i];
            for (int k = 1; k < size; k++)
                out.at[r][i] = fmax(out.at[r][i], m[a].at[k][i]);
        }
        break;
    case 3:
        y = kiln_minimum(kiln_all_reduce(world, kiln_mul(x[a], 2), KILN_REDUCE_SUM), 100);
        EACH
        {
            for (int k = 0; k < size; k++)
                out.at[r][i] += 2 * m[a].at[k][i];
            out.at[r][i] = fmin(out.at[r][i], 100);
        }
        break;
    case 4:
        y = kiln_broadcast(world, kiln_neg(x[a]), root);
        EACH out.at[r][i] = -m[a].at[root][i];
        break;
    case 5:
        y = kiln_all_gather(world, kiln_maximum(kiln_reduce_scatter(world, x[a], KILN_REDUCE_SUM, 0), -60), 0);
        EACH
        {
            for (int k = 0; k < size; k++)
                out.at[r][i] += m[a].at[k][i];
            out.at[r][i] = fmax(out.at[r][i], -60);
        }
        break;
    case 6: /* there, and rows the other way; and back */
        y = kiln_all_to_all(world, kiln_all_to_all(world, x[a], 1, 0), 0, 1);
        EACH out.at[r][i] = m[a].at[r][i];
        break;
    case 7:
        for (int k = 0; k < size; k++)
            from[k] = (k + root) % size;
        if (root % 2)
            from[0] = -1;
        y = kiln_send_recv(world, x[a], from);
        EACH out.at[r][i] = from[r] < 0 ? 0 : m[a].at[from[r]][i];
        break;
    case 8: /* of two ranks, or one: the others record nothing */
        other = (int)pick((unsigned)size);
        if (rank == root)
            CHECK(kiln_send(world, x[a], other), "recording");
        y = rank == other ? kiln_recv(world, KILN_F64, KILN_SHAPE(ROWS, COLUMNS), root) : kiln_add(x[b], 0);
        EACH out.at[r][i] = r == other ? m[a].at[root][i] : m[b].at[r][i];
        break;
    default:
        y = kiln_sub(x[a], kiln_sum_axes(x[b], KILN_AXES(1), true));
        y = kiln_maximum(kiln_minimum(y, 40), -40);
        EACH
        {
            double sum = 0;
            for (int k = 0; k < COLUMNS; k++)
                sum += m[b].at[r][i / COLUMNS * COLUMNS + k];
            out.at[r][i] = fmax(fmin(m[a].at[r][i] - sum, 40), -40);
        }
    }
    CHECK(y, "recording");
    EACH out.at[r][i] = fmax(fmin(out.at[r][i], 1000), -1000);
    x[to] = kiln_maximum(kiln_minimum(y, 1000), -1000);
    m[to] = out;
}

static void check_value(kiln_tensor *x, const Simulated *m, int k)
{
    double got[N];
    TRY(kiln_read(x, KILN_F64, got, sizeof got));
    for (int i = 0; i < N; i++)
        CHECK(got[i] == m->at[rank][i], "value %d, element %d is %g, not %g", k, i, got[i], m->at[rank][i]);
}

static void random_program(unsigned long long number)
{
    kiln_scope *scope = kiln_scope_begin();
    const Part p = whole();
    kiln_tensor *x[VALUES];
    static Simulated m[VALUES];
    seed = number * 7919 + 17;
    TRY(kiln_set_option("mode", number % 3 == 0 ? "jit" : number % 3 == 1 ? "interp" : "eager"));
    for (int v = 0; v < VALUES; v++) {
        EACH m[v].at[r][i] = (double)pick(33) - 16;
        x[v] = kiln_from(KILN_F64, KILN_SHAPE(ROWS, COLUMNS), m[v].at[rank]);
    }
    unsigned steps = 5 + pick(20);
    unsigned long long own = number * 31 + (unsigned)rank * 1000003u; /* what is asked for when is another on each rank */
    for (unsigned s = 0; s < steps; s++) {
        random_step(x, m, &p);
        own = own * 6364136223846793005ull + 1442695040888963407ull;
        if ((own >> 40) % 7 == 0) {
            int v = (int)(own >> 45) % VALUES;
            check_value(x[v], &m[v], v);
        }
    }
    for (int k = 0; k < VALUES; k++) {
        int v = (k + rank) % VALUES;
        check_value(x[v], &m[v], v);
    }
    TRY(kiln_barrier(world));
    kiln_scope_end(scope);
}

/* ---- gradients ---- */

/* Two messages from each rank to the next one, of which the second is what the loss is made of first, on some ranks. */
static kiln_tensor *along_the_ranks(kiln_tensor *x)
{
    const kiln_shape shape = kiln_shape_of(x);
    if (rank > 0) {
        kiln_tensor *first = kiln_recv(world, KILN_F64, shape, rank - 1), *second = kiln_recv(world, KILN_F64, shape, rank - 1);
        first = kiln_mul(first, kiln_sin(x));
        x = rank % 2 ? kiln_add(kiln_add(kiln_mul(second, 0.3), first), x) : kiln_add(kiln_add(first, x), kiln_mul(second, 0.7));
    }
    if (rank + 1 == size)
        return x;
    kiln_tensor *first = kiln_send(world, kiln_mul(x, 0.5), rank + 1), *second = kiln_send(world, kiln_square(x), rank + 1);
    return rank % 2 ? kiln_add(kiln_add(x, second), first) : kiln_add(kiln_add(first, x), second);
}

static kiln_tensor *through(int which, kiln_tensor *x)
{
    int from[RANKS];
    for (int k = 0; k < size; k++)
        from[k] = (k + 1) % size;
    from[0] = -1;
    switch (which) {
    case 0: return kiln_all_reduce(world, x, KILN_REDUCE_SUM);
    case 1: return kiln_all_reduce(world, x, KILN_REDUCE_MEAN);
    case 2: return kiln_all_reduce(world, x, KILN_REDUCE_MAX);
    case 3: return kiln_all_reduce(world, x, KILN_REDUCE_PROD);
    case 4: return kiln_all_gather(world, x, 1);
    case 5: return kiln_reduce_scatter(world, x, KILN_REDUCE_SUM, 0);
    case 6: return kiln_reduce_scatter(world, x, KILN_REDUCE_MAX, 1);
    case 7: return kiln_broadcast(world, x, size - 1);
    case 8: return kiln_all_to_all(world, x, 0, 1);
    case 9: return kiln_send_recv(world, x, from);
    case 10: return along_the_ranks(x);
    default: return kiln_all_reduce(world, kiln_all_gather(world, kiln_all_reduce(world, x, KILN_REDUCE_MIN), 0), KILN_REDUCE_SUM);
    }
}

/* The sum of all ranks' losses, and with `grad` the gradient of this rank's. */
static double loss_of(int which, const double *data, double *grad)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x = kiln_param(kiln_from(KILN_F64, KILN_SHAPE(4, 4), data)), *g;
    kiln_tensor *y = through(which, kiln_mul(x, kiln_sin(x))), *n = kiln_arange(KILN_F64, 0, (double)kiln_numel(y), 1);
    kiln_tensor *weight = kiln_cos(kiln_add(kiln_mul(n, 0.7), (double)rank));
    kiln_tensor *loss = kiln_sum(kiln_mul(kiln_square(y), kiln_reshape(weight, kiln_shape_of(y))));
    double total;
    if (grad) {
        TRY(kiln_grad(loss, &x, 1, &g));
        TRY(kiln_read(g, KILN_F64, grad, 16 * sizeof *grad));
    }
    TRY(kiln_item(kiln_all_reduce(world, loss, KILN_REDUCE_SUM), &total));
    kiln_scope_end(scope);
    return total;
}

static void gradients(void)
{
    const double h = 1e-5;
    for (int which = 0; which <= 11; which++) {
        double x[16], grad[16];
        for (int i = 0; i < 16; i++)
            x[i] = 0.3 + 0.17 * i + 0.41 * ((rank + i) % size);
        (void)loss_of(which, x, grad);
        for (int r = 0; r < size; r++)
            for (int i = which; i < 16; i += 7) {
                double keep = x[i], up, down;
                x[i] = keep + (r == rank ? h : 0);
                up = loss_of(which, x, NULL);
                x[i] = keep - (r == rank ? h : 0);
                down = loss_of(which, x, NULL);
                x[i] = keep;
                double slope = (up - down) / (2 * h);
                CHECK(r != rank || fabs(slope - grad[i]) <= 1e-4 * (1 + fabs(slope)), "gradient %d, element %d: %g, and differences say %g",
                      which, i, grad[i], slope);
            }
    }
}

/* ---- training ---- */

enum { EXAMPLES = 16, FEATURES = 3, STEPS = 12 };
static kiln_tensor *weights[2];

/* in: x, y of this rank. out: the loss of all. */
static void step(kiln_tensor **in, kiln_tensor **out, void *user)
{
    kiln_tensor *g[2];
    kiln_group *group = user;
    kiln_tensor *error = kiln_sub(kiln_add(kiln_matmul(in[0], weights[0]), weights[1]), in[1]), *loss = kiln_mean(kiln_square(error));
    TRY(kiln_grad(loss, weights, 2, g));
    TRY(kiln_parallel_gradients(group, g, 2));
    for (int k = 0; k < 2; k++)
        kiln_assign(weights[k], kiln_sub(weights[k], kiln_mul(g[k], 0.1)));
    out[0] = kiln_all_reduce(group, loss, KILN_REDUCE_MEAN);
}

static void train(kiln_group *group, double *losses)
{
    kiln_scope *scope = kiln_scope_begin();
    double x[EXAMPLES * FEATURES], y[EXAMPLES];
    const int n = EXAMPLES / kiln_group_size(group), first = kiln_group_rank(group) * n;
    for (int i = 0; i < EXAMPLES; i++) {
        y[i] = 1;
        for (int k = 0; k < FEATURES; k++)
            y[i] += (x[i * FEATURES + k] = sin(i * 3 + k)) * k;
    }
    kiln_tensor *in[2] = {kiln_from(KILN_F64, KILN_SHAPE(n, FEATURES), x + first * FEATURES),
                          kiln_from(KILN_F64, KILN_SHAPE(n), y + first)},
                *out;
    weights[0] = kiln_param(kiln_broadcast(group, kiln_full(KILN_F64, KILN_SHAPE(FEATURES), kiln_group_rank(group)), 0));
    weights[1] = kiln_param(kiln_zeros(KILN_F64, KILN_SHAPE()));
    kiln_function *f = kiln_function_new(step, 2, 1, group);
    for (int s = 0; s < STEPS; s++) {
        TRY(kiln_function_call(f, in, &out));
        TRY(kiln_item(out, &losses[s]));
    }
    kiln_function_free(f);
    kiln_scope_end(scope);
}

static void training(void)
{
    double together[STEPS], alone[STEPS];
    train(world, together);
    kiln_group *self = kiln_group_split(world, rank, 0);
    CHECK(self && kiln_group_size(self) == 1, "split");
    train(self, alone);
    for (int s = 0; s < STEPS; s++)
        CHECK(fabs(together[s] - alone[s]) <= 1e-12 * (1 + alone[s]), "step %d: the loss is %.17g, and %.17g of one rank", s, together[s],
              alone[s]);
    CHECK(together[STEPS - 1] < together[0] / 4, "it does not learn");
}

/* ---- buckets ---- */

/* What kiln_parallel_gradients is given, made of one input of this rank in several ways, and what is done with it. Small whole numbers:
 * exact in every dtype. */
enum { GRADS = 14, CALLS = 4, EDGE = 12, MADE = 11, READ = 5 };

typedef struct Buckets {
    int n, made[GRADS], read[GRADS];
    kiln_tensor *total[GRADS]; /* READ 1: what means are added to, in place */
    double expected[GRADS][EDGE * EDGE];
} Buckets;

/* x: of this rank, and of all: what another collective makes of those. */
static kiln_tensor *made_of(int how, int k, kiln_tensor *x, kiln_tensor *most)
{
    switch (how) {
    case 0: return kiln_matmul(kiln_transpose(x), kiln_mul(x, k % 3 + 1));
    case 1: return kiln_sum_axes(kiln_add(x, k), KILN_AXES(0), false);
    case 2: return kiln_add(x, k % 5);
    case 3: return x;
    case 4: return kiln_reshape(kiln_matmul(x, kiln_transpose(x)), KILN_SHAPE(-1));
    case 5: return kiln_sort(kiln_mul(x, k % 2 ? 1 : -1), 0, false);
    case 6: return kiln_slice_axis(x, 0, 0, 0, 1);
    case 7: return kiln_sum(x);
    case 8: return kiln_cumsum(x, 1);
    case 9: return kiln_concat((kiln_tensor *[]){x, kiln_matmul(kiln_transpose(x), x)}, 2, 0);
    default: return most;
    }
}

/* in: x. out: of each, what is read of its mean, and what it was itself or 0. */
static void bucket_step(kiln_tensor **in, kiln_tensor **out, void *user)
{
    Buckets *b = user;
    kiln_tensor *most = kiln_all_reduce(world, in[0], KILN_REDUCE_MAX), *g[GRADS];
    for (int k = 0; k < b->n; k++) {
        g[k] = k && b->made[k] == MADE ? g[k - 1] : made_of(b->made[k], k, in[0], most);
        out[2 * k + 1] = b->read[k] == 3 ? g[k] : b->read[k] == 4 ? kiln_sum(g[k]) : kiln_zeros(KILN_F32, KILN_SHAPE());
    }
    TRY(kiln_parallel_gradients(world, g, b->n));
    for (int k = 0; k < b->n; k++) {
        if (b->total[k])
            TRY(kiln_assign(b->total[k], kiln_add(b->total[k], g[k])));
        out[2 * k] = b->read[k] == 2 ? kiln_sum(kiln_mul(g[k], 2)) : b->total[k] ? kiln_sum(g[k]) : g[k];
    }
}

static kiln_tensor *bucket_input(kiln_dtype dtype, int r, int call, int rows, int columns)
{
    double data[EDGE * EDGE];
    for (int i = 0; i < rows * columns; i++)
        data[i] = (r * 7 + i * 5 + i / 3 + call) % 3 - (r + i) % 2;
    return kiln_cast(kiln_from(KILN_F64, KILN_SHAPE(rows, columns), data), dtype);
}

static int64_t read_all(kiln_tensor *x, double *to)
{
    const int64_t n = kiln_numel(x);
    CHECK(n <= 2 * EDGE * EDGE, "%d elements", (int)n);
    TRY(kiln_read(kiln_cast(x, KILN_F64), KILN_F64, to, sizeof *to * (size_t)n));
    return n;
}

static void same_values(const char *what, int k, kiln_tensor *x, const double *wanted, int64_t n, double slack)
{
    double got[2 * EDGE * EDGE];
    CHECK(read_all(x, got) == n, "%s %d has %d elements, not %d", what, k, (int)kiln_numel(x), (int)n);
    for (int64_t i = 0; i < n; i++)
        CHECK(fabs(got[i] - wanted[i]) <= slack * (1 + fabs(wanted[i])), "%s %d, element %d is %g, not %g", what, k, (int)i, got[i],
              wanted[i]);
}

/* The sequential model: all ranks' inputs, here, one after the other. */
static void check_buckets(Buckets *b, kiln_tensor **out, kiln_tensor *const *x, double slack)
{
    kiln_tensor *most = x[0];
    for (int r = 1; r < size; r++)
        most = kiln_maximum(most, x[r]);
    for (int k = 0; k < b->n; k++) {
        double mean[2 * EDGE * EDGE] = {0}, own[2 * EDGE * EDGE] = {0}, sum = 0, own_sum = 0;
        int64_t n = 0;
        const int from = b->made[k] == MADE ? k - 1 : k;
        for (int r = 0; r < size; r++) {
            double one[2 * EDGE * EDGE];
            n = read_all(made_of(b->made[from], from, x[r], most), one);
            for (int64_t i = 0; i < n; i++) {
                mean[i] += one[i] / size;
                own[i] = r == rank ? one[i] : own[i];
            }
        }
        for (int64_t i = 0; i < n; i++) {
            sum += mean[i];
            own_sum += own[i];
            b->expected[k][i % (EDGE * EDGE)] += mean[i];
        }
        if (b->read[k] == 2 || b->total[k])
            same_values("the sum of mean", k, out[2 * k], (const double[]){b->read[k] == 2 ? 2 * sum : sum}, 1, slack * (double)(n + 1));
        else
            same_values("mean", k, out[2 * k], mean, n, slack);
        if (b->read[k] == 3)
            same_values("operand", k, out[2 * k + 1], own, n, 0);
        if (b->read[k] == 4)
            same_values("the sum of operand", k, out[2 * k + 1], &own_sum, 1, 0);
        if (b->total[k])
            same_values("total", k, b->total[k], b->expected[k], n, CALLS * slack);
    }
}

/* A random set, called with sizes that change; kept sizes where totals are kept. */
static void random_buckets(unsigned long long number)
{
    static const kiln_dtype dtypes[] = {KILN_F32, KILN_F64, KILN_I32, KILN_F32};
    kiln_scope *scope = kiln_scope_begin();
    Buckets b = {0};
    kiln_tensor *x[RANKS], *out[2 * GRADS], *inputs[CALLS];
    seed = number * 6151 + 5;
    const kiln_dtype dtype = dtypes[pick(4)];
    const double slack = dtype == KILN_F64 ? 1e-14 : 2e-6;
    const bool totals = pick(2);
    int rows = 2 + (int)pick(EDGE - 2), columns = 2 + (int)pick(EDGE / 2 - 2);
    TRY(kiln_set_option("mode", number % 4 == 1 ? "interp" : number % 4 == 3 ? "eager" : "jit"));
    b.n = 1 + (int)pick(GRADS);
    for (int k = 0; k < b.n; k++) {
        b.made[k] = (int)pick(MADE + (unsigned)(k > 0 && b.made[k - 1] != MADE));
        b.read[k] = (int)pick(READ);
    }
    kiln_function *f = kiln_function_new(bucket_step, 1, 2 * b.n, &b);
    for (int call = 0; call < CALLS; call++) {
        if (!totals && call % 2 == 0) {
            rows = 2 + (int)pick(EDGE - 2);
            columns = 2 + (int)pick(EDGE / 2 - 2);
        }
        for (int r = 0; r < size; r++)
            x[r] = bucket_input(dtype, r, call, rows, columns);
        inputs[call] = x[rank];
        TRY(kiln_eval(inputs[call]));
        for (int k = 0; k < b.n && totals && call == 0; k++) {
            const int from = b.made[k] == MADE ? k - 1 : k;
            kiln_tensor *like = made_of(b.made[from], from, x[rank], x[rank]);
            if (b.read[k] == 1)
                b.total[k] = kiln_param(kiln_zeros(dtype == KILN_I32 ? KILN_F32 : dtype, kiln_shape_of(like)));
        }
        TRY(kiln_function_call(f, &inputs[call], out));
        check_buckets(&b, out, x, slack);
    }
    kiln_function_free(f);
    TRY(kiln_barrier(world));
    kiln_scope_end(scope);
}

/* A network whose gradients are read where they are made, too: while one waits in its bucket for the last, much else comes and goes. */
enum { LAYERS = 6, WIDE = 20, DEEP_STEPS = 3 };
static kiln_tensor *deep[2 * LAYERS];

static void deep_step(kiln_tensor **in, kiln_tensor **out, void *user)
{
    kiln_tensor *h = in[0], *g[2 * LAYERS];
    (void)user;
    for (int k = 0; k < LAYERS; k++)
        h = kiln_tanh(kiln_add(kiln_matmul(h, deep[2 * k]), deep[2 * k + 1]));
    kiln_tensor *loss = kiln_mean(kiln_square(kiln_sub(h, in[1])));
    TRY(kiln_grad(loss, deep, 2 * LAYERS, g));
    out[1] = loss;
    for (int k = 0; k < LAYERS; k++)
        out[1] = kiln_add(out[1], kiln_sum(kiln_square(kiln_matmul(kiln_tanh(kiln_mul(g[2 * k], 30)), deep[2 * k]))));
    TRY(kiln_parallel_gradients(world, g, 2 * LAYERS));
    for (int k = 0; k < 2 * LAYERS; k++)
        TRY(kiln_assign(deep[k], kiln_sub(deep[k], kiln_mul(g[k], 0.3))));
    out[0] = kiln_all_reduce(world, loss, KILN_REDUCE_MEAN);
}

static void deep_training(const char *mode, double *values)
{
    kiln_scope *scope = kiln_scope_begin();
    TRY(kiln_set_option("mode", mode));
    for (int k = 0; k < 2 * LAYERS; k++) {
        kiln_tensor *n = kiln_arange(KILN_F64, k, k + WIDE * WIDE, 1);
        deep[k] =
            kiln_param(k % 2 ? kiln_zeros(KILN_F64, KILN_SHAPE(WIDE)) : kiln_div(kiln_cos(kiln_reshape(n, KILN_SHAPE(WIDE, WIDE))), 3));
    }
    kiln_tensor *x = kiln_sin(kiln_add(kiln_reshape(kiln_arange(KILN_F64, 0, 8 * WIDE, 1), KILN_SHAPE(8, WIDE)), (double)rank)), *out[2];
    kiln_tensor *in[2] = {x, kiln_cos(x)};
    kiln_function *f = kiln_function_new(deep_step, 2, 2, NULL);
    for (int s = 0; s < DEEP_STEPS; s++) {
        TRY(kiln_function_call(f, in, out));
        TRY(kiln_item(out[0], values++));
        TRY(kiln_item(out[1], values++));
    }
    for (int k = 0; k < 2 * LAYERS; k++)
        TRY(kiln_item(kiln_sum(kiln_mul(deep[k], kiln_sin(kiln_arange(KILN_F64, 0, WIDE, 1)))), values++));
    kiln_function_free(f);
    kiln_scope_end(scope);
}

static void buckets_live(void)
{
    enum { DEEP_VALUES = 2 * DEEP_STEPS + 2 * LAYERS };
    double compiled[DEEP_VALUES], interpreted[DEEP_VALUES];
    deep_training("interp", interpreted);
    deep_training("jit", compiled);
    for (int k = 0; k < DEEP_VALUES; k++)
        CHECK(fabs(compiled[k] - interpreted[k]) <= 1e-10 * (1 + fabs(interpreted[k])), "value %d of training is %.17g, interpreted %.17g",
              k, compiled[k], interpreted[k]);
}

/* Products, of which means are added to parameters: as many kernels as products, and one or a few for the sums; no element is copied. */
enum { PRODUCTS = 12, SIDE = 48 };
static kiln_tensor *sums[PRODUCTS];

static void product_step(kiln_tensor **in, kiln_tensor **out, void *user)
{
    kiln_tensor *g[PRODUCTS];
    (void)user;
    for (int k = 0; k < PRODUCTS; k++)
        g[k] = kiln_matmul(in[0], kiln_sin(kiln_mul(in[0], k + 1)));
    TRY(kiln_parallel_gradients(world, g, PRODUCTS));
    for (int k = 0; k < PRODUCTS; k++)
        TRY(kiln_assign(sums[k], kiln_add(sums[k], g[k])));
    out[0] = kiln_zeros(KILN_F32, KILN_SHAPE());
}

/* Bytes that a step moves, but for those of its collectives. */
static void buckets_are_not_copied(void)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x = kiln_div(kiln_reshape(kiln_arange(KILN_F32, 0, SIDE * SIDE, 1), KILN_SHAPE(SIDE, SIDE)), SIDE * SIDE), *out;
    kiln_stats before, after;
    TRY(kiln_set_option("mode", "jit"));
    for (int k = 0; k < PRODUCTS; k++)
        sums[k] = kiln_param(kiln_zeros(KILN_F32, KILN_SHAPE(SIDE, SIDE)));
    TRY(kiln_eval(x));
    kiln_function *f = kiln_function_new(product_step, 1, 1, NULL);
    for (int call = 0; call < 3; call++) {
        kiln_get_stats(&before);
        TRY(kiln_function_call(f, &x, &out));
        TRY(kiln_eval(out));
        kiln_get_stats(&after);
    }
    const int64_t matrix = SIDE * SIDE * (int64_t)sizeof(float), moved = (after.bytes_moved - before.bytes_moved) / matrix;
    const int64_t kernels = after.kernels - before.kernels;
    /* sines: one read, 12 written; products: 3 each; the collective: 2 each; sums: the bucket's and theirs, in place: 3 each at most */
    const int64_t most = 1 + PRODUCTS + 8 * PRODUCTS + 4;
    if (rank == 0)
        printf("buckets: %d kernels, bytes of %d matrices, %d expected\n", (int)kernels, (int)moved, (int)most);
    CHECK(size == 1 || moved <= most, "a step moves %d matrices, not %d", (int)moved, (int)most);
    kiln_function_free(f);
    kiln_scope_end(scope);
}

/* ---- one compile for all ---- */

/* A graph that takes a while to compile, and is another for each number. */
static double heavy(int number)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x = kiln_arange(KILN_F32, 0, 1000, 1);
    for (int k = 0; k < 40; k++)
        x = k % 3 == number ? kiln_sin(x) : k % 2 ? kiln_exp(kiln_neg(kiln_abs(x))) : kiln_log1p(kiln_square(x));
    double sum;
    TRY(kiln_item(kiln_sum(x), &sum));
    kiln_scope_end(scope);
    return sum;
}

/* With a cache directory that is empty and belongs to all: each program is compiled by one rank. */
static void compiling(void)
{
    for (int number = 0; number < 3; number++) {
        kiln_stats before = stats_now();
        double sum = heavy(number), spread[2], compiles;
        kiln_stats after = stats_now();
        kiln_tensor *n = kiln_full(KILN_F64, KILN_SHAPE(), (double)(after.compiles - before.compiles)),
                    *s = kiln_full(KILN_F64, KILN_SHAPE(), sum);
        TRY(kiln_item(kiln_all_reduce(world, n, KILN_REDUCE_SUM), &compiles));
        TRY(kiln_item(kiln_all_reduce(world, s, KILN_REDUCE_MAX), &spread[0]));
        TRY(kiln_item(kiln_all_reduce(world, s, KILN_REDUCE_MIN), &spread[1]));
        CHECK(compiles == 1, "program %d was compiled %g times", number, compiles);
        CHECK(spread[0] == sum && spread[1] == sum, "program %d differs", number);
    }
}

/* ---- failures ---- */

/* What comes of it is said on stdout. */
static int failed(kiln_status status)
{
    printf("rank %d: %s\n", rank, status == KILN_OK ? "ok" : kiln_error_message());
    fflush(stdout);
    return status == KILN_COMM ? 0 : 1;
}

/* This rank has said all that it has to say: a file tells who waits for that (launch.sh). */
static void all_said(void)
{
    char path[1000];
    snprintf(path, sizeof path, "%s.%d", getenv("RANKS_SAID") ? getenv("RANKS_SAID") : "", rank);
    FILE *file = getenv("RANKS_SAID") ? fopen(path, "w") : NULL;
    CHECK(!getenv("RANKS_SAID") || (file && fclose(file) == 0), "%s", path);
}

static void wait_until_said(int other)
{
    char path[1000];
    snprintf(path, sizeof path, "%s.%d", getenv("RANKS_SAID") ? getenv("RANKS_SAID") : "", other);
    for (int k = 0; k < 600000 && access(path, F_OK) != 0; k++)
        usleep(1000);
}

/* How long this rank waits for others from now on: not before, when one may be late though nothing is wrong. */
static void wait_for(const char *seconds)
{
    if (seconds)
        TRY(kiln_set_option("comm_timeout", seconds));
}

/* Rank 1 has something else than the others, after some that are the same. */
static int differ(const char *what)
{
    int other = rank == 1;
    double *data = calloc(1 << 16, sizeof *data);
    kiln_tensor *x = kiln_from(KILN_F64, KILN_SHAPE(1 << 16), data), *small = kiln_from(KILN_F32, KILN_SHAPE(4), data);
    free(data);
    const bool after_x = !strcmp(what, "op") || !strcmp(what, "order");
    const char *before = after_x ? "xsgxsgsxgx" : "xsgxsgsxg"; /* x, small, gather: each has followed each */
    for (int k = 0; before[k]; k++) {
        kiln_tensor *y =
            before[k] == 'g' ? kiln_all_gather(world, small, 0) : kiln_all_reduce(world, before[k] == 's' ? small : x, KILN_REDUCE_SUM);
        kiln_status status = kiln_eval(y);
        if (status != KILN_OK) /* another rank is past it, and told already */
            return failed(status);
    }
    if (!strcmp(what, "shape"))
        return failed(kiln_eval(kiln_all_reduce(world, kiln_zeros(KILN_F32, KILN_SHAPE(other ? 5 : 4)), KILN_REDUCE_SUM)));
    if (!strcmp(what, "dtype"))
        return failed(kiln_eval(kiln_all_reduce(world, kiln_zeros(other ? KILN_I32 : KILN_F32, KILN_SHAPE(4)), KILN_REDUCE_SUM)));
    if (!strcmp(what, "how"))
        return failed(kiln_eval(kiln_all_reduce(world, small, other ? KILN_REDUCE_MAX : KILN_REDUCE_SUM)));
    if (!strcmp(what, "root"))
        return failed(kiln_eval(kiln_broadcast(world, small, other)));
    if (!strcmp(what, "order")) /* both have run, but rank 1's never after itself; of very different sizes */
        return failed(kiln_eval(kiln_all_reduce(world, other ? x : small, KILN_REDUCE_SUM)));
    if (!strcmp(what, "known")) /* both have run after a gather, so nobody looks first; of very different sizes */
        return failed(kiln_eval(other ? kiln_all_reduce(world, x, KILN_REDUCE_SUM) : kiln_all_reduce(world, small, KILN_REDUCE_SUM)));
    if (!strcmp(what, "sent") && rank < 2) /* in a message, which the third one knows nothing of */
        return failed(kiln_eval(other ? kiln_send(world, x, 0) : kiln_recv(world, KILN_F32, KILN_SHAPE(5), 1)));
    if (!strcmp(what, "both") && rank < 2)
        return failed(kiln_eval(kiln_send(world, small, 1 - rank)));
    if (!strcmp(what, "wait") && rank == 0) /* for one that waits for it */
        return failed(kiln_eval(kiln_send(world, small, 1)));
    if (!strcmp(what, "ring"))
        return failed(kiln_eval(kiln_send(world, small, (rank + 1) % size)));
    if (strcmp(what, "op") != 0)
        return failed(kiln_barrier(world));
    return failed(kiln_eval(other ? kiln_all_gather(world, small, 0) : kiln_all_reduce(world, small, KILN_REDUCE_SUM)));
}

static kiln_status tell_processes(double *pids)
{
    double mine = (double)getpid();
    return kiln_read(kiln_all_gather(world, kiln_from(KILN_F64, KILN_SHAPE(1), &mine), 0), KILN_F64, pids, sizeof *pids * (size_t)size);
}

/* All is said: who was stopped is killed, so that the launcher ends. */
static void end_stopped(const char *how, const double *pids)
{
    all_said();
    if (rank == 0 && !strcmp(how, "stop") && pids[1] > 0) {
        wait_until_said(2);
        kill((pid_t)pids[1], SIGKILL);
    }
}

/* The others wait for rank 1. */
static int missing(const char *how, const char *seconds)
{
    float back[1000];
    double pids[RANKS] = {0};
    kiln_tensor *x = kiln_ones(KILN_F32, KILN_SHAPE(1000));
    kiln_status before = tell_processes(pids);
    for (int k = 0; k < 2; k++) { /* so it is known, and begins before all are there */
        if (before == KILN_OK)
            before = kiln_eval(kiln_all_reduce(world, x, KILN_REDUCE_SUM));
        if (before == KILN_OK)
            before = kiln_barrier(world);
    }
    if (rank == 1 && !strcmp(how, "leave") && before == KILN_OK)
        return 0;
    if (rank == 1 && before == KILN_OK)
        raise(!strcmp(how, "die") ? SIGKILL : SIGSTOP);
    int status;
    if (before != KILN_OK) { /* another rank is past it, and told already */
        status = failed(before);
    } else {
        wait_for(seconds);
        status = failed(kiln_eval(kiln_all_reduce(world, x, KILN_REDUCE_SUM)));
        status |= failed(kiln_eval(kiln_all_reduce(world, x, KILN_REDUCE_SUM)));
        TRY(kiln_read(x, KILN_F32, back, sizeof back)); /* what was there is, and no device waits */
        CHECK(back[0] == 1 && back[999] == 1, "x changed");
    }
    end_stopped(how, pids);
    return status;
}

/* Rank 1 has no room for what it computes beside a collective, and ends; or waits until the others gave up. */
static int short_of_memory(bool ends, const char *seconds)
{
    kiln_tensor *x = kiln_ones(KILN_F32, KILN_SHAPE(1000)), *both[2];
    kiln_status before = kiln_eval(kiln_all_reduce(world, x, KILN_REDUCE_SUM));
    if (before != KILN_OK) { /* others are past it, and told already of rank 1 */
        int wrong = failed(before);
        all_said();
        return wrong | (rank == 1);
    }
    both[0] = kiln_all_reduce(world, kiln_mul(x, 2), KILN_REDUCE_SUM);
    both[1] = kiln_add(kiln_arange(KILN_F64, 0, 1e14, 1), kiln_sum(x));
    wait_for(seconds);
    kiln_status status = kiln_eval_many(both, rank == 1 ? 2 : 1);
    if (rank == 1) {
        if (!ends) {
            wait_until_said(0);
            wait_until_said(2);
        }
        return status != KILN_OUT_OF_MEMORY;
    }
    int wrong = failed(status);
    all_said();
    return wrong;
}

/* Something fails on all ranks between collectives of one evaluation: none of them is run twice, whoever tries again. */
static int half_way(void)
{
    kiln_tensor *x = kiln_ones(KILN_F32, KILN_SHAPE(4));
    for (int k = 0; k < 3; k++)
        x = kiln_all_reduce(world, kiln_mul(x, 2), KILN_REDUCE_SUM);
    kiln_status status = KILN_DEVICE;
    for (int k = 0; k < 2 && status != KILN_OK; k++) {
        status = kiln_eval(x);
        printf("rank %d: %s\n", rank, status == KILN_OK ? "ok" : kiln_error_message());
    }
    float got[4] = {0};
    if (status == KILN_OK)
        TRY(kiln_read(x, KILN_F32, got, sizeof got));
    CHECK(status == KILN_OK ? got[0] == powf(2 * (float)size, 3) : status == KILN_COMM, "half way: %g", got[0]);
    return 0;
}

/* ---- graphs ---- */

enum { COLUMNS_OF_X = 128, TIMES = 9 };

/* Whole numbers, so sums are exact. */
static float entry(int k, int r, int64_t i) { return (float)((k * 5 + r * 3 + i) % 7); }

/* y: large + products beside it; z: a small one of that. rows x COLUMNS_OF_X of x. */
static void record_step(int k, int64_t rows, kiln_reduce how, kiln_tensor **y, kiln_tensor **z)
{
    const size_t n = (size_t)rows * COLUMNS_OF_X;
    float *data = malloc(sizeof *data * n);
    for (size_t i = 0; i < n; i++)
        data[i] = entry(k, rank, (int64_t)i);
    kiln_tensor *x = kiln_from(KILN_F32, KILN_SHAPE(rows, COLUMNS_OF_X), data);
    free(data);
    kiln_tensor *sum = kiln_all_reduce(world, kiln_add(kiln_mul(x, 2), 1), KILN_REDUCE_SUM);
    kiln_tensor *beside = kiln_matmul(kiln_transpose(x), x); /* 128 x 128 */
    kiln_tensor *most = kiln_all_reduce(world, beside, how);
    kiln_tensor *least = kiln_max_axes(kiln_sub(most, 1), KILN_AXES(0), false);
    *y = kiln_add(sum, least);
    *z = kiln_all_gather(world, kiln_reshape(kiln_sum(kiln_sub(*y, sum)), KILN_SHAPE(1)), 0);
    *z = kiln_add(*z, 1);
}

static double product(int k, int r, int64_t rows, int64_t a, int64_t b)
{
    double all = 0;
    for (int64_t i = 0; i < rows; i++)
        all += (double)entry(k, r, i * COLUMNS_OF_X + a) * (double)entry(k, r, i * COLUMNS_OF_X + b);
    return all;
}

static void check_step(int k, int64_t rows, kiln_tensor *y, kiln_tensor *z)
{
    const size_t n = (size_t)rows * COLUMNS_OF_X;
    float *got = malloc(sizeof *got * n), ends[RANKS];
    double least[COLUMNS_OF_X], all = 0;
    TRY(kiln_read(y, KILN_F32, got, sizeof *got * n));
    TRY(kiln_read(z, KILN_F32, ends, sizeof *ends * (size_t)size));
    for (int64_t b = 0; b < COLUMNS_OF_X; b++) {
        least[b] = -INFINITY;
        for (int64_t a = 0; a < 7; a++) { /* rows of the product are the same after 7 */
            double sum = 0;
            for (int r = 0; r < size; r++)
                sum += product(k, r, rows, a, b);
            least[b] = fmax(least[b], sum - 1);
        }
        all += least[b] * (double)rows;
    }
    for (size_t i = 0; i < n; i++) {
        double sum = least[i % COLUMNS_OF_X];
        for (int r = 0; r < size; r++)
            sum += 2 * entry(k, r, (int64_t)i) + 1;
        CHECK(got[i] == (float)sum, "step %d: [%zu] is %g, not %g", k, i, (double)got[i], sum);
    }
    for (int r = 0; r < size; r++)
        CHECK(fabs((double)ends[r] - 1 - all) <= 1e-5 * fabs(all), "step %d: of rank %d: %g, not %g", k, r, (double)ends[r], all + 1);
    free(got);
}

static int failed_at_last(const char *how, const double *pids, kiln_status status)
{
    const int wrong = failed(status);
    end_stopped(how, pids);
    return wrong;
}

enum { GOES_ON = -1 };

/* The exit status; or GOES_ON: all is well. */
static int graphs(const char *how, const char *seconds)
{
    const bool mixed = !strcmp(how, "mixed"), sizes = !strcmp(how, "sizes"), off = !strcmp(how, "off");
    const bool fails = *how && !mixed && !sizes && !off;
    double pids[RANKS] = {0};
    if (fails)
        TRY(tell_processes(pids));
    if (off && rank == 1)
        TRY(kiln_set_option("cuda_graphs", "0"));
    for (int k = 0; k < (sizes || mixed ? 3 * TIMES : TIMES); k++) {
        const int64_t rows = sizes && k / TIMES == 1 ? 144 : 128;
        kiln_tensor *y, *z;
        kiln_scope *scope = kiln_scope_begin();
        record_step(k, rows, KILN_REDUCE_SUM, &y, &z);
        if (mixed && k / TIMES == 1 && rank == 1)
            TRY(kiln_eval(y)); /* by itself */
        kiln_tensor *both[] = {y, z};
        kiln_status status = kiln_eval_many(both, 2);
        if (fails && status != KILN_OK) /* another rank is past it, and told already */
            return failed_at_last(how, pids, status);
        TRY(status);
        check_step(k, rows, y, z);
        kiln_scope_end(scope);
    }
    if (!fails)
        return GOES_ON;
    if (rank == 1 && !strcmp(how, "leave"))
        return 0;
    if (rank == 1 && strcmp(how, "differ") != 0)
        raise(!strcmp(how, "die") ? SIGKILL : SIGSTOP);
    wait_for(seconds);
    kiln_tensor *y, *z;
    record_step(TIMES, 128, rank == 1 ? KILN_REDUCE_MAX : KILN_REDUCE_SUM, &y, &z);
    return failed_at_last(how, pids, kiln_eval_many((kiln_tensor *[]){y, z}, 2));
}

int main(int argc, char **argv)
{
    const char *verb = argc > 1 ? argv[1] : "";
    if (argc > 2)
        seed = strtoull(argv[2], NULL, 10);
    const unsigned long long seed_said = seed;
    world = kiln_group_world(NULL);
    CHECK(world, "no world");
    rank = kiln_group_rank(world);
    size = kiln_group_size(world);
    CHECK(!getenv("RANKS") || size == atoi(getenv("RANKS")), "%d ranks", size);
    if (!strcmp(verb, "all")) {
        unsigned long long first = seed;
        matrix();
        told("matrix");
        for (unsigned long long k = 0; k < 12; k++)
            random_program(first * 12 + k);
        told("random programs");
        TRY(kiln_set_option("mode", "jit"));
        gradients();
        told("gradients");
        training();
        told("training");
        buckets_live();
        buckets_are_not_copied();
        for (unsigned long long k = 0; k < 8; k++)
            random_buckets(first * 8 + k);
        told("buckets");
    } else if (!strcmp(verb, "matrix"))
        matrix();
    else if (!strcmp(verb, "large")) { /* 64 MB */
        const Part p = whole();
        check_all(&p, KILN_F32, 4096, 4096, 1);
    } else if (!strcmp(verb, "random"))
        for (unsigned long long k = 0; k < 4; k++)
            random_program(seed_said * 4 + k);
    else if (!strcmp(verb, "buckets")) {
        buckets_live();
        buckets_are_not_copied();
        for (unsigned long long k = 0; k < 8; k++)
            random_buckets(seed_said * 8 + k);
    } else if (!strcmp(verb, "compiling"))
        compiling();
    else if (!strcmp(verb, "differ") && argc > 2)
        return differ(argv[2]);
    else if (!strcmp(verb, "leave") || !strcmp(verb, "die") || !strcmp(verb, "stop"))
        return missing(verb, argc > 2 ? argv[2] : NULL);
    else if (!strcmp(verb, "graphs")) {
        const int status = graphs(argc > 2 ? argv[2] : "", argc > 3 ? argv[3] : NULL);
        if (status != GOES_ON)
            return status;
    } else if (!strcmp(verb, "half"))
        return half_way();
    else if (!strcmp(verb, "memory") && argc > 2)
        return short_of_memory(!strcmp(argv[2], "ends"), argc > 3 ? argv[3] : NULL);
    else
        CHECK(0, "no verb %s", verb);
    TRY(kiln_barrier(world));
    return 0;
}
