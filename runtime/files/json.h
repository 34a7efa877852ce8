/* JSON in files of tensors, through jansson. */
#ifndef RUNTIME_JSON_H
#define RUNTIME_JSON_H

#include "ir/base/status.h"

#include <jansson.h>

enum { JSON_MOST_BYTES = 100000000, JSON_DEEPEST = 8 };

/* Parses one object of `n` bytes, nested no deeper than JSON_DEEPEST (jansson recurses on the caller's stack); a key that comes twice and
 * text that is not UTF-8 are refused. `at`: where in the file `path` it begins, for messages. ST_FORMAT; the caller's: json_decref. */
Status json_parse(const char *text, size_t n, const char *path, size_t at, json_t **out);

#endif
