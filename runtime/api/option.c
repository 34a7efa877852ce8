/* The library itself as the user sees it: version, options, the log sink. */
#include "ir/base/log.h"
#include "jit/options.h"
#include "runtime/record/pressure.h"
#include "runtime/record/thread.h"

#include <stdio.h>
#include <string.h>

const char *kiln_version(void) { return KILN_VERSION; }

kiln_status kiln_set_option(const char *name, const char *value)
{
    static const char api[] = "kiln_set_option";
    Loc nowhere = {0};
    if (!name || !value)
        return error_sync(fail(ST_INVALID, "%s is NULL", name ? "value" : "name"), api, nowhere);
    pressure_reset();
    return error_sync(option_set(name, value), api, nowhere);
}

kiln_status kiln_get_option(const char *name, char *buffer, size_t size)
{
    static const char api[] = "kiln_get_option";
    Loc nowhere = {0};
    if (!name || (!buffer && size))
        return error_sync(fail(ST_INVALID, "%s is NULL", name ? "buffer" : "name"), api, nowhere);
    return error_sync(option_get(name, buffer, size), api, nowhere);
}

void kiln_set_log_sink(kiln_log_sink *sink, void *user) { log_set_sink(sink, user); }

void kiln_log_into(void *buffer_, int level, const char *topic, const char *line)
{
    kiln_log_buffer *buffer = buffer_;
    (void)level, (void)topic;
    if (buffer->needed < buffer->size)
        snprintf(buffer->text + buffer->needed, buffer->size - buffer->needed, "%s\n", line);
    else if (buffer->size && !buffer->needed)
        *buffer->text = '\0';
    buffer->needed += strlen(line) + 1;
}
