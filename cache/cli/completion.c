/* `kiln completion`: scripts for bash, zsh and fish, printed from the table of verbs. */
#include "cache/cli/cli.h"

#include <stdio.h>
#include <string.h>

/* What an argument or a value may be: "key", "path", "words" or nothing. */
static const char *completes(const char *words)
{
    if (strstr(words, "KEY"))
        return strstr(words, "PATH") || strstr(words, "FILE") ? "key path" : "key";
    if (strstr(words, "PATH") || strstr(words, "FILE"))
        return "path";
    return strchr(words, '|') ? "words" : "";
}

static void put_char(Str *out, char c) { str_add(out, &c, 1); }

static void put_line(Str *out, const char *text) { str_printf(out, "%s\n", text); }

static void print_choices(Str *out, const char *choices)
{
    for (const char *c = choices; *c; c++)
        put_char(out, *c == '|' ? ' ' : *c);
}

static void complete_bash(Str *out)
{
    put_line(out, "# bash completion of kiln, printed by `kiln completion bash`");
    put_line(out, "_kiln()\n"
                  "{\n"
                  "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} "
                  "verb=${COMP_WORDS[1]} words= kinds=");
    put_line(out, "    COMPREPLY=()\n"
                  "    [ \"$verb\" = cache ] && [ $COMP_CWORD -gt 2 ] && verb=\"cache ${COMP_WORDS[2]}\"");
    put_line(out, "    if [ \"$prev\" = '=' ]; then prev=${COMP_WORDS[COMP_CWORD-2]}; fi\n"
                  "    [ \"$cur\" = '=' ] && cur=");
    put_line(out, "    case $prev in");
    for (int k = 0; k < FLAG_COUNT; k++) {
        const char *value = flag_info[k].value;
        if (!*value)
            continue;
        str_printf(out, "    --%s) ", flag_info[k].name);
        if (strchr(value, '|')) {
            str_printf(out, "COMPREPLY=($(compgen -W '");
            print_choices(out, value);
            put_line(out, "' -- \"$cur\")); return ;;");
        } else if (strcmp(value, "PATH") == 0) {
            put_line(out, "COMPREPLY=($(compgen -f -- \"$cur\")); return ;;");
        } else {
            put_line(out, "return ;;");
        }
    }
    put_line(out, "    esac\n"
                  "    if [ $COMP_CWORD -eq 1 ]; then");
    str_printf(out, "        words='cache");
    for (int id = 0; id < VERB_COUNT; id++)
        if (!verb_hidden((VerbId)id) && !strchr(verb_info[id].name, ' '))
            str_printf(out, " %s", verb_info[id].name);
    put_line(out, "'\n"
                  "    elif [ $COMP_CWORD -eq 2 ] && [ \"$verb\" = cache ]; then");
    str_printf(out, "        words='");
    for (int id = 0; id < VERB_COUNT; id++)
        if (strchr(verb_info[id].name, ' '))
            str_printf(out, "%s ", strchr(verb_info[id].name, ' ') + 1);
    put_line(out, "'\n"
                  "    else\n"
                  "        case $verb in");
    for (int id = 0; id < VERB_COUNT; id++) {
        const VerbInfo *verb = &verb_info[id];
        if (verb_hidden((VerbId)id))
            continue;
        str_printf(out, "        '%s') kinds='%s' words='", verb->name, completes(verb->arguments));
        if (strcmp(completes(verb->arguments), "words") == 0) {
            print_choices(out, verb->arguments);
            put_char(out, ' ');
        }
        for (int k = 0; k < FLAG_COUNT; k++)
            if (verb_takes((VerbId)id, k))
                str_printf(out, "--%s%s ", flag_info[k].name, *flag_info[k].value ? "=" : "");
        put_line(out, "' ;;");
    }
    put_line(out, "        esac\n"
                  "    fi");
    put_line(out, "    case \"$kinds\" in *key*) words=\"$words $(kiln cache list --keys 2>/dev/null)\" ;; "
                  "esac");
    put_line(out, "    COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))");
    put_line(out, "    case \"$kinds\" in *path*) COMPREPLY+=($(compgen -f -- \"$cur\")) ;; esac");
    put_line(out, "    [ \"${COMPREPLY[0]: -1}\" = '=' ] && compopt -o nospace\n"
                  "    return 0\n"
                  "}\n"
                  "complete -o filenames -F _kiln kiln");
}

