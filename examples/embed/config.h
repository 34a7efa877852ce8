/* What the JSON files of a model say. Each of these functions gets a file's bytes, and says in `why` what is wrong with which field (false). */
#ifndef EXAMPLES_EMBED_CONFIG_H
#define EXAMPLES_EMBED_CONFIG_H

#include "tokens.h"

typedef enum Activation { GELU, GELU_TANH, RELU } Activation;
typedef enum Pooling { MEAN, CLS, MAX } Pooling;
extern const char *const pooling_names[]; /* by Pooling; ends with NULL */

typedef struct Config {
    long words, positions, types, width, layers, heads, inner;
    double eps;
    Activation activation;
} Config;

/* config.json */
bool config_parse(const char *json, size_t n, Config *config, char why[WHY]);
/* tokenizer_config.json; what it does not say stays as it is. */
bool rules_parse(const char *json, size_t n, Rules *rules, char why[WHY]);
/* sentence_bert_config.json; *most stays as it is where that does not say how many pieces of a line count. */
bool limit_parse(const char *json, size_t n, long *most, char why[WHY]);

enum { FOLDER = 200 };
/* modules.json: the folder of the pooling's own file ("": there is none), and whether vectors are normalised. */
bool modules_parse(const char *json, size_t n, char pooling[FOLDER], bool *normalize, char why[WHY]);
/* config.json in that folder */
bool pooling_parse(const char *json, size_t n, Pooling *pooling, char why[WHY]);

#endif
