/*
 * How ranks of a program find each other that no launcher of MPI started, and what they tell each other: the carrier of NCCL (nccl.c)
 * there.
 *
 * Rank 0 listens where KILN_COMM_ADDRESS says: at HOST:PORT, or at a port of its own, which it writes into the file of that name. Each
 * rank says its number and its own port there, and gets those of all; then each has a connection to each. What travels are notes and the
 * little that has to be in memory of the host: ids, ranks of groups. Values on the CPU are for MPI: this is no transport for them.
 *
 *     rank r -> 0    HELLO: who, of how many, port         0 -> r    the same of all ranks, with addresses
 *     rank r -> s    HELLO                                 for 0 < s < r
 *     afterwards     FRAME: group, kind, bytes; then the bytes
 *
 * A connection that ends without BYE is a rank that died: who hears that says so at once.
 */
#include "ir/base/hash.h"
#include "ir/base/os.h"
#include "ir/base/os_dir.h"
#include "ir/base/os_fd.h"
#include "ir/base/os_socket.h"
#include "jit/options.h"
#include "runtime/comm/comm.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_RANKS = 1 << 16, MOST_BYTES = 1 << 20, MOST_ADDRESSES = 32, PATH = 1024 };

#define A_WHILE 0.02 /* seconds */

typedef struct Hello {
    char magic[16];
    int32_t rank, ranks, port, zero;
} Hello;
static const char magic[16] = "kiln ranks 1";

/* Of the table that rank 0 gives out. */
typedef struct Where {
    char address[OS_ADDRESS];
    uint16_t port;
} Where;

typedef enum Kind { NOTE, DATA, BYE } Kind;
typedef struct Frame {
    uint64_t group;
    uint32_t kind, bytes;
} Frame;

/* A frame that came, or goes; its bytes follow. */
typedef struct Mail {
    struct Mail *next;
    Frame frame;
    size_t at; /* sent so far, of the frame too */
    char bytes[];
} Mail;

typedef struct Peer {
    int socket; /* -1: this rank, or it ended */
    bool bye, told;
    Mail *in, *out; /* the oldest first */
    Mail *coming;   /* of which `at` bytes are there */
    Frame head;
    size_t head_at;
} Peer;

typedef struct Comm {
    uint64_t id;
    uint32_t splits;
    int rank, size;
    int *member; /* ranks of the world */
} Comm;

/* All to all, from one to all, or from one to another: who has sent. */
typedef struct Request {
    kiln_comm_call call;
    size_t bytes;
    bool *came;
} Request;

static struct {
    Peer *peer;
    int rank, ranks;
    double due;
} all;

/* ---- words ---- */

static kiln_status said(char *why, const char *what)
{
    snprintf(why, KILN_COMM_WHY, "%.120s: %.120s", what, strerror(errno));
    return KILN_COMM;
}

static kiln_status too_late(char *why, const char *what)
{
    snprintf(why, KILN_COMM_WHY, "%s within %lld s (KILN_COMM_TIMEOUT)", what, (long long)option_int(OPT_COMM_TIMEOUT));
    return KILN_COMM;
}

static kiln_status no_memory(char *why)
{
    snprintf(why, KILN_COMM_WHY, "out of memory");
    return KILN_OUT_OF_MEMORY;
}

/* ---- who this is ---- */

static bool number_of(const char *name, int *out)
{
    const char *text = os_getenv(name);
    char *end;
    long n = text ? strtol(text, &end, 10) : -1;
    *out = (int)n;
    return text && n >= 0 && n < MOST_RANKS && !*end;
}

static kiln_status who(char *why)
{
    char text[64], junk;
    option_text(OPT_COMM_RANK, text, sizeof text);
    bool known = text[0] ? sscanf(text, "%d/%d%c", &all.rank, &all.ranks, &junk) == 2
                         : (number_of("SLURM_PROCID", &all.rank) && number_of("SLURM_NTASKS", &all.ranks)) ||
                               (number_of("RANK", &all.rank) && number_of("WORLD_SIZE", &all.ranks));
    if (known && all.ranks >= 1 && all.ranks < MOST_RANKS && all.rank >= 0 && all.rank < all.ranks)
        return KILN_OK;
    snprintf(
        why, KILN_COMM_WHY,
        "which rank is this? KILN_COMM_RANK=0/4 says the first of four (or SLURM_PROCID and SLURM_NTASKS, or RANK and WORLD_SIZE)%s%.40s",
        text[0] ? "; it is " : "", text);
    return KILN_COMM;
}

