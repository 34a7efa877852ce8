/* Entries of the cache on disk: parsing, loading, names. See entry.h for the layout; cache/entry_write.c writes it. */
#include "cache/entry.h"
#include "cache/entry_layout.h"
#include "ir/body.h"
#include "ir/base/bytes.h"
#include "ir/base/os.h"
#include "ir/base/pack.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT_MAX_BYTES = 1 << 28 };

const char *const entry_section_names[SECTION_COUNT] = {
#define SECTION(id, name) name,
    ENTRY_SECTIONS(SECTION)
#undef SECTION
};

/* --- parsing: from the outside in ------------------------------------------------------------------------------------ */

typedef struct Parse {
    Arena *arena;
    ByteReader section[SECTION_COUNT];
    EntryView *view;
    Program *plan;
} Parse;

static Status read_header(Parse *p, const uint8_t *bytes, size_t n)
{
    ByteReader in = {bytes, bytes + n, false};
    if (n < HEADER_BYTES)
        return fail(ST_FORMAT, "truncated: %zu bytes, less than a header", n);
    if (n > ENTRY_MAX_BYTES)
        return fail(ST_FORMAT, "too large: %zu bytes", n);
    if (memcmp(read_bytes(&in, sizeof entry_magic), entry_magic, sizeof entry_magic) != 0)
        return fail(ST_FORMAT, "no entry of a kiln cache: wrong magic");
    uint32_t format = read_u32(&in), n_sections = read_u32(&in);
    if (format != ENTRY_FORMAT)
        return fail(ST_FORMAT, "format %" PRIu32 ", this library reads %d", format, ENTRY_FORMAT);
    uint64_t size = read_u64(&in);
    if (n_sections != SECTION_COUNT)
        return fail(ST_FORMAT, "damaged header: %" PRIu32 " sections", n_sections);
    if (size != n)
        return fail(ST_FORMAT, size > n ? "truncated: %zu of %" PRIu64 " bytes" : "%zu bytes where %" PRIu64 " belong", n, size);
    uint64_t lo = read_u64(&in), hi = read_u64(&in);
    Hash128 sum = hash128(bytes + CHECKED_FROM, n - CHECKED_FROM);
    if (sum.lo != lo || sum.hi != hi)
        return fail(ST_FORMAT, "damaged: the checksum differs");

    uint64_t at = HEADER_BYTES;
    for (int s = 0; s < SECTION_COUNT; s++) {
        uint64_t offset = read_u64(&in), length = read_u64(&in);
        if (offset != at || offset > n || length > n - offset)
            return fail(ST_FORMAT, "section %s lies outside the file", entry_section_names[s]);
        p->section[s] = (ByteReader){bytes + offset, bytes + offset + length, false};
        at = offset + length;
        at = (at + 7) & ~(uint64_t)7;
    }
    return at == n ? ST_OK : fail(ST_FORMAT, "%zu bytes where %" PRIu64 " belong", n, at);
}

uint32_t entry_format(const void *bytes, size_t n)
{
    ByteReader in = {bytes, (const uint8_t *)bytes + n, false};
    const void *magic = read_bytes(&in, sizeof entry_magic);
    return magic && memcmp(magic, entry_magic, sizeof entry_magic) == 0 ? read_u32(&in) : 0;
}

static Status malformed(EntrySection section, const char *what)
{
    return fail(ST_FORMAT, "malformed %s: %s", entry_section_names[section], what);
}

/* A section that was read without a fault, to its end. */
static Status complete(Parse *p, EntrySection section)
{
    const ByteReader *in = &p->section[section];
    if (in->bad)
        return malformed(section, "too short");
    return in->at == in->end ? ST_OK : malformed(section, "too long");
}

static Status read_lines(Parse *p, EntrySection section, const char **text, size_t *n)
{
    ByteReader *in = &p->section[section];
    *text = (const char *)in->at;
    *n = (size_t)(in->end - in->at);
    return key_lines_whole(*text, *n) ? ST_OK : malformed(section, "no lines of name=length:bytes");
}

static Status read_facts(Parse *p)
{
    ByteReader *in = &p->section[SECTION_FACTS];
    uint32_t n_ints = read_count(in, 8);
    int64_t *ints = ARENA_ARRAY(p->arena, int64_t, n_ints);
    for (uint32_t i = 0; i < n_ints; i++)
        ints[i] = (int64_t)read_u64(in);
    uint32_t n_scalars = read_count(in, 8);
    uint64_t *scalars = ARENA_ARRAY(p->arena, uint64_t, n_scalars);
    for (uint32_t i = 0; i < n_scalars; i++)
        scalars[i] = read_u64(in);
    p->view->facts = (Facts){ints, scalars, n_ints, n_scalars};
    return complete(p, SECTION_FACTS);
}