/* A text inside 'name[...]' of zsh's _arguments, or after 'name:' of _describe. */
static void zsh_text(Str *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '\'')
            str_printf(out, "%s", "'\\''");
        else if (strchr("[]:\\", *text))
            str_printf(out, "\\%c", *text);
        else
            put_char(out, *text);
    }
}

static void zsh_commands(Str *out, bool of_cache)
{
    str_printf(out, "        local -a commands=(%s", of_cache ? "" : "'cache:the cache on disk'");
    for (int id = 0; id < VERB_COUNT; id++) {
        const char *name = verb_info[id].name, *space = strchr(name, ' ');
        if (verb_hidden((VerbId)id) || (space != NULL) != of_cache)
            continue;
        str_printf(out, " '%s:", space ? space + 1 : name);
        zsh_text(out, verb_info[id].help);
        put_char(out, '\'');
    }
    put_line(out, ")\n"
                  "        _describe command commands\n"
                  "        return");
}

static void zsh_flag(Str *out, const FlagInfo *flag)
{
    str_printf(out, " '--%s%s[", flag->name, *flag->value ? "=" : "");
    zsh_text(out, flag->help);
    put_char(out, ']');
    if (strchr(flag->value, '|')) {
        str_printf(out, ":%s:(", flag->name);
        print_choices(out, flag->value);
        put_char(out, ')');
    } else if (*flag->value) {
        str_printf(out, ":%s:%s", flag->name, strcmp(flag->value, "PATH") == 0 ? "_files" : " ");
    }
    put_char(out, '\'');
}

static void complete_zsh(Str *out)
{
    put_line(out, "#compdef kiln\n"
                  "# zsh completion of kiln, printed by `kiln completion zsh`");
    put_line(out, "_kiln_keys()\n"
                  "{\n"
                  "    local -a keys=(${(f)\"$(kiln cache list --keys 2>/dev/null)\"})\n"
                  "    compadd -a keys\n"
                  "}");
    put_line(out, "_kiln()\n"
                  "{\n"
                  "    local verb=$words[2]\n"
                  "    if (( CURRENT == 2 )); then");
    zsh_commands(out, false);
    put_line(out, "    fi\n"
                  "    if [[ $verb == cache ]]; then\n"
                  "        if (( CURRENT == 3 )); then");
    zsh_commands(out, true);
    put_line(out, "        fi\n"
                  "        verb=\"cache $words[3]\"\n"
                  "        shift words\n"
                  "        (( CURRENT-- ))\n"
                  "    fi\n"
                  "    shift words\n"
                  "    (( CURRENT-- ))");
    put_line(out, "    case $verb in");
    for (int id = 0; id < VERB_COUNT; id++) {
        const VerbInfo *verb = &verb_info[id];
        const char *kinds = completes(verb->arguments);
        if (verb_hidden((VerbId)id))
            continue;
        str_printf(out, "    '%s') _arguments", verb->name);
        for (int k = 0; k < FLAG_COUNT; k++)
            if (verb_takes((VerbId)id, k))
                zsh_flag(out, &flag_info[k]);
        if (strcmp(kinds, "words") == 0) {
            str_printf(out, " '*:word:(");
            print_choices(out, verb->arguments);
            str_printf(out, ")'");
        } else if (*kinds) {
            str_printf(out, " '*:%s:%s'", kinds,
                       strcmp(kinds, "key") == 0    ? "_kiln_keys"
                       : strcmp(kinds, "path") == 0 ? "_files"
                                                    : "{_kiln_keys; _files}");
        }
        put_line(out, " ;;");
    }
    put_line(out, "    esac\n"
                  "}\n"
                  "if [[ $funcstack[1] == _kiln ]]; then\n"
                  "    _kiln \"$@\"\n"
                  "else\n"
                  "    compdef _kiln kiln\n"
                  "fi");
}

