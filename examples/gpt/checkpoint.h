/*
 * What a checkpoint says: metadata that gpt wrote, the parameters of the network that they tell of, and the losses on the way. All of
 * it is looked at before anything is made of it, since a few bytes can tell of terabytes. What is wrong is said in `why`, in printable
 * characters whatever the file has.
 */
#ifndef EXAMPLES_GPT_CHECKPOINT_H
#define EXAMPLES_GPT_CHECKPOINT_H

#include <kiln.h>
#include <stdbool.h>

enum {
    BYTES = 256,
    MOST_DEPTH = 48,
    MOST_WIDTH = 65536,
    MOST_CONTEXT = 65536,
    BLOCK_PARAMS = 6,
    MOST_PARAMS = 2 + BLOCK_PARAMS * MOST_DEPTH
};
enum { MOST_STEPS = 1000000000, ABOUT = 7, VALUE = 24, CURVE = 3, NAME = 32, WHY = 200 };

typedef struct About {
    long depth, width, heads, context; /* the network */
    long step, seed;                   /* the run: how many steps were made */
    long text;                         /* a hash of the bytes to learn from */
} About;

/* The metadata of a file; their values lie in `text`. */
void about_write(const About *about, char text[ABOUT][VALUE], kiln_metadata metadata[ABOUT]);
/* All of a file's metadata, in bounds and fit for each other. */
bool about_read(const kiln_file *file, About *about, char why[WHY]);

/* The parameters of the network: embedding, last norm, then BLOCK_PARAMS of each block. */
typedef enum ParamKind { NORM, WEIGHT, ADDS } ParamKind; /* the last: it adds to the stream of a block */
typedef struct Param {
    char name[NAME];
    kiln_shape shape;
    ParamKind kind;
} Param;
int param_count(const About *about);
Param param_at(const About *about, int i);
/* They are what the file holds. */
bool params_fit(const kiln_file *file, const About *about, char why[WHY]);

/* The losses so far, rows of step, loss, validation loss, to be freed. None: NULL, and *rows is 0. */
bool curve_read(const kiln_file *file, const About *about, float **curve, long *rows, char why[WHY]);

#endif
