/*
 * The operating system, as far as kiln needs it (POSIX and Linux). See os.h for what each function promises.
 *
 * How it works: thin wrappers. Every heap call passes `inject`, which lets a test make the n-th call from now fail.
 * What must hold: nothing here prints, exits or keeps state apart from that counter.
 * Leaves out: devices, and files that are read piecewise (those use stdio where they are needed).
 */
#include "ir/base/os.h"
#include "ir/base/os_fd.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { HUGE_PAGE = 2 << 20 };

/* ---- heap ---- */

static atomic_int_least64_t fail_after; /* > 0: so many heap calls until one fails */
static atomic_bool fail_sticky, fail_always;

void os_fail_alloc(int64_t nth, bool sticky)
{
    atomic_store(&fail_always, false);
    atomic_store(&fail_sticky, sticky);
    atomic_store(&fail_after, nth > 0 ? nth : 0);
}

/* True when this heap call is to fail. */
static bool inject(void)
{
    if (atomic_load_explicit(&fail_always, memory_order_relaxed))
        return true;
    if (atomic_load_explicit(&fail_after, memory_order_relaxed) <= 0)
        return false;
    if (atomic_fetch_sub(&fail_after, 1) != 1)
        return false;
    if (atomic_load(&fail_sticky))
        atomic_store(&fail_always, true);
    return true;
}

void *os_alloc(size_t bytes) { return inject() ? NULL : malloc(bytes ? bytes : 1); }

void *os_calloc(size_t count, size_t bytes)
{
    if (inject())
        return NULL;
    return count && bytes ? calloc(count, bytes) : calloc(1, 1);
}

void *os_realloc(void *block, size_t bytes) { return inject() ? NULL : realloc(block, bytes ? bytes : 1); }

void *os_copy(const void *from, size_t bytes)
{
    void *copy = os_alloc(bytes);
    if (copy && bytes)
        memcpy(copy, from, bytes);
    return copy;
}

void os_free(void *block) { free(block); }

void *os_alloc_aligned(size_t align, size_t bytes)
{
    if (inject())
        return NULL;
    bool huge = bytes >= HUGE_PAGE;
    if (huge && align < HUGE_PAGE)
        align = HUGE_PAGE;
    void *block = NULL;
    if (posix_memalign(&block, align, bytes ? bytes : 1) != 0)
        return NULL;
    if (huge)
        madvise(block, bytes, MADV_HUGEPAGE); /* advice: failure changes nothing but speed */
    return block;
}

/* ---- time, CPUs, environment ---- */

double os_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* false: more than 1024 CPUs, for which the set is too small. */
static bool process_cpus(cpu_set_t *set) { return sched_getaffinity(getpid(), sizeof *set, set) == 0 && CPU_COUNT(set) > 0; }

int os_cpu_count(void)
{
    cpu_set_t set;
    if (process_cpus(&set))
        return CPU_COUNT(&set);
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (int)online : 1;
}

/* The file lists them in rising order: "0-1", "0,2-3". */
int os_numa_nodes(void)
{
    char text[256] = "";
    FILE *f = os_open_stream("/sys/devices/system/node/has_cpu", "r");
    if (f) {
        size_t n = fread(text, 1, sizeof text - 1, f);
        text[n] = 0;
        fclose(f);
    }
    const char *last = text;
    for (const char *at = text; *at; at++)
        if (*at == ',' || *at == '-')
            last = at + 1;
    long highest = strtol(last, NULL, 10);
    return highest > 0 && highest < 1 << 10 ? (int)highest + 1 : 1;
}

int os_numa_node(void)
{
    unsigned cpu, node;
    return syscall(SYS_getcpu, &cpu, &node, NULL) == 0 ? (int)node : 0;
}

void os_use_all_cpus(void)
{
    cpu_set_t set;
    if (process_cpus(&set))
        (void)sched_setaffinity(0, sizeof set, &set);
}

/* The number in a file of one line; `most` where there is none. */
static int64_t read_limit(const char *path, int64_t most)
{
    long long limit = 0;
    FILE *f = os_open_stream(path, "r");
    if (!f)
        return most;
    bool read = fscanf(f, "%lld", &limit) == 1; /* "max": no limit */
    fclose(f);
    return read && limit > 0 && limit < most ? limit : most;
}

int64_t os_memory_bytes(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    int64_t most = pages > 0 && size > 0 ? (int64_t)pages * size : INT64_MAX;
    static const int limits[] = {RLIMIT_AS, RLIMIT_DATA};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        struct rlimit limit;
        if (getrlimit((__rlimit_resource_t)limits[i], &limit) == 0 && limit.rlim_cur < (rlim_t)most)
            most = (int64_t)limit.rlim_cur;
    }
    most = read_limit("/sys/fs/cgroup/memory.max", most);                   /* version 2 */
    return read_limit("/sys/fs/cgroup/memory/memory.limit_in_bytes", most); /* version 1 */
}

