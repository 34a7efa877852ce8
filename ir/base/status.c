/*
 * Failure messages, one buffer a thread: the text is written where the cause is known and read by the API layer.
 *
 * The buffer is allocated at a thread's first failure and freed when the thread ends. It is not itself thread-local: a library
 * with more than a few hundred bytes of thread-local data cannot be loaded with dlopen.
 */
#include "ir/base/status.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <threads.h>

enum { LENGTH = 2048 };

static _Thread_local char *message;
static tss_t at_thread_end;
static bool have_key;

static const char *const names[ST_COUNT] = {
#define STATUS(id, text) text,
#include "ir/base/status.def"
#undef STATUS
};

static void message_free(void *buffer)
{
    message = NULL; /* a failure while the thread ends makes another */
    free(buffer);
}

static void make_key(void) { have_key = tss_create(&at_thread_end, message_free) == thrd_success; }

static char *message_buffer(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT; /* ThreadSanitizer knows nothing of call_once */
    pthread_once(&once, make_key);
    if (message || !have_key)
        return message;
    message = calloc(1, LENGTH);
    if (message && tss_set(at_thread_end, message) != thrd_success) {
        free(message);
        message = NULL;
    }
    return message;
}

Status fail(Status status, const char *format, ...)
{
    char text[LENGTH], *buffer = message_buffer(); /* the arguments may point into the old message */
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (buffer)
        snprintf(buffer, LENGTH, "%s", text);
    return status;
}

const char *fail_message(void)
{
    char *buffer = message_buffer();
    return buffer ? buffer : "out of memory";
}

const char *status_name(Status status) { return (unsigned)status < ST_COUNT ? names[status] : "unknown status"; }
