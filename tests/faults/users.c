/*
 * Whose cache directory is it, and may it be used? Workers run as another user than root, for root ignores modes; where this test is
 * not run by root it uses its own user for that, and what needs a second one is left out and said.
 *
 *   refused, with a message that says why, and with no file in it touched: of another user, writable by group or others, a symbolic
 *   link, no directory
 *   used for reading only: a directory without write permission
 *   no cache at all, one warning: no home, a relative one
 *   used: a file system without permission to execute (code is mapped from memory)
 */
#include "tests/faults/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { NOBODY = 65534, PROGRAMS = 2 };

static unsigned other(void) { return geteuid() == 0 ? NOBODY : 0; }

/* A directory of the user that the worker will be. */
static const char *own_folder(void)
{
    const char *cache = new_folder();
    if (other())
        CHECK(chown(cache, NOBODY, NOBODY) == 0, "chown");
    return cache;
}

static bool can_run_as_other(void)
{
    const Run *run = worker(own_folder(), 1, NULL, other());
    if (run->exit == 0)
        return true;
    printf("user %u cannot run %s (exit %d): nothing is checked here\n", other(), KILN_WORKER, run->exit);
    CHECK(run->exit == 121 || run->exit == 127, "the worker failed:\n%s", run->text);
    return false;
}

/* Right values, one warning with this text, nothing kept and nothing loaded. */
static void without_cache(const Run *run, const char *what, const char *text)
{
    WELL(run, what);
    CHECK(run->warnings == 1 && strstr(run->text, text), "%s: one warning with \"%s\" is expected:\n%s", what, text, run->text);
    CHECK(run->stored == 0 && run->hits == 0 && run->compiles == PROGRAMS, "%s: it was used:\n%s", what, run->text);
}

static void modes(void)
{
    static const struct {
        const char *what, *mode, *text;
    } rows[] = {{"writable by the group", "0770", "others may write"},
                {"writable by others", "0702", "others may write"},
                {"writable by all, sticky", "1777", "others may write"}};
    if (!can_run_as_other())
        return;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *cache = own_folder();
        WELL(worker(cache, PROGRAMS, NULL, other()), "filling");
        shell("chmod %s '%s'", rows[i].mode, cache);
        without_cache(worker(cache, PROGRAMS, NULL, other()), rows[i].what, rows[i].text);
        shell("chmod 0700 '%s'", cache);
        const Run *run = worker(cache, PROGRAMS, NULL, other());
        CHECK(run->hits == PROGRAMS, "%s, then mended: %s", rows[i].what, run->text);
    }
    const char *cache = own_folder(); /* 0755 is nobody's danger */
    shell("chmod 0755 '%s'", cache);
    WELL(worker(cache, PROGRAMS, NULL, other()), "0755");
    CHECK(worker(cache, PROGRAMS, NULL, other())->hits == PROGRAMS, "0755 was not used");
    drop_folder();
}

/* Everything in a directory of another user is as it was, and unused: what lies there may be hostile. */
static void of_another_user(void)
{
    if (geteuid() != 0) {
        printf("not root: no directory of another user can be made\n");
        CHECK(true, "left out");
        return;
    }
    if (!can_run_as_other())
        return;
    const char *cache = new_folder(); /* root's */
    WELL(worker(cache, PROGRAMS, NULL, 0), "filling");
    shell("chmod -R go+rX '%s' && cp -a '%s' '%s.before'", cache, cache, cache);
    without_cache(worker(cache, PROGRAMS, NULL, NOBODY), "root's directory, as nobody", "belongs to user 0, not to user 65534");
    shell("diff -r '%s' '%s.before' && rm -rf '%s.before'", cache, cache, cache);
    shell("chown -R 65534:65534 '%s'", cache); /* and the other way round: root is not to run what nobody wrote */
    without_cache(worker(cache, PROGRAMS, NULL, 0), "nobody's directory, as root", "belongs to user 65534, not to user 0");
    drop_folder();
}