const char *os_getenv(const char *name) { return secure_getenv(name); }

/* ---- exit ---- */

/* glibc: what C++ calls for thread_local objects, which exit() destroys before it runs the handlers of atexit. */
extern int __cxa_thread_atexit_impl(void (*fn)(void *), void *arg, void *library) __attribute__((weak));
extern void *__dso_handle __attribute__((visibility("hidden")));

static void call(void *fn)
{
    void (*function)(void);
    memcpy(&function, &fn, sizeof function);
    function();
}

static void call_at_exit(int status, void *fn)
{
    (void)status;
    call(fn);
}

bool os_at_exit(void (*fn)(void))
{
    void *arg;
    memcpy(&arg, &fn, sizeof arg);
    return on_exit(call_at_exit, arg) == 0;
}

bool os_before_exit(void (*fn)(void))
{
    void *arg;
    memcpy(&arg, &fn, sizeof arg);
    bool main_thread = getpid() == (pid_t)syscall(SYS_gettid);
    bool first = main_thread && __cxa_thread_atexit_impl && __cxa_thread_atexit_impl(call, arg, &__dso_handle) == 0;
    return os_at_exit(fn) && first;
}

bool os_elevated(void) { return getauxval(AT_SECURE) != 0; }

typedef struct BuildId {
    uintptr_t address; /* in the object that is looked for */
    char *hex;
    size_t size;
    bool found;
} BuildId;

static void read_note(BuildId *id, const unsigned char *at, size_t bytes)
{
    ElfW(Nhdr) note;
    while (bytes >= sizeof note && !id->found) {
        memcpy(&note, at, sizeof note);
        size_t name = (note.n_namesz + 3u) & ~3u, length = (note.n_descsz + 3u) & ~3u;
        if (name > bytes - sizeof note || length > bytes - sizeof note - name)
            return;
        if (note.n_type == NT_GNU_BUILD_ID && name == 4 && memcmp(at + sizeof note, "GNU", 4) == 0 && note.n_descsz > 0 &&
            2 * note.n_descsz < id->size) {
            for (size_t i = 0; i < note.n_descsz; i++)
                snprintf(id->hex + 2 * i, 3, "%02x", at[sizeof note + name + i]);
            id->found = true;
        }
        at += sizeof note + name + length;
        bytes -= sizeof note + name + length;
    }
}

/* Looks at one loaded object; not 0 ends the search. */
static int look_at_object(struct dl_phdr_info *info, size_t size, void *user)
{
    BuildId *id = user;
    bool ours = false;
    (void)size;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *h = &info->dlpi_phdr[i];
        ours |= h->p_type == PT_LOAD && id->address - (info->dlpi_addr + h->p_vaddr) < h->p_memsz;
    }
    for (int i = 0; ours && i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *h = &info->dlpi_phdr[i];
        if (h->p_type == PT_NOTE)
            read_note(id, (const unsigned char *)(uintptr_t)(info->dlpi_addr + h->p_vaddr), h->p_memsz);
    }
    return ours;
}

bool os_build_id(char *hex, size_t size)
{
    static const char here;
    BuildId id = {(uintptr_t)&here, hex, size, false};
    dl_iterate_phdr(look_at_object, &id);
    return id.found;
}

/* ---- executable memory ---- */

void *os_map_rw(size_t bytes)
{
    void *block = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return block == MAP_FAILED ? NULL : block;
}

bool os_protect_rx(void *block, size_t bytes) { return mprotect(block, bytes, PROT_READ | PROT_EXEC) == 0; }

void os_unmap(void *block, size_t bytes)
{
    if (block)
        munmap(block, bytes);
}

/* ---- waiting ---- */