static bool *read_flags(Parse *p, ByteReader *in, uint32_t n)
{
    bool *flags = ARENA_ARRAY(p->arena, bool, n);
    for (uint32_t i = 0; i < n; i++)
        flags[i] = read_u8(in) & 1;
    return flags;
}

static Status read_policy(Parse *p)
{
    ByteReader *in = &p->section[SECTION_POLICY];
    const Facts *facts = &p->view->facts;
    GuardPolicy *policy = &p->view->policy;
    uint8_t breadth = read_u8(in);
    policy->general = breadth & 1;
    policy->wide = breadth >> 1 & 1;
    policy->int_varies = read_flags(p, in, facts->n_ints);
    policy->scalar_varies = read_flags(p, in, facts->n_scalars);
    policy->n_seen = facts->n_ints ? read_count(in, 8 * (size_t)facts->n_ints) : 0;
    Facts *seen = ARENA_ARRAY(p->arena, Facts, policy->n_seen);
    for (uint32_t i = 0; i < policy->n_seen; i++) {
        int64_t *ints = ARENA_ARRAY(p->arena, int64_t, facts->n_ints);
        for (uint32_t k = 0; k < facts->n_ints; k++)
            ints[k] = (int64_t)read_u64(in);
        seen[i] = (Facts){ints, NULL, facts->n_ints, 0};
    }
    policy->seen = seen;
    return complete(p, SECTION_POLICY);
}

static bool size_fits(const Parse *p, const SizeExpr *e, uint32_t index)
{
    switch (e->kind) {
    case SIZE_CONST: return true;
    case SIZE_FACT: return e->a < p->view->facts.n_ints;
    case SIZE_ADD:
    case SIZE_MUL: return e->a < index && e->b < index;
    }
    return false;
}

static bool guard_fits(const Parse *p, const Guard *guard)
{
    uint32_t n = p->plan->guards.sizes.n;
    switch (guard->kind) {
    case GUARD_INT_EQ:
    case GUARD_RANGE: return guard->a < n;
    case GUARD_SAME: return guard->a < n && guard->b < n;
    case GUARD_SCALAR_EQ: return guard->a < p->view->facts.n_scalars && guard->dtype < DT_COUNT;
    }
    return false;
}

static Status read_guards(Parse *p)
{
    ByteReader *in = &p->section[SECTION_GUARDS];
    GuardSet *set = &p->plan->guards;
    set->sizes.n = read_count(in, SIZE_BYTES);
    set->sizes.at = ARENA_ARRAY(p->arena, SizeExpr, set->sizes.n);
    for (uint32_t i = 0; i < set->sizes.n; i++) {
        SizeExpr *e = &set->sizes.at[i];
        e->kind = read_u8(in);
        e->a = read_u32(in);
        e->b = read_u32(in);
        e->value = (int64_t)read_u64(in);
        if (!in->bad && !size_fits(p, e, i))
            return malformed(SECTION_GUARDS, "a size refers to what is not there");
    }
    set->n = read_count(in, GUARD_BYTES);
    set->at = ARENA_ARRAY(p->arena, Guard, set->n);
    for (uint32_t i = 0; i < set->n; i++) {
        Guard *guard = &set->at[i];
        guard->kind = read_u8(in);
        guard->dtype = read_u8(in);
        guard->a = read_u32(in);
        guard->b = read_u32(in);
        guard->v = (int64_t)read_u64(in);
        guard->w = (int64_t)read_u64(in);
        guard->who = read_text(in);
        set->on_scalars |= guard->kind == GUARD_SCALAR_EQ;
        if (!in->bad && !guard_fits(p, guard))
            return malformed(SECTION_GUARDS, "a guard refers to what is not there");
    }
    return complete(p, SECTION_GUARDS);
}

static bool buffer_fits(const Parse *p, const Program *plan, const ProgBuffer *b)
{
    return b->kind <= BUFFER_BAND && b->dtype < DT_COUNT && b->numel < p->plan->guards.sizes.n && b->row < p->plan->guards.sizes.n &&
           (b->kind != BUFFER_TEMP || b->slot < plan->n_slots) &&
           (b->offset == NO_OFFSET || (b->kind == BUFFER_TEMP && b->offset < p->plan->guards.sizes.n)) &&
           (b->kind != BUFFER_BAND || b->slot < plan->n_band_slots);
}

