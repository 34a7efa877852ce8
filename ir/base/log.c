/*
 * The log. Topics and their help come from log.def.
 *
 * How it works: log_levels holds one byte per topic, so that a topic that is off costs one load. A line is formatted into a
 * buffer and handed to the sink under a lock, so lines of different threads never mix and a sink that was replaced is not
 * running any more when log_set_sink returns.
 * What must hold: the lock is recursive, because a sink may call functions that log; a forked child gets a fresh lock. Lines are written
 * under other locks, so a sink may take none of those: what would asks log_in_sink first.
 * Leaves out: files (a sink can write them) and time stamps.
 */
#include "ir/base/log.h"
#include "ir/base/os.h"
#include "ir/base/progress_line.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

unsigned char log_levels[LOG_COUNT];

static const struct {
    const char *name, *help;
} topics_table[LOG_COUNT] = {
#define LOG_TOPIC(id, name, help) {name, help},
#include "ir/base/log.def"
#undef LOG_TOPIC
};

static struct {
    pthread_mutex_t mutex;
    LogSink *sink; /* NULL: stderr */
    void *user;
    struct Warned *warned;
    bool ended; /* log_end: lines are dropped */
} state;

/* A warning that was given and is not given again. */
typedef struct Warned {
    struct Warned *next;
    char key[];
} Warned;

static pthread_once_t once = PTHREAD_ONCE_INIT;

static void init_mutex(void)
{
    pthread_mutexattr_t attr;
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&state.mutex, &attr);
    pthread_mutexattr_destroy(&attr);
}

static void before_fork(void) { pthread_mutex_lock(&state.mutex); }

static void after_fork_parent(void) { pthread_mutex_unlock(&state.mutex); }

static void init(void)
{
    init_mutex();
    pthread_atfork(before_fork, after_fork_parent, init_mutex);
}

void log_handle_forks(void) { pthread_once(&once, init); }

static void lock(void)
{
    log_handle_forks();
    pthread_mutex_lock(&state.mutex);
}

static void unlock(void) { pthread_mutex_unlock(&state.mutex); }

static void print_to_stderr(void *user, int level, const char *topic, const char *line)
{
    (void)user;
    progress_line_clear();
    if (level == 0)
        fprintf(stderr, "kiln: %s: %s\n", topic, line);
    else
        fprintf(stderr, "[kiln %s] %s\n", topic, line);
}

static _Thread_local unsigned sink_depth;

bool log_in_sink(void) { return sink_depth > 0; }

static _Thread_local int cancel_before; /* the outermost log_hold */

void log_hold(void)
{
    int cancel = os_cancel_off();
    lock();
    if (sink_depth++ == 0)
        cancel_before = cancel;
}

void log_let_go(void)
{
    bool last = --sink_depth == 0;
    unlock();
    if (last)
        os_cancel_restore(cancel_before);
}

static void emit(int level, const char *topic, const char *line)
{
    log_hold();
    LogSink *sink = state.sink ? state.sink : print_to_stderr;
    if (!state.ended)
        sink(state.user, level, topic, line);
    log_let_go();
}

void log_end(void)
{
    if (sink_depth == 0)
        return;
    state.ended = true;
    while (sink_depth-- > 0)
        unlock();
    sink_depth = 0;
}

/* Formats and emits; a line too long for the stack and for the heap is cut. */
__attribute__((format(printf, 3, 0))) static void emit_format(int level, const char *topic, const char *format, va_list args)
{
    char small[512];
    va_list again;
    va_copy(again, args);
    int length = vsnprintf(small, sizeof small, format, args);
    char *large = NULL;
    if (length >= (int)sizeof small) {
        large = malloc((size_t)length + 1);
        if (large)
            vsnprintf(large, (size_t)length + 1, format, again);
    }
    va_end(again);
    emit(level, topic, large ? large : small);
    free(large);
}

void log_set_sink(LogSink *sink, void *user)
{
    lock();
    state.sink = sink;
    state.user = user;
    unlock();
}

void log_line(LogTopic topic, const char *format, ...)
{
    if (!log_on(topic))
        return;
    va_list args;
    va_start(args, format);
    emit_format(1, topics_table[topic].name, format, args);
    va_end(args);
}

