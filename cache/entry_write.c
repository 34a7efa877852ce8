/* Writing entries of the cache on disk. Record by record the mirror of cache/entry.c. */
#include "cache/entry.h"
#include "cache/entry_layout.h"
#include "ir/base/bytes.h"
#include "ir/base/os.h"
#include "ir/base/pack.h"

#include <string.h>

static void write_facts(Bytes *out, const Facts *facts)
{
    bytes_u32(out, facts->n_ints);
    for (uint32_t i = 0; i < facts->n_ints; i++)
        bytes_u64(out, (uint64_t)facts->ints[i]);
    bytes_u32(out, facts->n_scalars);
    for (uint32_t i = 0; i < facts->n_scalars; i++)
        bytes_u64(out, facts->scalars[i]);
}

static void write_policy(Bytes *out, const GuardPolicy *policy, const Facts *facts)
{
    bytes_u8(out, (uint8_t)(policy->general | policy->wide << 1));
    for (uint32_t i = 0; i < facts->n_ints; i++)
        bytes_u8(out, policy->int_varies[i]);
    for (uint32_t i = 0; i < facts->n_scalars; i++)
        bytes_u8(out, policy->scalar_varies[i]);
    if (facts->n_ints == 0)
        return;
    bytes_u32(out, policy->n_seen);
    for (uint32_t i = 0; i < policy->n_seen; i++)
        for (uint32_t k = 0; k < facts->n_ints; k++)
            bytes_u64(out, (uint64_t)policy->seen[i].ints[k]);
}

static void write_guards(Bytes *out, const GuardSet *set, bool who)
{
    bytes_u32(out, set->sizes.n);
    for (uint32_t i = 0; i < set->sizes.n; i++) {
        const SizeExpr *e = &set->sizes.at[i];
        bytes_u8(out, e->kind);
        bytes_u32(out, e->a);
        bytes_u32(out, e->b);
        bytes_u64(out, (uint64_t)e->value);
    }
    bytes_u32(out, set->n);
    for (uint32_t i = 0; i < set->n; i++) {
        const Guard *guard = &set->at[i];
        bytes_u8(out, guard->kind);
        bytes_u8(out, guard->dtype);
        bytes_u32(out, guard->a);
        bytes_u32(out, guard->b);
        bytes_u64(out, (uint64_t)guard->v);
        bytes_u64(out, (uint64_t)guard->w);
        if (who)
            bytes_text(out, guard->who);
    }
}

static void write_numbers(Bytes *out, const uint32_t *numbers, uint32_t n)
{
    bytes_u32(out, n);
    for (uint32_t i = 0; i < n; i++)
        bytes_u32(out, numbers[i]);
}

static void write_plan(Bytes *out, const Program *p)
{
    bytes_u8(out, p->general);
    bytes_u8(out, p->takes_over);
    bytes_u32(out, p->n_slots);
    bytes_u32(out, p->n_band_slots);
    bytes_u32(out, p->n_buffers);
    for (uint32_t i = 0; i < p->n_buffers; i++) {
        const ProgBuffer *b = &p->buffers[i];
        bytes_u8(out, b->kind);
        bytes_u8(out, b->dtype);
        bytes_u32(out, b->index);
        bytes_u32(out, b->numel);
        bytes_u32(out, b->row);
        bytes_u32(out, b->slot);
        bytes_u32(out, b->alias_input);
        bytes_u32(out, b->offset);
    }
    bytes_u8(out, p->math);
    bytes_u32(out, p->n_host);
    for (uint32_t i = 0; i < p->n_host; i++) {
        const HostScalar *h = &p->host[i];
        bytes_u8(out, h->op);
        bytes_u8(out, h->dtype);
        for (int k = 0; k < 3; k++)
            bytes_u32(out, h->in[k]);
        bytes_u64(out, h->bits);
    }
    bytes_u32(out, p->n_bodies);
    for (uint32_t i = 0; i < p->n_bodies; i++)
        write_plan(out, p->bodies[i]);
    bytes_u32(out, p->n_inputs);
    bytes_u32(out, p->n_constants);
    bytes_u32(out, p->n_args);
    for (uint32_t i = 0; i < p->n_args; i++) {
        bytes_u8(out, p->args[i].kind);
        bytes_u32(out, p->args[i].value);
    }
    bytes_u32(out, p->n_steps);
    for (uint32_t i = 0; i < p->n_steps; i++) {
        const ProgStep *s = &p->steps[i];
        bytes_u8(out, s->kind);
        bytes_u8(out, (uint8_t)(s->descending | s->values << 1));
        bytes_u8(out, s->dtype);
        bytes_u32(out, s->kernel);
        bytes_u32(out, s->first_arg);
        bytes_u32(out, s->n_args);
        bytes_u32(out, s->bytes);
        bytes_text(out, s->what);
        if (s->kind != STEP_LOOP && s->kind != STEP_COND && s->kind != STEP_CALL)
            continue;
        bytes_u32(out, s->n_in);
        bytes_u32(out, s->n_results);
        bytes_u32(out, s->carries);
        bytes_u32(out, s->xs);
        bytes_u8(out, s->reverse);
        bytes_u8(out, s->n_bodies);
        bytes_u32(out, s->body);
        bytes_u32(out, s->place);
    }
    bytes_u32(out, p->n_bands);
    for (uint32_t i = 0; i < p->n_bands; i++) {
        const ProgBand *b = &p->bands[i];
        bytes_u32(out, b->first);
        bytes_u32(out, b->n);
        bytes_u32(out, b->batch);
        bytes_u32(out, b->rows);
    }
    write_numbers(out, p->outputs, p->n_outputs);
    write_numbers(out, p->faults, p->n_faults);
}

