/*
 * Between two runs anything in the cache directory is removed, emptied, cut, duplicated, or something else lies in its place: what a user, a
 * clean-up, a back-up or a crash may leave. The next run has the right values; the run after it still finds what can be found, and a program
 * that is new is still kept.
 *
 * leftovers --long: each harm to each path, instead of a quarter of them.
 */
#include "tests/faults/harness.h"

#include <stdio.h>
#include <string.h>

enum { PROGRAMS = 2, MOST_PATHS = 32 };

static char paths[MOST_PATHS][PATH_BYTES];
static bool is_long;

/* Every file and folder of a filled directory, by its path inside. */
static int list(const char *cache)
{
    char command[2 * PATH_BYTES];
    int n = 0;
    snprintf(command, sizeof command, "cd '%s' && find . -mindepth 1 | sort", cache);
    FILE *pipe = popen(command, "r");
    while (pipe && n < MOST_PATHS && fgets(paths[n], PATH_BYTES, pipe)) {
        paths[n][strcspn(paths[n], "\n")] = '\0';
        n++;
    }
    CHECK(pipe && pclose(pipe) == 0 && n < MOST_PATHS, "%s", command);
    return n;
}

/* $1: the path. What does not apply to a folder or to a file changes nothing. */
static const struct {
    const char *what, *command;
} harms[] = {
    {"removed", "rm -rf \"$1\""},
    {"emptied", "if [ -d \"$1\" ]; then rm -rf \"$1\"/*; else : >\"$1\"; fi"},
    {"cut", "[ -d \"$1\" ] || truncate -s 5 \"$1\""},
    {"duplicated", "cp -a \"$1\" \"$1.copy\""},
    {"duplicated as a temporary", "cp -a \"$1\" \"$(dirname \"$1\")/tmp.1.0123456789abcdef\""},
    {"a folder", "rm -rf \"$1\" && mkdir -m 700 \"$1\""},
    {"a file", "rm -rf \"$1\" && echo text >\"$1\""},
    {"a link that leads nowhere", "rm -rf \"$1\" && ln -s nowhere \"$1\""},
    {"a link to itself", "rm -rf \"$1\" && ln -s \"$(basename \"$1\")\" \"$1\""},
    {"a pipe", "rm -rf \"$1\" && mkfifo \"$1\""},
};

static void anything(void)
{
    char kept[PATH_BYTES + 16], what[PATH_BYTES + 64];
    const char *cache = new_folder();
    WELL(worker(cache, PROGRAMS, NULL, 0), "filling");
    WELL(worker(cache, PROGRAMS, NULL, 0), "once more");
    shell("touch '%s/evicted'", cache);
    int n = list(cache), blocked = 0;
    CHECK(n > 2 * PROGRAMS, "%d paths", n);
    snprintf(kept, sizeof kept, "%s.kept", cache);
    shell("rm -rf '%s' && cp -a '%s' '%s'", kept, cache, kept);
    for (int i = 0; i < n; i++)
        for (size_t k = 0; k < sizeof harms / sizeof *harms; k++) {
            if (!is_long && ((size_t)i + k) % 4)
                continue;
            snprintf(what, sizeof what, "%.*s: %s", PATH_BYTES - 1, paths[i], harms[k].what);
            shell("rm -rf '%s' && cp -a '%s' '%s' && cd '%s' && sh -c '%s' sh '%s'", cache, kept, cache, cache, harms[k].command, paths[i]);
            WELL(worker(cache, PROGRAMS, NULL, 0), what);
            const Run *more = worker(cache, PROGRAMS + 1, NULL, 0);
            WELL(more, what);
            CHECK(more->hits >= PROGRAMS - 1, "%s: nothing is found any more:\n%s", what, more->text);
            const Run *last = worker(cache, PROGRAMS + 1, NULL, 0);
            WELL(last, what);
            CHECK(last->hits >= PROGRAMS && last->hits > more->hits, "%s: what is new is not kept:\n%s", what, last->text);
            blocked += last->hits <= PROGRAMS;
        }
    /* An entry, or its folder, whose place is taken by a folder (or for the folder by anything else) is done without until somebody clears it. */
    printf("%d paths, %zu kinds of harm; in %d cases one program could not be kept\n", n, sizeof harms / sizeof *harms, blocked);
    CHECK(blocked <= 6 * PROGRAMS, "%d cases", blocked);
    shell("rm -rf '%s'", kept);
    drop_folder();
}

int main(int argc, char **argv)
{
    static const Test tests[] = {{"anything", anything}};
    is_long = argc > 1 && strcmp(argv[1], "--long") == 0;
    return run_some_tests("leftovers", tests, sizeof tests / sizeof *tests, argc - is_long, argv + is_long);
}
