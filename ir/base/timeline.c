/*
 * The timeline: see timeline.h.
 *
 *     {"displayTimeUnit":"ns","traceEvents":[        head
 *     {event},{event}, ...                           blocks, each of whole events, a comma after each, filled up with spaces
 *     {names of process and lanes}],"otherData":{}}  tail, written anew when a name or the count of lost events changed
 *
 * An event is formatted on the thread's stack and copied into the block at hand under the lock. Full blocks gather and go to the file
 * together; so does what gathered when a sync point ends some time after the last write. Numbers are printed here: printf asks the locale.
 * What must hold: the lock is a leaf, nothing is logged while it is held; no thread is cancelled while it holds it.
 */
#include "ir/base/timeline.h"
#include "ir/base/log.h"
#include "ir/base/os.h"
#include "ir/base/os_blocks.h"
#include "ir/base/os_dir.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum {
    FIRST_BLOCKS = 256, /* many: a file that grows is copied */
    MOST_HELD = 16,     /* blocks that gather: a write takes some 4 us, and under 1 us for each block */
    MOST_ARGS = 10,
    TEXT_BYTES = 160, /* of a text, escaped */
    EVENT_BYTES = 512 + MOST_ARGS * (TEXT_BYTES + 48),
    MOST_LIMITS = 7,
    COUNTERS = 4,
    NAMED_LANES = 24,      /* in the tail, which is one block: */
    LIMITED = 8,           /* a name takes 100 bytes, the limits of a device 150 */
    BORROWED = 64,         /* lanes of threads that live for one piece of work ... */
    FIRST_BORROWED = 1000, /* ... have numbers from here */
    PATH_BYTES = 4096,
};
static const int64_t FLUSH_NS = 1000000;
#define HEAD "{\"displayTimeUnit\":\"ns\",\"traceEvents\":["

_Static_assert((int)EVENT_BYTES < (int)BLOCK_BYTES, "an event fits a block");

unsigned char timeline_written;

static const char *const categories[TL_COUNT] = {
#define TIMELINE(id, name, help) name,
#include "ir/base/timeline.def"
#undef TIMELINE
};

typedef struct LaneName {
    uint32_t lane;
    char name[24];
} LaneName;

typedef struct Limited {
    char device[8]; /* "cuda:15" */
    const char *key[MOST_LIMITS];
    int64_t value[MOST_LIMITS];
} Limited;

typedef struct Shown {
    const char *name; /* NULL: not shown yet */
    int64_t value[MOST_ARGS];
} Shown;

static struct {
    pthread_mutex_t mutex; /* guards all of this */
    OsBlocks file;
    char path[PATH_BYTES]; /* as it was given */
    bool child;            /* of a fork: its file is not made yet */
    bool wrapped, unsaid;  /* the oldest blocks are being replaced; `why` is to be said */
    bool dirty, tail_dirty;
    uint32_t most, at; /* blocks the file may have; the one at hand */
    uint32_t held;     /* full ones before it, which the file lacks */
    uint16_t *events;  /* in each block */
    int64_t lost, flushed;
    size_t filled;                       /* of the block at hand */
    char block[MOST_HELD * BLOCK_BYTES]; /* held ones, the one at hand */
    char why[PATH_BYTES + 128];
    LaneName names[NAMED_LANES];
    uint32_t n_names;
    Limited limited[LIMITED];
    uint32_t n_limited;
    Shown shown[COUNTERS]; /* what the counters stand at; forgotten where the file loses events */
} state = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static _Atomic int64_t zero, process, arrows;
static atomic_uint lanes;
static atomic_uint_least64_t borrowed;
static _Thread_local uint32_t own_lane;

int64_t timeline_now(void) { return (int64_t)(1e9 * os_seconds()) | 1; }

/* --- text ---------------------------------------------------------------------------------------------------------------- */

typedef struct Text {
    char *at;
} Text;

/* Most texts are literals, whose length the compiler knows then. */
__attribute__((always_inline)) static inline void put(Text *t, const char *text)
{
    size_t n = strlen(text);
    memcpy(t->at, text, n);
    t->at += n;
}

static void put_int(Text *t, int64_t value)
{
    char digits[20];
    int n = 0;
    uint64_t left = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    do
        digits[n++] = (char)('0' + left % 10);
    while ((left /= 10) > 0);
    if (value < 0)
        *t->at++ = '-';
    while (n > 0)
        *t->at++ = digits[--n];
}

