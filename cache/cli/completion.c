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

static void print_choices(const char *choices)
{
    for (const char *c = choices; *c; c++)
        putchar(*c == '|' ? ' ' : *c);
}

static void complete_bash(void)
{
    puts("# bash completion of kiln, printed by `kiln completion bash`");
    puts("_kiln()\n"
         "{\n"
         "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} "
         "verb=${COMP_WORDS[1]} words= kinds=");
    puts("    COMPREPLY=()\n"
         "    [ \"$verb\" = cache ] && [ $COMP_CWORD -gt 2 ] && verb=\"cache ${COMP_WORDS[2]}\"");
    puts("    if [ \"$prev\" = '=' ]; then prev=${COMP_WORDS[COMP_CWORD-2]}; fi\n"
         "    [ \"$cur\" = '=' ] && cur=");
    puts("    case $prev in");
    for (int k = 0; k < FLAG_COUNT; k++) {
        const char *value = flag_info[k].value;
        if (!*value)
            continue;
        printf("    --%s) ", flag_info[k].name);
        if (strchr(value, '|')) {
            printf("COMPREPLY=($(compgen -W '");
            print_choices(value);
            puts("' -- \"$cur\")); return ;;");
        } else if (strcmp(value, "PATH") == 0) {
            puts("COMPREPLY=($(compgen -f -- \"$cur\")); return ;;");
        } else {
            puts("return ;;");
        }
    }
    puts("    esac\n"
         "    if [ $COMP_CWORD -eq 1 ]; then");
    printf("        words='cache");
    for (int id = 0; id < VERB_COUNT; id++)
        if (!verb_hidden((VerbId)id) && !strchr(verb_info[id].name, ' '))
            printf(" %s", verb_info[id].name);
    puts("'\n"
         "    elif [ $COMP_CWORD -eq 2 ] && [ \"$verb\" = cache ]; then");
    printf("        words='");
    for (int id = 0; id < VERB_COUNT; id++)
        if (strchr(verb_info[id].name, ' '))
            printf("%s ", strchr(verb_info[id].name, ' ') + 1);
    puts("'\n"
         "    else\n"
         "        case $verb in");
    for (int id = 0; id < VERB_COUNT; id++) {
        const VerbInfo *verb = &verb_info[id];
        if (verb_hidden((VerbId)id))
            continue;
        printf("        '%s') kinds='%s' words='", verb->name, completes(verb->arguments));
        if (strcmp(completes(verb->arguments), "words") == 0) {
            print_choices(verb->arguments);
            putchar(' ');
        }
        for (int k = 0; k < FLAG_COUNT; k++)
            if (verb_takes((VerbId)id, k))
                printf("--%s%s ", flag_info[k].name, *flag_info[k].value ? "=" : "");
        puts("' ;;");
    }
    puts("        esac\n"
         "    fi");
    puts("    case \"$kinds\" in *key*) words=\"$words $(kiln cache list --keys 2>/dev/null)\" ;; "
         "esac");
    puts("    COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))");
    puts("    case \"$kinds\" in *path*) COMPREPLY+=($(compgen -f -- \"$cur\")) ;; esac");
    puts("    [ \"${COMPREPLY[0]: -1}\" = '=' ] && compopt -o nospace\n"
         "    return 0\n"
         "}\n"
         "complete -o filenames -F _kiln kiln");
}

/* A text inside 'name[...]' of zsh's _arguments, or after 'name:' of _describe. */
static void zsh_text(const char *text)
{
    for (; *text; text++) {
        if (*text == '\'')
            fputs("'\\''", stdout);
        else if (strchr("[]:\\", *text))
            printf("\\%c", *text);
        else
            putchar(*text);
    }
}

static void zsh_commands(bool of_cache)
{
    printf("        local -a commands=(%s", of_cache ? "" : "'cache:the cache on disk'");
    for (int id = 0; id < VERB_COUNT; id++) {
        const char *name = verb_info[id].name, *space = strchr(name, ' ');
        if (verb_hidden((VerbId)id) || (space != NULL) != of_cache)
            continue;
        printf(" '%s:", space ? space + 1 : name);
        zsh_text(verb_info[id].help);
        putchar('\'');
    }
    puts(")\n"
         "        _describe command commands\n"
         "        return");
}

static void zsh_flag(const FlagInfo *flag)
{
    printf(" '--%s%s[", flag->name, *flag->value ? "=" : "");
    zsh_text(flag->help);
    putchar(']');
    if (strchr(flag->value, '|')) {
        printf(":%s:(", flag->name);
        print_choices(flag->value);
        putchar(')');
    } else if (*flag->value) {
        printf(":%s:%s", flag->name, strcmp(flag->value, "PATH") == 0 ? "_files" : " ");
    }
    putchar('\'');
}

