/*
 * A backend of two ranks in one process, for tests of what does not need two: the other rank does what this one does, on the same data; it
 * receives what this one sends it, and sends 10, 11, 12... where this one receives. It writes down what it is asked for, and fails as it is told.
 */
#ifndef TESTS_MIRROR_H
#define TESTS_MIRROR_H

#include "api.h"

#include <time.h>
#include <unistd.h>

enum { MIRROR_CALLS = 256, MIRROR_NOTES = 64 };
/* Of a note (runtime/comm/comm.h): its kind, where the op and the other rank of a message are, and the ops. */
enum { MIRROR_PAIR = 5, MIRROR_OP = 16, MIRROR_ROOT = 20, MIRROR_SEND = KILN_COMM_BARRIER + 2, MIRROR_RECV };

typedef struct Mirror {
    int n, splits;
    char calls[MIRROR_CALLS + 1]; /* a letter each: the place of the op in "RGSBrAPb"; > what is sent to the other alone, < received */
    bool mute;                    /* the other rank says nothing ... */
    bool stuck;                   /* ... or does not do its part */
    bool same_way;                /* it sends where this one does */
    bool older;                   /* ... or has notes of an older kiln */
    int lie;                      /* a byte of its notes is another: which one, from the end; 0: none */
    const char *start_fails;
    double takes; /* seconds that a collective takes; what it reads may not change meanwhile, and what it writes is nothing until then */
    kiln_comm_call call; /* that is on its way */
    void *kept;          /* what it reads */
    double due;
    int elsewhere; /* asked for by another thread than that of the test */
    struct {
        size_t bytes;
        char note[KILN_COMM_NOTE];
    } notes[MIRROR_NOTES];
    int heard, told, closed;
} Mirror;

static Mirror mirror;

static kiln_status mirror_open(void *user, void **comm, int *rank, int *size, char *why)
{
    (void)why;
    *comm = user;
    *rank = 0;
    *size = 2;
    return KILN_OK;
}

static kiln_status mirror_split(void *comm, int color, int key, void **out, int *rank, int *size, char *why)
{
    (void)key;
    ((Mirror *)comm)->splits++;
    *out = NULL;
    return color < 0 ? KILN_OK : mirror_open(comm, out, rank, size, why);
}

static double mirror_get(const kiln_comm_call *c, uint64_t i) { return element(c->dtype, c->in, i); }

static void mirror_put(const kiln_comm_call *c, uint64_t i, double value)
{
    if (c->dtype == KILN_F32)
        ((float *)c->out)[i] = (float)value;
    else if (c->dtype == KILN_F64)
        ((double *)c->out)[i] = value;
    else
        ((int32_t *)c->out)[i] = (int32_t)value;
}

static double mirror_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Of the element's dtype, what one rank hands in and gets. */
static size_t mirror_in(const kiln_comm_call *c)
{
    bool parts = c->op == KILN_COMM_REDUCE_SCATTER || c->op == KILN_COMM_ALL_TO_ALL, receives = c->op == KILN_COMM_SEND_RECV && c->to < 0;
    return c->op == KILN_COMM_BARRIER || receives ? 0 : (size_t)c->count * kiln_dtype_size(c->dtype) * (parts ? 2 : 1);
}

static size_t mirror_out(const kiln_comm_call *c)
{
    bool parts = c->op == KILN_COMM_ALL_GATHER || c->op == KILN_COMM_ALL_TO_ALL, sends = c->op == KILN_COMM_SEND_RECV && c->from < 0;
    return c->op == KILN_COMM_BARRIER || sends ? 0 : (size_t)c->count * kiln_dtype_size(c->dtype) * (parts ? 2 : 1);
}

/* Of f32, f64 and i32. */
static void mirror_run(const kiln_comm_call *c)
{
    size_t bytes = (size_t)c->count * kiln_dtype_size(c->dtype);
    switch (c->op) {
    case KILN_COMM_ALL_REDUCE:
    case KILN_COMM_REDUCE_SCATTER:
    case KILN_COMM_REDUCE:
        for (uint64_t i = 0; i < c->count && (c->op != KILN_COMM_REDUCE || c->root == 0); i++)
            mirror_put(c, i, (c->how == KILN_REDUCE_SUM ? 2 : 1) * mirror_get(c, i));
        break;
    case KILN_COMM_ALL_GATHER:
    case KILN_COMM_ALL_TO_ALL:
        memcpy(c->out, c->in, bytes);
        memcpy((char *)c->out + bytes, c->in, bytes);
        break;
    case KILN_COMM_BROADCAST:
    case KILN_COMM_SEND_RECV:
        if (c->op == KILN_COMM_SEND_RECV && c->root < 0) {
            for (uint64_t i = 0; i < c->count && c->from >= 0; i++)
                mirror_put(c, i, 10 + (double)i);
            break;
        }
        if (c->op == KILN_COMM_BROADCAST || c->from >= 0)
            memcpy(c->out, c->in, bytes);
        break;
    case KILN_COMM_BARRIER: break;
    }
}

