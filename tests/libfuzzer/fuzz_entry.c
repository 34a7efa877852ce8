/*
 * Bytes as an entry of the cache on disk. As they are, they are nearly always refused at the header; so they also come with a header
 * put right (magic, format, size, the table of sections, checksum), and then the checks inside must hold alone: what passes can be
 * printed, asked, loaded (its code is mapped but never run), asked how it is launched, and written again to an entry that passes too.
 */
#include "target.h"

#include "cache/entry.h"
#include "cache/entry_layout.h"
#include "ir/base/os.h"

#include <string.h>

static void look_into(const EntryView *v, Arena *arena)
{
    EntryTexts texts;
    char name[ENTRY_NAME_BYTES];
    uint32_t failed;
    if (entry_texts(v, arena, &texts) == ST_OK)
        for (uint32_t i = 0; i < v->n_kernels; i++)
            REQUIRE(!texts.kernel_ir[i] || strlen(texts.kernel_ir[i]) < SIZE_MAX, "a text");
    (void)entry_meta(v, "made", arena);
    Str out;
    str_init(&out, arena);
    program_print(v->plan, &out);
    entry_name(&v->key, &v->plan->guards, name);
    REQUIRE(entry_name_valid(name), "%s", name);
    int64_t *sizes = ARENA_ARRAY(arena, int64_t, v->plan->guards.sizes.n + 1);
    sizes_eval(&v->plan->guards.sizes, v->facts.ints, sizes);
    if (!guards_hold(&v->plan->guards, sizes, &v->facts, &failed))
        guard_print_failure(&v->plan->guards.at[failed], sizes, &v->facts, &out);
}

/* Launch plans, for arguments that lie alone, so that a sanitizer sees their end. */
static void ask_launches(const Program *p)
{
    for (uint32_t i = 0; i < p->n_steps; i++) {
        const ProgStep *s = &p->steps[i];
        HostLaunch room;
        if (s->kind != STEP_KERNEL)
            continue;
        void **args = calloc(s->n_args ? s->n_args : 1, sizeof *args);
        REQUIRE(args, "memory");
        (void)kernel_launch(p->kernels[s->kernel].compiled, args, &room);
        free(args);
    }
    for (uint32_t i = 0; i < p->n_bodies; i++)
        ask_launches(p->bodies[i]);
}

static void load_and_write(const EntryView *v, Arena *arena)
{
    Program *program = NULL;
    Status status = entry_load(v, &program);
    REQUIRE((status == ST_OK) == (program != NULL), "%s", status_name(status));
    if (!program)
        return;
    ask_launches(program);
    EntryParts parts = {
        .key = v->key, .meta = v->meta, .meta_bytes = v->meta_bytes, .facts = v->facts, .policy = &v->policy, .program = program};
    EntryView again;
    void *bytes;
    size_t n;
    REQUIRE(entry_write(&parts, &bytes, &n) == ST_OK, "%s", fail_message());
    REQUIRE(entry_parse(bytes, n, arena, &again) == ST_OK, "what was loaded is refused when written: %s", fail_message());
    REQUIRE(again.plan->guards.n == v->plan->guards.n && again.n_kernels == v->n_kernels, "another entry");
    os_free(bytes);
    program_release(program);
}

static void take(const uint8_t *bytes, size_t n)
{
    Arena arena;
    jmp_buf oom;
    EntryView v;
    arena_init(&arena, &oom);
    if (setjmp(oom) == 0) {
        Status status = entry_parse(bytes, n, &arena, &v);
        REQUIRE(status == ST_OK || (status == ST_FORMAT && fail_message()[0]), "%s", status_name(status));
        if (status == ST_OK) {
            look_into(&v, &arena);
            load_and_write(&v, &arena);
        }
    }
    arena_free(&arena);
}

static void put(uint8_t *at, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        at[i] = (uint8_t)(value >> 8 * i);
}

/* Lengths of sections stay as far as there is room; everything else of the header follows from them. */
static size_t put_header_right(uint8_t *bytes, size_t n)
{
    n &= ~(size_t)7;
    if (n < HEADER_BYTES)
        return 0;
    memcpy(bytes, entry_magic, sizeof entry_magic);
    put(bytes + 8, ENTRY_FORMAT, 4);
    put(bytes + 12, SECTION_COUNT, 4);
    put(bytes + 16, n, 8);
    size_t at = HEADER_BYTES;
    for (int s = 0; s < SECTION_COUNT; s++) {
        uint8_t *row = bytes + CHECKED_FROM + 16 * s;
        uint64_t length;
        memcpy(&length, row + 8, sizeof length);
        if (length > n - at || s == SECTION_COUNT - 1)
            length = n - at;
        put(row, at, 8);
        put(row + 8, length, 8);
        at = (at + length + 7) & ~(size_t)7;
    }
    Hash128 sum = hash128(bytes + CHECKED_FROM, n - CHECKED_FROM);
    put(bytes + 24, sum.lo, 8);
    put(bytes + 32, sum.hi, 8);
    return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    take(bytes, n);
    uint8_t *copy = malloc(n ? n : 1);
    REQUIRE(copy, "memory");
    if (n)
        memcpy(copy, bytes, n);
    size_t right = put_header_right(copy, n);
    if (right) {
        uint8_t *exact = malloc(right); /* so that a sanitizer sees its end */
        REQUIRE(exact, "memory");
        memcpy(exact, copy, right);
        take(exact, right);
        free(exact);
    }
    free(copy);
    return 0;
}
