/*
 * Launch plans: making, folding, packing, evaluating.
 *
 *     packed   | Head | nodes | phases | divisors | names |        nothing between them, 8-byte aligned as a whole
 *
 * Nodes that folding left without use are not packed. A plan whose nodes are all constants costs no walk: what uses it evaluates it once.
 */
#include "jit/launch_plan.h"
#include "ir/base/os.h"

#include <stdio.h>
#include <string.h>

/* ---- making ---- */

static uint16_t node(LaunchBuilder *b, LaunchNode n)
{
    for (uint32_t i = 0; i < b->n_nodes; i++)
        if (b->node[i].op == n.op && b->node[i].a == n.a && b->node[i].b == n.b && b->node[i].c == n.c && b->node[i].value == n.value)
            return (uint16_t)i;
    if (b->n_nodes == LAUNCH_NODES) {
        b->full = true;
        return 0;
    }
    b->node[b->n_nodes] = n;
    return (uint16_t)b->n_nodes++;
}

uint16_t launch_const(LaunchBuilder *b, int64_t value) { return node(b, (LaunchNode){.op = LAUNCH_CONST, .value = value}); }
uint16_t launch_arg(LaunchBuilder *b, uint32_t arg) { return node(b, (LaunchNode){.op = LAUNCH_ARG, .value = arg}); }
uint16_t launch_sms(LaunchBuilder *b) { return node(b, (LaunchNode){.op = LAUNCH_SMS}); }

bool launch_is_const(const LaunchBuilder *b, uint16_t x, int64_t *value)
{
    *value = b->node[x].value;
    return b->node[x].op == LAUNCH_CONST;
}

/* c: of CHOOSE. */
static inline int64_t apply(LaunchOp op, int64_t a, int64_t b, int64_t c)
{
    int64_t r;
    switch (op) {
    case LAUNCH_ADD: return __builtin_add_overflow(a, b, &r) ? INT64_MAX : r;
    case LAUNCH_MUL: return __builtin_mul_overflow(a, b, &r) ? INT64_MAX : r;
    case LAUNCH_CEIL_DIV: b = b < 1 ? 1 : b; return a / b + (a % b > 0);
    case LAUNCH_CEIL_SHIFT: return (a >> b) + ((a & ((INT64_C(1) << b) - 1)) != 0);
    case LAUNCH_MIN: return a < b ? a : b;
    case LAUNCH_MAX: return a > b ? a : b;
    case LAUNCH_LESS: return a < b;
    case LAUNCH_CHOOSE: return a ? b : c;
    case LAUNCH_CONST:
    case LAUNCH_ARG:
    case LAUNCH_SMS:
    case LAUNCH_OPS: break;
    }
    return 0;
}

uint16_t launch_op(LaunchBuilder *b, LaunchOp op, uint16_t x, uint16_t y)
{
    int64_t u, v;
    bool left = launch_is_const(b, x, &u), right = launch_is_const(b, y, &v);
    if (left && right)
        return launch_const(b, apply(op, u, v, 0));
    if ((left && u == 1 && op == LAUNCH_MUL) || (left && u == 0 && op == LAUNCH_ADD))
        return y;
    if ((right && v == 1 && (op == LAUNCH_MUL || op == LAUNCH_CEIL_DIV)) || (right && v == 0 && op == LAUNCH_ADD))
        return x;
    if (op == LAUNCH_MUL && ((left && u == 0) || (right && v == 0)))
        return launch_const(b, 0);
    if (op == LAUNCH_CEIL_DIV && right && v > 0 && (v & (v - 1)) == 0)
        return node(b, (LaunchNode){.op = LAUNCH_CEIL_SHIFT, .a = x, .b = launch_const(b, __builtin_ctzll((uint64_t)v))});
    return node(b, (LaunchNode){.op = (uint8_t)op, .a = x, .b = y});
}

uint16_t launch_choose(LaunchBuilder *b, uint16_t test, uint16_t yes, uint16_t no)
{
    int64_t known;
    if (launch_is_const(b, test, &known))
        return known ? yes : no;
    return yes == no ? yes : node(b, (LaunchNode){.op = LAUNCH_CHOOSE, .a = test, .b = yes, .c = no});
}

uint16_t launch_round_up(LaunchBuilder *b, uint16_t x, int64_t unit)
{
    uint16_t by = launch_const(b, unit);
    return launch_op(b, LAUNCH_MUL, launch_op(b, LAUNCH_CEIL_DIV, x, by), by);
}

