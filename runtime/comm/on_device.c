/*
 * Collectives whose buffers are on CUDA devices: a program's are collected with the launches around them, and run when the program is at its end or
 * something else needs the device.
 *
 *   in turn      each is checked, queued on the stream or on the lane beside it, and waited for, as the launches around it want
 *   as a graph   what came so often in the same way, with the same buffers, is captured: one launch, one check, one wait for all of them
 *
 * NCCL has two rules for graphs. Whether a collective is captured is the same on all ranks, and graphs that are launched together are those that
 * were captured together. So the check of the first collective carries a vote: a hash of all that the graph has, and of the number by which it
 * was captured, 0 where a rank goes in turn. It is a graph where all votes are equal (comm_ask); then no other check is needed, for all ranks have
 * the same collectives. Where it is to be captured, all tell each other that they could before anybody launches it. A rank that goes in turn does
 * not know that it was asked: it tells 0 by what it sends anyway.
 *
 * A graph has collectives of one group; messages of two ranks are in none. What launches follow the last one, or the first launch that waits for it, is
 * queued when the graph is over: these may be what overwrites parameters.
 */
#include "ir/base/hash.h"
#include "ir/base/log.h"
#include "runtime/comm/comm.h"
#include "runtime/eval/perf.h"
#include "runtime/evaluation.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* What is collected, as far as it may be a graph. */
typedef struct Together {
    CommCall first;
    uint32_t n;
    uint64_t vote, number; /* number: of the capture; 0: it is none yet */
    struct CudaGraph *graph;
    CommFlight *asked;
    const char *why_not; /* it is no graph */
} Together;

static bool call_at(const Evaluation *e, size_t at, CommCall *call, bool *aside)
{
    const void *bytes = cuda_run_call_at(e->cuda, at, aside);
    if (bytes)
        memcpy(call, bytes, sizeof *call);
    return bytes;
}

/* The first one that is collected; there is one. */
static CommCall first_of(const Evaluation *e)
{
    CommCall call = {.group = NULL};
    for (size_t at = 0; !call_at(e, at, &call, NULL);)
        at++;
    return call;
}

static bool in_turn(const CommCall *c) { return comm_is_pair(c->what.op) || c->group->world->device->no_graphs() || perf_timed(); }

/* ---- in turn ---- */

static Status tell_number(const Evaluation *e, const CommCall *c)
{
    return c->kept ? cuda_run_write(e->cuda, c->kept, &c->number, sizeof c->number) : ST_OK;
}

/* *flight: one that was asked for, or NULL; then the one in the air, where it is aside. */
static Status run_one(Evaluation *e, const CommCall *c, bool aside, CommFlight **flight)
{
    CudaLane lane;
    TRY(comm_count(e, c->group, c->name, 1));
    TRY(tell_number(e, c));
    if (c->call.count)
        TRY(cuda_lane_open(e->cuda, aside, &lane));
    if (!aside && !*flight)
        return comm_run(c->group, &c->what, &c->call, c->call.count ? &lane : NULL, c->loc);
    TRY(comm_begin(c->group, &c->what, &c->call, c->call.count ? &lane : NULL, c->loc, flight));
    return aside ? ST_OK : comm_end(*flight);
}

/* In the air: those of this batch that have not landed. */
typedef struct Air {
    CommFlight *flight[FLIGHTS];
    uint32_t n;
} Air;

static Status next_one(Evaluation *e, size_t at, Air *air, CommFlight **asked)
{
    CommCall call;
    bool aside;
    if (!call_at(e, at, &call, &aside)) {
        CommFlight *first = air->flight[0];
        memmove(air->flight, air->flight + 1, sizeof *air->flight * --air->n);
        return comm_end(first);
    }
    CommFlight *flight = *asked;
    *asked = NULL;
    TRY(run_one(e, &call, aside, &flight));
    if (aside)
        air->flight[air->n++] = flight;
    return ST_OK;
}

static Status run_in_turn(Evaluation *e, CommFlight *asked)
{
    Air air = {.n = 0};
    size_t at = 0;
    bool more = true;
    uint32_t before = 0;
    Status status = cuda_run_go(e->cuda, &at, &more);
    while (status == ST_OK && more) {
        status = next_one(e, at++, &air, &asked);
        if (status == ST_OK)
            status = cuda_run_go(e->cuda, &at, &more);
    }
    while (before < e->n_flights && e->flight[before].flight)
        before++;
    for (uint32_t k = 0; k < air.n; k++) /* nobody waits for them yet: the last ones that were collected */
        e->flight[before + k].flight = air.flight[k];
    e->n_flights = before + air.n;
    return status;
}

/* ---- as a graph ---- */

static void look_over(const Evaluation *e, Together *t)
{
    CommCall call;
    bool connected = true;
    t->first = first_of(e);
    t->n = cuda_run_calls(e->cuda);
    if (in_turn(&t->first)) {
        t->why_not = "nothing of its kind is"; /* the log told why, or launches are timed one by one */
        return;
    }
    t->graph = cuda_calls_take(e->cuda, &t->number, &t->why_not); /* it counts how often this came */
    for (size_t at = 0; at < cuda_run_collected(e->cuda); at++) {
        if (!call_at(e, at, &call, NULL))
            continue;
        t->vote = (t->vote ^ hash128(&call.what, sizeof call.what).lo) * UINT64_C(0x9e3779b97f4a7c15);
        connected &= !call.call.count || call.group->world->device->connected(call.group, &call.call);
    }
    if (connected)
        return;
    t->why_not = "NCCL has to make connections first";
    if (t->graph)
        cuda_calls_give(e->cuda, t->graph);
    t->graph = NULL;
}