/* Thousandths: 1234 is 1.234. */
static void put_thousandths(Text *t, int64_t value)
{
    uint64_t left = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    if (value < 0)
        *t->at++ = '-';
    put_int(t, (int64_t)(left / 1000));
    *t->at++ = '.';
    for (unsigned unit = 100; unit > 0; unit /= 10)
        *t->at++ = (char)('0' + left / unit % 10);
}

static void put_real(Text *t, double value)
{
    const double most = 9e15;
    if (value >= -most / 1000 && value <= most / 1000)
        put_thousandths(t, (int64_t)(value * 1000 + (value < 0 ? -0.5 : 0.5)));
    else
        put(t, "null"); /* NaN, too */
}

/* The bytes of the UTF-8 character at `s`; 0: it is none. */
static size_t character(const unsigned char *s)
{
    static const struct {
        unsigned char low, high, second_low, second_high, bytes;
    } forms[] = {{0xc2, 0xdf, 0x80, 0xbf, 2}, {0xe0, 0xe0, 0xa0, 0xbf, 3}, {0xe1, 0xec, 0x80, 0xbf, 3}, {0xed, 0xed, 0x80, 0x9f, 3},
                 {0xee, 0xef, 0x80, 0xbf, 3}, {0xf0, 0xf0, 0x90, 0xbf, 4}, {0xf1, 0xf3, 0x80, 0xbf, 4}, {0xf4, 0xf4, 0x80, 0x8f, 4}};
    if (s[0] < 0x80)
        return 1;
    for (size_t f = 0; f < sizeof forms / sizeof *forms; f++) {
        if (s[0] < forms[f].low || s[0] > forms[f].high)
            continue;
        bool good = s[1] >= forms[f].second_low && s[1] <= forms[f].second_high;
        for (size_t i = 2; good && i < forms[f].bytes; i++)
            good = (s[i] & 0xc0) == 0x80;
        return good ? forms[f].bytes : 0;
    }
    return 0;
}

/* A JSON string of at most TEXT_BYTES between the quotes. */
static void put_text(Text *t, const char *text)
{
    static const char hex[] = "0123456789abcdef";
    const char *end = t->at + 1 + TEXT_BYTES - 9; /* room for one more and for the dots */
    *t->at++ = '"';
    for (const unsigned char *s = (const unsigned char *)text; *s;) {
        if (t->at > end) {
            put(t, "...");
            break;
        }
        if (*s >= 0x20 && *s < 0x7f && *s != '"' && *s != '\\') { /* nearly always */
            *t->at++ = (char)*s++;
            continue;
        }
        size_t n = character(s);
        if (n == 0) {
            put(t, "\\ufffd");
            s++;
        } else if (*s < 0x20 || *s == 0x7f) {
            put(t, "\\u00");
            *t->at++ = hex[*s >> 4];
            *t->at++ = hex[*s & 15];
            s++;
        } else {
            if (*s == '"' || *s == '\\')
                *t->at++ = '\\';
            memcpy(t->at, s, n);
            t->at += n;
            s += n;
        }
    }
    *t->at++ = '"';
}

/* {"name":"x","cat":"y","ph":"X","ts":1.234 */
static void put_head(Text *t, const char *name, TimelineCategory category, const char *phase, int64_t when)
{
    put(t, "{\"name\":");
    put_text(t, name ? name : "?");
    put(t, ",\"cat\":\"");
    put(t, categories[category]);
    put(t, "\",\"ph\":\"");
    put(t, phase);
    put(t, "\",\"ts\":");
    put_thousandths(t, when - atomic_load_explicit(&zero, memory_order_relaxed));
}

/* ,"pid":1,"tid":2 */
static void put_place(Text *t, uint32_t lane)
{
    put(t, ",\"pid\":");
    put_int(t, atomic_load_explicit(&process, memory_order_relaxed));
    put(t, ",\"tid\":");
    put_int(t, lane);
}

static void put_args(Text *t, const TimelineArg *args, size_t n)
{
    const char *comma = "";
    put(t, ",\"args\":{");
    for (size_t i = 0; i < n && i < MOST_ARGS; i++) {
        if (args[i].kind == TL_KIND_TEXT && !args[i].text)
            continue;
        put(t, comma);
        comma = ",";
        put(t, "\"");
        put(t, args[i].key);
        put(t, "\":");
        switch (args[i].kind) {
        case TL_KIND_TEXT: put_text(t, args[i].text); break;
        case TL_KIND_REAL: put_real(t, args[i].real); break;
        case TL_KIND_INT: put_int(t, args[i].number); break;
        }
    }
    put(t, "}},\n");
}

