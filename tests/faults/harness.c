/* See harness.h. */
#include "tests/faults/harness.h"
#include "tests/faults/whole.h"
#include "tests/support/seconds.h"

#include <dirent.h>
#include <grp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char folder[PATH_BYTES];

void shell(const char *format, ...)
{
    char command[4 * PATH_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(command, sizeof command, format, args);
    va_end(args);
    int status = system(command);
    CHECK(status == 0, "%s: status %d", command, status);
}

const char *new_folder(void)
{
    const char *tmp = getenv("TMPDIR");
    drop_folder();
    snprintf(folder, sizeof folder, "%s/kiln_faults_XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(folder)) {
        perror(folder);
        exit(2);
    }
    return folder;
}

void drop_folder(void)
{
    if (folder[0])
        shell("chmod -R u+rwx '%s' 2>/dev/null; rm -rf '%s'", folder, folder);
    folder[0] = '\0';
}

/* --- workers ------------------------------------------------------------------------------------------------------------- */

static void become(unsigned uid)
{
    if (uid && (setgroups(0, NULL) != 0 || setgid(uid) != 0 || setuid(uid) != 0))
        _exit(120);
}

static void set_environment(const char *cache, const char *const *environment)
{
    setenv("KILN_CACHE", "on", 1);
    setenv("KILN_THREADS", "1", 1);
    unsetenv("XDG_CACHE_HOME");
    if (cache)
        setenv("KILN_CACHE_DIR", cache, 1);
    else
        unsetenv("KILN_CACHE_DIR");
    for (; environment && *environment; environment++) {
        const char *equal = strchr(*environment, '=');
        char name[64];
        snprintf(name, sizeof name, "%.*s", (int)(equal ? equal - *environment : 63), *environment);
        if (equal)
            setenv(name, equal + 1, 1);
        else
            unsetenv(name);
    }
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

long number(const Run *run, const char *name)
{
    char word[64];
    snprintf(word, sizeof word, " %s=", name);
    const char *line = strstr(run->text, "right="), *at = line ? strstr(line, word) : NULL;
    return at ? strtol(at + strlen(word), NULL, 10) : 0;
}

static void read_all(int from, char *text, size_t size)
{
    size_t n = 0;
    char rest[512];
    for (;;) {
        bool room = n + 1 < size;
        ssize_t got = read(from, room ? text + n : rest, room ? size - 1 - n : sizeof rest);
        if (got <= 0)
            break;
        n += room ? (size_t)got : 0;
    }
    text[n] = '\0';
}

const Run *worker_at(const char *path, const char *cache, int programs, const char *const *environment, unsigned uid)
{
    static Run runs[4];
    static int turn;
    Run *run = &runs[turn++ % 4];
    int pipes[2], status = 0;
    *run = (Run){.exit = -1, .signal = -1};
    double start = now();
    fflush(stdout);
    if (pipe(pipes) != 0)
        return run;
    pid_t child = fork();
    if (child == 0) {
        char count[16];
        snprintf(count, sizeof count, "%d", programs);
        dup2(pipes[1], 1);
        dup2(pipes[1], 2);
        close(pipes[0]);
        close(pipes[1]);
        set_environment(cache, environment);
        become(uid);
        test_seconds(60);
        execl(path, "worker", count, (char *)NULL);
        _exit(121);
    }
    close(pipes[1]);
    read_all(pipes[0], run->text, sizeof run->text);
    close(pipes[0]);
    waitpid(child, &status, 0);
    run->seconds = now() - start;
    run->exit = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    run->signal = WIFSIGNALED(status) ? WTERMSIG(status) : -1;
    run->compiles = number(run, "compiles");
    run->hits = number(run, "hits");
    run->refused = number(run, "refused");
    run->stored = number(run, "stored");
    run->fallbacks = number(run, "fallbacks");
    run->warnings = number(run, "warnings");
    run->descriptors = number(run, "descriptors");
    return run;
}

const Run *worker(const char *cache, int programs, const char *const *environment, unsigned uid)
{
    return worker_at(KILN_WORKER, cache, programs, environment, uid);
}

/* --- what lies on disk ------------------------------------------------------------------------------------------------------ */

size_t read_file(const char *path, unsigned char *bytes, size_t most)
{
    FILE *f = fopen(path, "rb");
    size_t n = f ? fread(bytes, 1, most, f) : 0;
    if (f)
        fclose(f);
    return n;
}

void write_file(const char *path, const void *bytes, size_t n)
{
    FILE *f = fopen(path, "wb");
    bool ok = f && fwrite(bytes, 1, n, f) == n;
    ok = f && fclose(f) == 0 && ok && chmod(path, 0600) == 0;
    CHECK(ok, "writing %s", path);
}

typedef struct Count {
    int n, bad, temporary;
} Count;

/* Every file in the folders of the cache directory, and the temporaries beside them. */
static void each_file(const char *cache, void (*each)(const char *path, const char *name, void *user), void *user)
{
    for (int i = 0; i <= 256; i++) {
        char path[PATH_BYTES], file[2 * PATH_BYTES];
        bool top = i == 256;
        if (top)
            snprintf(path, sizeof path, "%s", cache);
        else
            snprintf(path, sizeof path, "%s/%02x", cache, i);
        DIR *dir = opendir(path);
        for (struct dirent *entry; dir && (entry = readdir(dir));) {
            snprintf(file, sizeof file, "%s/%s", path, entry->d_name);
            if (top ? strncmp(entry->d_name, "tmp.", 4) == 0 : entry->d_name[0] != '.')
                each(file, entry->d_name, user);
        }
        if (dir)
            closedir(dir);
    }
}

static void count_one(const char *path, const char *name, void *user)
{
    Count *count = user;
    if (strncmp(name, "tmp.", 4) == 0) {
        count->temporary++;
    } else {
        count->n++;
        count->bad += !entry_is_whole(path, name);
    }
}

int entries(const char *cache, int *bad, int *temporary)
{
    Count count = {0};
    each_file(cache, count_one, &count);
    if (bad)
        *bad = count.bad;
    if (temporary)
        *temporary = count.temporary;
    return count.n;
}

typedef struct Each {
    void (*each)(const char *path, void *user);
    void *user;
} Each;

static void only_entries(const char *path, const char *name, void *user)
{
    const Each *each = user;
    if (strncmp(name, "tmp.", 4) != 0)
        each->each(path, each->user);
}

void each_entry(const char *cache, void (*each)(const char *path, void *user), void *user)
{
    each_file(cache, only_entries, &(Each){each, user});
}
