/*
 * What is printed from the table of verbs: help, and the synopses of kiln(1). The texts of the table
 * are written once and wrapped here.
 */
#include "cache/cli/cli.h"
#include "jit/options.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum { HELP_WIDTH = 80 };

/* Prints words with line breaks, each line after the first indented; `at` is the column where it
 * begins. */
static void print_wrapped(FILE *out, const char *text, int indent, int at)
{
    while (*text) {
        size_t n = strcspn(text, " ");
        if (at > indent && at + 1 + (int)n > HELP_WIDTH) {
            fprintf(out, "\n%*s", indent, "");
            at = indent;
        } else if (at > indent) {
            fputc(' ', out);
            at++;
        }
        fwrite(text, 1, n, out);
        at += (int)n;
        text += n;
        text += *text == ' ';
    }
    fputc('\n', out);
}

static void print_item(FILE *out, const char *name, const char *help, int indent)
{
    int at = fprintf(out, "  %s", name);
    if (at + 2 > indent) {
        fputc('\n', out);
        at = 0;
    }
    fprintf(out, "%*s", indent - at, "");
    print_wrapped(out, help, indent, indent);
}

static const char *flag_text(int id, char *buf, size_t size)
{
    const FlagInfo *flag = &flag_info[id];
    snprintf(buf, size, "--%s%s%s", flag->name, *flag->value ? "=" : "", strchr(flag->value, '|') ? "WORD" : flag->value);
    return buf;
}

/* ---- help ---- */

void help_print(FILE *out, const char *group)
{
    fputs("usage: kiln COMMAND [ARGUMENTS] [OPTIONS]\n\n", out);
    if (!group)
        print_wrapped(out,
                      "Shows what is in the cache of compiled programs of kiln, why something was "
                      "compiled, and what the library knows of itself.",
                      0, 0);
    if (!group)
        fputc('\n', out);
    for (int id = 0; id < VERB_COUNT; id++) {
        char name[64];
        const VerbInfo *verb = &verb_info[id];
        if (verb_hidden((VerbId)id) || (group && strncmp(verb->name, group, strlen(group)) != 0))
            continue;
        snprintf(name, sizeof name, "%s %s", verb->name, verb->arguments);
        print_item(out, name, verb->help, 31);
    }
    fputs("\nkiln COMMAND --help says more. KEY is any unique prefix of an entry's name.\n"
          "Every command takes --json. Status: 0 fine, 1 something was found (a difference,\n"
          "damage, no such entry), 2 wrong command line, 3 input or output failed.\n",
          out);
}

static void print_verb(FILE *out, VerbId id)
{
    const VerbInfo *verb = &verb_info[id];
    fprintf(out, "usage: kiln %s%s%s [OPTIONS]\n\n", verb->name, *verb->arguments ? " " : "", verb->arguments);
    char first[256];
    snprintf(first, sizeof first, "%s.", verb->help);
    first[0] = (char)toupper((unsigned char)first[0]);
    print_wrapped(out, first, 0, 0);
    if (*verb->detail) {
        fputc('\n', out);
        print_wrapped(out, verb->detail, 0, 0);
    }
    fputs("\noptions:\n", out);
    for (int pass = 0; pass < 2; pass++) /* its own first, then those of every command */
        for (int k = 0; k < FLAG_COUNT; k++) {
            bool common = k == FLAG_HELP || k == FLAG_JSON || k == FLAG_COLOR;
            char name[64], help[512];
            const FlagInfo *flag = &flag_info[k];
            if (!verb_takes(id, k) || common != (pass == 1))
                continue;
            if (strchr(flag->value, '|'))
                snprintf(help, sizeof help, "%s: %s", flag->help, flag->value);
            else
                snprintf(help, sizeof help, "%s", flag->help);
            print_item(out, flag_text(k, name, sizeof name), help, 22);
        }
}

static json_t *verb_json(Cli *cli, VerbId id)
{
    json_t *verb = json_object(), *options = json_array();
    js_set(cli, verb, "command", js_text(verb_info[id].name));
    js_set(cli, verb, "arguments", js_text(verb_info[id].arguments));
    js_set(cli, verb, "help", js_text(verb_info[id].help));
    js_set(cli, verb, "detail", js_text(verb_info[id].detail));
    for (int k = 0; k < FLAG_COUNT; k++)
        if (verb_takes(id, k))
            js_push(cli, options, js_text(flag_info[k].name));
    js_set(cli, verb, "options", options);
    return verb;
}

static bool in_group(VerbId id, const char *group)
{
    size_t n = strlen(group);
    return !verb_hidden(id) && strncmp(verb_info[id].name, group, n) == 0 && (!n || verb_info[id].name[n] == ' ');
}

