/*
 * See machine.h. Each rate is measured by all threads at once, each for SLICE at least, and is the sum of theirs; the best of TIMES counts:
 * whatever else runs on the machine only takes away. Memory is touched before, by the thread that uses it.
 */
#include "cache/machine.h"
#include "cache/records.h"
#include "ir/base/os.h"
#include "ir/base/os_dir.h"
#include "jit/host_cpu.h"

#include <immintrin.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

enum {
    TIMES = 3,
    MOST_THREADS = 64,
    CHUNK = 1 << 20,
    CACHED = 64 << 10,
    ROUNDS = 2000,
    TRIPS = 200,
    FILE_LIMIT = 64 << 10,
    STACK = 256 << 10
};
static const size_t MEMORY = (size_t)64 << 20; /* of all threads, once to read and once to write */
static const double SLICE = 0.02, PATIENCE = 0.05;

const MachineInfo machine_info[MACHINE_COUNT] = {
#define MACHINE(id, name, scale, unit, help) {name, unit, help, scale},
#include "cache/machine.def"
#undef MACHINE
};

/* --- rates ---------------------------------------------------------------------------------------------------------------- */

typedef struct Part { /* one thread's */
    char *from, *to;
    size_t bytes;
    double rate;
} Part;

typedef double Measured(Part *part); /* does some, says how much */

static double copy_memory(Part *p)
{
    memcpy(p->to, p->from, p->bytes);
    return 2.0 * (double)p->bytes;
}

/* No byte is 7, so all are looked at. */
static double read_memory(Part *p) { return memchr(p->from, 7, p->bytes) ? 0 : (double)p->bytes; }

static double copy_cached(Part *p)
{
    size_t bytes = p->bytes < CACHED ? p->bytes : CACHED;
    for (int i = 0; i < 16; i++) {
        memcpy(p->to, p->from, bytes);
        __asm__ volatile("" : : "r"(p->to) : "memory");
    }
    return 32.0 * (double)bytes;
}

/* Twelve sums, none of which waits for another, so that both units of a core are kept at work. */
#define FMA(name, target_, V, zero, fma, lanes)                                               \
    __attribute__((target(target_))) static double name(Part *p)                              \
    {                                                                                         \
        V sum[12], x = zero();                                                                \
        (void)p;                                                                              \
        for (int i = 0; i < 12; i++)                                                          \
            sum[i] = zero();                                                                  \
        __asm__ volatile("" : "+x"(x));                                                       \
        for (int n = 0; n < ROUNDS; n++)                                                      \
            _Pragma("GCC unroll 12") for (int i = 0; i < 12; i++) sum[i] = fma(sum[i], x, x); \
        for (int i = 0; i < 12; i++)                                                          \
            __asm__ volatile("" : : "x"(sum[i]));                                             \
        return 2.0 * 12 * (lanes)*ROUNDS;                                                     \
    }
FMA(fma512_f32, "avx512f", __m512, _mm512_setzero_ps, _mm512_fmadd_ps, 16)
FMA(fma512_f64, "avx512f", __m512d, _mm512_setzero_pd, _mm512_fmadd_pd, 8)
FMA(fma256_f32, "avx2,fma", __m256, _mm256_setzero_ps, _mm256_fmadd_ps, 8)
FMA(fma256_f64, "avx2,fma", __m256d, _mm256_setzero_pd, _mm256_fmadd_pd, 4)

typedef struct Rates {
    Part part[MOST_THREADS];
    Measured *work;
} Rates;

static void touch_part(void *rates_, uint32_t i)
{
    Part *p = &((Rates *)rates_)->part[i];
    p->from = os_alloc_aligned(64, p->bytes);
    p->to = os_alloc_aligned(64, p->bytes);
    if (!p->from || !p->to)
        return;
    memset(p->from, 1, p->bytes);
    memset(p->to, 2, p->bytes);
}

static void run_part(void *rates_, uint32_t i)
{
    Rates *rates = rates_;
    Part *p = &rates->part[i];
    double start = os_seconds(), seconds, done = 0;
    p->rate = 0;
    if (!p->from || !p->to)
        return;
    do
        done += rates->work(p);
    while ((seconds = os_seconds() - start) < SLICE);
    p->rate = done / seconds;
}

static int64_t best_rate(Rates *rates, Measured *work, int threads)
{
    double best = 0;
    rates->work = work;
    for (int n = 0; work && n < TIMES; n++) {
        double sum = 0;
        os_run_parallel(STACK, run_part, rates, (uint32_t)threads);
        for (int i = 0; i < threads; i++)
            sum += rates->part[i].rate;
        best = sum > best ? sum : best;
    }
    return (int64_t)best;
}

/* --- waking a thread --------------------------------------------------------------------------------------------------------- */

typedef struct PingPong {
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    atomic_int there; /* the other thread: 1 it waits, 2 nobody will */
    int turn;         /* whose */
    double best;
} PingPong;

static void pass_on(PingPong *p, int self)
{
    p->turn = !self;
    pthread_cond_broadcast(&p->cond);
    while (p->turn != self)
        pthread_cond_wait(&p->cond, &p->mutex);
}