/* --- the file: under the lock ---------------------------------------------------------------------------------------------- */

static void fill_up(char *block, size_t filled)
{
    memset(block + filled, ' ', BLOCK_BYTES - 1 - filled);
    block[BLOCK_BYTES - 1] = '\n';
}

/* ,"limits":{"cpu":{"threads":2,...} */
static void put_limits(Text *t, const Limited *l, bool first)
{
    put(t, first ? ",\"limits\":{\"" : ",\"");
    put(t, l->device);
    put(t, "\":{");
    for (int i = 0; i < MOST_LIMITS && l->key[i]; i++) {
        put(t, i ? ",\"" : "\"");
        put(t, l->key[i]);
        put(t, "\":");
        put_int(t, l->value[i]);
    }
    put(t, "}");
}

static void make_tail(char *block)
{
    Text t = {block};
    for (uint32_t i = 0; i < state.n_names; i++) {
        put(&t, "{\"name\":\"thread_name\",\"ph\":\"M\"");
        put_place(&t, state.names[i].lane);
        put(&t, ",\"args\":{\"name\":");
        put_text(&t, state.names[i].name);
        put(&t, "}},\n");
    }
    put(&t, "{\"name\":\"process_name\",\"ph\":\"M\"");
    put_place(&t, 0);
    put(&t, ",\"args\":{\"name\":\"kiln\"}}\n],\"otherData\":{\"kiln\":\"" KILN_VERSION_STRING "\",\"lost_events\":");
    put_int(&t, state.lost);
    for (uint32_t i = 0; i < state.n_limited; i++)
        put_limits(&t, &state.limited[i], i == 0);
    put(&t, state.n_limited ? "}}}" : "}}");
    fill_up(block, (size_t)(t.at - block));
}

/* No more is written: who holds the lock next says why. */
static void give_up(void)
{
    state.unsaid = true;
    os_blocks_close(&state.file);
    os_free(state.events);
    state.events = NULL;
    state.child = false;
    __atomic_store_n(&timeline_written, 0, __ATOMIC_RELAXED);
}

static bool put_tail(void)
{
    char tail[BLOCK_BYTES];
    make_tail(tail);
    state.tail_dirty = false;
    return os_blocks_put(&state.file, state.file.n, tail, 1);
}

static char *block_at_hand(void) { return state.block + (size_t)state.held * BLOCK_BYTES; }

/* What gathered, with the block at hand as it is, which stays at hand. false: the trace ended. */
static bool write_blocks(void)
{
    uint32_t held = state.held;
    fill_up(block_at_hand(), state.filled);
    if (os_blocks_put(&state.file, state.at - held, state.block, held + 1) && (!state.tail_dirty || put_tail())) {
        if (held)
            memcpy(state.block, block_at_hand(), state.filled);
        state.held = 0;
        state.dirty = false;
        state.flushed = timeline_now();
        return true;
    }
    snprintf(state.why, sizeof state.why, "the trace ends here: %s cannot be written any more", state.file.path);
    give_up();
    return false;
}

/* A fresh block: a new one, or that of the oldest events. */
static bool next_block(void)
{
    bool last = state.at + 1 == state.file.n; /* the next one is far from here, or the file grows */
    if (!last && state.held + 1 < MOST_HELD) {
        fill_up(block_at_hand(), state.filled);
        state.held++;
    } else if (!write_blocks()) {
        return false;
    }
    state.at++;
    if (state.at == state.file.n && state.file.n < state.most && !state.wrapped) {
        char tail[BLOCK_BYTES];
        uint32_t more = state.file.n <= state.most / 2 ? state.file.n * 2 : state.most;
        make_tail(tail);
        if (os_blocks_resize(&state.file, state.at, more, tail) != ST_OK) { /* it stays as large as it is */
            snprintf(state.why, sizeof state.why, "the trace keeps its newest events only: %s", fail_message());
            state.unsaid = true;
            state.most = state.file.n;
        }
    }
    if (state.at == state.file.n) {
        state.at = 0;
        state.wrapped = true;
    }
    state.lost += state.events[state.at];
    if (state.wrapped)
        memset(state.shown, 0, sizeof state.shown);
    state.tail_dirty |= state.events[state.at] > 0;
    state.events[state.at] = 0;
    state.filled = 0;
    return true;
}

