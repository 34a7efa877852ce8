/* What a finished plan has recognised: the rows of jit/fuse/recognise.def. */
#ifndef JIT_FUSE_RECOGNISE_H
#define JIT_FUSE_RECOGNISE_H

#include "ir/graph.h"

typedef struct Fuser Fuser;

typedef enum RecognisedId {
#define RECOGNISED(id, sentence) RECOGNISED_##id,
#define NAMED(id, name, sentence) RECOGNISED_##id,
#include "jit/fuse/recognise.def"
#undef NAMED
#undef RECOGNISED
    RECOGNISED_ROWS
} RecognisedId;

const char *recognised_sentence(RecognisedId id);
/* A line for each row that holds of a node, in the order of the graph. */
void recognised_print(const Fuser *f, Str *out);

/* ---- names.c ---- */
/* The functions among the nodes: f->named, f->part_of. Once, of the finished plan. */
void name_nodes(Fuser *f);
bool named_as(const Fuser *f, Ref n, RecognisedId id);
/* Calls the steps that compute such functions by their names. */
void name_steps(Fuser *f);

#endif