/* Part 0 asks, part 1 answers. Where there is no second thread they run one after the other: part 0 gives up. */
static void ping_pong(void *ping_pong_, uint32_t self)
{
    PingPong *p = ping_pong_;
    double start = os_seconds();
    int nobody = 0;
    if (self == 1) {
        pthread_mutex_lock(&p->mutex);
        if (atomic_compare_exchange_strong(&p->there, &nobody, 1)) {
            while (p->turn != 1)
                pthread_cond_wait(&p->cond, &p->mutex);
            for (int i = 0; i < TRIPS - 1; i++)
                pass_on(p, 1);
            p->turn = 0;
            pthread_cond_broadcast(&p->cond);
        }
        pthread_mutex_unlock(&p->mutex);
        return;
    }
    while (atomic_load(&p->there) == 0 && os_seconds() - start < PATIENCE)
        ;
    if (atomic_compare_exchange_strong(&p->there, &nobody, 2))
        return;
    pthread_mutex_lock(&p->mutex);
    for (int i = 0; i < TRIPS; i++) {
        double sent = os_seconds();
        pass_on(p, 0);
        double took = os_seconds() - sent;
        p->best = i == 0 || took < p->best ? took : p->best;
    }
    pthread_mutex_unlock(&p->mutex);
}

static int64_t wake_ns(int threads)
{
    PingPong p = {.mutex = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER};
    if (threads > 1)
        os_run_parallel(STACK, ping_pong, &p, 2);
    return (int64_t)(1e9 * p.best);
}

void machine_measure(int threads, Machine *out)
{
    Rates *rates = os_calloc(1, sizeof *rates);
    *out = (Machine){.threads = threads};
    if (!rates)
        return;
    double wanted = threads < os_cpu_count() ? threads : os_cpu_count();
    threads = wanted < MOST_THREADS ? (int)wanted : MOST_THREADS;
    size_t most = (size_t)os_memory_bytes() / 16, bytes = MEMORY < most ? MEMORY : most;
    for (int i = 0; i < threads; i++)
        rates->part[i].bytes = bytes / (size_t)threads > CHUNK ? bytes / (size_t)threads : CHUNK;
    bool wide = __builtin_cpu_supports("avx512f"), fused = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    os_run_parallel(STACK, touch_part, rates, (uint32_t)threads);
    Measured *const work[MACHINE_COUNT] = {[MACHINE_COPY] = copy_memory,
                                           [MACHINE_READ] = read_memory,
                                           [MACHINE_CACHE] = copy_cached,
                                           [MACHINE_FMA_F32] = wide    ? fma512_f32
                                                               : fused ? fma256_f32
                                                                       : NULL,
                                           [MACHINE_FMA_F64] = wide    ? fma512_f64
                                                               : fused ? fma256_f64
                                                                       : NULL};
    for (int id = 0; id < MACHINE_COUNT; id++)
        out->value[id] = best_rate(rates, work[id], threads);
    for (int id = MACHINE_CACHE; id <= MACHINE_FMA_F64; id++) /* what a core has for itself; memory is full long before */
        out->value[id] = (int64_t)((double)out->value[id] * wanted / threads);
    out->value[MACHINE_WAKE] = wake_ns(threads);
    for (int i = 0; i < threads; i++) {
        os_free(rates->part[i].from);
        os_free(rates->part[i].to);
    }
    os_free(rates);
}

/* --- keeping ------------------------------------------------------------------------------------------------------------------- */

/* "GenuineIntel 6 143" as a value of a record. */
static bool is_this_cpu(const RecordWord *word)
{
    const char *cpu = host_cpu_name();
    size_t n = strlen(cpu);
    if (n != word->n)
        return false;
    for (size_t i = 0; i < n; i++)
        if (word->value[i] != (cpu[i] > ' ' ? cpu[i] : '_'))
            return false;
    return true;
}

static bool read_line(const char *at, const char *end, int threads, Machine *out)
{
    Machine read = {.threads = threads};
    RecordWord word;
    int64_t value;
    bool cpu = false, all = false;
    while (record_next(&at, end, &word)) {
        cpu |= record_is(&word, "cpu") && is_this_cpu(&word);
        if (!record_int(&word, &value) || value < 0)
            continue;
        all |= record_is(&word, "threads") && value == threads;
        for (int id = 0; id < MACHINE_COUNT; id++)
            if (record_is(&word, machine_info[id].name))
                read.value[id] = value;
    }
    if (cpu && all && read.value[MACHINE_COPY] > 0)
        *out = read;
    return cpu && all && read.value[MACHINE_COPY] > 0;
}

/* The text of the file `machine`, NULL: none; the rest as machine_read. */
static bool machine_find(const char *text, int threads, Machine *out)
{
    bool found = false;
    for (const char *at = text; at && *at;) {
        const char *end = strchr(at, '\n');
        if (!end)
            break; /* cut short */
        found |= read_line(at, end, threads, out);
        at = end + 1;
    }
    return found;
}

typedef struct MachineJob {
    Disk *disk;
    Machine *machine;
    const Machine *written;
    bool found;
} MachineJob;

static Status read_in_arena(Arena *arena, void *user)
{
    MachineJob *job = user;
    const char *text;
    TRY(disk_text(job->disk, "machine", arena, &text));
    job->found = machine_find(text, job->machine->threads, job->machine);
    return ST_OK;
}

bool machine_read(Disk *disk, int threads, Machine *out)
{
    MachineJob job = {.disk = disk, .machine = out};
    *out = (Machine){.threads = threads};
    (void)with_arena(read_in_arena, &job);
    return job.found;
}

static Status write_in_arena(Arena *arena, void *user)
{
    const MachineJob *job = user;
    Str line;
    str_init(&line, arena);
    record_number(&line, "time", os_time());
    record_text(&line, "cpu", host_cpu_name());
    record_number(&line, "threads", job->written->threads);
    for (int id = 0; id < MACHINE_COUNT; id++)
        record_number(&line, machine_info[id].name, job->written->value[id]);
    record_end(&line);
    return disk_append(job->disk, "machine", line.text, FILE_LIMIT);
}

Status machine_write(Disk *disk, const Machine *machine)
{
    return with_arena(write_in_arena, &(MachineJob){.disk = disk, .written = machine});
}