/* An entry that another user put into a good directory (by a mistake of modes that was mended since): not used. */
static void foreign_entries(void)
{
    if (geteuid() != 0) {
        CHECK(true, "left out");
        return;
    }
    const char *cache = own_folder();
    WELL(worker(cache, PROGRAMS, NULL, NOBODY), "filling");
    shell("find '%s' -name '*.kiln' -exec chown 0:0 {} + -exec chmod 0644 {} +", cache);
    const Run *run = worker(cache, PROGRAMS, NULL, NOBODY);
    WELL(run, "entries of another user");
    CHECK(run->hits == 0 && run->compiles == PROGRAMS, "entries of another user were used:\n%s", run->text);
    drop_folder();
}

static void no_directory(void)
{
    char link[PATH_BYTES + 8];
    const char *cache = new_folder();
    WELL(worker(cache, PROGRAMS, NULL, 0), "filling");
    snprintf(link, sizeof link, "%s.link", cache);
    shell("ln -s '%s' '%s'", cache, link);
    without_cache(worker(link, PROGRAMS, NULL, 0), "a symbolic link", "is a symbolic link");
    shell("rm '%s' && touch '%s'", link, link);
    without_cache(worker(link, PROGRAMS, NULL, 0), "a file", "Not a directory");
    shell("rm '%s' && mkfifo '%s'", link, link);
    without_cache(worker(link, PROGRAMS, NULL, 0), "a pipe", "Not a directory");
    shell("rm '%s'", link);
    char below[PATH_BYTES + 32];
    snprintf(below, sizeof below, "%s/CACHEDIR.TAG/x", cache);
    without_cache(worker(below, PROGRAMS, NULL, 0), "below a file", "Not a directory");
    snprintf(below, sizeof below, "%s/a/b/c", cache);
    const Run *run = worker(below, PROGRAMS, NULL, 0);
    CHECK(run->exit == 0 && run->stored == PROGRAMS && run->warnings == 0, "parents are made:\n%s", run->text);
    struct stat info;
    CHECK(stat(below, &info) == 0 && (info.st_mode & 0777) == 0700, "made with mode %o", info.st_mode & 0777);
    drop_folder();
}

static void read_only(void)
{
    if (!can_run_as_other())
        return;
    const char *cache = own_folder();
    WELL(worker(cache, 1, NULL, other()), "filling");
    shell("chmod -R a-w '%s'", cache);
    const Run *run = worker(cache, PROGRAMS, NULL, other());
    WELL(run, "a directory without write permission");
    CHECK(run->hits == 1 && run->compiles == PROGRAMS - 1 && run->stored == 0 && run->warnings <= 1,
          "what is there is used, the rest compiled, with one warning at most:\n%s", run->text);
    run = worker(cache, PROGRAMS, (const char *const[]){"KILN_CACHE=readonly", NULL}, other());
    WELL(run, "readonly");
    CHECK(run->hits == 1 && run->warnings == 0, "who asks for readonly gets no warning:\n%s", run->text);
    shell("chmod 0 '%s'", cache);
    without_cache(worker(cache, PROGRAMS, NULL, other()), "a directory that may not be entered", "Permission denied");
    drop_folder();
}

