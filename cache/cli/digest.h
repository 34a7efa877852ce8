/* The SHA-256 of a pack, by which one can be pinned: the hashes in it are no proof of who made it. */
#ifndef CACHE_CLI_DIGEST_H
#define CACHE_CLI_DIGEST_H

#include "ir/base/status.h"

#include <stddef.h>

enum { DIGEST_BYTES = 32, DIGEST_HEX = 2 * DIGEST_BYTES };

typedef struct Digest Digest;

Status digest_begin(Digest **out); /* ended by digest_end. ST_OUT_OF_MEMORY, ST_INTERNAL */
void digest_add(Digest *digest, const void *bytes, size_t n);
void digest_end(Digest *digest, char hex[DIGEST_HEX + 1]); /* NULL is fine: the text is empty then */

#endif
