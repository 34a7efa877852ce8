/* NumPy's format of one array, wherever its bytes come from: a file (npy.c) or a member of an archive (npz.c). */
#ifndef RUNTIME_NPY_H
#define RUNTIME_NPY_H

#include "runtime/files/file.h"

typedef struct NpyHeader {
    DType dtype;
    bool swap, fortran;
    kiln_shape shape;
    uint64_t bytes; /* of the data */
} NpyHeader;

/* Bytes in order. */
typedef struct NpySource NpySource;
struct NpySource {
    const char *path; /* for messages */
    /* Reads up to n bytes, fewer only at the end. */
    Status (*read)(NpySource *source, void *out, size_t n, size_t *got);
    void *from;
    uint64_t left; /* to the end; UINT64_MAX: unknown */
};

/* Reads all before the data; that fits what is left. */
Status npy_read_header(NpySource *source, NpyHeader *h);
/* Reads the data, on the thread's current device. NULL on failure. */
Status npy_read_data(NpySource *source, const NpyHeader *h, Storage **data);
/* The array, of data that it takes over. */
RtNode *npy_node(Rec *r, const NpyHeader *h, Storage *data);

/* Can NumPy's files hold the dtype? ST_UNSUPPORTED says what can. */
Status npy_has_dtype(const char *path, DType dtype);
/* A header of format 1.0, padded so that the data begins at a multiple of 64, into `out`; its bytes. */
enum { NPY_HEADER = 320 };
size_t npy_write_header(const RtNode *node, char out[NPY_HEADER]);

#endif