static kiln_status mirror_start(void *comm, const kiln_comm_call *c, void **request, char *why)
{
    Mirror *m = comm;
    m->calls[m->n++ % MIRROR_CALLS] = c->op == KILN_COMM_SEND_RECV && c->root < 0 ? "<>"[c->to >= 0] : "RGSBrAPb"[c->op];
    *request = m;
    if (m->start_fails) {
        strcpy(why, m->start_fails);
        return KILN_INVALID;
    }
    if (m->takes == 0) {
        mirror_run(c);
        return KILN_OK;
    }
    cr_assert_null(m->kept, "two at a time");
    m->call = *c;
    m->due = mirror_now() + m->takes;
    m->kept = malloc(mirror_in(c) + 1);
    if (mirror_in(c))
        memcpy(m->kept, c->in, mirror_in(c));
    if (mirror_out(c))
        memset(c->out, 0x7f, mirror_out(c)); /* large floats */
    return KILN_OK;
}

static kiln_status mirror_test(void *comm, void *request, int *done, char *why)
{
    Mirror *m = comm;
    (void)request, (void)why;
    m->elsewhere += gettid() != getpid();
    *done = !m->stuck && (!m->kept || mirror_now() >= m->due);
    if (*done && m->kept) {
        cr_assert(memcmp(m->kept, m->call.in, mirror_in(&m->call)) == 0, "somebody wrote what a collective reads");
        mirror_run(&m->call);
        free(m->kept);
        m->kept = NULL;
    }
    return KILN_OK;
}

static kiln_status mirror_tell(void *comm, int to, const void *note, size_t bytes, char *why)
{
    Mirror *m = comm;
    (void)to, (void)why;
    if (m->mute)
        return KILN_OK;
    cr_assert_lt(m->told - m->heard, MIRROR_NOTES);
    memcpy(m->notes[m->told % MIRROR_NOTES].note, note, bytes);
    m->notes[m->told++ % MIRROR_NOTES].bytes = bytes;
    return KILN_OK;
}

static kiln_status mirror_hear(void *comm, int *from, void *note, size_t *bytes, char *why)
{
    Mirror *m = comm;
    (void)why;
    *from = -1;
    if (m->heard == m->told)
        return KILN_OK;
    *bytes = m->notes[m->heard % MIRROR_NOTES].bytes;
    memcpy(note, m->notes[m->heard++ % MIRROR_NOTES].note, *bytes);
    if (((const uint16_t *)note)[0] == MIRROR_PAIR && !m->same_way) {
        ((unsigned char *)note)[MIRROR_OP] ^= MIRROR_SEND ^ MIRROR_RECV;
        ((unsigned char *)note)[MIRROR_ROOT] = 0;
    }
    if (m->older)
        ((uint16_t *)note)[1] = 0;
    if (m->lie)
        ((char *)note)[*bytes - (size_t)m->lie]++;
    *from = 1;
    return KILN_OK;
}

static void mirror_close(void *comm, int orderly)
{
    (void)orderly;
    ((Mirror *)comm)->closed++;
}

static inline kiln_group *mirror_world(void)
{
    static const kiln_comm_backend backend = {.version = KILN_COMM_VERSION,
                                              .name = "mirror",
                                              .open = mirror_open,
                                              .split = mirror_split,
                                              .start = mirror_start,
                                              .test = mirror_test,
                                              .tell = mirror_tell,
                                              .hear = mirror_hear,
                                              .close = mirror_close,
                                              .user = &mirror};
    cr_assert_eq(kiln_comm_register(&backend), KILN_OK, "%s", kiln_error_message());
    kiln_group *world = kiln_group_world("mirror");
    cr_assert(world, "%s", kiln_error_message());
    return world;
}

#endif
