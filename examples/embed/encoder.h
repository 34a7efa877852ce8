/* An encoder of the BERT family (Devlin et al. 2018): numbers of pieces -> one vector for each line, as one kiln_function. */
#ifndef EXAMPLES_EMBED_ENCODER_H
#define EXAMPLES_EMBED_ENCODER_H

#include "config.h"

#include <kiln.h>

enum { EMBEDDING_PARAMS = 5, LAYER_PARAMS = 16 };

typedef struct Encoder {
    Config config;
    Pooling pooling;
    bool normalize, bf16;
    kiln_tensor **p; /* EMBEDDING_PARAMS, then LAYER_PARAMS of each layer */
    kiln_function *function;
} Encoder;

/* Reads the weights that a model of e->config has, with or without "bert." before their names. False: why not. They live in the open scope. */
bool encoder_load(Encoder *e, const kiln_file *file, char why[WHY]);
/* Vectors [lines, width] of ids [lines, most pieces], of which length[i] count in line i. An error is kept by kiln. */
kiln_status encoder_run(Encoder *e, int64_t lines, int64_t most, const int32_t *ids, const int32_t *length, float *vectors);
void encoder_free(Encoder *e);

#endif