bool grid_divide_by(LaunchBuilder *b, uint16_t size, uint32_t n_args, uint32_t *slot)
{
    uint32_t i = 0;
    while (i < b->n_divisors && b->divisor[i] != size)
        i++;
    *slot = b->numbered + i;
    if (i < b->n_divisors)
        return true;
    if (b->by_pointer || i == GRID_DIVISORS || ((size_t)n_args + *slot + 1) * sizeof(uint64_t) > GRID_BLOCK_BYTES)
        return false;
    b->divisor[b->n_divisors++] = size;
    return true;
}

static uint16_t name(LaunchBuilder *b, const char *entry)
{
    size_t bytes = strlen(entry) + 1;
    uint32_t at = b->n_phases ? b->phase[b->n_phases - 1].entry : 0;
    if (b->n_phases && strcmp(b->names + at, entry) == 0)
        return (uint16_t)at;
    at = b->names_bytes;
    memcpy(b->names + at, entry, bytes);
    b->names_bytes += (uint32_t)bytes;
    return (uint16_t)at;
}

LaunchPhase *launch_phase(LaunchBuilder *b, const char *entry, uint32_t threads)
{
    b->full |= b->n_phases == LAUNCH_PHASES || strlen(entry) >= LAUNCH_NAME;
    uint16_t none = launch_const(b, 0);
    LaunchPhase phase = {.tasks = none, .points = none, .local = none, .threads = (uint16_t)threads, .entry = b->full ? 0 : name(b, entry)};
    LaunchPhase *at = &b->phase[b->full ? 0 : b->n_phases++];
    *at = phase;
    return at;
}

/* ---- packing ---- */

typedef struct Head {
    uint32_t n_args;
    uint16_t n_consts, n_read, n_nodes, n_phases, n_divisors, names_bytes, scratch, count, rows;
    uint8_t flags, together;
} Head;

enum { BY_POINTER = 1, NUMBERED = 2, SPANS = 4 };

_Static_assert(sizeof(Head) == 24 && sizeof(LaunchNode) == 16 && sizeof(LaunchPhase) == 10, "no byte of a packed plan is left to chance");

static size_t packed_bytes(const Head *h)
{
    return sizeof *h + h->n_nodes * sizeof(LaunchNode) + h->n_phases * sizeof(LaunchPhase) + h->n_divisors * sizeof(uint16_t) +
           h->names_bytes;
}

/* Where the parts lie. */
static void view(const void *packed, const Head *h, LaunchPlan *p)
{
    *p = (LaunchPlan){.packed = packed,
                      .bytes = packed_bytes(h),
                      .n_args = h->n_args,
                      .n_consts = h->n_consts,
                      .n_read = h->n_read,
                      .n_nodes = h->n_nodes,
                      .n_phases = h->n_phases,
                      .n_divisors = h->n_divisors,
                      .scratch = h->scratch,
                      .count = h->count,
                      .rows = h->rows,
                      .together = h->together,
                      .by_pointer = (h->flags & BY_POINTER) != 0,
                      .numbered = (h->flags & NUMBERED) != 0,
                      .spans = (h->flags & SPANS) != 0,
                      .fixed = h->n_consts == h->n_nodes};
    p->node = (const LaunchNode *)(const void *)((const char *)packed + sizeof *h);
    p->phase = (const LaunchPhase *)(const void *)(p->node + p->n_nodes);
    p->divisor = (const uint16_t *)(const void *)(p->phase + p->n_phases);
    p->names = (const char *)(p->divisor + p->n_divisors);
}

/* Which nodes a plan is made of: their new numbers; how many there are, by kind. */
static void number_nodes(const LaunchBuilder *b, uint16_t number[LAUNCH_NODES], Head *h)
{
    bool used[LAUNCH_NODES] = {false};
    used[b->scratch] = used[b->count] = used[b->rows] = true;
    for (uint32_t i = 0; i < b->n_phases; i++)
        used[b->phase[i].tasks] = used[b->phase[i].points] = used[b->phase[i].local] = true;
    for (uint32_t i = 0; i < b->n_divisors; i++)
        used[b->divisor[i]] = true;
    for (uint32_t i = b->n_nodes; i-- > 0;) {
        const LaunchNode *m = &b->node[i];
        if (!used[i] || m->op < LAUNCH_ADD)
            continue;
        used[m->a] = used[m->b] = true;
        if (m->op == LAUNCH_CHOOSE)
            used[m->c] = true;
    }
    memset(number, 0xff, sizeof *number * LAUNCH_NODES);
    uint16_t n = 0, *end[] = {&h->n_consts, &h->n_read, &h->n_nodes};
    for (int kind = 0; kind < 3; kind++) {
        for (uint32_t i = 0; i < b->n_nodes; i++) {
            int is = b->node[i].op == LAUNCH_CONST ? 0 : b->node[i].op == LAUNCH_ARG ? 1 : 2;
            if (used[i] && is == kind)
                number[i] = n++;
        }
        *end[kind] = n;
    }
}

