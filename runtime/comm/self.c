/* The backend of a process by itself: a group of one rank. */
#include "runtime/comm/comm.h"

#include <string.h>

static kiln_status self_open(void *user, void **comm, int *rank, int *size, char *why)
{
    (void)user, (void)why;
    *comm = NULL;
    *rank = 0;
    *size = 1;
    return KILN_OK;
}

static kiln_status self_split(void *comm, int color, int key, void **out, int *rank, int *size, char *why)
{
    (void)color, (void)key;
    return self_open(comm, out, rank, size, why);
}

/* Of all collectives of one rank the result is what it gave. (SEND_RECV with itself, too) */
static kiln_status self_start(void *comm, const kiln_comm_call *call, void **request, char *why)
{
    (void)comm, (void)why;
    *request = NULL;
    if (call->op != KILN_COMM_BARRIER && call->count)
        memcpy(call->out, call->in, call->count * dtype_bytes((DType)call->dtype));
    return KILN_OK;
}

static kiln_status self_test(void *comm, void *request, int *done, char *why)
{
    (void)comm, (void)request, (void)why;
    *done = 1;
    return KILN_OK;
}

static kiln_status self_tell(void *comm, int to, const void *note, size_t bytes, char *why)
{
    (void)comm, (void)to, (void)note, (void)bytes, (void)why;
    return KILN_OK;
}

static kiln_status self_hear(void *comm, int *from, void *note, size_t *bytes, char *why)
{
    (void)comm, (void)note, (void)bytes, (void)why;
    *from = -1;
    return KILN_OK;
}

static void self_close(void *comm, int orderly) { (void)comm, (void)orderly; }

const kiln_comm_backend *comm_self(void)
{
    static const kiln_comm_backend self = {.version = KILN_COMM_VERSION,
                                           .name = "self",
                                           .open = self_open,
                                           .split = self_split,
                                           .start = self_start,
                                           .test = self_test,
                                           .tell = self_tell,
                                           .hear = self_hear,
                                           .close = self_close};
    return &self;
}
