/*
 * Index expressions to integer scalars and vectors, and addresses.
 *
 * They are 64 bits wide, but where the kernel says that fewer do (Kernel.index_bits). The walks' coordinates and sizes are i64
 * all the same, and become narrow here: what is multiplied, divided and added up for every element counts.
 *
 * An expression is kept linear in the lanes (base + lane * stride) as long as it is: a load then
 * becomes one vector load, a broadcast or a reversed load. x / d and x mod d of a linear x need no
 * vector division: one scalar division for lane 0, and lanes then carry at most a small number past
 * it. Only a quotient of something that is not linear with stride 1 is divided lane by lane.
 *
 * address_of splits a sum into its terms and adds each to the pointer at the term's own level, so
 * that the inner loop is left with the part that varies there.
 */
#include "jit/llvm/build.h"

/* In cpu/columns.c coordinates of the last x axis are those of a step's lanes; in cpu/overlap.c a tile has several rows. */
static bool row_axis(const Emit *e, uint32_t axis) { return (e->schedule.columns && axis == e->n_x - 1) || overlap_axis(e, axis); }

static bool tile_axis(const Emit *e, uint32_t axis) { return (int)axis == e->tile_axis || (e->schedule.joined && axis == e->n_x - 2); }

uint8_t index_level(Emit *e, IRef i)
{
    if (e->ix_level[i] != 0xff)
        return e->ix_level[i];
    const Idx *x = &e->k->idx.at[i];
    uint8_t level = LV_TASK;
    switch ((IdxKind)x->kind) {
    case IX_CONST:
    case IX_ARG: break;
    case IX_AXIS: level = x->a >= e->n_x ? LV_R : tile_axis(e, x->a) ? LV_TILE : row_axis(e, x->a) ? LV_R : LV_ROW; break;
    case IX_VALUE: level = e->level[x->a]; break;
    case IX_ADD:
    case IX_MUL:
    case IX_DIV:
    case IX_MOD: {
        uint8_t a = index_level(e, x->a), b = index_level(e, x->b);
        level = a > b ? a : b;
        break;
    }
    }
    e->ix_level[i] = level;
    return level;
}

Ix ix_uniform(LV base) { return (Ix){.base = base}; }

static LV constant(const Emit *e, int64_t value) { return LLVMConstInt(e->index, (uint64_t)value, 1); }

/* The type of v with its elements replaced. */
static LLVMTypeRef like(LV v, LLVMTypeRef element)
{
    LLVMTypeRef t = LLVMTypeOf(v);
    return LLVMGetTypeKind(t) == LLVMVectorTypeKind ? LLVMVectorType(element, LLVMGetVectorSize(t)) : element;
}

LV index_wide(Emit *e, LV v) { return e->k->index_bits ? LLVMBuildSExt(e->b, v, like(v, e->type[SC_I64]), "") : v; }

LV index_narrow(Emit *e, LV v)
{
    LLVMTypeRef type = like(v, e->index);
    return LLVMTypeOf(v) == type ? v : LLVMBuildTrunc(e->b, v, type, "");
}

static Ix ix_narrow(Emit *e, Ix ix)
{
    ix.base = index_narrow(e, ix.base);
    ix.stride = ix.stride ? index_narrow(e, ix.stride) : NULL;
    return ix;
}

/* May the target divide by what its launch knows of this size? */
static bool asks_launch(const Emit *e, LV d, IRef size)
{
    return e->k->index_bits && e->target->divide && size != IREF_NONE && !LLVMIsConstant(d);
}

LV index_divide(Emit *e, LV a, LV d, IRef size)
{
    if (!e->k->index_bits)
        return l_div(e, a, d);
    a = index_narrow(e, a), d = index_narrow(e, d);
    LV q = asks_launch(e, d, size) ? e->target->divide(e, a, size) : NULL;
    return LLVMBuildZExt(e->b, q ? q : l_div(e, a, d), e->type[SC_I64], "");
}

