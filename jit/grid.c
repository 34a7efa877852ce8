/* Launch plans: making, folding, evaluating; and the targets that PTX is made for. */
#include "jit/grid.h"
#include "ir/base/os.h"

#include <stdio.h>
#include <string.h>

/* ---- targets ---- */

/* What LLVM 19 knows. Later devices run PTX of the last one, later drivers take PTX of the last version. */
static const struct {
    int sm, least_ptx, multiprocessors, threads;
} sms[] = {{75, 63, 40, 1024}, {80, 70, 108, 2048}, {86, 71, 84, 1536}, {87, 74, 16, 1536}, {89, 78, 142, 1536}, {90, 78, 132, 2048}};
static const int ptx_versions[] = {63, 64, 65, 70, 71, 72, 73, 74, 75, 76, 77, 78, 80, 81, 82, 83, 84, 85};
enum { N_SMS = sizeof sms / sizeof *sms, N_PTX = sizeof ptx_versions / sizeof *ptx_versions };
enum { ARCH_SM = 90, ARCH_PTX = 80 }; /* sm_90a */

bool cuda_target_known(const CudaTarget *t)
{
    bool ptx = false, sm = false;
    for (size_t i = 0; i < N_PTX; i++)
        ptx |= ptx_versions[i] == t->ptx;
    for (size_t i = 0; i < N_SMS; i++)
        sm |= sms[i].sm == t->sm && t->ptx >= sms[i].least_ptx;
    return ptx && sm && (!t->arch || (t->sm == ARCH_SM && t->ptx >= ARCH_PTX));
}

int64_t cuda_multiprocessors(const CudaTarget *t)
{
    int usual = 1;
    for (size_t i = 0; i < N_SMS; i++)
        usual = sms[i].sm == t->sm ? sms[i].multiprocessors : usual;
    return t->multiprocessors > 0 ? t->multiprocessors : usual;
}

int64_t cuda_room(const CudaTarget *t)
{
    int usual = 1024;
    for (size_t i = 0; i < N_SMS; i++)
        usual = sms[i].sm == t->sm ? sms[i].threads : usual;
    return cuda_multiprocessors(t) * (t->threads > 0 ? t->threads : usual);
}

int64_t cuda_busy(const CudaTarget *t) { return cuda_room(t) / 4; }

static int64_t whole(int64_t a, int64_t b) { return a / b + (a % b != 0); }

const struct CudaPartShape cuda_part_shapes[CUDA_PART_SHAPES] = {{32, 32}, {4, 256}, {128, 8}};

int64_t cuda_part(int64_t batch, int64_t rows, int64_t columns, int64_t k)
{
    int64_t tiles = CUDA_FULL_TILES, most = whole(k, CUDA_LEAST_PART);
    for (int i = 0; i < CUDA_PART_SHAPES; i++) {
        int64_t all;
        bool many = __builtin_mul_overflow(whole(rows, cuda_part_shapes[i].rows), whole(columns, cuda_part_shapes[i].columns), &all) ||
                    __builtin_mul_overflow(all, batch, &all);
        tiles = !many && all < tiles ? all : tiles;
    }
    int64_t wanted = whole(CUDA_FULL_TILES, tiles > 0 ? tiles : 1);
    int64_t n = wanted < most ? wanted : most;
    n = n > CUDA_MOST_PARTS ? CUDA_MOST_PARTS : n > 1 ? n : 1;
    int64_t units = whole(whole(k, n), CUDA_PART_UNIT);
    return (units > 1 ? units : 1) * CUDA_PART_UNIT;
}

Status cuda_target(int major, int minor, int driver, CudaTarget *out)
{
    int cc = major * 10 + minor, cuda = driver / 1000, point = driver % 1000 / 10, ptx = 0;
    /* CUDA 10.n brought PTX 6.3 + n; 11.n 7.n; 12.n 8.n */
    int most = cuda < 10 ? 0 : cuda == 10 ? 63 + point : cuda == 11 ? 70 + point : cuda == 12 ? 80 + point : 85;
    for (size_t i = 0; i < N_PTX; i++)
        ptx = ptx_versions[i] <= most ? ptx_versions[i] : ptx;
    *out = (CudaTarget){.ptx = ptx, .device = cc, .driver = driver};
    for (size_t i = 0; i < N_SMS; i++)
        if (sms[i].sm <= cc && sms[i].least_ptx <= ptx)
            out->sm = sms[i].sm;
    out->arch = cc == ARCH_SM && out->sm == ARCH_SM && ptx >= ARCH_PTX;
    if (cc < sms[0].sm)
        return fail(ST_UNSUPPORTED, "compute capability %d.%d: kiln needs 7.5 or newer", major, minor);
    if (!out->sm)
        return fail(ST_UNSUPPORTED, "the NVIDIA driver is too old: it speaks CUDA %d.%d, kiln needs 10.0 or newer", cuda, point);
    return ST_OK;
}

