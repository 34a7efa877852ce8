/* Looking into entries; apart from harness.c, whose headers have names of their own for dtypes. */
#include "tests/faults/whole.h"

#include "cache/entry.h"
#include "cache/entry_layout.h"
#include "cache/memory.h"
#include "ir/base/os.h"
#include "jit/options.h"

#include <stdio.h>
#include <string.h>

bool entry_is_whole(const char *path, const char *name)
{
    static unsigned char bytes[1 << 20];
    char own[ENTRY_NAME_BYTES] = "";
    Arena arena;
    jmp_buf oom;
    EntryView view;
    FILE *f = fopen(path, "rb");
    size_t n = f ? fread(bytes, 1, sizeof bytes, f) : 0;
    if (f)
        fclose(f);
    arena_init(&arena, &oom);
    bool ok = setjmp(oom) == 0 && entry_parse(bytes, n, &arena, &view) == ST_OK;
    if (ok)
        entry_name(&view.key, &view.plan->guards, own);
    arena_free(&arena);
    return ok && strcmp(own, name) == 0;
}

void forget_programs(void) { cache_clear(); }

void mend_checksum(unsigned char *bytes, size_t n)
{
    if (n < CHECKED_FROM)
        return;
    Hash128 sum = hash128(bytes + CHECKED_FROM, n - CHECKED_FROM);
    memcpy(bytes + CHECKED_FROM - 16, &sum.lo, 8);
    memcpy(bytes + CHECKED_FROM - 8, &sum.hi, 8);
}

void shorten_hashes(int bits)
{
    cache_test_hash_bits(bits);
    entry_test_hash_bits(bits);
}

/* --- options ------------------------------------------------------------------------------------------------------------- */

/* A valid value other than the default: the first that the option takes of those that it lists and of some numbers. */
static void other_value(OptionId id, const OptionInfo *info, char *other, size_t size)
{
    char values[512];
    option_values(id, values, sizeof values);
    other[0] = '\0';
    if (strcmp(info->kind, "bool") == 0) {
        snprintf(other, size, "%s", strcmp(info->def, "0") == 0 ? "1" : "0");
    } else if (strcmp(info->kind, "enum") == 0) {
        for (char *word = strtok(values, ", "); word && !other[0]; word = strtok(NULL, ", "))
            if (strcmp(word, info->def) != 0)
                snprintf(other, size, "%s", word);
    } else if (strcmp(info->kind, "int") == 0) {
        static const char *const numbers[] = {"2", "128", "100000000"};
        for (size_t k = 0; k < sizeof numbers / sizeof *numbers && !other[0]; k++)
            if (strcmp(numbers[k], info->def) != 0 && option_set(info->name, numbers[k]) == ST_OK)
                snprintf(other, size, "%s", numbers[k]);
        (void)option_set(info->name, info->def);
    }
}

bool option_row(int i, OptionRow *row)
{
    OptionInfo info;
    if (i >= OPT_SHOWN)
        return false;
    option_describe((OptionId)i, &info);
    *row = (OptionRow){.name = info.name, .kind = info.kind, .keyed = info.keyed};
    other_value((OptionId)i, &info, row->other, sizeof row->other);
    return true;
}

/* --- entries of other makers ---------------------------------------------------------------------------------------------- */

static Status rewrite(Arena *arena, const char *path, int line, bool misfiled, const char **name)
{
    static unsigned char bytes[1 << 20];
    char file[ENTRY_NAME_BYTES], to[4096];
    EntryView view;
    KeyLine at;
    Program *program;
    FILE *f = fopen(path, "rb");
    size_t n = f ? fread(bytes, 1, sizeof bytes, f) : 0;
    if (f)
        fclose(f);
    TRY(entry_parse(bytes, n, arena, &view));
    char *maker = arena_alloc(arena, view.key.maker_bytes);
    memcpy(maker, view.key.maker, view.key.maker_bytes);
    const char *next = maker, *end = maker + view.key.maker_bytes;
    for (int i = 0; i <= line; i++)
        if (!key_line_next(&next, end, &at))
            return ST_OK;
    char *last = maker + (at.bytes - maker) + at.n - 1; /* of the value */
    if (at.n == 0)
        return fail(ST_INTERNAL, "a line without a value");
    *last = *last == '0' ? '1' : '0';
    *name = arena_printf(arena, "%.*s", (int)at.name_bytes, at.name);

    TRY(entry_load(&view, &program));
    EntryParts parts = {
        .key = view.key, .meta = view.meta, .meta_bytes = view.meta_bytes, .facts = view.facts, .policy = &view.policy, .program = program};
    parts.key.maker = maker;
    void *again;
    TRY(entry_write(&parts, &again, &n));
    entry_name(&parts.key, &program->guards, file);
    program_release(program);
    if (misfiled)
        snprintf(to, sizeof to, "%s", path);
    else
        snprintf(to, sizeof to, "%.*s/%s", (int)(strrchr(path, '/') - path), path, file);
    bool ok = os_write_file(to, again, n);
    os_free(again);
    return ok ? ST_OK : fail(ST_IO, "%s", to);
}

const char *rewrite_maker(const char *path, int line, bool misfiled)
{
    static char kept[64];
    const char *name = NULL;
    Arena arena;
    jmp_buf oom;
    arena_init(&arena, &oom);
    Status status = setjmp(oom) == 0 ? rewrite(&arena, path, line, misfiled, &name) : ST_OUT_OF_MEMORY;
    if (status != ST_OK)
        name = fail_message();
    if (name)
        snprintf(kept, sizeof kept, "%s", name);
    arena_free(&arena);
    return name ? kept : NULL;
}