LV index_vector(Emit *e, Ix ix)
{
    if (ix.many)
        return ix.base;
    LV base = l_splat(e, ix.base);
    if (!ix.stride || e->lanes == 1)
        return base;
    LV iota = l_iota(e, LLVMTypeOf(ix.base));
    int64_t c;
    if (!l_is_const(ix.stride, &c) || c != 1)
        iota = LLVMBuildMul(e->b, iota, l_splat(e, ix.stride), "");
    return LLVMBuildAdd(e->b, base, iota, "");
}

/* q = (m0 + lane) / d for 0 <= m0 < d: at least as many lanes as d gives a multiplication, fewer a
 * comparison. */
static LV lane_quotient(Emit *e, LV m0, LV d)
{
    LLVMTypeRef type = e->index;
    int64_t c;
    bool known = l_is_const(d, &c);
    LV m = LLVMBuildAdd(e->b, l_splat(e, m0), l_iota(e, type), "");
    LV wrapped = NULL, product = NULL;
    if (!known || c >= e->lanes)
        wrapped = LLVMBuildZExt(e->b, LLVMBuildICmp(e->b, LLVMIntSGE, m, l_splat(e, d), ""), l_vec(e, type), "");
    if (!known || c < e->lanes) {
        /* m < d + lanes <= 128: floor(m / d) = (m * (65536 / d + 1)) >> 16, exact for m * d < 65536
         * */
        LLVMTypeRef i32 = e->type[SC_I32], v32 = l_vec(e, i32);
        LV small = LLVMBuildIntCast2(e->b, l_min(e, d, constant(e, MAX_LANES)), i32, 1, "");
        LV magic = LLVMBuildAdd(e->b, LLVMBuildUDiv(e->b, LLVMConstInt(i32, 65536, 0), small, ""), LLVMConstInt(i32, 1, 0), "");
        LV m32 = LLVMBuildIntCast2(e->b, m, v32, 1, "");
        LV sixteen = l_splat(e, LLVMConstInt(i32, 16, 0));
        LV q = LLVMBuildLShr(e->b, LLVMBuildMul(e->b, m32, l_splat(e, magic), ""), sixteen, "");
        product = LLVMBuildIntCast2(e->b, q, l_vec(e, type), 0, "");
    }
    if (!product || !wrapped)
        return product ? product : wrapped;
    return LLVMBuildSelect(e->b, LLVMBuildICmp(e->b, LLVMIntSGE, d, constant(e, e->lanes), ""), wrapped, product, "");
}

/* floor(a / d) for either sign of a: the first lanes of a vector may be below 0 (and not used)
 * while the others, which are derived from its base, are not. */
static LV floor_quotient(Emit *e, LV a, LV d)
{
    int64_t c;
    if (l_is_const(d, &c) && c > 0 && (c & (c - 1)) == 0)
        return LLVMBuildAShr(e->b, a, constant(e, __builtin_ctzll((uint64_t)c)), "");
    LV negative = LLVMBuildICmp(e->b, LLVMIntSLT, a, constant(e, 0), "");
    LV magnitude = LLVMBuildSelect(e->b, negative, LLVMBuildNot(e->b, a, ""), a, "");
    LV q = l_div(e, magnitude, d);
    return LLVMBuildSelect(e->b, negative, LLVMBuildNot(e->b, q, ""), q, "");
}

/* Of anything: what is linear is one run. */
static Runs runs_of(Emit *e, Ix a) { return a.many ? a.runs : (Runs){.first = a.base, .stride = a.stride ? a.stride : constant(e, 0)}; }

/* From run to run, where they are of this length. */
static LV step_of(Emit *e, Runs a, LV length) { return a.of ? a.step : l_mul(e, length, a.stride); }

static bool same_division(Runs a, Runs b) { return a.of == b.of && (a.length == b.length || (a.size != IREF_NONE && a.size == b.size)); }

static Runs runs_add(Emit *e, Runs a, Runs b)
{
    if (!a.first || !b.first || (a.of && b.of && !same_division(a, b)))
        return (Runs){0};
    Runs r = a.of ? a : b;
    r.first = l_add(e, a.first, b.first);
    r.stride = l_add(e, a.stride, b.stride);
    r.step = r.of ? l_add(e, step_of(e, a, r.length), step_of(e, b, r.length)) : NULL;
    return r;
}

