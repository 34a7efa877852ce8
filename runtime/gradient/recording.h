/* Recordings of a thread: runtime/gradient/recording.c. */
#ifndef RUNTIME_RECORDING_H
#define RUNTIME_RECORDING_H

#include "runtime/record/thread.h"

/* A node that was just recorded keeps its inputs until the recording's end. false: out of memory. */
bool recording_add(kiln_recording *recording, RtNode *node);
void recordings_end_thread(RtThread *t);

#endif