static bool arg_fits(const Parse *p, const Program *plan, const ProgArg *arg)
{
    switch (arg->kind) {
    case BIND_BUFFER: return arg->value < plan->n_buffers;
    case BIND_SIZE: return arg->value < p->plan->guards.sizes.n;
    case BIND_SCALAR: return arg->value < p->view->facts.n_scalars;
    case BIND_HOST: return arg->value < plan->n_host;
    case BIND_SPANS: return arg->value < BAND_SPANS;
    case BIND_SHARED:
    case BIND_FAULT:
    case BIND_NONE: return true;
    }
    return false;
}

/* Has the body as many inputs and outputs as its step gives and takes? */
static bool body_fits(const Program *body, uint32_t n_inputs, uint32_t n_outputs)
{
    bool fits = body->n_outputs == n_outputs;
    for (uint32_t i = 0; i < body->n_buffers && fits; i++)
        fits = (body->buffers[i].kind != BUFFER_INPUT || body->buffers[i].index < n_inputs) &&
               (body->buffers[i].alias_input == NO_BUFFER || body->buffers[i].alias_input < n_inputs);
    return fits;
}

/* Operands, results, and of a loop the count (jit/plan.h). */
static bool bodies_fit(const Program *plan, const ProgStep *s)
{
    bool loop = s->kind == STEP_LOOP;
    if (s->n_in > s->n_args || s->n_results > s->n_args - s->n_in || s->n_args != s->n_in + s->n_results + loop)
        return false;
    const ProgArg *args = plan->args + s->first_arg;
    for (uint32_t i = 0; i < s->n_in + s->n_results; i++)
        if (args[i].kind != BIND_BUFFER && (args[i].kind != BIND_NONE || i < s->n_in))
            return false;
    if (s->n_bodies < (loop ? 1 : 2) || s->n_bodies > 2 || s->body > plan->n_bodies || s->n_bodies > plan->n_bodies - s->body)
        return false;
    Program *const *bodies = plan->bodies + s->body;
    if (!loop)
        return s->n_in && body_fits(bodies[0], s->n_in - 1, s->n_results) && body_fits(bodies[1], s->n_in - 1, s->n_results);
    return (uint32_t)s->carries + s->xs <= s->n_in && s->carries <= s->n_results && args[s->n_args - 1].kind == BIND_SIZE &&
           body_fits(bodies[0], s->n_in + 1, s->n_results) && (s->n_bodies == 1 || body_fits(bodies[1], s->n_in, 1));
}

static bool call_fits(const Program *plan, const ProgStep *s)
{
    bool fits = s->n_in <= s->n_args && s->n_results == s->n_args - s->n_in && s->n_bodies == 0;
    for (uint32_t i = 0; i < s->n_args && fits; i++) {
        uint8_t kind = plan->args[s->first_arg + i].kind;
        fits = kind == BIND_BUFFER || (kind == BIND_NONE && i >= s->n_in);
    }
    return fits;
}

static bool sort_fits(const Program *plan, const ProgStep *step)
{
    static const uint8_t kinds[] = {BIND_BUFFER, BIND_BUFFER, BIND_SIZE, BIND_SIZE, BIND_SIZE};
    bool fits = step->n_args == sizeof kinds && step->dtype < DT_COUNT;
    for (uint32_t i = 0; fits && i < sizeof kinds; i++)
        fits = plan->args[step->first_arg + i].kind == kinds[i];
    return fits;
}

static bool step_fits(const Parse *p, const Program *plan, const ProgStep *step)
{
    if (step->first_arg > plan->n_args || step->n_args > plan->n_args - step->first_arg || step->bytes >= p->plan->guards.sizes.n)
        return false;
    switch (step->kind) {
    case STEP_KERNEL: return step->kernel < p->plan->n_kernels;
    case STEP_SORT: return sort_fits(plan, step);
    case STEP_LOOP:
    case STEP_COND: return bodies_fit(plan, step);
    case STEP_CALL: return call_fits(plan, step);
    }
    return false;
}

/* Inputs of the user's are overwritten by kernels alone, behind all that is none and may fail. (What a body overwrites is its loop's.) */
static bool overwrites_last(const Program *plan)
{
    bool begun = false;
    for (uint32_t i = 0; i < plan->n_steps; i++) {
        const ProgStep *s = &plan->steps[i];
        for (uint32_t a = 0; a < s->n_args; a++) {
            const ProgArg *arg = &plan->args[s->first_arg + a];
            begun |= arg->kind == BIND_BUFFER && plan->buffers[arg->value].alias_input != NO_BUFFER;
        }
        if (begun && s->kind != STEP_KERNEL)
            return false;
    }
    return true;
}

