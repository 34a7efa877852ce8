/*
 * kiln_perf_scaling: the overhead test. Work that is limited by memory or arithmetic takes twice as long at twice the size; what does not is
 * limited by what happens once per call (Horace He, "Making Deep Learning Go Brrrr From First Principles", 2022).
 *
 * Both sizes run in turns, so that whatever else the machine does meets both alike; the first runs, which compile and fill pools, are not counted.
 */
#include "ir/base/log.h"
#include "ir/base/os.h"
#include "runtime/record/record.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { WARM_RUNS = 2, LEAST_ROUNDS = 5, MOST_ROUNDS = 101 };
static const double LONG_ENOUGH = 0.5; /* seconds, for all rounds after LEAST_ROUNDS */
static const double STAYS = 1.25, GROWS = 1.6;
static const size_t FIRST_SIZE =
    offsetof(kiln_scaling, verdict) + sizeof((kiln_scaling *)0)->verdict; /* of the first library that had it */

typedef struct Rounds {
    double once[MOST_ROUNDS], twice[MOST_ROUNDS], ratio[MOST_ROUNDS];
    int n;
} Rounds;

static int by_value(const void *a, const void *b)
{
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

static double median(double *values, int n)
{
    qsort(values, (size_t)n, sizeof *values, by_value);
    return values[n / 2];
}

static kiln_status timed(kiln_perf_body *body, int64_t n, void *user, double *seconds)
{
    double start = os_seconds();
    kiln_scope *scope = kiln_scope_begin();
    kiln_status status = body(n, user);
    kiln_scope_end(scope);
    *seconds = os_seconds() - start;
    return status;
}

static kiln_status warm(kiln_perf_body *body, int64_t n, void *user)
{
    double unused;
    kiln_status status = KILN_OK;
    for (int i = 0; i < 2 * WARM_RUNS && status == KILN_OK; i++)
        status = timed(body, i % 2 ? 2 * n : n, user, &unused);
    return status;
}

static kiln_status run(kiln_perf_body *body, int64_t n, void *user, Rounds *rounds)
{
    double all = 0;
    kiln_status status = KILN_OK;
    while (status == KILN_OK && rounds->n < MOST_ROUNDS && (rounds->n < LEAST_ROUNDS || all < LONG_ENOUGH)) {
        double *once = &rounds->once[rounds->n], *twice = &rounds->twice[rounds->n];
        status = timed(body, n, user, once);
        if (status == KILN_OK)
            status = timed(body, 2 * n, user, twice);
        rounds->ratio[rounds->n++] = *once > 0 ? *twice / *once : 0;
        all += *once + *twice;
    }
    return status;
}

static const char *verdict(double ratio)
{
    if (ratio < STAYS)
        return "overhead: twice the work takes hardly longer, so what each call does whatever its size is what takes the time; compute "
               "more at once, evaluate less often, or use kiln_function";
    if (ratio < GROWS)
        return "partly overhead: twice the work takes less than twice the time";
    return "work: the time grows with the size; KILN_PERF=summary tells what limits each kernel";
}

kiln_status kiln_perf_scaling(kiln_perf_body *body, int64_t n, void *user, kiln_scaling *result)
{
    static const char api[] = "kiln_perf_scaling";
    Rounds rounds = {.n = 0};
    kiln_stats before, after;
    Status bad = ST_OK;
    if (!body || !result)
        bad = fail(ST_INVALID, "%s is NULL", body ? "result" : "body");
    else if (n < 1 || n > INT64_MAX / 2)
        bad = fail(ST_INVALID, "n is %lld: a size from 1 to 2^62", (long long)n);
    else if (result->size < FIRST_SIZE)
        bad = fail(ST_INVALID, "result->size is %zu: set it to sizeof(kiln_scaling), which is %zu", result->size, sizeof *result);
    if (bad != ST_OK)
        return error_sync(bad, api, (Loc){0});
    kiln_status status = warm(body, n, user);
    kiln_get_stats(&before);
    if (status == KILN_OK)
        status = run(body, n, user, &rounds);
    if (status != KILN_OK)
        return status; /* the body's, with its message */
    kiln_get_stats(&after);
    kiln_scaling own = {.size = result->size < sizeof own ? result->size : sizeof own,
                        .runs = rounds.n,
                        .seconds = median(rounds.once, rounds.n),
                        .seconds_twice = median(rounds.twice, rounds.n),
                        .ratio = median(rounds.ratio, rounds.n),
                        .compiles = after.compiles - before.compiles};
    own.verdict = verdict(own.ratio);
    if (log_on(LOG_PERF))
        log_line(LOG_PERF, "size %lld takes %.2f us, twice that %.2f us, %.2f times as long: %s", (long long)n, 1e6 * own.seconds,
                 1e6 * own.seconds_twice, own.ratio, own.verdict);
    memcpy(result, &own, own.size);
    return KILN_OK;
}
