/* A loop or branch while it runs: what the host's way (runtime/eval/launch_body.c) and the device's (launch_device.c) share. */
#ifndef RUNTIME_FRAME_H
#define RUNTIME_FRAME_H

#include "runtime/eval/run.h"

typedef struct Frame {
    Run run;          /* of the body */
    Storage *word;    /* on a CUDA device: where kernels leave a fault; NULL: none can */
    void *block;      /* what its arrays lie in */
    void **in, **out; /* what the next run is given, and where its outputs belong */
    Repeat *repeat;   /* NULL: each run works out its steps */
} Frame;

typedef struct Loop {
    const Run *run;
    const ProgStep *step;
    Frame body, condition;
    int64_t count;
    void **place[2]; /* of each carry: the result's memory, and the other one */
    bool *in_place;  /* the step overwrites what it reads */
    size_t *bytes;   /* of each carry; of a slice of each ys */
    size_t *slice;   /* of each operand: of an iteration's part of xs */
    Storage **own;   /* memory of the loop's own: other places, results that nobody reads */
    uint32_t n_own;
    void *block;
    int64_t i;                /* the number of the iteration, ... */
    Storage *indices, *going; /* ... and on a CUDA device it and its next ones, if the step reads it; what the condition says */
} Loop;

enum { LOOP_BATCH = 64 /* iterations whose launches are queued on a CUDA device together */ };

Status frame_begin(const Run *outer, const Program *body, uint32_t n_in, Frame *f);
Status frame_word(Frame *f); /* on a CUDA device: its word, if it has none */
Status frame_run(Frame *f);  /* the body, once, from f->in to f->out */
void frame_end(Frame *f);

Status loop_frames_begin(Loop *l); /* `run` and `step` are set, its arguments are run->args */
void loop_frames_end(Loop *l);     /* whatever loop_frames_begin said */
Status loop_memory(Loop *l, size_t bytes, void **data);
bool loop_keeps(const Program *step, uint32_t k); /* does the step hand carry k on as it is? */
/* Of a branch: where each result goes; *unread: room for those that nobody reads. */
Status branch_results(const Run *run, const ProgStep *s, Frame *f, Storage **unread);

/* The whole step on the device, in one launch; *done = false: the host has to do it. */
Status device_bodies(Run *run, const ProgStep *step, bool *done);
/* What may turn out to be wrong in the program or a body of it, for runs on a CUDA device: NULL: counted only. */
uint32_t device_places(const Run *run, const Program *p, IndexPlace *places);

#endif