/* ---- calling ---- */

static Hello hello_of(int port)
{
    Hello h = {.rank = all.rank, .ranks = all.ranks, .port = port};
    memcpy(h.magic, magic, sizeof magic);
    return h;
}

/* Whoever calls and says who he is. A stranger's connection is closed. KILN_OK with *from -1: it was one. */
static kiln_status answer(int listening, Hello *hello, int *from, char *why)
{
    *from = -1;
    int s = os_socket_accept(listening, A_WHILE);
    if (s < 0)
        return KILN_OK;
    const double soon = os_seconds() + 5; /* a stranger may say nothing */
    if (!os_socket_receive(s, hello, sizeof *hello, soon < all.due ? soon : all.due) || memcmp(hello->magic, magic, sizeof magic) != 0) {
        os_socket_close(s);
        return KILN_OK;
    }
    if (hello->ranks == all.ranks && hello->rank > 0 && hello->rank < all.ranks && all.peer[hello->rank].socket < 0) {
        *from = hello->rank;
        all.peer[*from].socket = s;
        return KILN_OK;
    }
    snprintf(why, KILN_COMM_WHY, "rank %d of %d calls, and this is rank %d of %d: a number twice, or two programs at one KILN_COMM_ADDRESS",
             hello->rank, hello->ranks, all.rank, all.ranks);
    os_socket_close(s);
    return KILN_COMM;
}

/* ---- where rank 0 is ---- */

/* HOST:PORT or [ADDRESS]:PORT; else it is the name of a file. */
static bool split_address(char *text, char **host, char **port)
{
    char *colon = strrchr(text, ':'), *end;
    if (!colon || strchr(text, '/') || !colon[1] || strtol(colon + 1, &end, 10) > 65535 || *end)
        return false;
    *colon = 0;
    *port = colon + 1;
    *host = text;
    if (text[0] == '[' && colon[-1] == ']') {
        colon[-1] = 0;
        *host = text + 1;
    }
    return true;
}

/* This machine's addresses, a line each. */
static kiln_status write_file(const char *path, int port, char *why)
{
    char temporary[PATH + 32], address[MOST_ADDRESSES][OS_ADDRESS];
    const size_t n = os_socket_own(address, MOST_ADDRESSES);
    snprintf(temporary, sizeof temporary, "%s.%lld", path, (long long)os_process());
    FILE *file = os_open_stream(temporary, "w");
    if (!file)
        return said(why, path);
    for (size_t k = 0; k < n; k++)
        fprintf(file, "%s %d\n", address[k], port);
    bool well = !ferror(file);
    well = fclose(file) == 0 && well;
    if (well && rename(temporary, path) == 0)
        return KILN_OK;
    kiln_status status = said(why, path);
    remove(temporary);
    return status;
}

/* Rank 0, where it is said to be now; a file may be that of an earlier run. -1: not yet. */
static int call(const char *host, const char *port, const char *path)
{
    char address[OS_ADDRESS], number[OS_PORT];
    if (host)
        return os_socket_connect(host, port);
    FILE *file = os_open_stream(path, "r");
    int s = -1;
    while (file && s < 0 && fscanf(file, "%45s %7s", address, number) == 2)
        s = os_socket_connect(address, number);
    if (file)
        fclose(file);
    return s;
}

/* ---- the beginning ---- */

