/*
 * Schedules as text, and files of them:
 *
 *     file      = { kernel schedule [nest] }                kernel: as in jit/kernel_text.c; // begins a comment
 *                                                           nest: jit/nest.h, which follows from both and is not read
 *     schedule  = "schedule" bits { ";" or a new line, directive }
 *     directive = a row of jit/directives.def with its value, or "stages" and the lanes of each stage
 */
#include "jit/schedule.h"

#include "ir/base/scan.h"
#include "jit/kernel_text.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum { LOOPS = 1, PRODUCT, BOTH };
typedef enum DirectiveKind { KIND_NUMBER, KIND_AXIS, KIND_WAY, KIND_TAIL, KIND_BODY, KIND_PREFETCH, KIND_SPLIT } DirectiveKind;

/* In the order of the enums. */
static const char *const words[][5] = {
    [KIND_NUMBER] = {NULL},
    [KIND_AXIS] = {NULL},
    [KIND_WAY] = {"direct", "packed", "strips", "dots", NULL},
    [KIND_TAIL] = {"mask", "scalar", "earlier", NULL},
    [KIND_BODY] = {"twice", "once", NULL},
    [KIND_PREFETCH] = {"off", "on", "pages", NULL},
    [KIND_SPLIT] = {"never", "asked", "always", NULL},
};

typedef struct Directive {
    const char *name;
    int forms;
    DirectiveKind kind;
    size_t at; /* of its field */
} Directive;

static const Directive directives[] = {
#define DIRECTIVE(forms, field, kind, help) {#field, forms, KIND_##kind, offsetof(Schedule, field)},
#include "jit/directives.def"
#undef DIRECTIVE
};
enum { DIRECTIVES = sizeof directives / sizeof *directives };

static int64_t *field(Schedule *s, const Directive *d) { return (int64_t *)(void *)((char *)s + d->at); }

static int form_of(const Kernel *k) { return k->form == FORM_CONTRACT ? PRODUCT : LOOPS; }

/* ---- print ---- */

void schedule_print(const Schedule *schedule, const Kernel *k, Str *out)
{
    Schedule s = *schedule;
    str_printf(out, "schedule %" PRId64, s.bits);
    for (const Directive *d = directives; d < directives + DIRECTIVES; d++) {
        int64_t value = *field(&s, d);
        bool absent = (d->kind == KIND_AXIS && d->at != offsetof(Schedule, along) && value < 0) || (d->kind == KIND_NUMBER && !value);
        if (!(d->forms & form_of(k)) || absent)
            continue;
        str_printf(out, "; %s ", d->name);
        if (d->kind == KIND_NUMBER)
            str_printf(out, "%" PRId64, value);
        else if (d->kind == KIND_AXIS && value < 0)
            str_printf(out, "none");
        else if (d->kind == KIND_AXIS)
            str_printf(out, "%c", kernel_axis_letters[value]);
        else
            str_printf(out, "%s", words[d->kind][value]);
    }
    for (uint32_t i = 0; i < s.n_stages; i++)
        str_printf(out, "%s%d", i ? " " : "; stages ", s.stage_lanes[i]);
}

/* ---- parse ---- */

static Status parse_axis(Scan *s, const Kernel *k, int64_t *value)
{
    if (scan_accept_word(s, "none")) {
        *value = -1;
        return ST_OK;
    }
    size_t n = scan_peek_word(s);
    const char *letter = n == 1 ? strchr(kernel_axis_letters, *s->at) : NULL;
    if (!letter || letter - kernel_axis_letters >= (ptrdiff_t)k->axes.n)
        return scan_bad(s, "expected an axis of the kernel or 'none'");
    s->at++;
    *value = letter - kernel_axis_letters;
    return ST_OK;
}

static Status parse_value(Scan *s, const Kernel *k, const Directive *d, int64_t *value)
{
    char message[96];
    size_t at = 0;
    if (d->kind == KIND_NUMBER)
        return scan_int(s, value);
    if (d->kind == KIND_AXIS)
        return parse_axis(s, k, value);
    for (int64_t w = 0; words[d->kind][w]; w++)
        if (scan_accept_word(s, words[d->kind][w])) {
            *value = w;
            return ST_OK;
        }
    for (int w = 0; words[d->kind][w]; w++)
        at += (size_t)snprintf(message + at, sizeof message - at, "%s'%s'", w ? " or " : "expected ", words[d->kind][w]);
    return scan_bad(s, message);
}

static bool at_digit(Scan *s)
{
    scan_skip(s);
    return *s->at >= '0' && *s->at <= '9';
}

