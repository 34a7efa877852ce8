/* Sync points inside: evaluating an argument and reaching its elements. */
#ifndef RUNTIME_SYNC_H
#define RUNTIME_SYNC_H

#include "runtime/record/record.h"

/* Evaluates x; *status gets the public outcome (an error is shown). The node, held for the caller
 * (node_release), or NULL. */
RtNode *sync_eval(kiln_tensor *x, const char *api, Loc loc, kiln_status *status);

/* Copies the elements of an evaluated node, row-major, to `out`, once they are there. ST_DEVICE. */
Status copy_elements(const RtNode *node, void *out);

/* The elements of an evaluated node row-major: where they are, or a copy in *copy (os_free it; NULL
 * if none was needed). ST_OUT_OF_MEMORY, or what copy_elements says. */
Status dense_elements(const RtNode *node, const void **elements, void **copy);

/* Both: evaluates x and reaches its elements as dense_elements does. The node, held (node_release, then os_free(*copy)), or NULL; *status
 * gets the public outcome, and *copy is NULL where there is no node. */
RtNode *sync_dense(kiln_tensor *x, const char *api, Loc loc, const void **elements, void **copy, kiln_status *status);

#endif