/* Rank 0: waits for all, and tells all where they are. */
static kiln_status gather(int listening, char *why)
{
    Where *where = os_calloc((size_t)all.ranks, sizeof *where);
    kiln_status status = where ? KILN_OK : no_memory(why);
    for (int n = 1; n < all.ranks && status == KILN_OK;) {
        Hello hello;
        int from;
        if (os_seconds() > all.due) {
            status = too_late(why, "not all ranks came");
            break;
        }
        status = answer(listening, &hello, &from, why);
        if (from < 0)
            continue;
        n++;
        where[from].port = (uint16_t)hello.port;
        if (!os_socket_peer(all.peer[from].socket, where[from].address))
            status = said(why, "where a rank is");
    }
    for (int k = 1; k < all.ranks && status == KILN_OK; k++)
        if (!os_socket_send(all.peer[k].socket, where, sizeof *where * (size_t)all.ranks, all.due))
            status = too_late(why, "a rank that came is gone, or did not listen");
    os_free(where);
    return status;
}

static kiln_status join(const char *host, const char *port, const char *path, int own_port, Where *where, char *why)
{
    const Hello hello = hello_of(own_port);
    for (;;) {
        int s = call(host, port, path);
        if (s >= 0 && os_socket_send(s, &hello, sizeof hello, all.due) &&
            os_socket_receive(s, where, sizeof *where * (size_t)all.ranks, all.due)) {
            all.peer[0].socket = s;
            return KILN_OK;
        }
        if (s >= 0)
            os_socket_close(s);
        if (os_seconds() > all.due)
            return too_late(why, "rank 0 was not found, or had not all ranks,");
        os_give_way(A_WHILE);
    }
}

/* Those between rank 0 and this one are called, those behind it call. */
static kiln_status connect_all(int listening, const Where *where, char *why)
{
    const Hello hello = hello_of(0);
    for (int k = 1; k < all.rank; k++) {
        char port[OS_PORT];
        snprintf(port, sizeof port, "%u", where[k].port);
        int s = os_socket_connect(where[k].address, port);
        if (s < 0 || !os_socket_send(s, &hello, sizeof hello, all.due)) {
            snprintf(why, KILN_COMM_WHY, "rank %d cannot be reached at %.45s port %s", k, where[k].address, port);
            return KILN_COMM;
        }
        all.peer[k].socket = s;
    }
    for (int n = all.rank + 1; n < all.ranks;) {
        Hello from_whom;
        int from;
        kiln_status status = answer(listening, &from_whom, &from, why);
        if (status != KILN_OK)
            return status;
        n += from >= 0;
        if (os_seconds() > all.due)
            return too_late(why, "not all ranks called");
    }
    return KILN_OK;
}

static kiln_status meet(char *address, char *why)
{
    char *host = NULL, *port = NULL;
    const bool there = split_address(address, &host, &port);
    int own_port = 0;
    int listening = all.rank == 0 && there ? os_socket_listen(host, port, &own_port) : os_socket_listen(NULL, "0", &own_port);
    if (listening < 0)
        return said(why, all.rank == 0 && there ? "KILN_COMM_ADDRESS, where rank 0 listens" : "a port");
    kiln_status status = KILN_OK;
    if (all.rank == 0) {
        status = there ? KILN_OK : write_file(address, own_port, why);
        status = status == KILN_OK ? gather(listening, why) : status;
        if (!there)
            remove(address);
    } else {
        Where *where = os_calloc((size_t)all.ranks, sizeof *where);
        status = where ? join(there ? host : NULL, port, address, own_port, where, why) : no_memory(why);
        status = status == KILN_OK ? connect_all(listening, where, why) : status;
        os_free(where);
    }
    os_socket_close(listening);
    for (int k = 0; k < all.ranks && status == KILN_OK; k++)
        if (k != all.rank)
            os_socket_eager(all.peer[k].socket);
    return status;
}

static kiln_status comm_new(uint64_t id, int size, Comm **out, char *why)
{
    Comm *c = os_calloc(1, sizeof *c);
    if (!c || !(c->member = os_calloc((size_t)size, sizeof *c->member))) {
        os_free(c);
        return no_memory(why);
    }
    c->id = id;
    c->size = size;
    *out = c;
    return KILN_OK;
}

