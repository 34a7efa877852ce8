/* What the JSON files of a model say. A field is used only if its type and range are as the tables below have them; what nobody uses is not
 * looked at. */
#include "config.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *const pooling_names[] = {"mean", "cls", "max", NULL};

__attribute__((format(printf, 2, 3))) static bool wrong(char why[WHY], const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(why, WHY, format, list);
    va_end(list);
    return false;
}

static const char *const type_names[] = {
    [JSON_OBJECT] = "an object", [JSON_ARRAY] = "a list", [JSON_STRING] = "a text", [JSON_INTEGER] = "a number",
    [JSON_REAL] = "a fraction",  [JSON_TRUE] = "true",    [JSON_FALSE] = "false",   [JSON_NULL] = "null"};

/* The file, to be given back by json_decref; NULL: why not. */
static json_t *parse(const char *text, size_t n, json_type type, char why[WHY])
{
    json_error_t error;
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &error);
    if (!root)
        wrong(why, "line %d: %.200s", error.line, error.text);
    else if (json_typeof(root) != type) {
        wrong(why, "%s is needed, it has %s", type_names[type], type_names[json_typeof(root)]);
        json_decref(root);
        root = NULL;
    }
    return root;
}

/* A field that may be missing or null: then *value stays as it is. */
static bool get_flag(const json_t *object, const char *field, bool *value, char why[WHY])
{
    const json_t *x = json_object_get(object, field);
    if (!x || json_is_null(x))
        return true;
    if (!json_is_boolean(x))
        return wrong(why, "\"%s\" is %s; true or false is needed", field, type_names[json_typeof(x)]);
    *value = json_is_true(x);
    return true;
}

static bool get_whole(const json_t *object, const char *field, long least, long most, long *value, char why[WHY])
{
    const json_t *x = json_object_get(object, field);
    if (!x)
        return wrong(why, "\"%s\" is missing", field);
    if (!json_is_integer(x))
        return wrong(why, "\"%s\" is %s; a whole number from %ld to %ld is needed", field, type_names[json_typeof(x)], least, most);
    if (json_integer_value(x) < least || json_integer_value(x) > most)
        return wrong(why, "\"%s\" is %lld; a whole number from %ld to %ld is needed", field, (long long)json_integer_value(x), least, most);
    *value = (long)json_integer_value(x);
    return true;
}

/* A text that is one of some names, the last of which is NULL; *value: which. */
static bool get_name(const json_t *object, const char *field, const char *const *names, int *value, char why[WHY])
{
    const json_t *x = json_object_get(object, field);
    if (!x)
        return wrong(why, "\"%s\" is missing", field);
    if (!json_is_string(x))
        return wrong(why, "\"%s\" is %s; a text is needed", field, type_names[json_typeof(x)]);
    size_t used = 0;
    char known[120] = "";
    for (*value = 0; names[*value]; ++*value) {
        if (strcmp(names[*value], json_string_value(x)) == 0)
            return true;
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", *value ? ", " : "", names[*value]);
    }
    return wrong(why, "\"%s\" is \"%.60s\", which this program does not know; it knows %s", field, json_string_value(x), known);
}

static bool get_number(const json_t *object, const char *field, double least, double most, double *value, char why[WHY])
{
    const json_t *x = json_object_get(object, field);
    if (!x)
        return wrong(why, "\"%s\" is missing", field);
    if (!json_is_number(x))
        return wrong(why, "\"%s\" is %s; a number from %g to %g is needed", field, type_names[json_typeof(x)], least, most);
    *value = json_number_value(x);
    if (!(*value >= least && *value <= most))
        return wrong(why, "\"%s\" is %g; a number from %g to %g is needed", field, *value, least, most);
    return true;
}

static bool read_config(const json_t *root, Config *c, char why[WHY])
{
    static const char *const models[] = {"bert", NULL}, *const positions[] = {"absolute", NULL};
    static const char *const activations[] = {"gelu", "gelu_new", "relu", NULL}; /* by Activation */
    const struct {
        const char *field;
        long *value, most;
    } fields[] = {{"vocab_size", &c->words, 1L << 24},       {"max_position_embeddings", &c->positions, 1L << 20},
                  {"type_vocab_size", &c->types, 1L << 20},  {"hidden_size", &c->width, 1L << 16},
                  {"num_hidden_layers", &c->layers, 1000},   {"num_attention_heads", &c->heads, 1L << 16},
                  {"intermediate_size", &c->inner, 1L << 20}};
    int which;
    if (json_object_get(root, "model_type") && !get_name(root, "model_type", models, &which, why))
        return false;
    if (json_object_get(root, "position_embedding_type") && !get_name(root, "position_embedding_type", positions, &which, why))
        return false;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (!get_whole(root, fields[i].field, 1, fields[i].most, fields[i].value, why))
            return false;
    if (c->positions < 2)
        return wrong(why, "\"max_position_embeddings\" is %ld; the two marks of a line need 2 at least", c->positions);
    if (c->width % c->heads)
        return wrong(why, "\"hidden_size\", %ld, is no multiple of \"num_attention_heads\", %ld", c->width, c->heads);
    if (!get_name(root, "hidden_act", activations, &which, why))
        return false;
    c->activation = (Activation)which;
    return get_number(root, "layer_norm_eps", 0, 1, &c->eps, why);
}

