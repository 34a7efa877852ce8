/*
 * The log: topics switched by KILN_LOG, lines sent to a sink (stderr unless the user set one).
 *
 * `if (log_on(LOG_X)) log_line(LOG_X, ...)`: when a topic is off the cost is one load.
 * Warnings always go to the sink; log_warn_once prints a given key's warning once per process.
 */
#ifndef IR_BASE_LOG_H
#define IR_BASE_LOG_H

#include <stdbool.h>
#include <stddef.h>

typedef enum LogTopic {
#define LOG_TOPIC(id, name, help) LOG_##id,
#include "ir/base/log.def"
#undef LOG_TOPIC
    LOG_COUNT
} LogTopic;

/* level: 0 warning, 1 log line. topic: "warning" or the topic's name. line: no newline at its end. */
typedef void LogSink(void *user, int level, const char *topic, const char *line);

extern unsigned char log_levels[LOG_COUNT]; /* 0 off, 1 on, 2 detailed; set by log_configure */

static inline bool log_on(LogTopic topic) { return __atomic_load_n(&log_levels[topic], __ATOMIC_RELAXED) != 0; }
static inline bool log_detailed(LogTopic topic) { return __atomic_load_n(&log_levels[topic], __ATOMIC_RELAXED) > 1; }

/* Sets levels from text such as "recompiles,+passes". NULL or "": all off. An unknown name earns one
 * warning that lists the valid ones; "help" prints the table. */
void log_configure(const char *topics);
/* What is wrong with such a list: the first name that is no topic, and which there are. NULL: nothing. */
const char *log_unknown(const char *topics, char *out, size_t size);
/* Makes fork wait for a line being written, from now on: before the fork handlers of a lock under which lines are written
 * (runtime/eval/pool.h). */
void log_handle_forks(void);
void log_set_sink(LogSink *sink, void *user); /* NULL: stderr */
bool log_in_sink(void);                       /* is this thread in the sink? It may not wait for who may wait for the log then. */
/* What lies between the two is not mixed with lines of other threads, and this thread is in the sink meanwhile, not to be cancelled. They nest. */
void log_hold(void);
void log_let_go(void);
void log_end(void); /* the process ends: where this thread is in the sink (exit() was called there), others wait for it no longer */
void log_line(LogTopic topic, const char *format, ...) __attribute__((format(printf, 2, 3)));
void log_always(LogTopic topic, const char *format, ...) __attribute__((format(printf, 2, 3))); /* whether it is on or not */
void log_text(LogTopic topic, const char *text);                                                /* many lines, each sent by itself */
void log_warn(const char *format, ...) __attribute__((format(printf, 1, 2), cold));
void log_warn_once(const char *key, const char *format, ...) __attribute__((format(printf, 2, 3), cold));

#endif