static kiln_status tcp_open(void *user, void **comm, int *rank, int *size, char *why)
{
    char address[PATH];
    Comm *c;
    (void)user;
    option_text(OPT_COMM_ADDRESS, address, sizeof address);
    if (who(why) != KILN_OK)
        return KILN_COMM;
    if (!address[0]) {
        snprintf(why, KILN_COMM_WHY,
                 "where do ranks find each other? KILN_COMM_ADDRESS=HOST:PORT of rank 0, or the name of a file that all see");
        return KILN_COMM;
    }
    if (!(all.peer = os_calloc((size_t)all.ranks, sizeof *all.peer)) || comm_new(1, all.ranks, &c, why) != KILN_OK)
        return no_memory(why);
    for (int k = 0; k < all.ranks; k++) {
        all.peer[k].socket = -1;
        c->member[k] = k;
    }
    all.due = os_seconds() + (double)option_int(OPT_COMM_TIMEOUT);
    kiln_status status = meet(address, why);
    c->rank = *rank = all.rank;
    *size = all.ranks;
    *comm = c;
    if (status == KILN_OK)
        snprintf(why, KILN_COMM_WHY, "connections to all ranks");
    return status;
}

/* ---- frames ---- */

/* As much as goes now. */
static void push(Peer *p)
{
    while (p->out && p->socket >= 0) {
        Mail *m = p->out;
        const size_t head = sizeof m->frame, total = head + m->frame.bytes;
        const char *from = m->at < head ? (const char *)&m->frame + m->at : m->bytes + (m->at - head);
        ptrdiff_t n = os_socket_send_some(p->socket, from, m->at < head ? head - m->at : total - m->at);
        if (n <= 0)
            break; /* full; or it ended, which is seen where it is read */
        m->at += (size_t)n;
        if (m->at == total) {
            p->out = m->next;
            os_free(m);
        }
    }
}

static Mail *mail_new(Frame frame)
{
    Mail *m = os_alloc(sizeof *m + frame.bytes);
    if (m)
        *m = (Mail){.frame = frame};
    return m;
}

static void append(Mail **list, Mail *m)
{
    while (*list)
        list = &(*list)->next;
    *list = m;
}

static kiln_status post(int to, Frame frame, const void *bytes, char *why)
{
    Mail *m = mail_new(frame);
    if (!m)
        return no_memory(why);
    if (frame.bytes && bytes)
        memcpy(m->bytes, bytes, frame.bytes);
    append(&all.peer[to].out, m);
    push(&all.peer[to]);
    return KILN_OK;
}

static void arrived(Peer *p)
{
    Mail *m = p->coming;
    p->coming = NULL;
    p->head_at = 0;
    if (m->frame.kind != BYE) {
        append(&p->in, m);
        return;
    }
    p->bye = true;
    os_free(m);
}

static void ended(Peer *p)
{
    os_socket_close(p->socket);
    p->socket = -1;
}

/* What has come so far. */
static void pull(Peer *p)
{
    while (p->socket >= 0) {
        char *to = p->coming ? p->coming->bytes + p->coming->at : (char *)&p->head + p->head_at;
        const size_t wanted = p->coming ? p->coming->frame.bytes - p->coming->at : sizeof p->head - p->head_at;
        ptrdiff_t n = os_socket_receive_some(p->socket, to, wanted);
        if (n < 0)
            ended(p);
        if (n <= 0)
            return;
        *(p->coming ? &p->coming->at : &p->head_at) += (size_t)n;
        if (!p->coming && p->head_at == sizeof p->head && (p->head.bytes > MOST_BYTES || !(p->coming = mail_new(p->head))))
            ended(p); /* nothing of ours, or no room for it */
        if (p->coming && p->coming->at == p->coming->frame.bytes)
            arrived(p);
    }
}

static void pump(void)
{
    for (int k = 0; k < all.ranks; k++) {
        push(&all.peer[k]);
        pull(&all.peer[k]);
    }
}

/* The first of this kind for the group, taken out; NULL: none. */
static Mail *next_of(Peer *p, uint64_t group, Kind kind)
{
    for (Mail **at = &p->in; *at; at = &(*at)->next) {
        Mail *m = *at;
        if (m->frame.group == group && m->frame.kind == kind) {
            *at = m->next;
            return m;
        }
    }
    return NULL;
}