Status launch_plan_make(const LaunchBuilder *b, uint32_t n_args, LaunchPlan *out)
{
    uint16_t number[LAUNCH_NODES];
    *out = (LaunchPlan){0};
    if (b->full || !b->n_nodes || !b->n_phases)
        return fail(ST_UNSUPPORTED, "too many sizes or phases for a launch plan");
    Head h = {.n_args = n_args,
              .n_phases = (uint16_t)b->n_phases,
              .n_divisors = b->n_divisors,
              .names_bytes = (uint16_t)b->names_bytes,
              .flags = (uint8_t)((b->by_pointer ? BY_POINTER : 0) | (b->numbered ? NUMBERED : 0) | (b->spans ? SPANS : 0)),
              .together = b->together};
    number_nodes(b, number, &h);
    h.scratch = number[b->scratch];
    h.count = number[b->count];
    h.rows = number[b->rows];
    char *packed = os_calloc(1, packed_bytes(&h));
    if (!packed)
        return fail(ST_OUT_OF_MEMORY, "no memory for a launch plan");
    memcpy(packed, &h, sizeof h);
    LaunchNode *nodes = (LaunchNode *)(void *)(packed + sizeof h);
    for (uint32_t i = 0; i < b->n_nodes; i++) {
        LaunchNode n = b->node[i];
        if (number[i] == UINT16_MAX)
            continue;
        if (n.op >= LAUNCH_ADD) {
            n.a = number[n.a];
            n.b = number[n.b];
            n.c = n.op == LAUNCH_CHOOSE ? number[n.c] : 0;
        }
        nodes[number[i]] = n;
    }
    LaunchPhase *phases = (LaunchPhase *)(void *)(nodes + h.n_nodes);
    for (uint32_t i = 0; i < b->n_phases; i++) {
        const LaunchPhase *f = &b->phase[i];
        phases[i] = (LaunchPhase){number[f->tasks], number[f->points], number[f->local], f->threads, f->entry};
    }
    uint16_t *divisors = (uint16_t *)(void *)(phases + h.n_phases);
    for (uint32_t i = 0; i < b->n_divisors; i++)
        divisors[i] = number[b->divisor[i]];
    memcpy(divisors + h.n_divisors, b->names, b->names_bytes);
    view(packed, &h, out);
    return ST_OK;
}

void launch_plan_free(LaunchPlan *p)
{
    os_free((void *)(uintptr_t)p->packed);
    *p = (LaunchPlan){0};
}

static bool valid_nodes(const LaunchPlan *p)
{
    if (p->n_consts > p->n_read || p->n_read > p->n_nodes || p->n_nodes > LAUNCH_NODES)
        return false;
    for (uint32_t i = 0; i < p->n_nodes; i++) {
        const LaunchNode *n = &p->node[i], *by = &p->node[n->b < i ? n->b : i];
        bool valid = i < p->n_consts ? n->op == LAUNCH_CONST
                     : i < p->n_read ? n->op == LAUNCH_ARG && n->value >= 0 && n->value < p->n_args
                                     : n->op >= LAUNCH_SMS && n->op < LAUNCH_OPS && n->a < i && n->b < i && n->c < i;
        if (n->op == LAUNCH_CEIL_SHIFT)
            valid &= by->op == LAUNCH_CONST && by->value >= 0 && by->value <= 62;
        if (!valid)
            return false;
    }
    return p->scratch < p->n_nodes && p->count < p->n_nodes && p->rows < p->n_nodes;
}

static bool valid_phases(const LaunchPlan *p, size_t names_bytes)
{
    if (!p->n_phases || p->n_phases > LAUNCH_PHASES || !names_bytes || p->names[names_bytes - 1])
        return false;
    for (uint32_t i = 0; i < p->n_phases; i++) {
        const LaunchPhase *f = &p->phase[i];
        if (f->tasks >= p->n_nodes || f->points >= p->n_nodes || f->local >= p->n_nodes || f->threads > 1024 ||
            !f->threads != !p->phase[0].threads || f->entry >= names_bytes)
            return false;
    }
    return true;
}

/* CUDA: a block by value is at most so large. */
static bool valid_tail(const LaunchPlan *p)
{
    bool by_value = p->phase[0].threads && !p->by_pointer;
    size_t slots = (size_t)p->n_args + p->numbered + p->n_divisors;
    if (by_value ? p->n_divisors > GRID_DIVISORS || slots * sizeof(uint64_t) > GRID_BLOCK_BYTES : p->numbered || p->n_divisors)
        return false;
    for (uint32_t i = 0; i < p->n_divisors; i++)
        if (p->divisor[i] >= p->n_nodes)
            return false;
    return true;
}