static void complete_zsh(void)
{
    puts("#compdef kiln\n"
         "# zsh completion of kiln, printed by `kiln completion zsh`");
    puts("_kiln_keys()\n"
         "{\n"
         "    local -a keys=(${(f)\"$(kiln cache list --keys 2>/dev/null)\"})\n"
         "    compadd -a keys\n"
         "}");
    puts("_kiln()\n"
         "{\n"
         "    local verb=$words[2]\n"
         "    if (( CURRENT == 2 )); then");
    zsh_commands(false);
    puts("    fi\n"
         "    if [[ $verb == cache ]]; then\n"
         "        if (( CURRENT == 3 )); then");
    zsh_commands(true);
    puts("        fi\n"
         "        verb=\"cache $words[3]\"\n"
         "        shift words\n"
         "        (( CURRENT-- ))\n"
         "    fi\n"
         "    shift words\n"
         "    (( CURRENT-- ))");
    puts("    case $verb in");
    for (int id = 0; id < VERB_COUNT; id++) {
        const VerbInfo *verb = &verb_info[id];
        const char *kinds = completes(verb->arguments);
        if (verb_hidden((VerbId)id))
            continue;
        printf("    '%s') _arguments", verb->name);
        for (int k = 0; k < FLAG_COUNT; k++)
            if (verb_takes((VerbId)id, k))
                zsh_flag(&flag_info[k]);
        if (strcmp(kinds, "words") == 0) {
            printf(" '*:word:(");
            print_choices(verb->arguments);
            printf(")'");
        } else if (*kinds) {
            printf(" '*:%s:%s'", kinds,
                   strcmp(kinds, "key") == 0    ? "_kiln_keys"
                   : strcmp(kinds, "path") == 0 ? "_files"
                                                : "{_kiln_keys; _files}");
        }
        puts(" ;;");
    }
    puts("    esac\n"
         "}\n"
         "if [[ $funcstack[1] == _kiln ]]; then\n"
         "    _kiln \"$@\"\n"
         "else\n"
         "    compdef _kiln kiln\n"
         "fi");
}

/* A text in single quotes for fish, where \ and ' are escaped. */
static void quoted(const char *text)
{
    putchar('\'');
    for (; *text; text++) {
        if (*text == '\'' || *text == '\\')
            putchar('\\');
        putchar(*text);
    }
    putchar('\'');
}

static void complete_fish(void)
{
    puts("# fish completion of kiln, printed by `kiln completion fish`\n"
         "complete -c kiln -f");
    puts("complete -c kiln -n __fish_use_subcommand -a cache -d 'the cache on disk'");
    for (int id = 0; id < VERB_COUNT; id++) {
        const VerbInfo *verb = &verb_info[id];
        const char *space = strchr(verb->name, ' '), *word = space ? space + 1 : verb->name;
        char where[128];
        if (verb_hidden((VerbId)id))
            continue;
        if (space)
            printf("complete -c kiln -n 'test (count (commandline -opc)) -eq 2; and "
                   "__fish_seen_subcommand_from cache' -a %s -d ",
                   word);
        else
            printf("complete -c kiln -n __fish_use_subcommand -a %s -d ", word);
        quoted(verb->help);
        putchar('\n');
        snprintf(where, sizeof where, "__fish_seen_subcommand_from %s%s", space ? "cache; and __fish_seen_subcommand_from " : "", word);
        for (int k = 0; k < FLAG_COUNT; k++) {
            const FlagInfo *flag = &flag_info[k];
            if (!verb_takes((VerbId)id, k))
                continue;
            printf("complete -c kiln -n '%s' -l %s ", where, flag->name);
            if (strchr(flag->value, '|')) {
                printf("-x -a '");
                print_choices(flag->value);
                printf("' ");
            } else if (*flag->value) {
                printf(strcmp(flag->value, "PATH") == 0 ? "-r -F " : "-x ");
            }
            printf("-d ");
            quoted(flag->help);
            putchar('\n');
        }
        const char *kinds = completes(verb->arguments);
        if (strstr(kinds, "key"))
            printf("complete -c kiln -n '%s' -a '(kiln cache list --keys 2>/dev/null)'\n", where);
        if (strstr(kinds, "path"))
            printf("complete -c kiln -n '%s' -F\n", where);
        if (strcmp(kinds, "words") == 0) {
            printf("complete -c kiln -n '%s' -a '", where);
            print_choices(verb->arguments);
            puts("'");
        }
    }
}

int cmd_COMPLETION(Cli *cli)
{
    static const struct {
        const char *shell;
        void (*print)(void);
    } shells[] = {{"bash", complete_bash}, {"zsh", complete_zsh}, {"fish", complete_fish}};
    for (size_t k = 0; k < sizeof shells / sizeof *shells; k++)
        if (strcmp(cli->args[0], shells[k].shell) == 0) {
            shells[k].print();
            return END_FINE;
        }
    complain("there is no completion for \"%s\": bash, zsh and fish have one", cli->args[0]);
    return END_USAGE;
}