/* The path with the process's number for %p; a child's without one has it before the ending: trace.json, trace.123.json. */
static void file_path(char *out)
{
    const char *here = strstr(state.path, "%p"), *slash = strrchr(state.path, '/'), *name = slash ? slash + 1 : state.path;
    const char *dot = strrchr(name, '.');
    const char *rest = here ? here + 2 : dot && dot != name ? dot : state.path + strlen(state.path);
    size_t n = (size_t)((here ? here : rest) - state.path);
    Text t = {out + n};
    memcpy(out, state.path, n);
    if (state.child && !here)
        put(&t, ".");
    if (state.child || here)
        put_int(&t, os_process());
    put(&t, rest);
    *t.at = '\0';
}

static Status open_file(void)
{
    char head[BLOCK_BYTES] = HEAD, tail[BLOCK_BYTES], path[PATH_BYTES];
    atomic_store(&process, os_process());
    fill_up(head, strlen(HEAD));
    state.lost = 0;
    state.filled = state.at = state.held = 0;
    state.wrapped = state.dirty = state.tail_dirty = false;
    memset(state.shown, 0, sizeof state.shown);
    make_tail(tail);
    file_path(path);
    state.child = false;
    state.events = os_calloc(state.most, sizeof *state.events);
    if (!state.events)
        return fail(ST_OUT_OF_MEMORY, "out of memory");
    Status status = ST_IO;
    for (uint32_t n = state.most < FIRST_BLOCKS ? state.most : FIRST_BLOCKS; status == ST_IO && n > 0;
         n /= 2) /* little room: a small one */
        status = os_blocks_open(path, head, strlen(HEAD), tail, n, &state.file);
    return status;
}

/* --- writing --------------------------------------------------------------------------------------------------------------- */

static void lock(void) { pthread_mutex_lock(&state.mutex); }

/* Whatever there was to say is said without the lock. */
static void unlock(void)
{
    char why[sizeof state.why];
    bool say = state.unsaid;
    if (say)
        memcpy(why, state.why, sizeof why);
    state.unsaid = false;
    pthread_mutex_unlock(&state.mutex);
    if (say)
        log_warn("KILN_TRACE: %s", why);
}

/* Room for n bytes in the block at hand, which may take a write. */
static bool make_room(size_t n)
{
    bool full = state.filled + n > BLOCK_BYTES - 1;
    if (!full && !state.child)
        return true;
    int cancel = os_cancel_off();
    bool ok = true;
    if (state.child && open_file() != ST_OK) {
        snprintf(state.why, sizeof state.why, "%s", fail_message());
        give_up();
        ok = false;
    } else if (full) {
        ok = next_block();
    }
    os_cancel_restore(cancel);
    return ok;
}

static void append(const char *text, size_t n, uint16_t events)
{
    lock();
    if (timeline_on() && make_room(n)) {
        memcpy(block_at_hand() + state.filled, text, n);
        state.filled += n;
        state.events[state.at] = (uint16_t)(state.events[state.at] + events);
        state.dirty = true;
    }
    unlock();
}

void timeline_flush(void)
{
    if (!timeline_on())
        return;
    lock();
    if (timeline_on() && state.dirty && timeline_now() - state.flushed > FLUSH_NS) {
        int cancel = os_cancel_off();
        (void)write_blocks();
        os_cancel_restore(cancel);
    }
    unlock();
}

/* A lane whose name there is no room for has its number only. */
static void name_lane(uint32_t lane, const char *name)
{
    lock();
    for (uint32_t i = 0; i < state.n_names; i++)
        if (state.names[i].lane == lane) {
            unlock();
            return;
        }
    if (state.n_names < NAMED_LANES) {
        LaneName *row = &state.names[state.n_names++];
        row->lane = lane;
        snprintf(row->name, sizeof row->name, "%.*s", (int)sizeof row->name - 1, name);
        state.tail_dirty = true;
    }
    unlock();
}

static void number_lane(uint32_t lane, const char *name, uint32_t number)
{
    char text[32];
    snprintf(text, sizeof text, "%.10s %u", name, number % 100000);
    name_lane(lane, text);
}

