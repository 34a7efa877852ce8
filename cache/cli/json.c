/* JSON for programs, through jansson. Objects keep the order in which things were added. */
#include "cache/cli/cli.h"
#include "ir/base/os.h"

#include <stdio.h>
#include <string.h>

void js_set(Cli *cli, json_t *object, const char *name, json_t *value)
{
    if (json_object_set_new(object, name, value) != 0)
        cli->json_broken = true;
}

void js_push(Cli *cli, json_t *array, json_t *value)
{
    if (json_array_append_new(array, value) != 0)
        cli->json_broken = true;
}

json_t *js_bytes(const char *text, size_t n)
{
    json_t *whole = json_stringn(text, n);
    if (whole)
        return whole;
    /* Some byte is no UTF-8, or memory ran out: everything beyond ASCII becomes U+FFFD. */
    char *copy = os_alloc(3 * n + 1);
    size_t at = 0;
    for (size_t k = 0; copy && k < n; k++) {
        if ((unsigned char)text[k] < 128) {
            copy[at++] = text[k];
        } else {
            memcpy(copy + at, "\xef\xbf\xbd", 3);
            at += 3;
        }
    }
    json_t *value = copy ? json_stringn(copy, at) : NULL;
    os_free(copy);
    return value;
}

json_t *js_text(const char *text) { return text ? js_bytes(text, strlen(text)) : json_null(); }

int js_print(Cli *cli, json_t *value)
{
    bool broken = !value || cli->json_broken;
    if (broken)
        complain("out of memory");
    else if (json_dumpf(value, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) == 0)
        putchar('\n');
    json_decref(value);
    return broken ? END_TROUBLE : END_FINE;
}
