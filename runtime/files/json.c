/* JSON in files of tensors: see json.h. */
#include "runtime/files/json.h"
#include "runtime/files/file.h"

#include <string.h>

/* Where brackets, outside of strings, open deeper than they may; n: nowhere. */
static size_t too_deep(const char *text, size_t n)
{
    bool in_string = false;
    int depth = 0;
    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        if (in_string && c == '\\')
            i++;
        else if (c == '"')
            in_string = !in_string;
        else if (!in_string && (c == '{' || c == '[') && ++depth > JSON_DEEPEST)
            return i;
        else if (!in_string && (c == '}' || c == ']'))
            depth--;
    }
    return n;
}

Status json_parse(const char *text, size_t n, const char *path, size_t at, json_t **out)
{
    json_error_t error;
    *out = NULL;
    if (n == 0 || text[0] != '{')
        return fail(ST_FORMAT, "%s: byte %zu: a JSON object is needed there, it begins with {" FILE_DAMAGED, path, at);
    size_t deep = too_deep(text, n);
    if (deep < n)
        return fail(ST_FORMAT, "%s: byte %zu: JSON nested deeper than %d" FILE_DAMAGED, path, at + deep, JSON_DEEPEST);
    *out = json_loadb(text, n, JSON_REJECT_DUPLICATES, &error);
    if (*out)
        return ST_OK;
    if (json_error_code(&error) == json_error_out_of_memory)
        return fail(ST_OUT_OF_MEMORY, "%s: out of memory", path);
    char *near = strstr(error.text, " near "); /* what follows is bytes of the file */
    if (near)
        *near = '\0';
    return fail(ST_FORMAT, "%s: byte %zu: malformed JSON: %s" FILE_DAMAGED, path, at + (size_t)error.position, error.text);
}
