/*
 * The command line against the table verbs.def: which verb, which arguments, which options. A word
 * that fits nothing ends with status 2 and a line that says what would have fitted.
 */
#include "cache/cli/cli.h"
#include "cache/cli/digest.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define F(id) (1u << FLAG_##id)

const FlagInfo flag_info[FLAG_COUNT] = {
#define FLAG(id, name, value, help) {name, value, help},
#include "cache/cli/verbs.def"
};

const VerbInfo verb_info[VERB_COUNT] = {
#define VERB(id, name, arguments, flags, help, detail) {name, arguments, help, detail, cmd_##id, (flags) | F(HELP) | F(JSON) | F(COLOR)},
#include "cache/cli/verbs.def"
};

_Static_assert(FLAG_COUNT <= 32, "the options of a verb are bits of 32");

/* ---- numbers ---- */

/* A number of at least 0 and its unit, a letter of `units` with its factor in `factors`. */
static bool parse_scaled(const char *text, const char *units, const double *factors, double *out)
{
    char *end;
    if (!isdigit((unsigned char)*text) && *text != '.')
        return false;
    errno = 0;
    double value = strtod(text, &end);
    if (end == text || errno || !isfinite(value))
        return false;
    double factor = 1;
    if (*end) {
        const char *unit = strchr(units, tolower((unsigned char)*end));
        if (!unit || end[1])
            return false;
        factor = factors[unit - units];
    }
    *out = value * factor;
    return *out < 9e18;
}

bool parse_size(const char *text, uint64_t *bytes)
{
    static const double factors[] = {1, 1024, 1048576, 1073741824, 1099511627776.0};
    double value = 0;
    if (!parse_scaled(text, "bkmgt", factors, &value))
        return false;
    *bytes = (uint64_t)value;
    return true;
}

bool parse_age(const char *text, int64_t *seconds)
{
    static const double factors[] = {1, 60, 3600, 86400, 604800};
    double value = 0;
    if (!parse_scaled(text, "smhdw", factors, &value))
        return false;
    *seconds = (int64_t)value;
    return true;
}

bool parse_percent(const char *text, double *fraction)
{
    char number[32];
    size_t n = strlen(text);
    if (n && text[n - 1] == '%')
        n--;
    if (n >= sizeof number || strspn(text, "0123456789.") < n)
        return false;
    memcpy(number, text, n);
    number[n] = '\0';
    double value = 0;
    if (!parse_scaled(number, "", NULL, &value))
        return false;
    *fraction = value / 100;
    return true;
}

/* ---- words ---- */

/* Is `word` one of the words of "a|b|c"? */
static bool one_of(const char *choices, const char *word)
{
    size_t n = strlen(word);
    for (const char *at = choices; n && at; at = strchr(at, '|'), at = at ? at + 1 : NULL)
        if (strncmp(at, word, n) == 0 && (at[n] == '|' || !at[n]))
            return true;
    return false;
}

/* The verb of one or two words; *used says how many. VERB_COUNT: none. */
static VerbId find_verb(const char *first, const char *second, int *used)
{
    for (int id = 0; id < VERB_COUNT; id++) {
        const char *name = verb_info[id].name;
        size_t n = strlen(first);
        *used = 1;
        if (strcmp(name, first) == 0)
            return (VerbId)id;
        *used = 2;
        if (second && strncmp(name, first, n) == 0 && name[n] == ' ' && strcmp(name + n + 1, second) == 0)
            return (VerbId)id;
    }
    return VERB_COUNT;
}

/* Is there a group of verbs of this name ("cache")? */
static bool is_group(const char *word)
{
    size_t n = strlen(word);
    for (int id = 0; id < VERB_COUNT; id++)
        if (n && strncmp(verb_info[id].name, word, n) == 0 && verb_info[id].name[n] == ' ')
            return true;
    return false;
}

