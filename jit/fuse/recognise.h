/* What a finished plan has recognised: the rows of jit/fuse/recognise.def. */
#ifndef JIT_FUSE_RECOGNISE_H
#define JIT_FUSE_RECOGNISE_H

#include "ir/base/str.h"

typedef struct Fuser Fuser;

typedef enum RecognisedId {
#define RECOGNISED(id, sentence) RECOGNISED_##id,
#include "jit/fuse/recognise.def"
#undef RECOGNISED
    RECOGNISED_ROWS
} RecognisedId;

const char *recognised_sentence(RecognisedId id);
/* A line for each row that holds of a node, in the order of the graph. */
void recognised_print(const Fuser *f, Str *out);

#endif
