/* Failure messages, one buffer a thread: the text is written where the cause is known and read by
 * the API layer. */
#include "ir/base/status.h"

#include <stdarg.h>
#include <stdio.h>

static _Thread_local char message[2048];

static const char *const names[ST_COUNT] = {
#define STATUS(id, text) text,
#include "ir/base/status.def"
#undef STATUS
};

Status fail(Status status, const char *format, ...)
{
    char text[sizeof message]; /* the arguments may point into the old message */
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    snprintf(message, sizeof message, "%s", text);
    return status;
}

const char *fail_message(void)
{
    return message;
}

const char *status_name(Status status)
{
    return (unsigned)status < ST_COUNT ? names[status] : "unknown status";
}
