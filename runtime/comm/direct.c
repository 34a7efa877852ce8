/*
 * Buffers on CUDA devices by an MPI that takes them (CUDA-aware): what is only moved goes from device to device as it lies. Such an MPI knows
 * nothing of streams, so it begins when the launches before it are over, and what comes next is launched when it has ended.
 *
 * What is combined goes through memory of the host: nonblocking reductions, which a bound on waiting needs, take no memory of devices in
 * Open MPI, and MPICH copies them itself.
 */
#include "ir/base/os.h"
#include "runtime/comm/comm.h"

#include <stdio.h>

typedef struct Move {
    kiln_comm_call call;
    CudaLane lane;
    bool begun;
    void *request; /* then: the backend's */
} Move;

static kiln_status said(char *why)
{
    snprintf(why, KILN_COMM_WHY, "%s", fail_message());
    return KILN_COMM;
}

static bool carries(int op) { return op != KILN_COMM_ALL_REDUCE && op != KILN_COMM_REDUCE_SCATTER && op != KILN_COMM_REDUCE; }

static kiln_status start(const kiln_group *g, const kiln_comm_call *call, const CudaLane *lane, void **request, char *why)
{
    (void)g;
    Move *m = cuda_lane_enter(lane) == ST_OK && cuda_lane_mark(lane) == ST_OK ? os_alloc(sizeof *m) : NULL;
    if (!m)
        return said(why);
    *m = (Move){.call = *call, .lane = *lane};
    *request = m;
    return KILN_OK;
}

static kiln_status test(const kiln_group *g, void *request, int *done, char *why)
{
    Move *m = request;
    bool over = true;
    *done = 0;
    if (!m->begun && cuda_lane_over(&m->lane, &over) != ST_OK)
        return said(why);
    if (!over)
        return KILN_OK;
    kiln_status status = m->begun ? KILN_OK : g->world->moves(g->comm, &m->call, &m->request, why);
    m->begun = true;
    status = status == KILN_OK ? g->world->backend->test(g->comm, m->request, done, why) : status;
    if (*done)
        os_free(m);
    return status;
}

/* MPI has it for ever. */
static void give_up(void) {}

static const char *no_graphs(void) { return "MPI has no part in those"; }

const CommDevice *comm_direct_device(void)
{
    static const CommDevice device = {.carries = carries, .start = start, .test = test, .give_up = give_up, .no_graphs = no_graphs};
    return &device;
}
