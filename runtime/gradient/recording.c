/*
 * kiln_recording: values that are computed keep how they were made, so that gradients may be taken later.
 *
 * While one is open in a thread, each tracked node that the thread records keeps its inputs when it is computed (RtNode.keep), and is
 * held by the recording. In the end they let go; in an inner recording they become the outer one's. What was not computed is computed
 * once more where a gradient needs it, which is why products and the like are computed for good (runtime/eval/saved.c); what was is an
 * input.
 */
#define KILN_NO_LOCATIONS
#include "runtime/gradient/recording.h"
#include "ir/base/log.h"
#include "ir/base/os.h"
#include "runtime/eval.h"
#include "runtime/record/record.h"

#include <inttypes.h>
#include <string.h>

struct kiln_recording {
    kiln_recording *outer;
    RtNode **node; /* a reference each */
    size_t n, cap;
};

static bool reserve(kiln_recording *recording, size_t more)
{
    size_t want = recording->n + more, cap = recording->cap ? recording->cap : 64;
    while (cap < want)
        cap *= 2;
    if (cap == recording->cap)
        return true;
    RtNode **node = os_realloc(recording->node, sizeof *node * cap);
    if (!node)
        return false;
    recording->node = node;
    recording->cap = cap;
    return true;
}

bool recording_add(kiln_recording *recording, RtNode *node)
{
    if (!reserve(recording, 1))
        return false;
    recording->node[recording->n++] = node_retain(node);
    node->keep = true;
    return true;
}

kiln_recording *kiln_recording_begin(void)
{
    RtThread *t = rt_thread();
    kiln_recording *recording = os_calloc(1, sizeof *recording);
    if (!recording) {
        (void)error_keep(fail(ST_OUT_OF_MEMORY, "out of memory"), "kiln_recording_begin", (Loc){NULL, 0});
        return NULL;
    }
    recording->outer = t->keeper;
    t->keeper = recording;
    return recording;
}

/* Ends the innermost one. */
static void end(RtThread *t)
{
    kiln_recording *recording = t->keeper, *outer = recording->outer;
    t->keeper = outer;
    bool handed_on = outer && reserve(outer, recording->n);
    if (handed_on && recording->n) {
        memcpy(outer->node + outer->n, recording->node, sizeof *recording->node * recording->n);
        outer->n += recording->n;
    }
    if (!handed_on) {
        int64_t before = kiln_kept_bytes();
        eval_lock();
        for (size_t i = 0; i < recording->n; i++)
            node_let_go(recording->node[i], "kiln_recording_end");
        eval_unlock();
        for (size_t i = 0; i < recording->n; i++)
            node_release(recording->node[i]);
        if (log_on(LOG_MEMORY))
            log_line(LOG_MEMORY, "the end of a recording of %zu values: %" PRId64 " KiB were kept for gradients, now %" PRId64,
                     recording->n, before >> 10, kiln_kept_bytes() >> 10);
    }
    os_free(recording->node);
    os_free(recording);
}

void kiln_recording_end(kiln_recording *recording)
{
    if (!recording)
        return;
    RtThread *t = rt_thread();
    const kiln_recording *at = t->keeper;
    while (at && at != recording)
        at = at->outer;
    if (!at) {
        (void)error_keep(fail(ST_INVALID, "the recording is not an open one of this thread"), "kiln_recording_end", (Loc){NULL, 0});
        return;
    }
    while (t->keeper != recording)
        end(t);
    end(t);
}

void recordings_end_thread(RtThread *t)
{
    while (t->keeper)
        end(t);
}