static void homes(void)
{
    const char *home = new_folder();
    char set[PATH_BYTES + 32], below[PATH_BYTES + 32];
    without_cache(worker(NULL, PROGRAMS, (const char *const[]){"HOME", NULL}, 0), "no home", "neither KILN_CACHE_DIR nor");
    without_cache(worker(NULL, PROGRAMS, (const char *const[]){"HOME=", NULL}, 0), "an empty home", "neither KILN_CACHE_DIR nor");
    without_cache(worker(NULL, PROGRAMS, (const char *const[]){"HOME=relative/path", NULL}, 0), "a relative home", "neither");
    snprintf(set, sizeof set, "HOME=%s", home);
    for (int with_relative = 0; with_relative < 2; with_relative++) { /* a relative XDG_CACHE_HOME is as good as none */
        const Run *run = worker(NULL, PROGRAMS, (const char *const[]){set, with_relative ? "XDG_CACHE_HOME=x/y" : NULL, NULL}, 0);
        WELL(run, "a home");
        CHECK(with_relative ? run->hits == PROGRAMS : run->stored == PROGRAMS, "$HOME/.cache/kiln is not used:\n%s", run->text);
    }
    snprintf(below, sizeof below, "%s/.cache/kiln", home);
    CHECK(entries(below, NULL, NULL) == PROGRAMS, "%d entries in $HOME/.cache/kiln", entries(below, NULL, NULL));
    snprintf(set, sizeof set, "XDG_CACHE_HOME=%s/xdg", home);
    WELL(worker(NULL, PROGRAMS, (const char *const[]){set, NULL}, 0), "XDG_CACHE_HOME");
    snprintf(below, sizeof below, "%s/xdg/kiln", home);
    CHECK(entries(below, NULL, NULL) == PROGRAMS, "%d entries in $XDG_CACHE_HOME/kiln", entries(below, NULL, NULL));
    drop_folder();
}

/* A process that gained rights when it started (here: by a setuid copy of the worker) uses no cache. */
static void elevated(void)
{
    char copy[PATH_BYTES + 32];
    const char *cache = new_folder();
    if (geteuid() != 0) {
        CHECK(true, "left out");
        return;
    }
    struct statvfs where;
    snprintf(copy, sizeof copy, "%s.setuid", cache);
    shell("cp '%s' '%s' && chmod 4755 '%s' && chown 65534:65534 '%s'", KILN_WORKER, copy, copy, cache);
    if (statvfs(copy, &where) == 0 && where.f_flag & ST_NOSUID) {
        printf("no setuid programs in %s: left out\n", cache);
        CHECK(true, "left out");
    } else {
        shell("chmod 4755 '%s'", copy);
        const Run *run = worker_at(copy, cache, PROGRAMS, NULL, NOBODY);
        CHECK(entries(cache, NULL, NULL) == 0, "a setuid process wrote to the cache:\n%s", run->text);
        printf("a setuid copy ended with %d\n", run->exit);
        if (run->exit != 121 && run->exit != 127) /* its library may be out of reach for it: then nothing ran */
            WELL(run, "setuid");
    }
    shell("rm -f '%s'", copy);
    drop_folder();
}

/* Where nothing may be executed: code is mapped from memory, so it does not matter. */
static void noexec(void)
{
    char mount[PATH_BYTES + 64], command[4 * PATH_BYTES];
    snprintf(mount, sizeof mount, "%s", new_folder());
    snprintf(command, sizeof command,
             "unshare -m sh -c 'mount -t tmpfs -o noexec,mode=0700 none \"%s\" && export KILN_CACHE=on KILN_CACHE_DIR=\"%s\" && "
             "\"%s\" 2 >/dev/null && \"%s\" 2' 2>&1",
             mount, mount, KILN_WORKER, KILN_WORKER);
    FILE *pipe = popen(command, "r");
    char text[4096] = "";
    size_t n = pipe ? fread(text, 1, sizeof text - 1, pipe) : 0;
    text[n] = '\0';
    int status = pipe ? pclose(pipe) : -1;
    if (!strstr(text, "right=")) {
        printf("no file system can be mounted here: noexec is left out (%s)\n", text);
        CHECK(true, "left out");
    } else {
        CHECK(status == 0 && strstr(text, "compiles=0 hits=2"), "status %d:\n%s", status, text);
    }
    drop_folder();
}

int main(int argc, char **argv)
{
    static const Test tests[] = {{"modes", modes},
                                 {"of_another_user", of_another_user},
                                 {"foreign_entries", foreign_entries},
                                 {"no_directory", no_directory},
                                 {"read_only", read_only},
                                 {"homes", homes},
                                 {"elevated", elevated},
                                 {"noexec", noexec}};
    return run_tests("users", tests, sizeof tests / sizeof *tests, argc, argv);
}