static Status read_buffers(Parse *p, ByteReader *in, Program *plan)
{
    plan->n_slots = read_u32(in);
    plan->n_band_slots = read_u32(in);
    plan->n_buffers = read_count(in, BUFFER_BYTES);
    if (plan->n_slots > plan->n_buffers || plan->n_band_slots > plan->n_buffers || plan->n_band_slots > BAND_SLOTS)
        return malformed(SECTION_PLAN, "more slots than buffers");
    plan->buffers = ARENA_ARRAY(p->arena, ProgBuffer, plan->n_buffers);
    for (uint32_t i = 0; i < plan->n_buffers; i++) {
        ProgBuffer *b = &plan->buffers[i];
        b->kind = read_u8(in);
        b->dtype = read_u8(in);
        b->index = read_u32(in);
        b->numel = read_u32(in);
        b->row = read_u32(in);
        b->slot = read_u32(in);
        b->alias_input = read_u32(in);
        b->offset = read_u32(in);
        if (!in->bad && !buffer_fits(p, plan, b))
            return malformed(SECTION_PLAN, "a buffer refers to what is not there");
    }
    return ST_OK;
}

static Status read_host_scalars(Parse *p, ByteReader *in, Program *plan)
{
    plan->math = read_u8(in);
    plan->n_host = read_count(in, HOST_BYTES);
    plan->host = ARENA_ARRAY(p->arena, HostScalar, plan->n_host);
    for (uint32_t i = 0; i < plan->n_host; i++) {
        HostScalar *h = &plan->host[i];
        h->op = read_u8(in);
        h->dtype = read_u8(in);
        for (int k = 0; k < 3; k++)
            h->in[k] = read_u32(in);
        h->bits = read_u64(in);
        if (!in->bad && !host_scalar_fits(plan->host, i, p->view->facts.n_scalars))
            return malformed(SECTION_PLAN, "a scalar is made of what is not there");
    }
    return plan->math < MATH_MODES ? ST_OK : malformed(SECTION_PLAN, "no mode of arithmetic");
}

static void read_bodies_of(ByteReader *in, ProgStep *s)
{
    s->n_in = read_u32(in);
    s->n_results = read_u32(in);
    s->carries = (uint16_t)read_u32(in);
    s->xs = (uint16_t)read_u32(in);
    s->reverse = read_u8(in) & 1;
    s->n_bodies = read_u8(in);
    s->body = read_u32(in);
    s->place = read_u32(in);
}

static Status read_steps(Parse *p, ByteReader *in, Program *plan)
{
    plan->n_args = read_count(in, ARG_BYTES);
    plan->args = ARENA_ARRAY(p->arena, ProgArg, plan->n_args);
    for (uint32_t i = 0; i < plan->n_args; i++) {
        plan->args[i].kind = read_u8(in);
        plan->args[i].value = read_u32(in);
        if (!in->bad && !arg_fits(p, plan, &plan->args[i]))
            return malformed(SECTION_PLAN, "an argument refers to what is not there");
    }
    plan->n_steps = read_count(in, STEP_BYTES);
    plan->steps = ARENA_ARRAY(p->arena, ProgStep, plan->n_steps);
    for (uint32_t i = 0; i < plan->n_steps; i++) {
        ProgStep *s = &plan->steps[i];
        s->kind = read_u8(in);
        uint8_t flags = read_u8(in);
        s->descending = flags & 1;
        s->values = flags >> 1 & 1;
        s->dtype = read_u8(in);
        s->kernel = read_u32(in);
        s->first_arg = read_u32(in);
        s->n_args = read_u32(in);
        s->bytes = read_u32(in);
        s->what = read_text(in);
        if (s->kind == STEP_LOOP || s->kind == STEP_COND || s->kind == STEP_CALL)
            read_bodies_of(in, s);
        if (!in->bad && !step_fits(p, plan, s))
            return malformed(SECTION_PLAN, "a step refers to what is not there");
        if (s->n_args > plan->max_step_args)
            plan->max_step_args = s->n_args;
    }
    if (!in->bad && plan->takes_over && !plan->inner && !overwrites_last(plan))
        return malformed(SECTION_PLAN, "an input is overwritten before what may fail");
    return ST_OK;
}

/* Bands follow each other, and are made of kernels. */
static bool band_fits(const Parse *p, const Program *plan, uint32_t i)
{
    const ProgBand *b = &plan->bands[i];
    uint32_t from = i ? plan->bands[i - 1].first + plan->bands[i - 1].n : 0, sizes = p->plan->guards.sizes.n;
    bool fits = b->n && b->n <= BAND_STEPS && b->first >= from && b->first < plan->n_steps && b->n <= plan->n_steps - b->first &&
                b->batch < sizes && b->rows < sizes;
    for (uint32_t s = 0; fits && s < b->n; s++)
        fits = plan->steps[b->first + s].kind == STEP_KERNEL;
    return fits;
}

