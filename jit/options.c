/*
 * Options: the table of jit/options.def, its values, and how text becomes a value.
 *
 * Numbers and choices are one atomic each, so asking costs a load. Texts are immutable strings
 * behind an atomic pointer; a string that was set once stays (they are few and reused), so a reader
 * needs no lock. The environment is read once, by the first who asks.
 *
 * What must hold: a bad value never replaces a good one, and nothing is logged before the values
 * can be read: the user's log sink may ask for options.
 */
#include "jit/options.h"
#include "ir/base/hash.h"
#include "ir/base/log.h"
#include "ir/base/os.h"
#include "ir/base/os_dir.h"
#include "ir/base/os_fd.h"
#include "ir/base/progress.h"
#include "ir/base/str.h"
#include "jit/extensions.h"
#include "jit/schedule.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <threads.h>

enum { NOT_KEYED, KEYED };
typedef enum Kind { KIND_BOOL, KIND_INT, KIND_ENUM, KIND_TEXT, KIND_FILE, KIND_SET } Kind;

typedef struct Row {
    const char *name;
    Kind kind;
    const char *def;
    bool keyed;
    const char *help;
} Row;

static const Row table[OPT_COUNT] = {
#define OPTION(id, name, kind, def, keyed, help) {name, KIND_##kind, def, keyed, help},
#include "jit/options.def"
#undef OPTION
};

/* What an ENUM may be, in the order of its C enum; NULL ends. */
static const char *const choices[OPT_COUNT][6] = {
    [OPT_MODE] = {"jit", "eager", "interp", NULL},
    [OPT_MATH] = {"fast", "strict", NULL},
    [OPT_SUBNORMALS] = {"keep", "flush", NULL},
    [OPT_DYNAMIC] = {"never", "auto", "always", NULL},
    [OPT_ON_RECOMPILE] = {"ignore", "warn", "error", NULL},
    [OPT_CHECK] = {"off", "pure", "repeat", "cache", "rules", NULL},
    [OPT_CACHE] = {"on", "off", "readonly", "refresh", NULL},
    [OPT_CPU] = {"host", "x86-64-v3", "x86-64-v4", NULL},
    [OPT_COMPILE] = {"on", "off", NULL},
    [OPT_TEST_MEMORY] = {"pooled", "exact", NULL},
    [OPT_PERF] = {"off", "summary", "csv", NULL},
    [OPT_BANDS] = {"off", "auto", "always", NULL},
    [OPT_REMAT] = {"auto", "off", "memory", NULL},
};

/* What an INT may be. */
static const struct {
    int64_t min, max;
} ranges[OPT_COUNT] = {
    [OPT_MAX_VARIANTS] = {1, 1 << 20},
    [OPT_CACHE_BYTES] = {0, INT64_MAX},
    [OPT_CONSTANT_BYTES] = {0, INT64_MAX},
    [OPT_THREADS] = {0, 4096},
    [OPT_COMM_TIMEOUT] = {1, 1000000000},
    [OPT_VECTOR_BITS] = {0, 512},
    [OPT_LLVM_OPT] = {0, 2},
    [OPT_CACHE_SIZE] = {0, INT64_MAX},
    [OPT_PRESSURE_BYTES] = {0, INT64_MAX},
    [OPT_TRACE_SIZE] = {65536, INT64_C(1) << 40},
};

static _Atomic int64_t values[OPT_COUNT];
static const char *_Atomic texts[OPT_COUNT];
static _Atomic uint64_t generation;
static atomic_uchar origins[OPT_COUNT]; /* OptionOrigin */
enum { DONE = 1 };
static atomic_int started; /* 0: not yet, DONE; -process: being read by a thread of that process */

/* Every text that was ever set. */
typedef struct Kept {
    struct Kept *next;
    char text[];
} Kept;
static Kept *_Atomic kept;

/* ---- from text to value ---- */

/* The place of `value` among an option's choices, or -1. */
static int64_t parse_choice(OptionId id, const char *value)
{
    for (int k = 0; choices[id][k]; k++)
        if (strcmp(choices[id][k], value) == 0)
            return k;
    return -1;
}

static void list_choices(OptionId id, char *buf, size_t size)
{
    size_t at = 0;
    for (int k = 0; choices[id][k] && at < size; k++)
        at += (size_t)snprintf(buf + at, size - at, "%s%s", k ? ", " : "", choices[id][k]);
}