/* A text in single quotes for fish, where \ and ' are escaped. */
static void quoted(Str *out, const char *text)
{
    put_char(out, '\'');
    for (; *text; text++) {
        if (*text == '\'' || *text == '\\')
            put_char(out, '\\');
        put_char(out, *text);
    }
    put_char(out, '\'');
}

static void complete_fish(Str *out)
{
    put_line(out, "# fish completion of kiln, printed by `kiln completion fish`\n"
                  "complete -c kiln -f");
    put_line(out, "complete -c kiln -n __fish_use_subcommand -a cache -d 'the cache on disk'");
    for (int id = 0; id < VERB_COUNT; id++) {
        const VerbInfo *verb = &verb_info[id];
        const char *space = strchr(verb->name, ' '), *word = space ? space + 1 : verb->name;
        char where[128];
        if (verb_hidden((VerbId)id))
            continue;
        if (space)
            str_printf(out,
                       "complete -c kiln -n 'test (count (commandline -opc)) -eq 2; and "
                       "__fish_seen_subcommand_from cache' -a %s -d ",
                       word);
        else
            str_printf(out, "complete -c kiln -n __fish_use_subcommand -a %s -d ", word);
        quoted(out, verb->help);
        put_char(out, '\n');
        snprintf(where, sizeof where, "__fish_seen_subcommand_from %s%s", space ? "cache; and __fish_seen_subcommand_from " : "", word);
        for (int k = 0; k < FLAG_COUNT; k++) {
            const FlagInfo *flag = &flag_info[k];
            if (!verb_takes((VerbId)id, k))
                continue;
            str_printf(out, "complete -c kiln -n '%s' -l %s ", where, flag->name);
            if (strchr(flag->value, '|')) {
                str_printf(out, "-x -a '");
                print_choices(out, flag->value);
                str_printf(out, "' ");
            } else if (*flag->value) {
                str_printf(out, strcmp(flag->value, "PATH") == 0 ? "-r -F " : "-x ");
            }
            str_printf(out, "-d ");
            quoted(out, flag->help);
            put_char(out, '\n');
        }
        const char *kinds = completes(verb->arguments);
        if (strstr(kinds, "key"))
            str_printf(out, "complete -c kiln -n '%s' -a '(kiln cache list --keys 2>/dev/null)'\n", where);
        if (strstr(kinds, "path"))
            str_printf(out, "complete -c kiln -n '%s' -F\n", where);
        if (strcmp(kinds, "words") == 0) {
            str_printf(out, "complete -c kiln -n '%s' -a '", where);
            print_choices(out, verb->arguments);
            put_line(out, "'");
        }
    }
}

int cmd_COMPLETION(Cli *cli)
{
    static const struct {
        const char *shell;
        void (*print)(Str *out);
    } shells[] = {{"bash", complete_bash}, {"zsh", complete_zsh}, {"fish", complete_fish}};
    for (size_t k = 0; k < sizeof shells / sizeof *shells; k++)
        if (strcmp(cli->args[0], shells[k].shell) == 0) {
            Str script;
            str_init(&script, cli->arena);
            shells[k].print(&script);
            if (flag_on(cli, FLAG_JSON)) {
                json_t *root = json_object();
                js_set(cli, root, "shell", js_text(shells[k].shell));
                js_set(cli, root, "script", js_text(script.text));
                return js_print(cli, root);
            }
            fputs(script.text, stdout);
            return END_FINE;
        }
    complain("there is no completion for \"%s\": bash, zsh and fish have one", cli->args[0]);
    return END_USAGE;
}
