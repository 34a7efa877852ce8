/*
 * Errors as the user sees them.
 *
 * The cause is written once, by fail() where it is known. Here the public function's name and the
 * user's place are added. A thread has two errors: the *kept* one, the first of a recording
 * function since the last was consumed; and the *shown* one, of the sync point that failed last.
 * kiln_error_message gives the shown one until another is kept.
 */
#include "ir/base/os.h"
#include "ir/base/path.h"
#include "runtime/record/thread.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MESSAGE = 1024 };

struct ErrorState {
    Status kept_status, shown_status;
    uint64_t raised, handled; /* how many errors were to be kept, and of these how many the thread has cleared or got */
    char kept[MESSAGE], shown[MESSAGE];
};

#define SAME(a, b) _Static_assert((int)(a) == (int)(b), "the public enum follows the internal one")
SAME(KILN_OK, ST_OK);
SAME(KILN_INVALID, ST_INVALID);
SAME(KILN_BAD_DTYPE, ST_DTYPE);
SAME(KILN_BAD_SHAPE, ST_SHAPE);
SAME(KILN_BAD_INDEX, ST_INDEX);
SAME(KILN_OVERFLOW, ST_OVERFLOW);
SAME(KILN_OUT_OF_MEMORY, ST_OUT_OF_MEMORY);
SAME(KILN_IO, ST_IO);
SAME(KILN_BAD_FORMAT, ST_FORMAT);
SAME(KILN_UNSUPPORTED, ST_UNSUPPORTED);
SAME(KILN_COMPILE, ST_COMPILE);
SAME(KILN_DEVICE, ST_DEVICE);
SAME(KILN_INTERNAL, ST_INTERNAL);
SAME(KILN_COMM, ST_COMM);
SAME(KILN_COMM + 1, ST_COUNT);
#define DTYPE(id, name, bytes, kind, scalar, numpy) SAME(KILN_##id, DT_##id);
#include "ir/dtypes.def"
#undef DTYPE
SAME(KILN_F64 + 1, DT_COUNT);
SAME(KILN_MAX_RANK, MAX_RANK);
SAME(KILN_SCATTER_SET, SCATTER_SET);
SAME(KILN_SCATTER_ADD, SCATTER_ADD);
SAME(KILN_SCATTER_MAX, SCATTER_MAX);
SAME(KILN_SCATTER_MIN, SCATTER_MIN);

/* What threads share that had no memory for errors of their own. Never written. */
static ErrorState no_memory = {ST_OUT_OF_MEMORY, ST_OUT_OF_MEMORY, 1, 0, "out of memory", "out of memory"};

/* This thread's errors. */
static ErrorState *state(void)
{
    RtThread *t = rt_thread();
    if (t->error == &no_memory)
        errors_start_thread(t);
    return t->error;
}

void errors_start_thread(RtThread *t)
{
    ErrorState *e = os_calloc(1, sizeof *e);
    t->error = e ? e : &no_memory;
}

void errors_end_thread(RtThread *t)
{
    if (t->error != &no_memory)
        os_free(t->error);
    t->error = NULL;
}

/* Writes "api: message (file:line)". */
static void compose(char *out, const char *api, Loc loc)
{
    const char *message = fail_message();
    if (!loc.file) {
        snprintf(out, MESSAGE, "%s: %s", api, message);
        return;
    }
    snprintf(out, MESSAGE, "%s: %s (%s:%d)", api, message, path_name(loc.file), loc.line);
}

Status error_keep(Status status, const char *api, Loc loc)
{
    if (status == ST_OK)
        return status;
    ErrorState *e = state();
    if (e == &no_memory)
        return status;
    e->raised++;
    if (e->kept_status != ST_OK)
        return status;
    compose(e->kept, api, loc);
    e->kept_status = status;
    e->shown_status = ST_OK;
    return status;
}

kiln_status error_sync(Status status, const char *api, Loc loc)
{
    if (status == ST_OK)
        return KILN_OK;
    ErrorState *e = state();
    if (e != &no_memory) {
        compose(e->shown, api, loc);
        e->shown_status = status;
    }
    return (kiln_status)status;
}

kiln_status error_null(const char *what, const char *api, Loc loc)
{
    ErrorState *e = state();
    if (e == &no_memory)
        return KILN_OUT_OF_MEMORY;
    if (e->kept_status == ST_OK)
        return error_sync(fail(ST_INVALID, "%s is NULL", what), api, loc);
    memcpy(e->shown, e->kept, MESSAGE);
    e->shown_status = e->kept_status;
    e->kept_status = ST_OK;
    e->handled = e->raised;
    return (kiln_status)e->shown_status;
}

const char *kiln_error_message(void)
{
    const ErrorState *e = state();
    return e->shown_status != ST_OK ? e->shown : e->kept_status != ST_OK ? e->kept : "";
}

kiln_status kiln_error_status(void)
{
    const ErrorState *e = state();
    return (kiln_status)(e->shown_status != ST_OK ? e->shown_status : e->kept_status);
}

void kiln_clear_error(void)
{
    ErrorState *e = state();
    if (e == &no_memory)
        return;
    e->kept_status = e->shown_status = ST_OK;
    e->handled = e->raised;
}

uint64_t errors_raised(void) { return state()->raised; }

bool errors_since(uint64_t before)
{
    const ErrorState *e = state();
    return e->raised > (before > e->handled ? before : e->handled);
}

ErrorMark errors_mark(void) { return (ErrorMark){state()->raised, state()->kept_status != ST_OK}; }

void errors_back_to(ErrorMark mark)
{
    ErrorState *e = state();
    if (e == &no_memory)
        return;
    e->raised = mark.raised;
    if (!mark.kept)
        e->kept_status = ST_OK;
}

bool errors_kept(void) { return state()->kept_status != ST_OK; }

void kiln_check_at(kiln_status status, const char *file, int line)
{
    if (status == KILN_OK)
        return;
    const char *message = kiln_error_message();
    if (file)
        fprintf(stderr, "%s:%d: ", file, line);
    fprintf(stderr, "%s\n", *message ? message : kiln_status_name(status));
    exit(1);
}

void kiln_check(kiln_status status) { kiln_check_at(status, NULL, 0); }

const char *kiln_status_name(kiln_status status) { return (unsigned)status < ST_COUNT ? status_name((Status)status) : "unknown status"; }
