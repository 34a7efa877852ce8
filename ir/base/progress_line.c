/* How it looks: see progress_line.h. */
#include "ir/base/progress_line.h"
#include "ir/base/os.h"
#include "ir/base/os_term.h"

#include <stdio.h>
#include <string.h>

static const double FIRST_AFTER = 0.2, AGAIN_AFTER = 0.1; /* seconds */

static bool shown; /* a line is on the terminal */

ProgressLine progress_line_begin(bool at_once)
{
    double now = os_seconds();
    return (ProgressLine){.began = now, .first = at_once ? 0 : now + FIRST_AFTER, .terminal = os_is_terminal(stderr)};
}

bool progress_line_due(const ProgressLine *line)
{
    if (!line->terminal)
        return false;
    double now = os_seconds();
    return now >= line->first && now - line->drawn >= AGAIN_AFTER;
}

void progress_line_draw(ProgressLine *line, const char *text)
{
    char out[512];
    int width = os_terminal_width(stderr);
    size_t most = width > 1 && (size_t)width < sizeof out ? (size_t)width - 1 : 79, n = 0;
    for (; text[n] && n < most; n++)
        out[n] = (unsigned char)text[n] < 0x20 || text[n] == 0x7f ? '?' : text[n];
    out[n] = '\0';
    fprintf(stderr, "\r%s\033[K", out);
    fflush(stderr);
    line->drawn = os_seconds();
    shown = true;
}

void progress_line_clear(void)
{
    if (!shown)
        return;
    fputs("\r\033[K", stderr);
    fflush(stderr);
    shown = false;
}

void progress_line_count(char *out, size_t size, double done, double total, double seconds)
{
    if (done > 0 && done < total && seconds > 1)
        snprintf(out, size, "%.0f of %.0f, %.1f s, %.0f s left", done, total, seconds, seconds / done * (total - done));
    else
        snprintf(out, size, "%.0f of %.0f, %.1f s", done, total, seconds);
}

void progress_line_step(ProgressLine *line, const char *what, double done, double total)
{
    char text[160], count[96];
    if (!progress_line_due(line))
        return;
    progress_line_count(count, sizeof count, done, total, os_seconds() - line->began);
    snprintf(text, sizeof text, "%s: %s", what, count);
    progress_line_draw(line, text);
}