int help_group(Cli *cli, const char *group)
{
    if (!flag_on(cli, FLAG_JSON)) {
        help_print(stdout, *group ? group : NULL);
        return END_FINE;
    }
    json_t *all = json_array();
    for (int id = 0; id < VERB_COUNT; id++)
        if (in_group((VerbId)id, group))
            js_push(cli, all, verb_json(cli, (VerbId)id));
    return js_print(cli, all);
}

int help_verb(Cli *cli, VerbId id)
{
    if (flag_on(cli, FLAG_JSON))
        return js_print(cli, verb_json(cli, id));
    print_verb(stdout, id);
    return END_FINE;
}

int cmd_HELP(Cli *cli)
{
    char wanted[64] = "";
    for (uint32_t k = 0; k < cli->n_args; k++) {
        size_t at = strlen(wanted);
        snprintf(wanted + at, sizeof wanted - at, "%s%s", at ? " " : "", cli->args[k]);
    }
    bool group = false;
    for (int id = 0; id < VERB_COUNT; id++) {
        if (*wanted && strcmp(verb_info[id].name, wanted) == 0)
            return help_verb(cli, (VerbId)id);
        group |= in_group((VerbId)id, wanted);
    }
    if (group)
        return help_group(cli, wanted);
    complain("there is no command \"%s\"; `kiln help` lists them", wanted);
    return END_USAGE;
}

/* ---- man pages ---- */

/* Text in mdoc: each sentence on a line of its own, `x` in bold, nothing that reads as a request or
 * an escape. */
static void mdoc_text(const char *text)
{
    bool begins = true, bold = false;
    while (*text) {
        size_t n = strcspn(text, " ");
        if (!begins)
            putchar(' ');
        else if (*text == '.' || *text == '\'')
            fputs("\\&", stdout);
        for (size_t k = 0; k < n; k++) {
            if (text[k] == '`')
                fputs((bold = !bold) ? "\\fB" : "\\fR", stdout);
            else if (text[k] == '\\')
                fputs("\\e", stdout);
            else if (text[k] == '-')
                fputs("\\-", stdout);
            else
                putchar(text[k]);
        }
        begins = n && text[n - 1] == '.';
        text += n;
        text += *text == ' ';
        if (begins || !*text)
            putchar('\n');
    }
}

/* "[KEY...]" as mdoc's brackets. */
static void mdoc_arguments(const char *arguments)
{
    for (const char *at = arguments; *at;) {
        size_t n = strcspn(at, " ");
        bool may = *at == '[';
        const char *word = at + may;
        int len = (int)(n - (may ? 2 : 0));
        printf(may ? " Oo Ar %.*s Oc" : " Ar %.*s", len, word);
        at += n;
        at += *at == ' ';
    }
}

static void mdoc_flag(int id)
{
    const FlagInfo *flag = &flag_info[id];
    printf(".It Fl \\-%s", flag->name);
    if (*flag->value)
        printf(" Ns = Ns Ar %s", flag->value);
    putchar('\n');
    mdoc_text(flag->help);
}

static void mdoc_verbs(void)
{
    puts(".Bl -tag -width Ds");
    for (int id = 0; id < VERB_COUNT; id++) {
        const VerbInfo *verb = &verb_info[id];
        if (verb_hidden((VerbId)id))
            continue;
        printf(".It Cm %s", verb->name);
        mdoc_arguments(verb->arguments);
        putchar('\n');
        char first[256];
        snprintf(first, sizeof first, "%s.", verb->help);
        first[0] = (char)toupper((unsigned char)first[0]);
        mdoc_text(first);
        mdoc_text(verb->detail);
        bool any = false;
        for (int k = 0; k < FLAG_COUNT; k++)
            if (verb_takes((VerbId)id, k) && k != FLAG_HELP && k != FLAG_JSON && k != FLAG_COLOR) {
                if (!any)
                    puts(".Bl -tag -width Ds -compact");
                any = true;
                mdoc_flag(k);
            }
        if (any)
            puts(".El");
    }
    puts(".El");
}

static void mdoc_options(void)
{
    puts(".Bl -tag -width Ds");
    for (int id = 0; id < OPT_SHOWN; id++) {
        char variable[64], values[256], text[512];
        OptionInfo option;
        option_describe((OptionId)id, &option);
        printf(".It Ev %s\n", option_variable((OptionId)id, variable, sizeof variable));
        snprintf(text, sizeof text, "%s.", option.help);
        text[0] = (char)toupper((unsigned char)text[0]);
        mdoc_text(text);
        snprintf(text, sizeof text, "Values: %s; default: %s.%s", option_values((OptionId)id, values, sizeof values),
                 *option.def ? option.def : "empty", option.keyed ? " Changes the code that is made, so it is part of the key." : "");
        mdoc_text(text);
    }
    puts(".El");
}

int cmd_MDOC(Cli *cli)
{
    if (strcmp(cli->args[0], "verbs") == 0)
        mdoc_verbs();
    else
        mdoc_options();
    return END_FINE;
}