/* ---- making ---- */

static uint16_t node(GridPlan *p, GridNode n)
{
    for (uint32_t i = 0; i < p->n_nodes; i++)
        if (p->node[i].op == n.op && p->node[i].a == n.a && p->node[i].b == n.b && p->node[i].value == n.value)
            return (uint16_t)i;
    if (p->n_nodes == GRID_NODES) {
        p->full = true;
        return 0;
    }
    p->node[p->n_nodes] = n;
    return (uint16_t)p->n_nodes++;
}

uint16_t grid_const(GridPlan *p, int64_t value) { return node(p, (GridNode){.op = GRID_CONST, .value = value}); }
uint16_t grid_arg(GridPlan *p, uint32_t arg) { return node(p, (GridNode){.op = GRID_ARG, .value = arg}); }
uint16_t grid_sms(GridPlan *p) { return node(p, (GridNode){.op = GRID_SMS}); }

static int64_t apply(GridOp op, int64_t a, int64_t b)
{
    int64_t r;
    switch (op) {
    case GRID_ADD: return __builtin_add_overflow(a, b, &r) ? INT64_MAX : r;
    case GRID_MUL: return __builtin_mul_overflow(a, b, &r) ? INT64_MAX : r;
    case GRID_CEIL_DIV: b = b < 1 ? 1 : b; return a / b + (a % b > 0);
    case GRID_MIN: return a < b ? a : b;
    case GRID_MAX: return a > b ? a : b;
    case GRID_CONST:
    case GRID_ARG:
    case GRID_SMS: break;
    }
    return 0;
}

uint16_t grid_op(GridPlan *p, GridOp op, uint16_t a, uint16_t b)
{
    const GridNode *x = &p->node[a], *y = &p->node[b];
    if (x->op == GRID_CONST && y->op == GRID_CONST)
        return grid_const(p, apply(op, x->value, y->value));
    if (op == GRID_MUL && x->op == GRID_CONST && x->value == 1)
        return b;
    if ((op == GRID_MUL || op == GRID_CEIL_DIV) && y->op == GRID_CONST && y->value == 1)
        return a;
    return node(p, (GridNode){.op = (uint8_t)op, .a = a, .b = b});
}

bool grid_divide_by(GridPlan *p, uint16_t size, uint32_t n_args, uint32_t *slot)
{
    uint32_t i = 0;
    while (i < p->n_divisors && p->divisor[i] != size)
        i++;
    *slot = p->numbered + i;
    if (i < p->n_divisors)
        return true;
    if (p->by_pointer || i == GRID_DIVISORS || ((size_t)n_args + *slot + 1) * sizeof(uint64_t) > GRID_BLOCK_BYTES)
        return false;
    p->divisor[p->n_divisors++] = size;
    return true;
}

GridPhase *grid_phase(GridPlan *p, const char *entry, uint32_t threads)
{
    p->full |= p->n_phases == GRID_PHASES || strlen(entry) >= GRID_NAME;
    GridPhase *phase = &p->phase[p->full ? 0 : p->n_phases++];
    *phase = (GridPhase){.threads = (uint16_t)threads};
    snprintf(phase->entry, sizeof phase->entry, "%s", entry);
    phase->blocks = phase->points = phase->shared = grid_const(p, 0);
    return phase;
}

/* ---- using ---- */

static void evaluate(const GridPlan *p, void *const *args, int64_t n_sms, int64_t *value)
{
    for (uint32_t i = 0; i < p->n_nodes; i++) {
        const GridNode *n = &p->node[i];
        value[i] = n->op == GRID_CONST ? n->value
                   : n->op == GRID_SMS ? n_sms
                   : n->op == GRID_ARG ? (int64_t)(intptr_t)args[n->value]
                                       : apply((GridOp)n->op, value[n->a], value[n->b]);
    }
}

GridLaunch grid_launch(const GridPlan *p, uint32_t phase, void *const *args, int64_t n_sms)
{
    int64_t value[GRID_NODES];
    const GridPhase *f = &p->phase[phase];
    evaluate(p, args, n_sms, value);
    return (GridLaunch){
        .blocks = value[f->blocks], .points = value[f->points], .threads = f->threads, .shared = (uint32_t)value[f->shared]};
}

int64_t grid_scratch(const GridPlan *p, void *const *args, int64_t n_sms)
{
    int64_t value[GRID_NODES];
    evaluate(p, args, n_sms, value);
    return value[p->scratch];
}