static Status parse_stages(Scan *s, Schedule *out)
{
    for (out->n_stages = 0; at_digit(s);) {
        int64_t lanes;
        if (out->n_stages == SCHEDULE_STAGES)
            return scan_bad(s, "too many stages");
        TRY(scan_int(s, &lanes));
        if (lanes < 1 || lanes > MOST_LANES)
            return scan_bad(s, "a stage has from 1 to 64 lanes");
        out->stage_lanes[out->n_stages++] = (uint8_t)lanes;
    }
    return out->n_stages ? ST_OK : scan_bad(s, "expected the lanes of each stage");
}

/* Another axis or number of lanes is for all stages, unless each is listed; with lanes along another axis there are no strips. */
static Status parse_schedule(Scan *s, const Kernel *k, Schedule *out)
{
    Schedule before = *out;
    bool listed = false;
    if (!scan_accept_word(s, "schedule"))
        return scan_bad(s, "expected 'schedule' below the kernel");
    TRY(scan_int(s, &out->bits));
    while (scan_accept(s, ';'), scan_skip(s), *s->at) {
        const Directive *d = directives;
        if (!listed && form_of(k) == LOOPS && scan_accept_word(s, "stages")) {
            TRY(parse_stages(s, out));
            listed = true;
            continue;
        }
        while (d < directives + DIRECTIVES && !(d->forms & form_of(k) && scan_accept_word(s, d->name)))
            d++;
        if (d == directives + DIRECTIVES)
            return scan_bad(s, "expected a directive for such a kernel (jit/directives.def), each once");
        TRY(parse_value(s, k, d, field(out, d)));
    }
    if (out->along != before.along && out->strip == before.strip)
        out->strip = 0;
    if (!listed && (out->along != before.along || out->lanes != before.lanes))
        out->n_stages = 0;
    return ST_OK;
}

/* ---- files ---- */

/* The first line from `at` on, and before `end`, that begins with this word, or `end`. */
static const char *line_of(const char *at, const char *end, const char *word)
{
    size_t n = strlen(word);
    while (at < end && !(strncmp(at, word, n) == 0 && !scan_word_char(at[n]))) {
        const char *line_end = memchr(at, '\n', (size_t)(end - at));
        at = line_end ? line_end + 1 : end;
    }
    return at;
}

/* Messages of a piece of the file tell the line in it: the message with the lines before it added. What tells none is of the piece as a whole. */
static Status in_file(const char *texts, const char *piece, Status status)
{
    int line = 0, column = 0, n = 0, before = 0;
    char message[512];
    if (status == ST_OK || status == ST_OUT_OF_MEMORY)
        return status;
    bool whole = sscanf(fail_message(), "%d:%d: %n", &line, &column, &n) != 2;
    if (whole)
        line = column = 1;
    for (const char *c = texts; c < piece; c++)
        before += *c == '\n';
    snprintf(message, sizeof message, "%s", fail_message() + (whole ? 0 : n));
    return fail(ST_FORMAT, "%d:%d: %s", line + before, column, message);
}

/* A piece of a text as a text. */
static char *piece(Arena *arena, const char *from, const char *to) { return arena_printf(arena, "%.*s", (int)(to - from), from); }

/* Calls nothing for kernels of other texts. wanted NULL: every one is parsed, with its schedule. */
static Status each_entry(const char *texts, const char *wanted, Arena *arena, Schedule *s)
{
    const char *const end = texts + strlen(texts), *at = line_of(texts, end, "kernel");
    Scan head = {.text = texts, .at = texts};
    scan_skip(&head);
    if (head.at < at)
        return scan_bad(&head, "expected 'kernel' at the beginning of a line");
    while (at < end) {
        const char *next = line_of(at + 1, end, "kernel"), *schedule = line_of(at, next, "schedule");
        const char *nest = line_of(schedule, next, "nest");
        Kernel *k;
        Str text;
        TRY(in_file(texts, at, kernel_parse(piece(arena, at, schedule), arena, &k)));
        str_init(&text, arena);
        kernel_print(k, &text);
        if (!wanted || strcmp(text.text, wanted) == 0) {
            char *rest = piece(arena, schedule, nest);
            Scan scan = {.text = rest, .at = rest};
            TRY(in_file(texts, schedule, parse_schedule(&scan, k, s)));
            s->rules = 0;
        }
        at = next;
    }
    return ST_OK;
}

Status schedule_find(const char *texts, const Kernel *k, Arena *arena, Schedule *s)
{
    Str text;
    str_init(&text, arena);
    kernel_print(k, &text);
    return each_entry(texts, text.text, arena, s);
}

Status schedule_check(const char *texts)
{
    Arena arena;
    jmp_buf oom;
    Schedule ignored = {0};
    volatile Status status = ST_OUT_OF_MEMORY;
    arena_init(&arena, &oom);
    if (setjmp(oom) == 0)
        status = each_entry(texts, NULL, &arena, &ignored);
    else
        fail(ST_OUT_OF_MEMORY, "no memory to read schedules");
    arena_free(&arena);
    return status;
}