static void write_span(TimelineCategory category, const char *name, uint32_t lane, int64_t began, int64_t ended, const TimelineArg *args,
                       size_t n)
{
    char event[EVENT_BYTES];
    Text t = {event};
    put_head(&t, name, category, "X", began);
    put(&t, ",\"dur\":");
    put_thousandths(&t, ended > began ? ended - began : 0);
    put_place(&t, lane);
    put_args(&t, args, n);
    append(event, (size_t)(t.at - event), 1);
}

/* Does a trace hold this moment? 0 was before all. */
static bool covers(int64_t when) { return timeline_on() && when >= atomic_load_explicit(&zero, memory_order_relaxed); }

void timeline_span_of(TimelineCategory category, const char *name, int64_t began, const TimelineArg *args, size_t n)
{
    if (covers(began))
        write_span(category, name, timeline_lane(), began, timeline_now(), args, n);
}

void timeline_device_span_of(uint32_t device, uint32_t stream, const char *name, int64_t began, int64_t ended, const TimelineArg *args,
                             size_t n)
{
    uint32_t lane = TIMELINE_FIRST_DEVICE + device + stream * TIMELINE_DEVICES;
    char lane_name[32];
    if (!covers(began))
        return;
    snprintf(lane_name, sizeof lane_name, stream ? "cuda %u stream %u" : "cuda %u", device, stream);
    name_lane(lane, lane_name);
    write_span(TL_DEVICE, name, lane, began, ended, args, n);
}

void timeline_mark_of(TimelineCategory category, const char *name, const TimelineArg *args, size_t n)
{
    char event[EVENT_BYTES];
    Text t = {event};
    if (!timeline_on())
        return;
    put_head(&t, name, category, "i", timeline_now());
    put(&t, ",\"s\":\"t\"");
    put_place(&t, timeline_lane());
    put_args(&t, args, n);
    append(event, (size_t)(t.at - event), 1);
}

/* Does this counter stand where it stood? Then an event says nothing. */
static bool shown_already(const char *name, const TimelineArg *args, size_t n)
{
    int64_t value[MOST_ARGS] = {0};
    uint32_t i = 0;
    for (size_t k = 0; k < n && k < MOST_ARGS; k++)
        value[k] = args[k].number;
    lock();
    while (i < COUNTERS && state.shown[i].name && state.shown[i].name != name)
        i++;
    bool same = i < COUNTERS && state.shown[i].name && memcmp(state.shown[i].value, value, sizeof value) == 0;
    if (i < COUNTERS) {
        state.shown[i].name = name;
        memcpy(state.shown[i].value, value, sizeof value);
    }
    unlock();
    return same;
}

void timeline_counter_of(const char *name, const TimelineArg *args, size_t n)
{
    char event[EVENT_BYTES];
    Text t = {event};
    if (!timeline_on() || shown_already(name, args, n))
        return;
    put_head(&t, name, TL_MEMORY, "C", timeline_now());
    put_place(&t, 0);
    put_args(&t, args, n);
    append(event, (size_t)(t.at - event), 1);
}

/* A device that there is no room for has none. */
void timeline_limits_of(const char *device, const TimelineArg *args, size_t n)
{
    Limited row = {{0}, {0}, {0}};
    snprintf(row.device, sizeof row.device, "%s", device);
    for (size_t i = 0; i < n && i < MOST_LIMITS; i++) {
        row.key[i] = args[i].key;
        row.value[i] = args[i].number;
    }
    lock();
    uint32_t at = 0;
    while (at < state.n_limited && strcmp(state.limited[at].device, row.device) != 0)
        at++;
    if (timeline_on() && at < LIMITED) {
        state.limited[at] = row;
        state.n_limited += at == state.n_limited;
        state.tail_dirty = true;
    }
    unlock();
}

int64_t timeline_serial(void) { return atomic_load_explicit(&zero, memory_order_relaxed); }

void timeline_arrow(const char *name, uint32_t lane, int64_t from, int64_t to)
{
    char event[EVENT_BYTES];
    Text t = {event};
    if (!covers(from) || to < from)
        return;
    int64_t id = atomic_fetch_add(&arrows, 1) + 1;
    for (int end = 0; end < 2; end++) {
        put_head(&t, name, TL_FLOW, end ? "f" : "s", end ? to : from);
        put(&t, end ? ",\"bp\":\"e\",\"id\":" : ",\"id\":");
        put_int(&t, id);
        put_place(&t, end ? timeline_lane() : lane);
        put(&t, "},\n");
    }
    append(event, (size_t)(t.at - event), 2);
}