/* Ended without a word: said once. */
static kiln_status anybody_lost(const Comm *c, char *why)
{
    for (int k = 0; k < c->size; k++) {
        Peer *p = &all.peer[c->member[k]];
        if (c->member[k] == all.rank || p->socket >= 0 || p->bye || p->told)
            continue;
        p->told = true;
        snprintf(why, KILN_COMM_WHY, "rank %d died: its connection ended", c->member[k]);
        return KILN_COMM;
    }
    return KILN_OK;
}

/* ---- notes ---- */

static kiln_status tcp_tell(void *comm, int to, const void *note, size_t bytes, char *why)
{
    const Comm *c = comm;
    return post(c->member[to], (Frame){.group = c->id, .kind = NOTE, .bytes = (uint32_t)bytes}, note, why);
}

static kiln_status tcp_hear(void *comm, int *from, void *note, size_t *bytes, char *why)
{
    const Comm *c = comm;
    *from = -1;
    pump();
    for (int k = 0; k < c->size; k++) {
        Mail *m = next_of(&all.peer[c->member[k]], c->id, NOTE);
        if (!m)
            continue;
        *from = k;
        *bytes = m->frame.bytes < KILN_COMM_NOTE ? m->frame.bytes : KILN_COMM_NOTE;
        memcpy(note, m->bytes, *bytes);
        os_free(m);
        return KILN_OK;
    }
    return anybody_lost(c, why);
}

/* ---- the little that is carried ---- */

static void request_free(Request *r)
{
    os_free(r->came);
    os_free(r);
}

static kiln_status send_own(const Comm *c, const void *from, size_t bytes, char *why)
{
    kiln_status status = KILN_OK;
    for (int k = 0; k < c->size && status == KILN_OK; k++)
        if (k != c->rank)
            status = post(c->member[k], (Frame){.group = c->id, .kind = DATA, .bytes = (uint32_t)bytes}, from, why);
    return status;
}

static kiln_status tcp_start(void *comm, const kiln_comm_call *call, void **request, char *why)
{
    const Comm *c = comm;
    const size_t bytes = (size_t)call->count * dtype_bytes((DType)call->dtype);
    *request = NULL;
    if (call->op == KILN_COMM_BARRIER || !bytes)
        return KILN_OK; /* notes are one */
    const bool gather = call->op == KILN_COMM_ALL_GATHER, pass = call->op == KILN_COMM_SEND_RECV, root = !pass && call->root == c->rank;
    if ((!gather && !pass && call->op != KILN_COMM_BROADCAST) || bytes > MOST_BYTES) {
        snprintf(why, KILN_COMM_WHY,
                 "values on the CPU need MPI (mpirun, KILN_COMM=nccl); those on a CUDA device go by NCCL: move x with kiln_to");
        return KILN_UNSUPPORTED;
    }
    Request *r = os_calloc(1, sizeof *r);
    if (!r || !(r->came = os_calloc((size_t)c->size, sizeof *r->came))) {
        os_free(r);
        return no_memory(why);
    }
    r->call = *call;
    r->bytes = bytes;
    *request = r;
    for (int k = 0; k < c->size; k++) /* who need not come */
        r->came[k] = k == c->rank || (!gather && k != (pass ? call->from : call->root));
    if (gather || (root && call->in != call->out))
        memcpy((char *)call->out + (gather ? bytes * (size_t)c->rank : 0), call->in, bytes);
    if (!pass)
        return gather || root ? send_own(c, call->in, bytes, why) : KILN_OK;
    if (call->from == c->rank)
        memcpy(call->out, call->in, bytes);
    const Frame frame = {.group = c->id, .kind = DATA, .bytes = (uint32_t)bytes};
    return call->to >= 0 && call->to != c->rank ? post(c->member[call->to], frame, call->in, why) : KILN_OK;
}