static Runs runs_times(Emit *e, Runs a, Ix by)
{
    if (!a.first || by.many || by.stride)
        return (Runs){0};
    a.first = l_mul(e, a.first, by.base);
    a.stride = l_mul(e, a.stride, by.base);
    a.step = l_mul(e, a.step, by.base);
    return a;
}

Ix ix_divide(Emit *e, Ix a, LV d, IRef size, bool rest)
{
    int64_t c, stride;
    if (l_is_const(d, &c) && c == 1)
        return rest ? ix_uniform(constant(e, 0)) : a;
    if (asks_launch(e, d, size)) { /* lane after lane: they are registers */
        bool many = a.many || (a.stride && e->lanes > 1);
        LV x = many ? index_vector(e, a) : a.base, q = e->target->divide(e, x, size);
        if (q && rest)
            q = LLVMBuildSub(e->b, x, LLVMBuildMul(e->b, q, many ? l_splat(e, d) : d, ""), "");
        if (q)
            return (Ix){.base = q, .many = many};
    }
    if (!a.many && (!a.stride || e->lanes == 1))
        return ix_uniform(rest ? l_mod(e, a.base, d) : l_div(e, a.base, d));
    if (!a.many && l_is_const(a.stride, &stride) && stride == 1) {
        bool known = a.aligned && l_is_const(d, &c);
        LV q0 = floor_quotient(e, a.base, d);
        LV m0 = known && e->lanes % c == 0 ? constant(e, (a.past % c + c) % c) : l_sub(e, a.base, l_mul(e, q0, d));
        if (known && c % e->lanes == 0 && a.past % e->lanes == 0) /* a tile never crosses a multiple of d */
            return rest ? (Ix){.base = m0, .stride = a.stride, .aligned = true} : ix_uniform(q0);
        LV q = lane_quotient(e, m0, d);
        Runs runs = {.of = a.base, .at = m0, .length = d, .size = size};
        bool host = !e->target->scalar_lanes; /* where a gather costs more */
        if (!rest) {
            runs.first = host ? q0 : NULL, runs.stride = constant(e, 0), runs.step = constant(e, 1);
            return (Ix){.base = LLVMBuildAdd(e->b, l_splat(e, q0), q, ""), .many = true, .runs = runs};
        }
        LV m = LLVMBuildAdd(e->b, l_splat(e, m0), l_iota(e, e->index), "");
        runs.first = host ? m0 : NULL, runs.stride = constant(e, 1), runs.step = constant(e, 0);
        return (Ix){.base = LLVMBuildSub(e->b, m, LLVMBuildMul(e->b, q, l_splat(e, d), ""), ""), .many = true, .runs = runs};
    }
    LV v = index_vector(e, a), by = l_splat(e, d);
    return (Ix){.base = rest ? LLVMBuildURem(e->b, v, by, "") : LLVMBuildUDiv(e->b, v, by, ""), .many = true};
}

static Ix ix_add(Emit *e, Ix a, Ix b)
{
    if (a.many || b.many)
        return (Ix){.base = LLVMBuildAdd(e->b, index_vector(e, a), index_vector(e, b), ""),
                    .many = true,
                    .runs = runs_add(e, runs_of(e, a), runs_of(e, b))};
    LV stride = !a.stride ? b.stride : !b.stride ? a.stride : l_add(e, a.stride, b.stride);
    Ix r = {.base = l_add(e, a.base, b.base), .stride = stride};
    int64_t past;
    bool moved = (a.aligned && !b.stride && l_is_const(b.base, &past)) || (b.aligned && !a.stride && l_is_const(a.base, &past));
    r.aligned = moved && !__builtin_add_overflow(past, a.aligned ? a.past : b.past, &r.past);
    return r;
}

static Ix ix_mul(Emit *e, Ix a, Ix b)
{
    if (!a.many && !a.stride) {
        Ix t = a;
        a = b;
        b = t;
    }
    int64_t c;
    if (!b.many && !b.stride && l_is_const(b.base, &c) && c == 1)
        return a;
    if (a.many || b.many || (a.stride && b.stride))
        return (Ix){.base = LLVMBuildMul(e->b, index_vector(e, a), index_vector(e, b), ""),
                    .many = true,
                    .runs = a.many ? runs_times(e, a.runs, b) : (Runs){0}};
    return (Ix){.base = l_mul(e, a.base, b.base), .stride = a.stride ? l_mul(e, a.stride, b.base) : NULL};
}