static Status read_bands(Parse *p, ByteReader *in, Program *plan)
{
    plan->n_bands = read_count(in, BAND_BYTES);
    plan->bands = ARENA_ARRAY(p->arena, ProgBand, plan->n_bands);
    for (uint32_t i = 0; i < plan->n_bands; i++) {
        ProgBand *b = &plan->bands[i];
        b->first = read_u32(in);
        b->n = read_u32(in);
        b->batch = read_u32(in);
        b->rows = read_u32(in);
        if (!in->bad && !band_fits(p, plan, i))
            return malformed(SECTION_PLAN, "a band is of steps that are not there");
    }
    return ST_OK;
}

static uint32_t *read_numbers(Parse *p, ByteReader *in, uint32_t *n)
{
    *n = read_count(in, 4);
    uint32_t *numbers = ARENA_ARRAY(p->arena, uint32_t, *n);
    for (uint32_t i = 0; i < *n; i++)
        numbers[i] = read_u32(in);
    return numbers;
}

static Status read_program(Parse *p, ByteReader *in, Program *plan, int depth);

static Status read_bodies(Parse *p, ByteReader *in, Program *plan, int depth)
{
    plan->n_bodies = read_count(in, BODY_BYTES);
    plan->bodies = ARENA_ARRAY(p->arena, Program *, plan->n_bodies);
    if (plan->n_bodies && depth == MAX_BODY_DEPTH)
        return malformed(SECTION_PLAN, "bodies nested too deep");
    for (uint32_t i = 0; i < plan->n_bodies && !in->bad; i++) {
        plan->bodies[i] = ARENA_NEW(p->arena, Program);
        plan->bodies[i]->inner = true;
        TRY(read_program(p, in, plan->bodies[i], depth + 1));
    }
    return in->bad ? malformed(SECTION_PLAN, "too short") : ST_OK;
}

/* Each makes one value of inputs of the call, and that is an input of the program; what might fail has no place there, nor have others inside. */
static bool constant_fits(const Program *plan, const Program *constant)
{
    bool fits = body_fits(constant, plan->n_inputs, 1) && constant->n_faults == 0 && constant->n_constants == 0 && constant->n_bodies == 0;
    for (uint32_t i = 0; i < constant->n_args && fits; i++)
        fits = constant->args[i].kind != BIND_FAULT;
    return fits;
}

static Status read_constants(ByteReader *in, Program *plan)
{
    plan->n_inputs = read_u32(in);
    plan->n_constants = read_u32(in);
    bool fits = in->bad || (plan->n_constants <= plan->n_bodies && (!plan->inner || plan->n_constants == 0));
    for (uint32_t k = 0; k < plan->n_constants && fits && !in->bad; k++)
        fits = constant_fits(plan, program_constant(plan, k));
    for (uint32_t i = 0; i < plan->n_buffers && fits && !in->bad && !plan->inner; i++)
        fits = plan->buffers[i].kind != BUFFER_INPUT || plan->buffers[i].index < plan->n_inputs + plan->n_constants;
    return fits ? ST_OK : malformed(SECTION_PLAN, "an input is made of what is not there");
}

static Status read_program(Parse *p, ByteReader *in, Program *plan, int depth)
{
    plan->general = read_u8(in) & 1;
    plan->takes_over = read_u8(in) & 1;
    TRY(read_buffers(p, in, plan));
    TRY(read_host_scalars(p, in, plan));
    TRY(read_bodies(p, in, plan, depth));
    TRY(read_constants(in, plan));
    TRY(read_steps(p, in, plan));
    TRY(read_bands(p, in, plan));
    plan->outputs = read_numbers(p, in, &plan->n_outputs);
    for (uint32_t i = 0; i < plan->n_outputs; i++)
        if (!in->bad && (plan->outputs[i] >= plan->n_buffers || plan->buffers[plan->outputs[i]].kind >= BUFFER_TEMP))
            return malformed(SECTION_PLAN, "an output is no buffer of the caller");
    plan->faults = read_numbers(p, in, &plan->n_faults);
    return ST_OK;
}

static Status read_plan(Parse *p)
{
    TRY(read_program(p, &p->section[SECTION_PLAN], p->plan, 0));
    return complete(p, SECTION_PLAN);
}