/* What the user may have meant by the verb of these words: the nearest name. */
static int unknown_verb(const char *first, const char *second)
{
    char typed[64];
    snprintf(typed, sizeof typed, "%s%s%s", first, second ? " " : "", second ? second : "");
    const char *nearest = NULL;
    size_t best = strlen(typed) / 3 + 2;
    for (int id = 0; id < VERB_COUNT; id++) {
        size_t d = str_distance(typed, verb_info[id].name);
        if (*verb_info[id].help && d < best) {
            best = d;
            nearest = verb_info[id].name;
        }
    }
    if (nearest)
        complain("there is no command \"%s\"; did you mean \"%s\"?", typed, nearest);
    else
        complain("there is no command \"%s\"; `kiln help` lists them", typed);
    return END_USAGE;
}

static int usage_error(const Cli *cli)
{
    fprintf(stderr, "usage: kiln %s%s%s [OPTIONS]   (kiln %s --help says more)\n", verb_info[cli->verb].name,
            *verb_info[cli->verb].arguments ? " " : "", verb_info[cli->verb].arguments, verb_info[cli->verb].name);
    return END_USAGE;
}

/* ---- options ---- */

static bool value_fits(FlagId id, const char *value)
{
    uint64_t bytes;
    int64_t seconds;
    double fraction;
    const char *kind = flag_info[id].value;
    if (strchr(kind, '|'))
        return one_of(kind, value);
    if (strcmp(kind, "SIZE") == 0)
        return parse_size(value, &bytes);
    if (strcmp(kind, "AGE") == 0)
        return parse_age(value, &seconds);
    if (strcmp(kind, "PERCENT") == 0)
        return parse_percent(value, &fraction);
    if (strcmp(kind, "HEX") == 0)
        return strlen(value) == DIGEST_HEX && strspn(value, "0123456789abcdefABCDEF") == DIGEST_HEX;
    return *value != '\0';
}

/* What a value of an option may be, in words. */
static const char *what_fits(FlagId id)
{
    const char *kind = flag_info[id].value;
    if (strchr(kind, '|'))
        return kind;
    if (strcmp(kind, "SIZE") == 0)
        return "a size such as 500, 64k, 1.5M or 2G";
    if (strcmp(kind, "AGE") == 0)
        return "an age such as 90s, 15m, 12h, 30d or 2w";
    if (strcmp(kind, "PERCENT") == 0)
        return "percents such as 10% or 2.5%";
    if (strcmp(kind, "HEX") == 0)
        return "a SHA-256, 64 hexadecimal digits,";
    return "something";
}

/* The option in `word` ("--sort=size", or "--sort" with its value in `next`). *took_next: the value
 * was the next word. */
static int take_flag(Cli *cli, const char *word, const char *next, bool *took_next)
{
    const char *name = strcmp(word, "-h") == 0 ? "help" : strcmp(word, "-o") == 0 ? "output" : word + 2, *equals = strchr(name, '=');
    size_t n = equals ? (size_t)(equals - name) : strlen(name);
    int id = 0;
    while (id < FLAG_COUNT && (strncmp(flag_info[id].name, name, n) != 0 || flag_info[id].name[n]))
        id++;
    *took_next = false;
    if (id == FLAG_COUNT || !(verb_info[cli->verb].flags & (1u << id))) {
        complain("%s takes no option %.*s", verb_info[cli->verb].name, equals ? (int)(equals - word) : (int)strlen(word), word);
        return usage_error(cli);
    }
    const FlagInfo *flag = &flag_info[id];
    if (!*flag->value && equals) {
        complain("--%s takes no value", flag->name);
        return usage_error(cli);
    }
    const char *value = equals ? equals + 1 : *flag->value ? next : "";
    *took_next = !equals && *flag->value;
    if (!value) {
        complain("--%s needs a value: %s", flag->name, flag->value);
        return usage_error(cli);
    }
    if (*flag->value && !value_fits((FlagId)id, value)) {
        complain("--%s=%s: %s is needed", flag->name, value, what_fits((FlagId)id));
        return usage_error(cli);
    }
    cli->flag[id] = value;
    return -1;
}