/* A divisor: at least 1 even where the tensor is empty, so that code hoisted out of a loop that
 * never runs is harmless. */
static LV divisor(Emit *e, IRef i)
{
    LV d = index_of(e, i).base;
    int64_t c;
    if (l_is_const(d, &c))
        return c > 0 ? d : constant(e, 1);
    return l_max(e, d, constant(e, 1));
}

static Ix ix_value(Emit *e, VRef v)
{
    Val x = value(e, v);
    return ix_narrow(e, (Ix){.base = x.v, .many = x.vec && e->lanes > 1});
}

Ix index_of(Emit *e, IRef i)
{
    const Idx *x = &e->k->idx.at[i];
    uint8_t level = index_level(e, i);
    struct IxMemo *memo = level >= e->inner ? &e->inner_ix[i] : &e->ix[i];
    if (x->kind == IX_CONST)
        return ix_uniform(constant(e, x->value));
    if (x->kind == IX_AXIS)
        return ix_narrow(e, e->axis[x->a]);
    if (memo->scope && memo->scope == e->scope[level])
        return memo->ix;
    Place place = level_enter(e, level);
    Ix r = {0};
    switch ((IdxKind)x->kind) {
    case IX_CONST:
    case IX_AXIS: break;
    case IX_ARG: r = ix_uniform(index_narrow(e, argument(e, x->a))); break;
    case IX_ADD: r = ix_add(e, index_of(e, x->a), index_of(e, x->b)); break;
    case IX_MUL: r = ix_mul(e, index_of(e, x->a), index_of(e, x->b)); break;
    case IX_DIV:
    case IX_MOD: r = ix_divide(e, index_of(e, x->a), divisor(e, x->b), x->b, x->kind == IX_MOD); break;
    case IX_VALUE: r = ix_value(e, x->a); break;
    }
    level_leave(e, place);
    memo->ix = r;
    memo->scope = e->scope[level];
    return r;
}

LV index_uniform(Emit *e, IRef i) { return index_wide(e, index_of(e, i).base); }

LV axis_size(Emit *e, uint32_t axis) { return index_uniform(e, e->k->axes.at[axis].size); }

LV axes_product(Emit *e, uint32_t first, uint32_t end)
{
    LV n = l_i64(e, 1);
    for (uint32_t a = first; a < end; a++)
        n = l_mul(e, n, axis_size(e, a));
    return n;
}

LV runs_jump(Emit *e, const Runs *runs) { return l_sub(e, runs->step, l_mul(e, runs->length, runs->stride)); }

LV runs_pointers(Emit *e, LLVMTypeRef element, const Runs *runs)
{
    LV q = LLVMBuildMul(e->b, lane_quotient(e, runs->at, runs->length), l_splat(e, runs_jump(e, runs)), "");
    return l_gep(e, element, runs->first, LLVMBuildAdd(e->b, index_vector(e, (Ix){.base = constant(e, 0), .stride = runs->stride}), q, ""));
}

/* That of another address, behind which the runs of `ix` begin. */
static Runs runs_from(Emit *e, LLVMTypeRef element, Runs runs, LV ptr)
{
    if (runs.first)
        runs.first = l_gep(e, element, ptr, runs.first);
    return runs;
}

Address address_ix(Emit *e, LLVMTypeRef element, LV base, Ix ix)
{
    Runs runs = ix.many ? runs_from(e, element, ix.runs, base) : (Runs){0};
    return (Address){.ptr = l_gep(e, element, base, ix.base), .stride = ix.stride, .many = ix.many, .runs = runs};
}

enum { MAX_TERMS = 64 };

/* The terms of a sum; false when there are too many. */
static bool terms_of(Emit *e, IRef i, IRef *terms, uint32_t *n)
{
    const Idx *x = &e->k->idx.at[i];
    if (x->kind == IX_ADD)
        return terms_of(e, x->a, terms, n) && terms_of(e, x->b, terms, n);
    if (*n == MAX_TERMS)
        return false;
    terms[(*n)++] = i;
    return true;
}