static Status read_kernels(Parse *p)
{
    ByteReader *in = &p->section[SECTION_KERNELS];
    uint32_t n = read_count(in, KERNEL_BYTES);
    EntryKernel *kernels = ARENA_ARRAY(p->arena, EntryKernel, n);
    p->plan->kernels = ARENA_ARRAY(p->arena, ProgKernel, n);
    for (uint32_t i = 0; i < n; i++) {
        EntryKernel *k = &kernels[i];
        k->name = read_text(in);
        uint64_t cost = read_u64(in);
        memcpy(&k->cost, &cost, sizeof cost);
        k->key = read_blob(in, &k->key_bytes);
        k->code = read_blob(in, &k->code_bytes);
        k->texts = read_blob(in, &k->texts_bytes);
        if (k->texts_bytes == 0)
            k->texts = NULL;
        if (!in->bad && (k->key_bytes == 0 || !(k->cost >= 0 && k->cost < 1e18)))
            return malformed(SECTION_KERNELS, "a kernel without a key or cost");
        p->plan->kernels[i] = (ProgKernel){NULL, k->name, k->cost};
    }
    p->view->kernels = kernels;
    p->view->n_kernels = p->plan->n_kernels = n;
    return complete(p, SECTION_KERNELS);
}

Status entry_parse(const void *bytes, size_t n, Arena *arena, EntryView *out)
{
    Parse p = {.arena = arena, .view = out, .plan = ARENA_NEW(arena, Program)};
    *out = (EntryView){.bytes = bytes, .n_bytes = n, .plan = p.plan};
    TRY(read_header(&p, bytes, n));
    TRY(read_lines(&p, SECTION_MAKER, &out->key.maker, &out->key.maker_bytes));
    TRY(read_lines(&p, SECTION_GRAPH, &out->key.graph, &out->key.graph_bytes));
    TRY(read_lines(&p, SECTION_META, &out->meta, &out->meta_bytes));
    TRY(read_facts(&p));
    TRY(read_policy(&p));
    TRY(read_guards(&p));
    TRY(read_kernels(&p)); /* before the plan, which refers to them */
    TRY(read_plan(&p));
    const ByteReader *texts = &p.section[SECTION_TEXTS];
    out->texts_bytes = (size_t)(texts->end - texts->at);
    out->texts = out->texts_bytes ? texts->at : NULL;
    return ST_OK;
}

/* --- looking into a parsed entry --------------------------------------------------------------------------------------- */

const char *entry_meta(const EntryView *entry, const char *name, Arena *arena)
{
    size_t n;
    const char *value = key_line_find(entry->meta, entry->meta_bytes, name, &n);
    if (!value)
        return NULL;
    char *text = arena_alloc(arena, n + 1);
    memcpy(text, value, n);
    return text;
}

/* Two terminated texts, one behind the other; empty means none. */
static Status unpack_pair(const void *packed, size_t bytes, Arena *arena, const char **first, const char **second)
{
    char *text;
    size_t n;
    *first = *second = NULL;
    if (!packed)
        return ST_OK;
    TRY(unpack(packed, bytes, TEXT_MAX_BYTES, arena, &text, &n));
    size_t length = strlen(text);
    if (length + 1 >= n || strlen(text + length + 1) + length + 2 != n)
        return fail(ST_FORMAT, "malformed texts: not two");
    if (text[0])
        *first = text;
    if (text[length + 1])
        *second = text + length + 1;
    return ST_OK;
}

Status entry_texts(const EntryView *entry, Arena *arena, EntryTexts *out)
{
    const char **ir = ARENA_ARRAY(arena, const char *, entry->n_kernels);
    const char **assembly = ARENA_ARRAY(arena, const char *, entry->n_kernels);
    *out = (EntryTexts){.kernel_ir = ir, .kernel_assembly = assembly};
    TRY(unpack_pair(entry->texts, entry->texts_bytes, arena, &out->recorded, &out->optimised));
    for (uint32_t i = 0; i < entry->n_kernels; i++)
        TRY(unpack_pair(entry->kernels[i].texts, entry->kernels[i].texts_bytes, arena, &ir[i], &assembly[i]));
    return ST_OK;
}

/* --- loading ----------------------------------------------------------------------------------------------------------- */

/* A heap copy in *to; false: out of memory. */
static bool copy(void *to, const void *from, size_t n)
{
    void *block = os_copy(from, n);
    memcpy(to, &block, sizeof block);
    return block != NULL;
}