/* Are there as many arguments as the table says? */
static int check_count(const Cli *cli)
{
    const char *words = verb_info[cli->verb].arguments;
    uint32_t least = 0, most = 0;
    for (const char *at = words; at && *at; at = strchr(at, ' '), at = at ? at + 1 : NULL) {
        most++;
        least += *at != '[';
    }
    if (strstr(words, "..."))
        most = UINT32_MAX;
    if (cli->n_args >= least && cli->n_args <= most)
        return -1;
    if (cli->n_args > most)
        complain("%s: \"%s\" is one argument too many", verb_info[cli->verb].name, cli->args[most]);
    else
        complain("%s: an argument is missing", verb_info[cli->verb].name);
    return usage_error(cli);
}

/* Without a verb: options alone, or nothing. */
static int no_verb(Cli *cli, int argc, char **argv)
{
    bool help = false, version = false;
    for (int k = 1; k < argc; k++) {
        const char *word = argv[k];
        if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
            help = true;
        } else if (strcmp(word, "--version") == 0) {
            version = true;
        } else if (strcmp(word, "--json") == 0) {
            cli->flag[FLAG_JSON] = "";
        } else {
            complain(*word == '-' ? "there is no option %s before a command; `kiln help` says what there is"
                                  : "%s: a command comes before its options; `kiln help` says what there is",
                     word);
            return END_USAGE;
        }
    }
    if (help)
        return help_group(cli, "");
    if (!version) {
        help_print(stderr, NULL);
        return END_USAGE;
    }
    if (!flag_on(cli, FLAG_JSON)) {
        printf("kiln %s\n", KILN_VERSION_STRING);
        return END_FINE;
    }
    json_t *root = json_object();
    js_set(cli, root, "version", js_text(KILN_VERSION_STRING));
    return js_print(cli, root);
}

int args_parse(Cli *cli, int argc, char **argv)
{
    if (argc < 2 || argv[1][0] == '-')
        return no_verb(cli, argc, argv);
    int used = 0;
    cli->verb = find_verb(argv[1], argc > 2 ? argv[2] : NULL, &used);
    if (cli->verb == VERB_COUNT && is_group(argv[1])) {
        bool asked = false;
        for (int k = 2; k < argc; k++) {
            if (strcmp(argv[k], "--help") == 0 || strcmp(argv[k], "-h") == 0)
                asked = true;
            else if (strcmp(argv[k], "--json") == 0)
                cli->flag[FLAG_JSON] = "";
            else
                return unknown_verb(argv[1], argv[k]);
        }
        if (asked)
            return help_group(cli, argv[1]);
        help_print(stderr, argv[1]);
        return END_USAGE;
    }
    if (cli->verb == VERB_COUNT)
        return unknown_verb(argv[1], NULL);

    cli->args = ARENA_ARRAY(cli->arena, const char *, argc);
    bool only_arguments = false;
    for (int k = 1 + used; k < argc; k++) {
        const char *word = argv[k];
        bool option = !only_arguments && word[0] == '-' && word[1], took_next = false;
        if (option && strcmp(word, "--") == 0) {
            only_arguments = true;
        } else if (option && (word[1] == '-' || strcmp(word, "-h") == 0 || strcmp(word, "-o") == 0)) {
            int status = take_flag(cli, word, k + 1 < argc ? argv[k + 1] : NULL, &took_next);
            if (status >= 0)
                return status;
            k += took_next;
        } else if (option) {
            complain("there is no option %s", word);
            return usage_error(cli);
        } else {
            cli->args[cli->n_args++] = word;
        }
    }
    if (flag_on(cli, FLAG_HELP))
        return help_verb(cli, cli->verb);
    return check_count(cli);
}