static Status parse_int(OptionId id, const char *value, int64_t *out)
{
    char *end;
    errno = 0;
    long long n = strtoll(value, &end, 10);
    bool odd_width = id == OPT_VECTOR_BITS && n != 0 && n != 128 && n != 256 && n != 512;
    if (end == value || *end || errno || n < ranges[id].min || n > ranges[id].max || odd_width) {
        if (id == OPT_VECTOR_BITS)
            return fail(ST_INVALID, "%s is \"%s\": 0, 128, 256 or 512 are valid", table[id].name, value);
        return fail(ST_INVALID, "%s is \"%s\": a number from %" PRId64 " to %" PRId64 " is valid", table[id].name, value, ranges[id].min,
                    ranges[id].max);
    }
    *out = n;
    return ST_OK;
}

static Status parse_bool(OptionId id, const char *value, int64_t *out)
{
    static const char *const words[] = {"0", "1", "off", "on", "false", "true", "no", "yes"};
    for (size_t k = 0; k < sizeof words / sizeof *words; k++)
        if (strcmp(words[k], value) == 0) {
            *out = (int64_t)(k & 1);
            return ST_OK;
        }
    return fail(ST_INVALID, "%s is \"%s\": 0, 1, off and on are valid", table[id].name, value);
}

/* A copy of `text` that lives for ever; the same pointer for the same text. NULL: out of memory. */
static const char *keep_text(const char *text)
{
    for (Kept *k = atomic_load(&kept); k; k = k->next)
        if (strcmp(k->text, text) == 0)
            return k->text;
    size_t n = strlen(text) + 1;
    Kept *fresh = os_alloc(sizeof *fresh + n);
    if (!fresh)
        return NULL;
    memcpy(fresh->text, text, n);
    fresh->next = atomic_load(&kept);
    while (!atomic_compare_exchange_weak(&kept, &fresh->next, fresh))
        ;
    return fresh->text;
}

enum { MOST_CONTENTS = 16 << 20 };

/*
 * All of a file, and a zero behind its *bytes; os_free. NULL with errno: it could not be read, or does not end (/dev/zero). Not mapped: the
 * command links this, and maps nothing.
 */
static char *read_contents(const char *path, size_t *bytes)
{
    FILE *file = os_open_stream(path, "r");
    size_t room = 4096, n = 0, got;
    char *text = file ? os_alloc(room) : NULL;
    int cause = errno;
    while (text && (got = fread(text + n, 1, room - n - 1, file)) > 0) {
        n += got;
        if (room - n > 1)
            continue;
        char *more = room < MOST_CONTENTS ? os_realloc(text, room *= 2) : NULL;
        cause = room < MOST_CONTENTS ? cause : EFBIG;
        if (!more)
            os_free(text);
        text = more;
    }
    if (text && ferror(file)) {
        cause = errno;
        os_free(text);
        text = NULL;
    }
    if (text)
        text[n] = 0;
    if (file)
        fclose(file);
    *bytes = n;
    errno = cause;
    return text;
}

/*
 * The contents are read and kept now, so that all who have this value mean the same text. What is wrong in it is told here, with its place, and
 * is not kept.
 */
static Status parse_file(OptionId id, const char *path, int64_t *out)
{
    char reason[400];
    size_t bytes;
    *out = 0;
    if (!path[0])
        return ST_OK;
    errno = ENOMEM; /* what is left where memory is short */
    char *text = read_contents(path, &bytes);
    if (!text)
        return fail(ST_INVALID, "%s is \"%s\": %s", table[id].name, path, strerror(errno));
    bool is_text = strlen(text) == bytes;
    if (!is_text || schedule_check(text) != ST_OK) {
        snprintf(reason, sizeof reason, "%s", is_text ? fail_message() : "it holds a byte 0");
        os_free(text);
        return fail(ST_INVALID, "%s is \"%s\": %s", table[id].name, path, reason);
    }
    const char *contents = keep_text(text);
    os_free(text);
    if (!contents)
        return fail(ST_OUT_OF_MEMORY, "out of memory");
    *out = (int64_t)hash64(contents, strlen(contents));
    return ST_OK;
}

const char *option_contents(int64_t value)
{
    for (Kept *k = atomic_load(&kept); value && k; k = k->next)
        if ((int64_t)hash64(k->text, strlen(k->text)) == value)
            return k->text;
    return NULL;
}

