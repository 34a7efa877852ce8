/*
 * A backend of two ranks in one process, for tests of what does not need two: the other rank does what this one does, on the same data. It
 * writes down what it is asked for, and fails as it is told.
 */
#ifndef TESTS_MIRROR_H
#define TESTS_MIRROR_H

#include "api.h"

enum { MIRROR_CALLS = 256, MIRROR_NOTES = 64 };

typedef struct Mirror {
    int n, splits;
    char calls[MIRROR_CALLS + 1]; /* a letter each: the place of the op in "RGSBrAPb" */
    bool mute;                    /* the other rank says nothing ... */
    bool stuck;                   /* ... or does not do its part */
    int lie;                      /* a byte of its notes is another: which one, from the end; 0: none */
    const char *start_fails;
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

/* Of f32, f64 and i32. */
static kiln_status mirror_start(void *comm, const kiln_comm_call *c, void **request, char *why)
{
    Mirror *m = comm;
    size_t bytes = (size_t)c->count * kiln_dtype_size(c->dtype);
    m->calls[m->n++ % MIRROR_CALLS] = "RGSBrAPb"[c->op];
    *request = m;
    if (m->start_fails) {
        strcpy(why, m->start_fails);
        return KILN_INVALID;
    }
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
        if (c->op == KILN_COMM_BROADCAST || c->from >= 0)
            memcpy(c->out, c->in, bytes);
        break;
    case KILN_COMM_BARRIER: break;
    }
    return KILN_OK;
}

static kiln_status mirror_test(void *comm, void *request, int *done, char *why)
{
    (void)request, (void)why;
    *done = !((Mirror *)comm)->stuck;
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
