/*
 * How far long work on one program is: told to whoever asked (kiln_set_progress), and drawn on the terminal with KILN_PROGRESS=1.
 *
 *     Progress progress = progress_begin(id);                         nobody asked: one load and a branch, here and below
 *     progress_tell(&progress, "compiling", kernel, 3, 40);           in any thread
 *     progress_end(&progress);
 *
 * Calls of the sink come one at a time, under the log's lock and its rules: it may log and must not compute (log_in_sink).
 */
#ifndef IR_BASE_PROGRESS_H
#define IR_BASE_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct ProgressNow {
    const char *phase, *program, *name; /* name: of the kernel begun or finished; NULL: none */
    int64_t done, total;                /* kernels; 0 of 0: not counted */
    double seconds;                     /* since progress_begin */
    bool finished;                      /* the last one about this program */
} ProgressNow;

typedef void ProgressSink(void *user, const ProgressNow *now);

typedef struct Progress {
    const char *program; /* NULL: nobody asked */
    double began;
} Progress;

Progress progress_begin(const char *program);
void progress_tell(const Progress *progress, const char *phase, const char *name, int64_t done, int64_t total);
void progress_end(const Progress *progress);

void progress_set_sink(ProgressSink *sink, void *user); /* NULL: none. The one before is not running any more afterwards */
void progress_draw(bool on);

#endif