/* Sets an option from text; the one place where values change. */
static Status set(OptionId id, const char *value)
{
    int64_t n = 0;
    switch (table[id].kind) {
    case KIND_BOOL: TRY(parse_bool(id, value, &n)); break;
    case KIND_INT: TRY(parse_int(id, value, &n)); break;
    case KIND_ENUM:
        n = parse_choice(id, value);
        if (n < 0) {
            char valid[128];
            list_choices(id, valid, sizeof valid);
            return fail(ST_INVALID, "%s is \"%s\": %s are valid", table[id].name, value, valid);
        }
        break;
    case KIND_SET: return fail(ST_INTERNAL, "%s has no text of users", table[id].name);
    case KIND_FILE: TRY(parse_file(id, value, &n)); /* fall through */
    case KIND_TEXT: {
        const char *text = keep_text(value);
        if (!text)
            return fail(ST_OUT_OF_MEMORY, "out of memory");
        atomic_store(&texts[id], text);
        break;
    }
    }
    atomic_store(&values[id], n);
    atomic_fetch_add(&generation, 1);
    return ST_OK;
}

/* ---- names ---- */

static OptionId find(const char *name)
{
    int id = 0;
    while (id < OPT_SHOWN && strcmp(table[id].name, name) != 0)
        id++;
    return id < OPT_SHOWN ? (OptionId)id : OPT_COUNT;
}

/* Writes all names, comma-separated. */
static void list_names(char *buf, size_t size)
{
    size_t at = 0;
    for (int id = 0; id < OPT_SHOWN && at < size; id++)
        at += (size_t)snprintf(buf + at, size - at, "%s%s", id ? ", " : "", table[id].name);
}

/* ---- the environment ---- */

/* Warns of KILN_* variables that look like an option, misspelled. Others belong to somebody else: KILN_PREFIX to a build system,
 * KILN_TEST_* to test programs, unless they look like KILN_TEST_FAIL. */
static void warn_unknown(void)
{
    extern char **environ;
    for (char **e = environ; e && *e; e++) {
        char name[64];
        const char *equals = strchr(*e, '=');
        if (strncmp(*e, "KILN_", 5) != 0 || !equals || (size_t)(equals - *e) >= sizeof name)
            continue;
        size_t n = (size_t)(equals - *e) - 5;
        for (size_t k = 0; k < n; k++)
            name[k] = (char)tolower((unsigned char)(*e)[5 + k]);
        name[n] = '\0';
        if (find(name) != OPT_COUNT || (strncmp(name, "test_", 5) == 0 && str_distance(name, "test_fail") > 2))
            continue;
        size_t best = SIZE_MAX;
        int nearest = 0;
        for (int id = 0; id < OPT_SHOWN; id++) {
            size_t d = str_distance(name, table[id].name);
            if (d < best) {
                best = d;
                nearest = id;
            }
        }
        if (best > (n > 4 ? 2 : 1))
            continue;
        char variable[64];
        log_warn("the environment variable %.*s is no option; the nearest is %s", (int)(equals - *e), *e,
                 option_variable((OptionId)nearest, variable, sizeof variable));
    }
}

void options_init(void)
{
    int state = atomic_load_explicit(&started, memory_order_acquire);
    const int mine = state == DONE ? 0 : -(int)os_process(); /* a process forked meanwhile does not have the thread that began */
    while (state != DONE && (state == mine || !atomic_compare_exchange_weak(&started, &state, mine))) {
        thrd_yield();
        state = atomic_load(&started);
    }
    if (state == DONE)
        return;
    char bad[OPT_SHOWN][256];
    for (int id = 0; id < OPT_SHOWN; id++) {
        char name[64];
        set((OptionId)id, table[id].def);
        const char *value = os_getenv(option_variable((OptionId)id, name, sizeof name));
        bool good = !value || set((OptionId)id, value) == ST_OK;
        bad[id][0] = '\0';
        if (!good)
            snprintf(bad[id], sizeof bad[id], "%s", fail_message());
        atomic_store(&origins[id], !good ? ORIGIN_INVALID : value ? ORIGIN_ENVIRONMENT : ORIGIN_DEFAULT);
    }
    atomic_store_explicit(&started, DONE, memory_order_release);
    log_configure(atomic_load(&texts[OPT_LOG]));
    progress_draw(atomic_load(&values[OPT_PROGRESS]) != 0);
    for (int id = 0; id < OPT_SHOWN; id++)
        if (bad[id][0])
            log_warn("environment: %s; %s%s", bad[id], *table[id].def ? table[id].def : "it is as if it were not set",
                     *table[id].def ? " is used" : "");
    warn_unknown();
}

/* ---- asking and setting ---- */