static Status load_kernel(const EntryKernel *k, CompiledKernel **out)
{
    *out = kernel_table_find(k->key, k->key_bytes);
    if (*out)
        return ST_OK;
    KernelParts parts = {.object_bytes = k->code_bytes, .texts_bytes = k->texts_bytes};
    bool copied = copy(&parts.object, k->code, k->code_bytes) && (!k->texts || copy(&parts.texts, k->texts, k->texts_bytes));
    Status status = copied ? kernel_parts_load(&parts) : fail(ST_OUT_OF_MEMORY, "no memory for kernel %s", k->name);
    if (status != ST_OK) {
        os_free(parts.object);
        os_free(parts.texts);
        return status;
    }
    *out = kernel_table_add(k->key, k->key_bytes, &parts);
    return *out ? ST_OK : ST_OUT_OF_MEMORY;
}

/* The texts that a program and its bodies refer to, moved into a block of each. */
static bool own_texts(Program *p)
{
    size_t bytes = 1;
    uint32_t n_kernels = p->inner ? 0 : p->n_kernels;
    for (uint32_t i = 0; i < p->n_bodies; i++)
        if (!own_texts(p->bodies[i]))
            return false;
    for (uint32_t i = 0; i < p->n_steps; i++)
        bytes += strlen(p->steps[i].what) + 1;
    for (uint32_t i = 0; i < n_kernels; i++)
        bytes += strlen(p->kernels[i].name) + 1;
    for (uint32_t i = 0; i < p->guards.n; i++)
        bytes += strlen(p->guards.at[i].who) + 1;
    char *at = p->texts = os_alloc(bytes);
    if (!at)
        return false;
    for (uint32_t i = 0; i < p->n_steps; i++)
        p->steps[i].what = strcpy(at, p->steps[i].what), at += strlen(at) + 1;
    for (uint32_t i = 0; i < n_kernels; i++)
        p->kernels[i].name = strcpy(at, p->kernels[i].name), at += strlen(at) + 1;
    for (uint32_t i = 0; i < p->guards.n; i++)
        p->guards.at[i].who = strcpy(at, p->guards.at[i].who), at += strlen(at) + 1;
    program_weigh(p, bytes);
    return true;
}

static double compile_seconds(const EntryView *entry)
{
    size_t n;
    char digits[24] = "";
    const char *value = key_line_find(entry->meta, entry->meta_bytes, "compile_us", &n);
    if (value && n < sizeof digits)
        memcpy(digits, value, n);
    return 1e-6 * (double)strtoll(digits, NULL, 10);
}

/* A heap copy of the plan and the bodies in it: all but guards and kernels. */
static bool copy_plan(Program *p, const Program *plan)
{
    atomic_init(&p->refs, 1);
    p->n_buffers = plan->n_buffers;
    p->n_steps = plan->n_steps;
    p->n_args = plan->n_args;
    p->n_outputs = plan->n_outputs;
    p->n_faults = plan->n_faults;
    p->n_host = plan->n_host;
    p->math = plan->math;
    p->n_slots = plan->n_slots;
    p->n_band_slots = plan->n_band_slots;
    p->n_bands = plan->n_bands;
    p->max_step_args = plan->max_step_args;
    p->takes_over = plan->takes_over;
    p->general = plan->general;
    p->inner = plan->inner;
    p->n_inputs = plan->n_inputs;
    p->n_constants = plan->n_constants;
    bool copied = copy(&p->buffers, plan->buffers, sizeof *plan->buffers * plan->n_buffers) &&
                  copy(&p->steps, plan->steps, sizeof *plan->steps * plan->n_steps) &&
                  copy(&p->bands, plan->bands, sizeof *plan->bands * plan->n_bands) &&
                  copy(&p->args, plan->args, sizeof *plan->args * plan->n_args) &&
                  copy(&p->outputs, plan->outputs, sizeof *plan->outputs * plan->n_outputs) &&
                  copy(&p->faults, plan->faults, sizeof *plan->faults * plan->n_faults) &&
                  copy(&p->host, plan->host, sizeof *plan->host * plan->n_host) &&
                  (p->bodies = os_calloc(plan->n_bodies + 1, sizeof(Program *)));
    for (uint32_t i = 0; i < plan->n_bodies && copied; i++) {
        copied = (p->bodies[i] = os_calloc(1, sizeof(Program))) != NULL;
        p->n_bodies += copied;
        copied = copied && copy_plan(p->bodies[i], plan->bodies[i]);
    }
    return copied;
}

/* Bodies refer to the kernels of the program that they lie in. */
static void lend_kernels(Program *p)
{
    for (uint32_t i = 0; i < p->n_bodies; i++) {
        p->bodies[i]->kernels = p->kernels;
        p->bodies[i]->n_kernels = p->n_kernels;
        lend_kernels(p->bodies[i]);
    }
}

