/*
 * Statuses and the message that goes with a failure.
 *
 * A fallible internal function returns Status and, where the cause is known, calls
 * `return fail(ST_X, "...")`, which stores the text for this thread. The API layer (runtime/api/error.c)
 * adds the function's name and the user's file:line and keeps the first error.
 */
#ifndef IR_BASE_STATUS_H
#define IR_BASE_STATUS_H

typedef enum Status {
#define STATUS(id, text) ST_##id,
#include "ir/base/status.def"
#undef STATUS
    ST_COUNT
} Status;

/* Stores the message of a failure for this thread (overwriting an earlier one) and returns `status`. */
Status fail(Status status, const char *format, ...) __attribute__((format(printf, 2, 3), cold));

/* The message of this thread's last fail(); never NULL. Valid until the next fail(). */
const char *fail_message(void);

const char *status_name(Status status);

/* Returns from the enclosing function with the status of `call` unless it is ST_OK. */
#define TRY(call)                    \
    do {                             \
        Status try_status_ = (call); \
        if (try_status_ != ST_OK)    \
            return try_status_;      \
    } while (0)

#endif