bool config_parse(const char *text, size_t n, Config *config, char why[WHY])
{
    json_t *root = parse(text, n, JSON_OBJECT, why);
    bool good = root && read_config(root, config, why);
    json_decref(root);
    return good;
}

bool rules_parse(const char *text, size_t n, Rules *rules, char why[WHY])
{
    json_t *root = parse(text, n, JSON_OBJECT, why);
    bool good = root && get_flag(root, "do_lower_case", &rules->lower, why);
    rules->strip = rules->lower; /* unless it is said */
    good = good && get_flag(root, "strip_accents", &rules->strip, why) && get_flag(root, "tokenize_chinese_chars", &rules->apart, why);
    json_decref(root);
    return good;
}

bool limit_parse(const char *text, size_t n, long *most, char why[WHY])
{
    json_t *root = parse(text, n, JSON_OBJECT, why);
    const json_t *limit = json_object_get(root, "max_seq_length");
    bool good = root && (!limit || json_is_null(limit) || get_whole(root, "max_seq_length", 2, 1L << 20, most, why));
    json_decref(root);
    return good;
}

/* One module; its kind is the last part of a Python name. */
static bool read_module(const json_t *module, char pooling[FOLDER], bool *normalize, char why[WHY])
{
    const char *type = json_string_value(json_object_get(module, "type")), *path = json_string_value(json_object_get(module, "path"));
    if (!type || !path)
        return wrong(why, "a module has no \"type\" or no \"path\" that is a text");
    const char *kind = strrchr(type, '.') ? strrchr(type, '.') + 1 : type;
    if (strcmp(kind, "Transformer") == 0) {
        if (*path)
            return wrong(why, "the Transformer lies in the folder \"%.60s\"; name that folder's model instead", path);
    } else if (strcmp(kind, "Pooling") == 0) {
        if (strlen(path) >= FOLDER || !*path || strchr(path, '/') || strcmp(path, "..") == 0 || strcmp(path, ".") == 0)
            return wrong(why, "\"path\" of the Pooling, \"%.60s\", is no folder of the model's folder", path);
        memcpy(pooling, path, strlen(path) + 1);
    } else if (strcmp(kind, "Normalize") == 0) {
        *normalize = true;
    } else {
        return wrong(why, "\"type\" is \"%.60s\", which this program does not know; it knows Transformer, Pooling, Normalize", type);
    }
    return true;
}

bool modules_parse(const char *text, size_t n, char pooling[FOLDER], bool *normalize, char why[WHY])
{
    json_t *root = parse(text, n, JSON_ARRAY, why), *module;
    bool good = root != NULL;
    size_t i;
    *pooling = 0;
    *normalize = false;
    json_array_foreach(root, i, module) good = good && read_module(module, pooling, normalize, why);
    json_decref(root);
    return good;
}

/* The older files have a flag for each kind, the newer a name. */
static bool read_pooling(const json_t *root, Pooling *pooling, char why[WHY])
{
    static const struct {
        const char *field;
        int pooling; /* -1: not this program's */
    } flags[] = {{"pooling_mode_mean_tokens", MEAN},        {"pooling_mode_cls_token", CLS},          {"pooling_mode_max_tokens", MAX},
                 {"pooling_mode_mean_sqrt_len_tokens", -1}, {"pooling_mode_weightedmean_tokens", -1}, {"pooling_mode_lasttoken", -1}};
    int which = -1;
    if (json_object_get(root, "pooling_mode")) {
        if (!get_name(root, "pooling_mode", pooling_names, &which, why))
            return false;
        *pooling = (Pooling)which;
        return true;
    }
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        bool set = false;
        if (!get_flag(root, flags[i].field, &set, why))
            return false;
        if (set && flags[i].pooling < 0)
            return wrong(why, "\"%s\" is set, which this program does not know; say --pooling mean, cls or max", flags[i].field);
        if (set && which >= 0)
            return wrong(why, "two kinds of pooling are set; say --pooling mean, cls or max");
        which = set ? flags[i].pooling : which;
    }
    if (which < 0)
        return wrong(why, "no kind of pooling is set; say --pooling mean, cls or max");
    *pooling = (Pooling)which;
    return true;
}

bool pooling_parse(const char *text, size_t n, Pooling *pooling, char why[WHY])
{
    json_t *root = parse(text, n, JSON_OBJECT, why);
    bool good = root && read_pooling(root, pooling, why);
    json_decref(root);
    return good;
}