void log_always(LogTopic topic, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    emit_format(1, topics_table[topic].name, format, args);
    va_end(args);
}

void log_text(LogTopic topic, const char *text)
{
    if (!log_on(topic))
        return;
    while (*text) {
        size_t length = strcspn(text, "\n");
        log_line(topic, "%.*s", (int)length, text);
        text += length + (text[length] == '\n');
    }
}

void log_warn(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    emit_format(0, "warning", format, args);
    va_end(args);
}

/* Remembers `key`; false when it was known. Without memory the warning is given again. */
static bool first_time(const char *key)
{
    lock();
    bool first = true;
    for (const Warned *w = state.warned; w && first; w = w->next)
        first = strcmp(w->key, key) != 0;
    if (first) {
        size_t bytes = strlen(key) + 1;
        Warned *w = malloc(sizeof *w + bytes);
        if (w) {
            memcpy(w->key, key, bytes);
            w->next = state.warned;
            state.warned = w;
        }
    }
    unlock();
    return first;
}

void log_warn_once(const char *key, const char *format, ...)
{
    if (!first_time(key))
        return;
    va_list args;
    va_start(args, format);
    emit_format(0, "warning", format, args);
    va_end(args);
}

/* ---- levels ---- */

static void set_level(int topic, int level) { __atomic_store_n(&log_levels[topic], (unsigned char)level, __ATOMIC_RELAXED); }

static void print_help(void)
{
    emit(1, "log", "KILN_LOG=topic,topic,... shows:");
    for (int i = 0; i < LOG_COUNT; i++) {
        char line[160];
        snprintf(line, sizeof line, "  %-12s %s", topics_table[i].name, topics_table[i].help);
        emit(1, "log", line);
    }
    emit(1, "log", "  all          every topic; a + before a name asks for more detail");
}

/* "no topic 'x'; there are ..." */
static const char *say_unknown(const char *name, size_t length, char *out, size_t size)
{
    size_t at = (size_t)snprintf(out, size, "no topic '%.*s'; there are ", (int)(length < 100 ? length : 100), name);
    for (int i = 0; i < LOG_COUNT && at < size; i++)
        at += (size_t)snprintf(out + at, size - at, "%s, ", topics_table[i].name);
    if (at < size)
        snprintf(out + at, size - at, "all, help");
    return out;
}

static void warn_unknown(const char *name, size_t length)
{
    char key[64], text[512];
    snprintf(key, sizeof key, "log:%.*s", (int)(length < 48 ? length : 48), name);
    log_warn_once(key, "KILN_LOG: %s", say_unknown(name, length, text, sizeof text));
}

/* The first topic whose name this is, `all` and `help` counted behind the others; -1: none. */
static int find_topic(const char *name, size_t length)
{
    static const char *const others[] = {"all", "help"};
    for (int i = 0; i < LOG_COUNT + 2; i++) {
        const char *topic = i < LOG_COUNT ? topics_table[i].name : others[i - LOG_COUNT];
        if (strlen(topic) == length && strncmp(topic, name, length) == 0)
            return i;
    }
    return -1;
}

const char *log_unknown(const char *topics, char *out, size_t size)
{
    for (const char *at = topics; *at;) {
        size_t length = strcspn(at, ", "), plus = *at == '+';
        if (length > plus && find_topic(at + plus, length - plus) < 0)
            return say_unknown(at + plus, length - plus, out, size);
        at += length + (at[length] != '\0');
    }
    return NULL;
}

/* One name of the list, with its `+`. */
static void configure_one(const char *name, size_t length)
{
    int level = 1;
    if (length > 0 && *name == '+') {
        level = 2;
        name++;
        length--;
    }
    if (length == 0)
        return;
    int topic = find_topic(name, length);
    if (topic < 0)
        warn_unknown(name, length);
    else if (topic == LOG_COUNT + 1)
        print_help();
    for (int i = 0; i < LOG_COUNT; i++)
        if (i == topic || topic == LOG_COUNT)
            set_level(i, level);
}

void log_configure(const char *topics)
{
    for (int i = 0; i < LOG_COUNT; i++)
        set_level(i, 0);
    for (const char *at = topics ? topics : ""; *at;) {
        size_t length = strcspn(at, ", ");
        configure_one(at, length);
        at += length + (at[length] != '\0');
    }
}