static kiln_status tcp_test(void *comm, void *request, int *done, char *why)
{
    const Comm *c = comm;
    Request *r = request;
    *done = 1;
    pump();
    for (int k = 0; r && k < c->size; k++) {
        Mail *m = r->came[k] ? NULL : next_of(&all.peer[c->member[k]], c->id, DATA);
        if (m && m->frame.bytes == r->bytes)
            memcpy((char *)r->call.out + (r->call.op == KILN_COMM_ALL_GATHER ? r->bytes * (size_t)k : 0), m->bytes, r->bytes);
        else if (m)
            snprintf(why, KILN_COMM_WHY, "rank %d sends %u bytes, not %zu", c->member[k], m->frame.bytes, r->bytes);
        const bool fits = m && m->frame.bytes == r->bytes;
        r->came[k] |= fits;
        os_free(m);
        if (m && !fits)
            return KILN_COMM;
        *done &= r->came[k];
    }
    if (*done && r)
        request_free(r);
    return KILN_OK;
}

typedef struct Part {
    int32_t color, key;
} Part;

static kiln_status exchange(Comm *c, Part own, Part *parts, char *why)
{
    const kiln_comm_call call = {.op = KILN_COMM_ALL_GATHER, .dtype = KILN_I64, .count = 1, .in = &own, .out = parts, .to = -1, .from = -1};
    const double due = os_seconds() + (double)option_int(OPT_COMM_TIMEOUT);
    void *request;
    int done = 0;
    _Static_assert(sizeof own == sizeof(int64_t), "as one i64");
    kiln_status status = tcp_start(c, &call, &request, why);
    while (status == KILN_OK && !done) {
        status = tcp_test(c, request, &done, why);
        status = status == KILN_OK && !done ? anybody_lost(c, why) : status;
        if (status == KILN_OK && !done && os_seconds() > due)
            status = too_late(why, "not all ranks split the group");
        if (!done)
            os_give_way(50e-6);
    }
    return status;
}

/* Ranks of my color, by key, then by rank. */
static int place_of(const Part *parts, int size, int rank)
{
    int at = 0;
    for (int k = 0; k < size; k++)
        at += parts[k].color == parts[rank].color && (parts[k].key < parts[rank].key || (parts[k].key == parts[rank].key && k < rank));
    return at;
}

static kiln_status tcp_split(void *comm, int color, int key, void **out, int *rank, int *size, char *why)
{
    Comm *parent = comm, *c = NULL;
    Part *parts = os_calloc((size_t)parent->size, sizeof *parts);
    *out = NULL;
    kiln_status status = parts ? exchange(parent, (Part){color < 0 ? -1 : color, key}, parts, why) : no_memory(why);
    parent->splits++;
    int n = 0;
    for (int k = 0; k < parent->size && status == KILN_OK; k++)
        n += parts[k].color == color;
    const uint64_t name[] = {parent->id, parent->splits, (uint64_t)(unsigned)color};
    if (status == KILN_OK && color >= 0)
        status = comm_new(hash128(name, sizeof name).lo, n, &c, why);
    for (int k = 0; k < parent->size && c; k++)
        if (parts[k].color == color)
            c->member[place_of(parts, parent->size, k)] = parent->member[k];
    if (c) {
        c->rank = *rank = place_of(parts, parent->size, parent->rank);
        *size = n;
    }
    *out = c;
    os_free(parts);
    return status;
}

/* ---- the end ---- */

static void tcp_close(void *comm, int orderly)
{
    const double due = os_seconds() + 1;
    char why[KILN_COMM_WHY];
    bool left = true;
    (void)comm;
    for (int k = 0; k < all.ranks && orderly; k++)
        if (k != all.rank)
            (void)post(k, (Frame){.kind = BYE}, NULL, why);
    while (left && os_seconds() < due) { /* what was told, failures too */
        left = false;
        pump();
        for (int k = 0; k < all.ranks; k++)
            left |= all.peer[k].out && all.peer[k].socket >= 0;
        os_give_way(left ? 1e-4 : 0);
    }
    for (int k = 0; k < all.ranks; k++)
        if (all.peer[k].socket >= 0)
            ended(&all.peer[k]);
}

const kiln_comm_backend *comm_tcp(void)
{
    static const kiln_comm_backend backend = {.version = KILN_COMM_VERSION,
                                              .name = "tcp",
                                              .open = tcp_open,
                                              .split = tcp_split,
                                              .start = tcp_start,
                                              .test = tcp_test,
                                              .tell = tcp_tell,
                                              .hear = tcp_hear,
                                              .close = tcp_close};
    return &backend;
}