/* The coordinate of a row kept in registers: its tiles lie constants apart, which fold into the accesses as long as nothing is
 * extended from 32 bits in between. */
static bool stays_wide(const Emit *e, IRef i)
{
    const Idx *x = &e->k->idx.at[i];
    return e->row_tiles && x->kind == IX_AXIS && x->a >= e->n_x && !e->axis[x->a].many;
}

/* `times` where the terms with rows or columns in them are times * (row * columns + column); they go. 0: there are none, or they are
 * something else. */
static int64_t joint_terms(const Emit *e, IRef *terms, uint32_t *n)
{
    int64_t each[MAX_AXES] = {0}, times, size, rows = 0;
    bool joined = e->schedule.joined != 0;
    uint32_t inner = e->n_x - 1, begin = joined ? e->n_x - 2 : e->n_x, end = joined ? inner : e->k->axes.n, other = 0;
    IRef left[MAX_TERMS];
    for (uint32_t t = 0; t < *n; t++) {
        const Idx *x = &e->k->idx.at[terms[t]];
        uint32_t axes = e->k->idx_axes.at[terms[t]] >> (joined ? begin : inner);
        int64_t factor = 1;
        if (x->kind == IX_MUL && kidx_is_const(e->k, x->b, &factor))
            x = &e->k->idx.at[x->a];
        if (!axes)
            left[other++] = terms[t];
        else if (e->schedule.joined == JOINED_ANY && index_is_row(e->k, terms[t], begin, e->k->axes.at[inner].size))
            rows++;
        else if (x->kind == IX_AXIS)
            each[x->a] += factor;
        else
            return 0;
    }
    times = each[inner];
    if (e->schedule.joined == JOINED_ANY && (rows != 1 || times != 1 || each[begin]))
        return 0;
    size = (joined ? e->schedule.joined : e->schedule.columns) * times;
    for (uint32_t a = end; a-- > begin && !rows;) {
        int64_t points = 0;
        if (each[a] != size || (a > begin && !kidx_is_const(e->k, e->k->axes.at[a].size, &points)) ||
            __builtin_mul_overflow(size, points, &size))
            return 0;
    }
    memcpy(terms, left, sizeof *terms * (*n = other));
    return times;
}

/* A multiple of the coordinate of a tile's rows: that of the first one is the tile's, so that rows lie constants apart. */
static bool is_row_term(Emit *e, IRef term)
{
    const Idx *x = &e->k->idx.at[term];
    bool product = x->kind == IX_MUL && !e->k->idx_axes.at[x->b] && index_level(e, x->b) == LV_TASK;
    x = product ? &e->k->idx.at[x->a] : x;
    return x->kind == IX_AXIS && overlap_axis(e, x->a);
}

/* The part of such a term that belongs to this level. */
static Ix row_term(Emit *e, IRef term, int level)
{
    const Idx *x = &e->k->idx.at[term];
    Ix row = ix_narrow(e, ix_uniform(level == LV_ROW ? e->row.first : l_i64(e, e->row.at)));
    return x->kind == IX_MUL ? ix_mul(e, row, index_of(e, x->b)) : row;
}