static Status capture_one(void *user, size_t at, const CudaLane *lane)
{
    char why[KILN_COMM_WHY] = "";
    CommCall c;
    call_at(user, at, &c, NULL);
    kiln_status status = c.call.count ? c.group->world->device->capture(c.group, &c.call, lane, why) : KILN_OK;
    return status == KILN_OK ? ST_OK : fail(ST_COMM, "%s", why);
}

/* Captures it. *all: so did all other ranks. */
static Status capture(Evaluation *e, const Together *t, bool *all)
{
    const CommWhat what = {.op = COMM_CAPTURED};
    kiln_group *g = t->first.group;
    Status status = cuda_calls_capture(e->cuda, t->graph, g->calls, capture_one, e);
    if (status != ST_OK)
        log_warn_once("cuda graph", "%s; its collectives run one after the other (KILN_CUDA_GRAPHS=off does so always)", fail_message());
    TRY(comm_ask(g, &what, status == ST_OK ? t->vote | 1 : 0, t->first.loc, NULL, all));
    if (*all && log_on(LOG_COMM))
        log_line(LOG_COMM, "rank %d, group %s: %u collectives, from %s, number %lld of the process, on, are in a CUDA graph from now on",
                 g->world->group->rank, g->name, t->n, t->first.name, (long long)t->first.number);
    return ST_OK;
}

typedef struct Launching {
    Evaluation *e;
    const Together *t;
    size_t behind;
} Launching;

static kiln_status launch_graph(void *user, const CudaLane *lane, void **request, char *why)
{
    Launching *l = user;
    const kiln_group *g = l->t->first.group;
    if (cuda_calls_launch(l->e->cuda, l->t->graph, &l->behind) == ST_OK)
        return g->world->device->follow(g, lane, request, why);
    snprintf(why, KILN_COMM_WHY, "%s", fail_message());
    return KILN_COMM;
}

/* All ranks want it. *done = false: not all could capture it. */
static Status run_graph(Evaluation *e, Together *t, bool *done)
{
    Launching launching = {.e = e, .t = t};
    CudaLane lane;
    CommFlight *first = t->asked;
    bool more;
    *done = true;
    if (!t->number)
        TRY(capture(e, t, done));
    if (!*done)
        return ST_OK;
    TRY(comm_count(e, t->first.group, t->first.name, t->n));
    TRY(cuda_lane_open(e->cuda, false, &lane));
    t->asked = NULL;
    TRY(comm_launch(first, t->n, &lane, launch_graph, &launching));
    e->n_flights = 0;
    return cuda_run_go(e->cuda, &launching.behind, &more);
}

static Status tell_numbers(const Evaluation *e)
{
    CommCall call;
    for (size_t at = 0; at < cuda_run_collected(e->cuda); at++)
        if (call_at(e, at, &call, NULL))
            TRY(tell_number(e, &call));
    return ST_OK;
}

static void tell(const Together *t, bool graph)
{
    if (log_on(LOG_COMM) && log_levels[LOG_COMM] > 1)
        log_line(LOG_COMM, "rank %d, group %s: %u collectives from %s on are %sin a CUDA graph%s%s", t->first.group->world->group->rank,
                 t->first.group->name, t->n, t->first.name, graph ? "" : "not ", graph ? "" : ": ", graph ? "" : t->why_not);
}

/* Those in the air before have landed. *graph: all of it ran as a graph. */
static Status try_graph(Evaluation *e, Together *t, bool *graph)
{
    while (e->n_flights && e->flight[0].flight)
        TRY(comm_land(e, e->n_flights - 1));
    const uint64_t vote = (t->vote ^ t->number * UINT64_C(0xff51afd7ed558ccd)) | 1;
    TRY(comm_ask(t->first.group, &t->first.what, vote, t->first.loc, &t->asked, graph));
    if (*graph)
        TRY(run_graph(e, t, graph));
    if (*graph)
        return tell_numbers(e);
    cuda_calls_disagree(e->cuda, t->graph);
    t->why_not = "another rank has none, or another one, or could not capture it";
    return ST_OK;
}

static Status run_collected(void *user)
{
    Evaluation *e = user;
    Together t = {.n = 0};
    bool graph = false;
    look_over(e, &t);
    Status status = comm_count(e, t.first.group, t.first.name, 0);
    if (t.graph && status == ST_OK)
        status = try_graph(e, &t, &graph);
    if (t.graph)
        cuda_calls_give(e->cuda, t.graph);
    if (status != ST_OK)
        return status;
    tell(&t, graph);
    return graph ? ST_OK : run_in_turn(e, t.asked);
}

/* ---- collecting ---- */

Status comm_collect(Evaluation *e, const CommCall *c, size_t zero, bool aside)
{
    const bool alone = in_turn(c);
    if (cuda_run_calls(e->cuda) && (alone || first_of(e).group != c->group))
        TRY(cuda_run_flush(e->cuda));
    if (zero)
        TRY(cuda_run_call_zero(e->cuda, c->call.out, zero));
    TRY(cuda_run_call(e->cuda, run_collected, e, c, sizeof *c, offsetof(CommCall, loc), aside));
    if (aside) {
        e->flight[e->n_flights].flight = NULL;
        e->flight[e->n_flights].in = c->call.in;
        e->flight[e->n_flights++].out = c->call.out;
    }
    return alone ? cuda_run_flush(e->cuda) : ST_OK;
}

Status comm_flush(Evaluation *e) { return cuda_run_calls(e->cuda) ? cuda_run_flush(e->cuda) : ST_OK; }
