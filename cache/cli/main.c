/*
 * kiln: the command that shows what is in the cache of compiled programs and what the library knows
 * of itself.
 *
 * In reading order: verbs.def (what there is), args.c (the command line against that table),
 * entries.c (the directory and its entries), then a file per group of verbs: list.c, show.c,
 * graph.c, diff.c, why.c, stats.c, upkeep.c, export.c, import.c, trace.c, report.c, info.c, tables.c.
 */
#include "cache/cli/cli.h"
#include "ir/base/os.h"
#include "ir/base/os_dir.h"
#include "ir/base/os_fd.h"
#include "ir/base/os_term.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH_WHERE_UNKNOWN = 80, NARROWEST = 40 };

/* COLUMNS wins over what the terminal says, as elsewhere; what is no terminal has no width. */
static int output_width(void)
{
    if (!os_is_terminal(stdout))
        return 0;
    const char *columns = os_getenv("COLUMNS");
    int width = columns ? atoi(columns) : 0;
    if (width <= 0)
        width = os_terminal_width(stdout);
    if (width <= 0)
        width = WIDTH_WHERE_UNKNOWN;
    return width < NARROWEST ? NARROWEST : width;
}

static bool wants_color(const Cli *cli)
{
    const char *when = cli->flag[FLAG_COLOR], *no_color = os_getenv("NO_COLOR"), *term = os_getenv("TERM");
    if (when && strcmp(when, "auto") != 0)
        return strcmp(when, "always") == 0;
    return os_is_terminal(stdout) && !(no_color && *no_color) && term && strcmp(term, "dumb") != 0;
}

/* Output that did not reach its file is an error even when everything else went well. */
static int finish(int status)
{
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout))
        return status;
    if (status != END_TROUBLE) /* else it was said */
        complain("cannot write the output%s%s", errno ? ": " : "", errno ? strerror(errno) : "");
    return END_TROUBLE;
}

static int run(int argc, char **argv, Arena *arena)
{
    Cli cli = {.arena = arena, .now = os_time()};
    int status = args_parse(&cli, argc, argv);
    if (status >= 0)
        return status;
    cli.width = output_width();
    cli.color = wants_color(&cli);
    return verb_info[cli.verb].run(&cli);
}

int main(int argc, char **argv)
{
    Arena arena;
    jmp_buf oom;
    arena_init(&arena, &oom);
    os_end_on_closed_pipe();
    OsLow low; /* for good: what is printed must not land in a file, where descriptors 0 to 2 are closed */
    os_low_hold(&low);
    OsWriting writing; /* likewise: a file that grows beyond the limit is an error, with a message, and no half file */
    os_writing_begin(&writing);
    int status = END_TROUBLE;
    if (setjmp(oom) == 0)
        status = run(argc, argv, &arena);
    else
        complain("out of memory");
    arena_free(&arena);
    return finish(status);
}