Address address_of(Emit *e, LLVMTypeRef element, LV base, IRef i)
{
    IRef terms[MAX_TERMS];
    uint32_t n = 0;
    if (!terms_of(e, i, terms, &n))
        return address_ix(e, element, base, index_of(e, i));
    Address at = {.ptr = base};
    int64_t times = e->joint.base ? joint_terms(e, terms, &n) : 0, past = 0, number;
    /* Numbers come last: so loads beside one another have one address and displacements, and not a register each. */
    if (!e->cuda && !times)
        for (uint32_t t = 0; t < n; t++)
            if (kidx_is_const(e->k, terms[t], &number)) {
                past += number;
                terms[t--] = terms[--n];
            }
    for (int level = LV_TASK; level <= e->cur; level++) {
        Ix sum = {0};
        Place place = {0};
        bool entered = false;
        for (uint32_t t = 0; t < n; t++) {
            bool row = is_row_term(e, terms[t]);
            if (row ? level != LV_ROW && level != LV_R : index_level(e, terms[t]) != level)
                continue;
            if (!entered) {
                place = level_enter(e, level);
                entered = true;
            }
            Ix term = row ? row_term(e, terms[t], level) : index_of(e, terms[t]);
            if (stays_wide(e, terms[t])) {
                at.ptr = l_gep(e, element, at.ptr, e->axis[e->k->idx.at[terms[t]].a].base);
                term.base = constant(e, 0);
            }
            sum = sum.base ? ix_add(e, sum, term) : term;
        }
        if (!entered)
            continue;
        if (at.many || sum.many) {
            Runs before = at.many ? at.runs : runs_of(e, (Ix){.base = constant(e, 0), .stride = at.stride});
            LV ptr = at.many ? at.runs.first : at.ptr;
            if (at.many && before.first)
                before.first = constant(e, 0);
            at.runs = runs_from(e, element, runs_add(e, before, runs_of(e, sum)), ptr);
        }
        if (sum.many && at.stride) { /* both vary over the lanes: one vector of offsets */
            sum = ix_add(e, sum, (Ix){.base = constant(e, 0), .stride = at.stride});
            at.stride = NULL;
        }
        at.ptr = l_gep(e, element, at.ptr, sum.base);
        at.many |= sum.many;
        if (sum.stride && at.many)
            at.ptr = l_gep(e, element, at.ptr, index_vector(e, (Ix){.base = constant(e, 0), .stride = sum.stride}));
        else if (sum.stride)
            at.stride = at.stride ? l_add(e, at.stride, sum.stride) : sum.stride;
        level_leave(e, place);
    }
    if (times) {
        Ix joint = ix_mul(e, ix_narrow(e, e->joint), ix_uniform(constant(e, times)));
        at.ptr = l_gep(e, element, at.ptr, joint.base);
        at.stride = joint.stride;
    }
    if (past) {
        at.ptr = l_gep(e, element, at.ptr, constant(e, past));
        if (at.many && at.runs.first)
            at.runs.first = l_gep(e, element, at.runs.first, constant(e, past));
    }
    return at;
}

/* The value of a term value or value * times; VREF_NONE: it is none. */
static VRef value_term(const Emit *e, IRef term, int64_t *times)
{
    const Idx *x = &e->k->idx.at[term];
    *times = 1;
    if (x->kind == IX_MUL && kidx_is_const(e->k, x->b, times))
        x = &e->k->idx.at[x->a];
    return x->kind == IX_VALUE ? x->a : VREF_NONE;
}

VRef index_gathers(Emit *e, IRef i)
{
    IRef terms[MAX_TERMS];
    uint32_t n = 0;
    VRef found = VREF_NONE;
    if (!terms_of(e, i, terms, &n))
        return VREF_NONE;
    for (uint32_t t = 0; t < n; t++) {
        int64_t times;
        VRef v = value_term(e, terms[t], &times);
        if (v == VREF_NONE && !index_through_value(e->k, terms[t]) && index_level(e, terms[t]) < LV_TILE)
            continue;
        if (v == VREF_NONE || e->level[v] != LV_TILE || found != VREF_NONE || times != 1)
            return VREF_NONE;
        found = v;
    }
    return found;
}

Address address_in_line(Emit *e, LLVMTypeRef element, LV base, IRef i)
{
    IRef terms[MAX_TERMS];
    uint32_t n = 0;
    int64_t times;
    LV ptr = base;
    terms_of(e, i, terms, &n);
    for (int level = LV_TASK; level <= e->cur; level++)
        for (uint32_t t = 0; t < n; t++) {
            if (index_level(e, terms[t]) != level || value_term(e, terms[t], &times) != VREF_NONE)
                continue;
            Place place = level_enter(e, level);
            ptr = l_gep(e, element, ptr, index_of(e, terms[t]).base);
            level_leave(e, place);
        }
    return (Address){.ptr = l_gep(e, element, ptr, e->axis[e->tile_axis].base), .stride = l_i64(e, 1)};
}
