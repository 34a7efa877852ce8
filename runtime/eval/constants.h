/*
 * Values made of constants alone (kiln_mark_constant), computed once and kept: runtime/eval/constants.c. What they are, jit/constants.c
 * decides.
 */
#ifndef RUNTIME_CONSTANTS_H
#define RUNTIME_CONSTANTS_H

#include "runtime/eval/run.h"

/* The values of the program's constants for this run, found or made: their addresses into run->address, and a reference to each for
 * constants_end. What was made can be found by others from then on, where `status` is ST_OK. */
Status constants_begin(Run *run);
void constants_end(Run *run, Status status);
/* That of the k-th, between the two. */
Storage *constants_storage(const Run *run, uint32_t k);

/* The same without making: of the call's inputs in[], the addresses to data[0..n_constants), held until constants_let_go. false: some are
 * not there; nothing is held then. */
bool constants_find(Evaluation *e, const Program *program, const int64_t *sizes, Storage *const *in, char *const *data_in,
                    const uint64_t *scalars, char **data);
void constants_let_go(Evaluation *e);

/* A fork takes their lock, behind the evaluation lock. Once. */
void constants_handle_forks(void);

/* What was made of this storage's values is dropped: they change, or go. */
void constants_forget(Storage *storage);
/* All that no run reads at the moment; how many bytes. */
int64_t constants_drop(int device);

#endif