/* Has each step as many arguments as the launch plan of its kernel was made for? Then evaluating the plan reads no others. */
static bool launches_fit(const Program *p)
{
    bool fit = true;
    for (uint32_t i = 0; i < p->n_steps; i++) {
        const ProgStep *s = &p->steps[i];
        fit &= s->kind != STEP_KERNEL || p->kernels[s->kernel].compiled->parts.plan.n_args == s->n_args;
    }
    for (uint32_t i = 0; i < p->n_bodies; i++)
        fit &= launches_fit(p->bodies[i]);
    return fit;
}

Status entry_load(const EntryView *entry, Program **out)
{
    const Program *plan = entry->plan;
    Program *p = os_calloc(1, sizeof *p);
    *out = NULL;
    if (!p)
        return fail(ST_OUT_OF_MEMORY, "no memory for a program");
    bool copied = copy_plan(p, plan);
    p->guards = (GuardSet){.sizes.n = plan->guards.sizes.n, .n = plan->guards.n, .on_scalars = plan->guards.on_scalars};
    p->compile_seconds = compile_seconds(entry);
    Status status = ST_OK;
    if (!copied || !copy(&p->guards.sizes.at, plan->guards.sizes.at, sizeof *plan->guards.sizes.at * plan->guards.sizes.n) ||
        !copy(&p->guards.at, plan->guards.at, sizeof *plan->guards.at * plan->guards.n) ||
        !copy(&p->kernels, plan->kernels, sizeof *plan->kernels * plan->n_kernels))
        status = fail(ST_OUT_OF_MEMORY, "no memory for a program of %u steps", plan->n_steps);
    for (; status == ST_OK && p->n_kernels < entry->n_kernels; p->n_kernels++) {
        status = load_kernel(&entry->kernels[p->n_kernels], &p->kernels[p->n_kernels].compiled);
        if (status != ST_OK)
            break;
    }
    lend_kernels(p);
    for (uint32_t k = 0; k < p->n_constants && status == ST_OK; k++)
        if (!(program_constant(p, k)->recipe = recipe_new(program_constant(p, k))))
            status = fail(ST_OUT_OF_MEMORY, "no memory for a program of %u steps", plan->n_steps);
    if (status == ST_OK && !launches_fit(p))
        status = malformed(SECTION_KERNELS, "a launch plan for other arguments");
    if (status == ST_OK && !own_texts(p))
        status = fail(ST_OUT_OF_MEMORY, "no memory for a program of %u steps", plan->n_steps);
    if (status != ST_OK) {
        program_release(p);
        return status;
    }
    *out = p;
    return ST_OK;
}

/* --- names ------------------------------------------------------------------------------------------------------------- */

static int test_hash_bits; /* 0: all */

void entry_test_hash_bits(int bits) { test_hash_bits = bits; }

static uint64_t kept_bits(uint64_t hash) { return test_hash_bits ? hash & (((uint64_t)1 << test_hash_bits) - 1) : hash; }

void entry_prefix(const KeyText *key, bool maker, char prefix[ENTRY_NAME_BYTES])
{
    Hash128 graph = hash128(key->graph, key->graph_bytes);
    graph = (Hash128){kept_bits(graph.lo), test_hash_bits ? 0 : graph.hi};
    snprintf(prefix, ENTRY_NAME_BYTES, "%016" PRIx64 "%016" PRIx64 "-", graph.hi, graph.lo);
    if (maker)
        snprintf(prefix + ENTRY_GRAPH_HEX + 1, ENTRY_NAME_BYTES - ENTRY_GRAPH_HEX - 1, "%08" PRIx32 "-",
                 (uint32_t)kept_bits(hash64(key->maker, key->maker_bytes)));
}

void entry_name(const KeyText *key, const GuardSet *guards, char name[ENTRY_NAME_BYTES])
{
    enum { BEFORE = ENTRY_GRAPH_HEX + 1 + ENTRY_MAKER_HEX + 1 };
    entry_prefix(key, true, name);
    snprintf(name + BEFORE, ENTRY_NAME_BYTES - BEFORE, "%016" PRIx64 ".kiln", kept_bits(entry_guards_hash(guards)));
}

bool entry_name_valid(const char *name)
{
    static const int parts[] = {ENTRY_GRAPH_HEX, ENTRY_MAKER_HEX, ENTRY_GUARDS_HEX};
    for (int part = 0; part < 3; part++) {
        if (part && *name++ != '-')
            return false;
        for (int i = 0; i < parts[part]; i++, name++)
            if (!((*name >= '0' && *name <= '9') || (*name >= 'a' && *name <= 'f')))
                return false;
    }
    return strcmp(name, ".kiln") == 0;
}