Status launch_plan_open(const void *packed, size_t bytes, LaunchPlan *out)
{
    Head h;
    *out = (LaunchPlan){0};
    if (bytes >= sizeof h)
        memcpy(&h, packed, sizeof h);
    if (bytes < sizeof h || bytes != packed_bytes(&h) || h.flags > (BY_POINTER | NUMBERED | SPANS))
        return fail(ST_FORMAT, "not a well-formed launch plan");
    view(packed, &h, out);
    if (!valid_nodes(out) || !valid_phases(out, h.names_bytes) || !valid_tail(out)) {
        *out = (LaunchPlan){0};
        return fail(ST_FORMAT, "not a well-formed launch plan");
    }
    return ST_OK;
}

/* ---- using ---- */

static void evaluate(const LaunchPlan *p, void *const *args, int64_t n_sms, int64_t *value)
{
    uint32_t i = 0;
    for (; i < p->n_consts; i++)
        value[i] = p->node[i].value;
    for (; i < p->n_read; i++)
        value[i] = (int64_t)(intptr_t)args[p->node[i].value];
    for (; i < p->n_nodes; i++) {
        const LaunchNode *n = &p->node[i];
        value[i] = n->op == LAUNCH_SMS ? n_sms : apply((LaunchOp)n->op, value[n->a], value[n->b], value[n->c]);
    }
}

void host_launch(const LaunchPlan *p, void *const *args, HostLaunch *out)
{
    int64_t value[LAUNCH_NODES];
    const LaunchPhase *even = &p->phase[0], *odd = &p->phase[p->n_phases - 1];
    evaluate(p, args, 1, value);
    int64_t count = apply(LAUNCH_MAX, value[p->count], 0, 0);
    *out = (HostLaunch){.phases = apply(LAUNCH_MIN, count, INT32_MAX, 0), /* none has so many; sums of them do not overflow */
                        .tasks = {value[even->tasks], value[odd->tasks]},
                        .points = value[even->points],
                        .local = value[even->local],
                        .scratch = value[p->scratch],
                        .rows = value[p->rows],
                        .together = p->together,
                        .spans = p->spans};
}

GridLaunch grid_launch(const LaunchPlan *p, uint32_t phase, void *const *args, int64_t n_sms)
{
    int64_t value[LAUNCH_NODES];
    const LaunchPhase *f = &p->phase[phase];
    evaluate(p, args, n_sms, value);
    return (GridLaunch){.blocks = value[f->tasks], .points = value[f->points], .threads = f->threads, .shared = (uint32_t)value[f->local]};
}

const char *grid_entry(const LaunchPlan *p, uint32_t phase) { return p->names + p->phase[phase].entry; }

int64_t grid_scratch(const LaunchPlan *p, void *const *args, int64_t n_sms)
{
    int64_t value[LAUNCH_NODES];
    evaluate(p, args, n_sms, value);
    return value[p->scratch];
}

uint32_t grid_tail(const LaunchPlan *p, uint32_t phase, void *const *args, int64_t n_sms, uint64_t *tail)
{
    uint32_t n = 0;
    if (p->numbered)
        tail[n++] = phase;
    if (!p->n_divisors)
        return n;
    int64_t value[LAUNCH_NODES];
    evaluate(p, args, n_sms, value);
    for (uint32_t i = 0; i < p->n_divisors; i++)
        tail[n++] = grid_magic(value[p->divisor[i]]);
    return n;
}

/*
 * The round-up method (Granlund and Montgomery, "Division by invariant integers using multiplication", 1994, theorem 4.2; Warren,
 * "Hacker's Delight", chapter 10). With l the least number that has d <= 2^l, let m = ceil(2^(31 + l) / d), so that
 * m d = 2^(31 + l) + r with 0 <= r < d <= 2^l. For n = q d + k with 0 <= k < d,
 *
 *     n m / 2^(31 + l)  =  n / d + n r / (d 2^(31 + l))  =  q + (k + n r / 2^(31 + l)) / d
 *
 * and n r < 2^31 2^l: less than 1 is added to k, the sum is less than d, and rounded down it all is q. m fits 32 bits: it is 2^31
 * where d = 2^l; else d >= 2^(l - 1) + 1 with l <= 31, and 2^(31 + l) / d <= 2^32 - 2^32 / (2^30 + 1) < 2^32 - 3.
 */
uint64_t grid_magic(int64_t d)
{
    const int64_t most = INT64_C(1) << 31;
    uint64_t by = (uint64_t)(d < 1 ? 1 : d > most ? most : d), shift = 31;
    while (UINT64_C(1) << (shift - 31) < by)
        shift++;
    return shift << 32 | ((UINT64_C(1) << shift) + by - 1) / by;
}
