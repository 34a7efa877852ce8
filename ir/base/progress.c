/* See progress.h. What is asked for is one byte, read before anything else; the rest is under the log's lock. */
#include "ir/base/progress.h"
#include "ir/base/log.h"
#include "ir/base/os.h"
#include "ir/base/progress_line.h"

#include <stdio.h>

static unsigned char asked; /* there is a sink, or it is drawn */

static struct { /* under the log's lock */
    ProgressSink *sink;
    void *user;
    bool draw;
    ProgressLine line;
    double of; /* the work that the line is about began then */
} state;

static void ask(void) { __atomic_store_n(&asked, state.sink || state.draw, __ATOMIC_RELAXED); }

void progress_set_sink(ProgressSink *sink, void *user)
{
    log_hold();
    state.sink = sink;
    state.user = user;
    ask();
    log_let_go();
}

void progress_draw(bool on)
{
    log_hold();
    progress_line_clear();
    state.draw = on;
    ask();
    log_let_go();
}

Progress progress_begin(const char *program)
{
    if (!__atomic_load_n(&asked, __ATOMIC_RELAXED))
        return (Progress){0};
    return (Progress){program ? program : "", os_seconds()};
}

static void draw(const Progress *progress, const ProgressNow *now)
{
    char text[256], count[96] = "";
    if (now->finished) {
        progress_line_clear();
        state.of = 0;
        return;
    }
    if (state.of != progress->began)
        state.line = progress_line_begin(false);
    state.of = progress->began;
    if (!progress_line_due(&state.line))
        return;
    if (now->total)
        progress_line_count(count, sizeof count, (double)now->done, (double)now->total, now->seconds);
    else
        snprintf(count, sizeof count, "%.1f s", now->seconds);
    snprintf(text, sizeof text, "kiln: %s %s: %s%s%s", now->phase, now->program, count, now->name ? ", " : "", now->name ? now->name : "");
    progress_line_draw(&state.line, text);
}

static void tell(const Progress *progress, ProgressNow now)
{
    now.program = progress->program;
    now.seconds = os_seconds() - progress->began;
    log_hold();
    if (state.draw)
        draw(progress, &now);
    if (state.sink)
        state.sink(state.user, &now);
    log_let_go();
}

void progress_tell(const Progress *progress, const char *phase, const char *name, int64_t done, int64_t total)
{
    if (progress->program)
        tell(progress, (ProgressNow){.phase = phase, .name = name, .done = done, .total = total});
}

void progress_end(const Progress *progress)
{
    if (progress->program)
        tell(progress, (ProgressNow){.phase = "finished", .finished = true});
}