int64_t option_int(OptionId id)
{
    if (atomic_load_explicit(&started, memory_order_acquire) != DONE)
        options_init();
    return atomic_load_explicit(&values[id], memory_order_relaxed);
}

const char *option_text(OptionId id, char *buf, size_t size)
{
    options_init();
    const char *text = atomic_load(&texts[id]);
    if (size)
        snprintf(buf, size, "%s", text ? text : "");
    return buf;
}

static Status find_public(const char *name, OptionId *id)
{
    options_init();
    *id = find(name);
    if (*id != OPT_COUNT)
        return ST_OK;
    char names[640];
    list_names(names, sizeof names);
    return fail(ST_INVALID, "there is no option \"%s\": %s are valid", name, names);
}

Status option_set(const char *name, const char *value)
{
    OptionId id;
    TRY(find_public(name, &id));
    char unknown[512];
    if (id == OPT_LOG && log_unknown(value, unknown, sizeof unknown))
        return fail(ST_INVALID, "log is \"%s\": %s", value, unknown);
    TRY(set(id, value));
    atomic_store(&origins[id], ORIGIN_SET);
    if (id == OPT_LOG)
        log_configure(value);
    if (id == OPT_PROGRESS)
        progress_draw(option_int(id) != 0);
    return ST_OK;
}

Status option_get(const char *name, char *buf, size_t size)
{
    OptionId id;
    TRY(find_public(name, &id));
    if (table[id].kind == KIND_TEXT || table[id].kind == KIND_FILE)
        option_text(id, buf, size);
    else
        option_value_text(id, option_int(id), buf, size);
    return ST_OK;
}

const char *option_hidden_text(OptionId id, int64_t value)
{
    const char *text = id == OPT_EXTENSIONS ? extensions_of(value)->text : NULL;
    return !text || *text ? text : value ? "unknown" : "none";
}

void option_value_text(OptionId id, int64_t value, char *buf, size_t size)
{
    if (table[id].kind == KIND_SET)
        snprintf(buf, size, "%s", option_hidden_text(id, value));
    else if (table[id].kind == KIND_ENUM)
        snprintf(buf, size, "%s", choices[id][value]);
    else
        snprintf(buf, size, "%" PRId64, value);
}

bool option_exchange(OptionId id, int64_t before, int64_t now)
{
    options_init();
    if (!atomic_compare_exchange_strong(&values[id], &before, now))
        return false;
    atomic_fetch_add(&generation, 1);
    return true;
}

uint64_t options_generation(void)
{
    options_init();
    return atomic_load_explicit(&generation, memory_order_relaxed);
}

void options_snapshot(JitOptions *out)
{
    for (int id = 0; id < OPT_COUNT; id++)
        out->value[id] = option_int((OptionId)id);
    out->target = (CudaTarget){0};
}

const char *option_name(OptionId id) { return table[id].name; }

const char *option_variable(OptionId id, char *buf, size_t size)
{
    snprintf(buf, size, "KILN_%s", table[id].name);
    for (char *c = buf; *c; c++)
        *c = (char)toupper((unsigned char)*c);
    return buf;
}

const char *option_values(OptionId id, char *buf, size_t size)
{
    switch (table[id].kind) {
    case KIND_BOOL: snprintf(buf, size, "0, 1"); break;
    case KIND_SET:
    case KIND_TEXT: snprintf(buf, size, "text"); break;
    case KIND_FILE: snprintf(buf, size, "the name of a file"); break;
    case KIND_INT:
        if (ranges[id].max == INT64_MAX)
            snprintf(buf, size, "from %" PRId64, ranges[id].min);
        else
            snprintf(buf, size, "%" PRId64 " to %" PRId64, ranges[id].min, ranges[id].max);
        break;
    case KIND_ENUM: list_choices(id, buf, size); break;
    }
    return buf;
}

void option_describe(OptionId id, OptionInfo *out)
{
    static const char *const kinds[] = {
        [KIND_BOOL] = "bool", [KIND_INT] = "int", [KIND_ENUM] = "enum", [KIND_TEXT] = "text", [KIND_FILE] = "file", [KIND_SET] = "set"};
    options_init();
    *out = (OptionInfo){.name = table[id].name,
                        .kind = kinds[table[id].kind],
                        .def = table[id].def,
                        .help = table[id].help,
                        .keyed = table[id].keyed,
                        .origin = (OptionOrigin)atomic_load(&origins[id])};
}

bool option_keyed(OptionId id) { return table[id].keyed; }
