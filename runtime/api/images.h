/* Batches of images as convolution, pooling and interpolation see them. (runtime/api/convolution.c) */
#ifndef RUNTIME_IMAGES_H
#define RUNTIME_IMAGES_H

#include "runtime/record/record.h"

/* A batch of images, [n, channels, space...]. */
typedef struct Images {
    RtNode *x;
    int spatial; /* axes */
    bool single; /* had no batch */
    bool last;   /* had its channels last */
} Images;

/* x, [n, channels, space...] or without n, or with channels last, as Images. false: an error was kept. */
bool images_in(Rec *r, RtNode *x, int spatial, bool channels_last, Images *out);
/* y, whose axes are those of `in`, laid out as x was. */
RtNode *images_out(Rec *r, const Images *in, RtNode *y);
/* What the maximum of nothing is. */
RtNode *reduce_least(Rec *r, DType dtype);

#endif
