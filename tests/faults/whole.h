#ifndef TESTS_FAULTS_WHOLE_H
#define TESTS_FAULTS_WHOLE_H

#include <stdbool.h>
#include <stddef.h>

/* Is the file an entry of the cache on disk, whole and under its own name? */
bool entry_is_whole(const char *path, const char *name);
/* Lets this process forget all its programs, so that it looks on disk for the next one. No evaluation is under way. */
void forget_programs(void);
/* Puts the checksum of an entry's bytes right again. */
void mend_checksum(unsigned char *bytes, size_t n);

#endif