uint32_t grid_tail(const GridPlan *p, uint32_t phase, void *const *args, int64_t n_sms, uint64_t *tail)
{
    uint32_t n = 0;
    if (p->numbered)
        tail[n++] = phase;
    if (!p->n_divisors)
        return n;
    int64_t value[GRID_NODES];
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

/* On a disk a bool may be any byte. */
static bool is_bool(const bool *at)
{
    unsigned char byte;
    memcpy(&byte, at, sizeof byte);
    return byte <= 1;
}

bool grid_valid(const GridPlan *p, uint32_t n_args)
{
    if (!is_bool(&p->full) || !is_bool(&p->by_pointer) || !is_bool(&p->numbered) || p->full)
        return false;
    if (!p->n_nodes || p->n_nodes > GRID_NODES || !p->n_phases || p->n_phases > GRID_PHASES || p->scratch >= p->n_nodes ||
        p->n_divisors > GRID_DIVISORS || (p->by_pointer && (p->numbered || p->n_divisors)) ||
        (!p->by_pointer && ((size_t)n_args + p->numbered + p->n_divisors) * sizeof(uint64_t) > GRID_BLOCK_BYTES))
        return false;
    for (uint32_t i = 0; i < p->n_divisors; i++)
        if (p->divisor[i] >= p->n_nodes)
            return false;
    for (uint32_t i = 0; i < p->n_nodes; i++) {
        const GridNode *n = &p->node[i];
        bool binary = n->op >= GRID_ADD;
        if (n->op > GRID_MAX || (n->op == GRID_ARG && (n->value < 0 || n->value >= n_args)) || (binary && (n->a >= i || n->b >= i)))
            return false;
    }
    for (uint32_t i = 0; i < p->n_phases; i++) {
        const GridPhase *f = &p->phase[i];
        if (f->blocks >= p->n_nodes || f->points >= p->n_nodes || f->shared >= p->n_nodes || !f->threads || f->threads > 1024 ||
            !memchr(f->entry, 0, sizeof f->entry))
            return false;
    }
    return true;
}

/* ---- objects ---- */

typedef struct ObjectHead {
    char magic[8];
    uint32_t n_args, plan_bytes;
    uint64_t ptx_bytes, cubin_bytes; /* what follows the head, in this order; the PTX's zero byte included */
    GridPlan plan;
} ObjectHead;

static const char object_magic[8] = {'k', 'i', 'l', 'n', 'g', 'r', 'i', 'd'};

Status grid_object_make(const GridObject *from, void **object, size_t *bytes)
{
    size_t text = strlen(from->ptx) + 1, room = (text + 15) / 16 * 16; /* machine code is read as 8-byte words */
    ObjectHead *head = os_calloc(1, sizeof *head + room + from->cubin_bytes);
    if (!head)
        return fail(ST_OUT_OF_MEMORY, "no memory for %zu bytes of PTX", text);
    memcpy(head->magic, object_magic, sizeof object_magic);
    head->n_args = from->n_args;
    head->plan_bytes = sizeof head->plan;
    head->ptx_bytes = room;
    head->cubin_bytes = from->cubin_bytes;
    head->plan = *from->plan;
    memcpy(head + 1, from->ptx, text);
    if (from->cubin_bytes)
        memcpy((char *)(head + 1) + room, from->cubin, from->cubin_bytes);
    *object = head;
    *bytes = sizeof *head + room + from->cubin_bytes;
    return ST_OK;
}

bool grid_object_is(const void *object, size_t bytes)
{
    return bytes >= sizeof object_magic && memcmp(object, object_magic, sizeof object_magic) == 0;
}

Status grid_object_open(const void *object, size_t bytes, GridObject *out)
{
    const ObjectHead *head = object;
    const char *ptx = (const char *)object + sizeof *head;
    if (!grid_object_is(object, bytes) || bytes <= sizeof *head || head->plan_bytes != sizeof head->plan || head->ptx_bytes == 0 ||
        head->ptx_bytes > bytes - sizeof *head || head->cubin_bytes != bytes - sizeof *head - head->ptx_bytes ||
        ptx[head->ptx_bytes - 1] != 0 || !grid_valid(&head->plan, head->n_args))
        return fail(ST_FORMAT, "not a well-formed grid object");
    *out = (GridObject){.plan = &head->plan,
                        .ptx = ptx,
                        .cubin = head->cubin_bytes ? ptx + head->ptx_bytes : NULL,
                        .cubin_bytes = head->cubin_bytes,
                        .n_args = head->n_args};
    return ST_OK;
}