void os_give_way(double seconds)
{
    struct timespec rest = {.tv_sec = (time_t)seconds, .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    if (seconds > 0)
        nanosleep(&rest, NULL);
    else
        sched_yield();
}

/* ---- shared libraries ---- */

void *os_library_open(const char *name) { return dlopen(name, RTLD_NOW | RTLD_LOCAL); }

void *os_library_open_for_all(const char *name) { return dlopen(name, RTLD_NOW | RTLD_GLOBAL); }

void *os_library_symbol(void *library, const char *name) { return dlsym(library, name); }

bool os_library_folder(char *path, size_t size)
{
    static const char here = 0;
    Dl_info info;
    if (!dladdr(&here, &info) || !info.dli_fname)
        return false;
    const char *end = strrchr(info.dli_fname, '/');
    size_t n = end ? (size_t)(end - info.dli_fname) + 1 : 0;
    if (n == 0 || n >= size)
        return false;
    memcpy(path, info.dli_fname, n);
    path[n] = 0;
    return true;
}

const char *os_library_error(void)
{
    const char *text = dlerror();
    return text ? text : "unknown";
}

/* ---- threads ---- */

int os_cancel_off(void)
{
    int before;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    return before;
}

void os_cancel_restore(int before)
{
    int off;
    pthread_setcancelstate(before, &off);
}

/* ---- a deep stack ---- */

typedef struct StackCall {
    void (*fn)(void *);
    void *arg;
} StackCall;

static void *stack_main(void *call_)
{
    StackCall *call = call_;
    call->fn(call->arg);
    return NULL;
}

/* Signals are the business of the user's threads: a thread of ours takes none but those that it causes itself. */
static bool start_thread(pthread_t *thread, size_t stack_bytes, void *(*fn)(void *), void *arg)
{
    pthread_attr_t attr;
    if (pthread_attr_init(&attr) != 0)
        return false;
    sigset_t all, old;
    sigfillset(&all);
    sigdelset(&all, SIGSEGV);
    sigdelset(&all, SIGBUS);
    sigdelset(&all, SIGFPE);
    sigdelset(&all, SIGILL);
    sigdelset(&all, SIGABRT);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    bool started = pthread_attr_setstacksize(&attr, stack_bytes) == 0 && pthread_create(thread, &attr, fn, arg) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
    return started;
}

void os_run_on_stack(size_t stack_bytes, void (*fn)(void *), void *arg)
{
    StackCall call = {fn, arg};
    pthread_t thread;
    int cancel = os_cancel_off();
    if (start_thread(&thread, stack_bytes, stack_main, &call))
        pthread_join(thread, NULL);
    else
        fn(arg);
    os_cancel_restore(cancel);
}

typedef struct ParallelCall {
    void (*fn)(void *arg, uint32_t i);
    void *arg;
    uint32_t n;
    atomic_uint next;
} ParallelCall;

static void *parallel_main(void *call_)
{
    ParallelCall *call = call_;
    for (uint32_t i; (i = atomic_fetch_add(&call->next, 1)) < call->n;)
        call->fn(call->arg, i);
    return NULL;
}

static void *parallel_thread(void *call)
{
    os_use_all_cpus();
    return parallel_main(call);
}

void os_run_parallel(size_t stack_bytes, void (*fn)(void *arg, uint32_t i), void *arg, uint32_t n)
{
    enum { MOST = 64 };
    ParallelCall call = {.fn = fn, .arg = arg, .n = n};
    pthread_t thread[MOST];
    uint32_t others = (uint32_t)os_cpu_count() - 1, started = 0;
    others = others < MOST ? others : MOST;
    int cancel = os_cancel_off();
    while (started < others && started + 1 < n && start_thread(&thread[started], stack_bytes, parallel_thread, &call))
        started++;
    parallel_main(&call);
    while (started)
        pthread_join(thread[--started], NULL);
    os_cancel_restore(cancel);
}

/* ---- files ---- */

bool os_make_dir(const char *path)
{
    size_t len = strlen(path);
    char *copy = os_copy(path, len + 1);
    if (!copy) {
        errno = ENOMEM;
        return false;
    }
    bool ok = len > 0;
    for (size_t i = 1; ok && i <= len; i++) {
        if (copy[i] != '/' && copy[i] != '\0')
            continue;
        char kept = copy[i];
        copy[i] = '\0';
        ok = mkdir(copy, 0777) == 0 || errno == EEXIST;
        copy[i] = kept;
    }
    struct stat info;
    if (ok && stat(path, &info) == 0 && !S_ISDIR(info.st_mode)) {
        errno = ENOTDIR;
        ok = false;
    }
    int cause = errno;
    os_free(copy);
    errno = cause;
    return ok;
}

bool os_write_file(const char *path, const void *data, size_t bytes)
{
    static atomic_uint serial;
    size_t room = strlen(path) + 48;
    char *temp = os_alloc(room);
    if (!temp) {
        errno = ENOMEM;
        return false;
    }
    snprintf(temp, room, "%s.%ld.%u.tmp", path, (long)getpid(), atomic_fetch_add(&serial, 1));
    int file = os_open(AT_FDCWD, temp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0666);
    bool ok = file >= 0;
    int cause = errno;
    if (ok) {
        ok = os_write_all(file, data, bytes);
        cause = errno;
        if (close(file) != 0 && ok) {
            ok = false;
            cause = errno;
        }
        if (ok && rename(temp, path) != 0) {
            ok = false;
            cause = errno;
        }
        if (!ok)
            unlink(temp);
    }
    os_free(temp);
    errno = cause;
    return ok;
}