static void write_kernels(Bytes *out, const Program *p)
{
    bytes_u32(out, p->n_kernels);
    for (uint32_t i = 0; i < p->n_kernels; i++) {
        const CompiledKernel *k = p->kernels[i].compiled;
        uint64_t cost;
        memcpy(&cost, &p->kernels[i].cost, sizeof cost);
        bytes_text(out, p->kernels[i].name);
        bytes_u64(out, cost);
        bytes_blob(out, k->key, k->key_bytes);
        bytes_blob(out, k->object, k->object_bytes);
        bytes_blob(out, k->texts, k->texts_bytes);
    }
}

static Status write_texts(Bytes *out, const char *first, const char *second)
{
    if (!first && !second)
        return ST_OK;
    Bytes pair = {0};
    bytes_add(&pair, first ? first : "", (first ? strlen(first) : 0) + 1);
    bytes_add(&pair, second ? second : "", (second ? strlen(second) : 0) + 1);
    void *packed = NULL;
    size_t n = 0;
    Status status = pair.failed ? ST_OUT_OF_MEMORY : pack(pair.at, pair.n, &packed, &n);
    os_free(pair.at);
    if (status == ST_OK)
        bytes_add(out, packed, n);
    os_free(packed);
    return status;
}

static Status write_section(Bytes *out, const EntryParts *parts, EntrySection section)
{
    switch (section) {
    case SECTION_MAKER: bytes_add(out, parts->key.maker, parts->key.maker_bytes); break;
    case SECTION_GRAPH: bytes_add(out, parts->key.graph, parts->key.graph_bytes); break;
    case SECTION_META: bytes_add(out, parts->meta, parts->meta_bytes); break;
    case SECTION_FACTS: write_facts(out, &parts->facts); break;
    case SECTION_POLICY: write_policy(out, parts->policy, &parts->facts); break;
    case SECTION_GUARDS: write_guards(out, &parts->program->guards, true); break;
    case SECTION_PLAN: write_plan(out, parts->program); break;
    case SECTION_KERNELS: write_kernels(out, parts->program); break;
    case SECTION_TEXTS: return write_texts(out, parts->recorded, parts->optimised);
    case SECTION_COUNT: break;
    }
    return ST_OK;
}

static void put_u64(uint8_t *at, uint64_t value)
{
    for (int i = 0; i < 8; i++)
        at[i] = (uint8_t)(value >> 8 * i);
}

Status entry_write(const EntryParts *parts, void **bytes, size_t *n)
{
    Bytes out = {0};
    uint64_t table[SECTION_COUNT][2];
    Status status = ST_OK;
    *bytes = NULL;
    *n = 0;
    bytes_add(&out, entry_magic, sizeof entry_magic);
    bytes_u32(&out, ENTRY_FORMAT);
    bytes_u32(&out, SECTION_COUNT);
    for (int i = 0; i < HEADER_BYTES - 16; i += 8)
        bytes_u64(&out, 0); /* filled in below */
    for (int s = 0; s < SECTION_COUNT && status == ST_OK; s++) {
        table[s][0] = out.n;
        status = write_section(&out, parts, (EntrySection)s);
        table[s][1] = out.n - table[s][0];
        bytes_align(&out, 8);
    }
    if (out.failed || status != ST_OK) {
        os_free(out.at);
        return fail(ST_OUT_OF_MEMORY, "no memory for an entry of the cache");
    }
    put_u64(out.at + 16, out.n);
    for (int s = 0; s < SECTION_COUNT; s++) {
        put_u64(out.at + CHECKED_FROM + 16 * s, table[s][0]);
        put_u64(out.at + CHECKED_FROM + 16 * s + 8, table[s][1]);
    }
    Hash128 sum = hash128(out.at + CHECKED_FROM, out.n - CHECKED_FROM);
    put_u64(out.at + 24, sum.lo);
    put_u64(out.at + 32, sum.hi);
    *bytes = out.at;
    *n = out.n;
    return ST_OK;
}

static bool same_kernels(const EntryView *entry, const Program *p)
{
    bool same = entry->n_kernels == p->n_kernels;
    for (uint32_t i = 0; same && i < p->n_kernels; i++) {
        const EntryKernel *a = &entry->kernels[i];
        const CompiledKernel *b = p->kernels[i].compiled;
        same = strcmp(a->name, p->kernels[i].name) == 0 && memcmp(&a->cost, &p->kernels[i].cost, sizeof a->cost) == 0 &&
               bytes_equal(a->key, a->key_bytes, b->key, b->key_bytes) && bytes_equal(a->code, a->code_bytes, b->object, b->object_bytes);
    }
    return same;
}

bool entry_same_program(const EntryView *entry, const Program *program, const char **section)
{
    static const EntrySection parts[] = {SECTION_GUARDS, SECTION_PLAN};
    *section = entry_section_names[SECTION_KERNELS];
    bool same = same_kernels(entry, program);
    for (size_t i = 0; i < sizeof parts / sizeof *parts && same; i++) {
        Bytes text[2] = {{0}, {0}};
        for (int k = 0; k < 2; k++) {
            const Program *p = k ? entry->plan : program;
            if (parts[i] == SECTION_GUARDS)
                write_guards(&text[k], &p->guards, true);
            else
                write_plan(&text[k], p);
        }
        *section = entry_section_names[parts[i]];
        same = text[0].failed || text[1].failed || bytes_equal(text[0].at, text[0].n, text[1].at, text[1].n);
        os_free(text[0].at);
        os_free(text[1].at);
    }
    return same;
}

uint64_t entry_guards_hash(const GuardSet *guards)
{
    Bytes out = {0};
    write_guards(&out, guards, false);
    uint64_t hash = out.failed ? 0 : hash64(out.at, out.n);
    os_free(out.at);
    return hash;
}