/* --- lanes ------------------------------------------------------------------------------------------------------------------- */

uint32_t timeline_lane(void)
{
    if (!own_lane)
        timeline_name_lane("thread");
    return own_lane;
}

void timeline_share_lane(uint32_t lane) { own_lane = lane; }

void timeline_name_lane(const char *name)
{
    if (own_lane)
        return;
    own_lane = atomic_fetch_add(&lanes, 1) + 1;
    number_lane(own_lane, name, own_lane);
}

uint32_t timeline_borrow_lane(const char *name)
{
    uint64_t taken = atomic_load(&borrowed);
    if (own_lane || !timeline_on())
        return 0;
    do {
        if (taken == UINT64_MAX)
            return 0;
    } while (!atomic_compare_exchange_weak(&borrowed, &taken, taken | (taken + 1)));
    uint32_t free = (uint32_t)__builtin_ctzll(~taken);
    own_lane = FIRST_BORROWED + free;
    number_lane(own_lane, name, free + 1);
    return own_lane;
}

void timeline_return_lane(uint32_t lane)
{
    if (!lane)
        return;
    own_lane = 0;
    atomic_fetch_and(&borrowed, ~(UINT64_C(1) << (lane - FIRST_BORROWED)));
}

/* --- fork --------------------------------------------------------------------------------------------------------------------- */

static void before_fork(void) { lock(); }

static void after_fork_parent(void) { unlock(); }

/* What gathered is the parent's. */
static void after_fork_child(void)
{
    pthread_mutex_init(&state.mutex, NULL);
    if (!timeline_on())
        return;
    os_blocks_close(&state.file);
    os_free(state.events);
    state.events = NULL;
    state.filled = state.held = 0;
    state.dirty = false;
    state.child = true;
}

static void install_fork_handlers(void) { pthread_atfork(before_fork, after_fork_parent, after_fork_child); }

void timeline_handle_forks(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, install_fork_handlers);
}

/* --- beginning and ending ------------------------------------------------------------------------------------------------------- */

/* Under the lock. */
static Status stop(void)
{
    char tail[BLOCK_BYTES];
    if (!timeline_on() || state.child) {
        __atomic_store_n(&timeline_written, 0, __ATOMIC_RELAXED);
        state.child = false;
        return ST_OK;
    }
    if (!write_blocks()) {
        state.unsaid = false;
        return fail(ST_IO, "%s", state.why);
    }
    make_tail(tail);
    uint32_t used = state.wrapped ? state.file.n : state.at + (state.filled > 0);
    if (used == state.file.n || os_blocks_resize(&state.file, used, used, tail) != ST_OK)
        (void)put_tail(); /* with blank blocks, then */
    give_up();
    state.unsaid = false;
    return ST_OK;
}

Status timeline_start(const char *path, size_t max_bytes)
{
    if (strlen(path) >= sizeof state.path - 32)
        return fail(ST_INVALID, "the trace's path is longer than %zu bytes", sizeof state.path - 32);
    if (!*path)
        return fail(ST_INVALID, "the trace's path is empty");
    if (os_elevated())
        return fail(ST_IO, "a process with more rights than its user writes no trace");
    timeline_handle_forks();
    int cancel = os_cancel_off();
    lock();
    (void)stop();
    state.n_limited = 0;
    memcpy(state.path, path, strlen(path) + 1);
    state.most = max_bytes / BLOCK_BYTES > 2 ? (uint32_t)(max_bytes / BLOCK_BYTES) - 2 : 1;
    Status status = open_file();
    if (status == ST_OK) {
        atomic_store(&zero, timeline_now());
        state.flushed = timeline_now();
        __atomic_store_n(&timeline_written, 1, __ATOMIC_RELAXED);
    } else {
        give_up();
        state.unsaid = false;
    }
    unlock();
    os_cancel_restore(cancel);
    return status;
}

Status timeline_stop(void)
{
    int cancel = os_cancel_off();
    lock();
    Status status = stop();
    unlock();
    os_cancel_restore(cancel);
    return status;
}

__attribute__((destructor)) static void stop_at_exit(void)
{
    if (timeline_on())
        (void)timeline_stop();
}
