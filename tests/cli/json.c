/*
 * json [NAME|INDEX]...: reads one JSON text from stdin, refuses anything else, and prints what lies
 * at the path: a string as it is, an array's or object's number of members, anything else as JSON.
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    json_error_t error;
    json_t *root = json_loadf(stdin, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error), *at = root;
    if (!root) {
        fprintf(stderr, "no JSON: %s at line %d\n", error.text, error.line);
        return 1;
    }
    for (int k = 1; k < argc && at; k++)
        at = json_is_array(at) ? json_array_get(at, strtoul(argv[k], NULL, 10)) : json_object_get(at, argv[k]);
    if (!at)
        puts("(nothing)");
    else if (json_is_string(at))
        puts(json_string_value(at));
    else if (json_is_array(at) || json_is_object(at))
        printf("%zu\n", json_is_array(at) ? json_array_size(at) : json_object_size(at));
    else if (json_dumpf(at, stdout, JSON_ENCODE_ANY) == 0)
        putchar('\n');
    json_decref(root);
    return at ? 0 : 1;
}
