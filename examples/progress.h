/*
 * A line on the terminal that says how far long work is, and how long the rest takes; none where standard error is no terminal.
 *
 *     Progress progress = progress_begin(rounds);
 *     progress_show(&progress, i + 1, "million cells/s", 1e-6 * cells);        after each round; a round does so much
 *     progress_end(&progress);
 */
#include <stdbool.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

typedef struct Progress {
    long rounds;
    double began, last, shown; /* seconds; the first round compiles and does not count: `began` is its end */
    bool terminal;
} Progress;

static double seconds(void)
{
    struct timespec now;
    timespec_get(&now, TIME_UTC);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static Progress progress_begin(long rounds) { return (Progress){.rounds = rounds, .terminal = isatty(STDERR_FILENO)}; }

/* Of the rounds after the first; 0: there were none. */
static double progress_rate(const Progress *p, long done, double amount)
{
    return done > 1 && p->last > p->began ? amount * (double)(done - 1) / (p->last - p->began) : 0;
}

static void progress_show(Progress *p, long done, const char *unit, double amount)
{
    p->last = seconds();
    p->began = done == 1 ? p->last : p->began;
    if (!p->terminal || done == 1 || p->last - p->shown < 0.1)
        return;
    p->shown = p->last;
    fprintf(stderr, "\r%ld of %ld, %.1f %s, %.0f s left\033[K", done, p->rounds, progress_rate(p, done, amount), unit,
            (p->last - p->began) / (double)(done - 1) * (double)(p->rounds - done));
}

static void progress_end(const Progress *p)
{
    if (p->terminal)
        fputs("\r\033[K", stderr);
}
