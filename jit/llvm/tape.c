/*
 * Tapes to LLVM: each instruction of ir/scalar.def becomes one LLVM instruction on scalars or on
 * vectors of lanes.
 *
 * A tape is emitted as vectors when any of its inputs is one. In fast mode a value that was just
 * rounded to f16 or bf16 is used unrounded by the next op (Val.wide) where the kernel allows it
 * (KInst.unrounded): the conversion back is skipped where the tape's input is only widened.
 */
#include "jit/llvm/build.h"

/* How one scalar op is built. */
typedef enum Form { F_NONE, F_BINARY, F_ICMP, F_FCMP, F_CAST, F_CALL } Form;

static const struct {
    uint8_t form;
    int code;
    const char *intrinsic;
} how[SOP_COUNT] = {
    /* clang-format off */
    [SOP_ADD] = {F_BINARY, LLVMAdd, NULL},   [SOP_SUB] = {F_BINARY, LLVMSub, NULL},
    [SOP_MUL] = {F_BINARY, LLVMMul, NULL},   [SOP_DIV] = {F_BINARY, LLVMFDiv, NULL},
    [SOP_SDIV] = {F_BINARY, LLVMSDiv, NULL}, [SOP_UDIV] = {F_BINARY, LLVMUDiv, NULL},
    [SOP_SREM] = {F_BINARY, LLVMSRem, NULL}, [SOP_UREM] = {F_BINARY, LLVMURem, NULL},
    [SOP_AND] = {F_BINARY, LLVMAnd, NULL},   [SOP_OR] = {F_BINARY, LLVMOr, NULL},
    [SOP_XOR] = {F_BINARY, LLVMXor, NULL},   [SOP_SHL] = {F_BINARY, LLVMShl, NULL},
    [SOP_LSHR] = {F_BINARY, LLVMLShr, NULL}, [SOP_ASHR] = {F_BINARY, LLVMAShr, NULL},
    [SOP_FEQ] = {F_FCMP, LLVMRealOEQ, NULL}, [SOP_FNE] = {F_FCMP, LLVMRealUNE, NULL},
    [SOP_FLT] = {F_FCMP, LLVMRealOLT, NULL}, [SOP_FLE] = {F_FCMP, LLVMRealOLE, NULL},
    [SOP_IEQ] = {F_ICMP, LLVMIntEQ, NULL},   [SOP_INE] = {F_ICMP, LLVMIntNE, NULL},
    [SOP_SLT] = {F_ICMP, LLVMIntSLT, NULL},  [SOP_SLE] = {F_ICMP, LLVMIntSLE, NULL},
    [SOP_ULT] = {F_ICMP, LLVMIntULT, NULL},  [SOP_ULE] = {F_ICMP, LLVMIntULE, NULL},
    [SOP_BITCAST] = {F_CAST, LLVMBitCast, NULL}, [SOP_SEXT] = {F_CAST, LLVMSExt, NULL},
    [SOP_ZEXT] = {F_CAST, LLVMZExt, NULL},       [SOP_ITRUNC] = {F_CAST, LLVMTrunc, NULL},
    [SOP_SITOFP] = {F_CAST, LLVMSIToFP, NULL},   [SOP_UITOFP] = {F_CAST, LLVMUIToFP, NULL},
    [SOP_FPTOSI] = {F_CAST, LLVMFPToSI, NULL},   [SOP_FPTOUI] = {F_CAST, LLVMFPToUI, NULL}, /* l_float_to_int */
    [SOP_FPEXT] = {F_CAST, LLVMFPExt, NULL},     [SOP_FPTRUNC] = {F_CAST, LLVMFPTrunc, NULL},
    [SOP_FMA] = {F_CALL, 0, "llvm.fma"},     [SOP_FABS] = {F_CALL, 0, "llvm.fabs"},
    [SOP_SQRT] = {F_CALL, 0, "llvm.sqrt"},   [SOP_FLOOR] = {F_CALL, 0, "llvm.floor"},
    [SOP_CEIL] = {F_CALL, 0, "llvm.ceil"},   [SOP_TRUNC] = {F_CALL, 0, "llvm.trunc"},
    [SOP_RINT] = {F_CALL, 0, "llvm.roundeven"},
    /* clang-format on */
};

static bool is_float(SType t) { return t == SC_F32 || t == SC_F64; }

static int float_code(int code) { return code == LLVMAdd ? LLVMFAdd : code == LLVMSub ? LLVMFSub : code == LLVMMul ? LLVMFMul : code; }

static LV half_to_float(Emit *e, LV v, bool vec)
{
    LV h = LLVMBuildBitCast(e->b, v, vec ? l_vec(e, e->half) : e->half, "");
    return LLVMBuildFPExt(e->b, h, vec ? l_vec(e, e->type[SC_F32]) : e->type[SC_F32], "");
}

static LV float_to_half(Emit *e, LV v, bool vec)
{
    LV h = LLVMBuildFPTrunc(e->b, v, vec ? l_vec(e, e->half) : e->half, "");
    return LLVMBuildBitCast(e->b, h, vec ? l_vec(e, e->type[SC_I16]) : e->type[SC_I16], "");
}

/*
 * Integer division of vectors, which x86 does not have. Up to 32 bits through floats that hold the
 * operands exactly: the quotient a / b of n-bit integers is an integer or at least 2^-n
 * (relatively) away from one, so rounding to 24 (53) bits never reaches the next and truncation is
 * right. 64 bits go lane by lane, and all where lanes are no vectors.
 *
 * Never as one LLVM instruction: division by zero in one lane is undefined for all, and LLVM 19.1.7
 * takes `sdiv x, select c, 1, <2, 1, 0, -1>` for x, because the second arm alone would divide by
 * zero (seen; the select guards each lane).
 */
static LV vector_divide(Emit *e, const TapeInst *n, LV a, LV b)
{
    bool is_signed = n->op == SOP_SDIV || n->op == SOP_SREM, rest = n->op == SOP_SREM || n->op == SOP_UREM;
    LLVMTypeRef type = l_vec(e, e->type[n->type]);
    LV q;
    if (n->type == SC_I64 || e->target->scalar_lanes) {
        q = LLVMGetPoison(type);
        for (int lane = 0; lane < e->lanes; lane++) {
            LV at = LLVMConstInt(e->type[SC_I32], (unsigned)lane, 0);
            LV x = LLVMBuildExtractElement(e->b, a, at, ""), y = LLVMBuildExtractElement(e->b, b, at, "");
            LV d = is_signed ? LLVMBuildSDiv(e->b, x, y, "") : LLVMBuildUDiv(e->b, x, y, "");
            q = LLVMBuildInsertElement(e->b, q, d, at, "");
        }
    } else {
        LLVMTypeRef wide = l_vec(e, e->type[n->type == SC_I32 ? SC_F64 : SC_F32]);
        LLVMOpcode to = is_signed ? LLVMSIToFP : LLVMUIToFP, back = is_signed ? LLVMFPToSI : LLVMFPToUI;
        LV x = LLVMBuildCast(e->b, to, a, wide, ""), y = LLVMBuildCast(e->b, to, b, wide, "");
        q = l_float_to_int(e, back, LLVMBuildFDiv(e->b, x, y, ""), type); /* fits: the tape divides by what is defined */
    }
    return rest ? LLVMBuildSub(e->b, a, LLVMBuildMul(e->b, q, b, ""), "") : q;
}

/* Of I64, as one permutation of two registers: LLVM narrows each and puts both together. */
static LV lower_halves(Emit *e, LV a)
{
    LV halves = LLVMBuildBitCast(e->b, a, LLVMVectorType(e->type[SC_I32], 2 * (unsigned)e->lanes), ""), at[MAX_LANES];
    for (int i = 0; i < e->lanes; i++)
        at[i] = LLVMConstInt(e->type[SC_I32], 2 * (unsigned)i, 0);
    return LLVMBuildShuffleVector(e->b, halves, LLVMGetPoison(LLVMTypeOf(halves)), LLVMConstVector(at, (unsigned)e->lanes), "");
}

/* A bool that was just read, as a byte: wider ones are made of a compared vector half by half. */
static LV one_byte(Emit *e, LV a)
{
    if (!LLVMIsAICmpInst(a) || LLVMGetICmpPredicate(a) != LLVMIntNE || !LLVMIsNull(LLVMGetOperand(a, 1)))
        return a;
    LV byte = LLVMGetOperand(a, 0);
    LLVMTypeRef type = LLVMTypeOf(byte);
    if (LLVMGetTypeKind(type) != LLVMVectorTypeKind || LLVMGetElementType(type) != e->type[SC_I8])
        return a;
    return l_intrinsic(e, "llvm.umin", &type, 1, (LV[]){byte, l_splat(e, LLVMConstInt(e->type[SC_I8], 1, 0))}, 2);
}

static LV emit_inst(Emit *e, const Tape *t, const TapeInst *n, const LV *v, bool vec)
{
    LLVMTypeRef type = vec ? l_vec(e, e->type[n->type]) : e->type[n->type];
    LV a = v[n->a], b = v[n->b], c = v[n->c];
    if (vec && e->lanes > 1 && (n->op == SOP_SDIV || n->op == SOP_UDIV || n->op == SOP_SREM || n->op == SOP_UREM))
        return vector_divide(e, n, a, b);
    switch ((Form)how[n->op].form) {
    case F_BINARY:
        return LLVMBuildBinOp(e->b, (LLVMOpcode)(is_float((SType)n->type) ? float_code(how[n->op].code) : how[n->op].code), a, b, "");
    case F_ICMP: return LLVMBuildICmp(e->b, (LLVMIntPredicate)how[n->op].code, a, b, "");
    case F_FCMP: return LLVMBuildFCmp(e->b, (LLVMRealPredicate)how[n->op].code, a, b, "");
    case F_CAST: {
        LLVMOpcode op = (LLVMOpcode)how[n->op].code;
        if (op == LLVMFPToSI || op == LLVMFPToUI)
            return l_float_to_int(e, op, a, type);
        if (op == LLVMTrunc && vec && e->lanes > 1 && e->bits == 512 && t->inst[n->a].type == SC_I64 && n->type == SC_I32)
            return lower_halves(e, a);
        if (op == LLVMFPExt && e->cuda && vec) /* or LLVM 19 makes one load of both, `ld.v2.f32 {%fd1, %fd2}`, which PTX has not */
            a = LLVMBuildFreeze(e->b, a, "");
        if (op == LLVMZExt && vec && !e->cuda && e->bits < 512)
            a = one_byte(e, a);
        return t->inst[n->a].type == n->type ? a : LLVMBuildCast(e->b, op, a, type, "");
    }
    case F_CALL: return l_intrinsic(e, how[n->op].intrinsic, &type, 1, (LV[]){a, b, c}, (unsigned)scalar_op_info[n->op].arity);
    case F_NONE: break;
    }
    switch ((ScalarOp)n->op) {
    case SOP_FNEG: return LLVMBuildFNeg(e->b, a, "");
    case SOP_SELECT: return LLVMBuildSelect(e->b, a, b, c, "");
    case SOP_CTLZ: return l_intrinsic(e, "llvm.ctlz", &type, 1, (LV[]){a, LLVMConstInt(e->type[SC_I1], 0, 0)}, 2);
    case SOP_STICKY: return l_sticky(e, a, vec);
    case SOP_F32TOBF16: return l_float_to_bhalf(e, a, vec);
    case SOP_F16TOF32: return half_to_float(e, a, vec);
    case SOP_F32TOF16: return float_to_half(e, a, vec);
    case SOP_LOOKUP: return l_lookup(e, lookup_table[n->imm], a, vec);
    case SOP_CONST: return l_const(e, (SType)n->type, n->imm, vec);
    default: /* INPUT: set by tape_emit; everything else has a form */ return NULL;
    }
}

/*
 * A cold region becomes a branch around it, taken when no lane needs it. It is emitted as late as
 * the first SELECT that merges its results, because then the other way's values are known and the
 * SELECTs can be computed inside: the common way costs a test.
 *
 *      before:  any = some lane of cond         cold:  region; chosen = select cond, inside, other
 *               br any, cold, join                     br join
 *      join:    phi [chosen, cold], [other, before]
 *
 * What only the other way needs, if that is little, is emitted behind the test; where all lanes need the region it is not executed:
 *
 *      before:  br any, cold, usual             usual: other
 *      cold:    region; br some lane not, mixed, join  br join
 *      mixed:   other, once more; chosen; br join
 *      join:    phi [inside, cold], [chosen, mixed], [other, usual]
 *
 * Where code is being hoisted (the builder stands before an instruction) everything is executed.
 */
typedef struct Walk {
    const Tape *t;
    const Val *in;
    LV *v;
    bool vec;
    const uint16_t *late; /* of each instruction: 1 + the region that it is emitted with, as only the other way needs it; 0; NULL: none */
} Walk;

static void emit_walk(Emit *e, Walk *w, uint16_t begin, uint16_t end, uint16_t next);

static bool merges(const TapeCold *r, const TapeInst *n)
{
    return n->op == SOP_SELECT && n->a == r->cond && n->b >= r->begin && n->b < r->end;
}

/* A row's columns, all at once: they follow the first one. */
static void emit_row(Emit *e, Walk *w, uint16_t first)
{
    LV column[ROW_COLUMNS];
    const TapeInst *n = w->t->inst;
    l_row(e, w->v[n[first].a], column);
    for (uint16_t i = first; i < w->t->n && n[i].op == SOP_ROW && n[i].a == n[first].a; i++)
        w->v[i] = column[n[i].imm];
}

static void emit_one(Emit *e, Walk *w, uint16_t i)
{
    const TapeInst *n = &w->t->inst[i];
    if (w->v[i])
        return;
    if (n->op == SOP_INPUT)
        w->v[i] = w->vec ? val_vector(e, w->in[n->imm]) : w->in[n->imm].v;
    else if (n->op == SOP_ROW)
        emit_row(e, w, i);
    else
        w->v[i] = emit_inst(e, w->t, n, w->v, w->vec);
}

/*
 * Functions of their own. LLVM's time goes with the number of instructions, and a tape may be hundreds: so what is rarely executed (a
 * long cold region), or written many times (see `called`), is emitted once for each vector type and called. They are internal, known to
 * touch no memory, and named in the order of their first use, so the same kernel gives the same bytes. A call takes registers away from
 * whoever makes it, also where it is not executed: what lives across it lies on the stack. For a whole tape these are some cycles beside the
 * tens of what is called; a region's function keeps all registers instead (sin of f32 with 256 bits: 0.26 ns an element, 0.29 before).
 * AVX-512 has no such convention, but 32 registers, so a region is long later there.
 */
struct Outlined {
    const Tape *t;
    const TapeCold *cold; /* NULL: the whole tape */
    int lanes;            /* 0: scalars */
    bool usual;           /* a whole tape without its cold regions */
    int copies;           /* of a region, written where it is needed */
    LV fn;                /* NULL: not yet a function */
    struct Outlined *next;
};

static struct Outlined *outlined(Emit *e, const Tape *t, const TapeCold *cold, int lanes)
{
    struct Outlined *o = e->outlined;
    while (o && (o->t != t || o->cold != cold || o->lanes != lanes || o->usual != e->usual))
        o = o->next;
    if (o)
        return o;
    o = ARENA_ARRAY(e->arena, struct Outlined, 1);
    *o = (struct Outlined){.t = t, .cold = cold, .lanes = lanes, .usual = e->usual, .next = e->outlined};
    return e->outlined = o;
}

static LV new_outlined(Emit *e, struct Outlined *o, LLVMTypeRef result, LLVMTypeRef *params, unsigned n)
{
    static const char *const attributes[] = {"noinline", "memory", "willreturn"};
    const char *name = arena_printf(e->arena, "tape%u", e->n_outlined);
    LV fn = LLVMAddFunction(e->module, name, LLVMFunctionType(result, params, n, 0));
    LLVMSetLinkage(fn, LLVMInternalLinkage);
    for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++)
        l_attribute(e, fn, attributes[i]);
    if (o->cold) {
        l_attribute(e, fn, "cold");
        if (e->bits < 512)
            LLVMSetFunctionCallConv(fn, LLVMPreserveAllCallConv);
    }
    e->n_outlined++;
    return o->fn = fn;
}

/* Where the builder stood while the body of another function is written. */
typedef struct Elsewhere {
    LV fn, standing;
    LLVMBasicBlockRef block;
} Elsewhere;

static Elsewhere go_elsewhere(Emit *e, LV fn)
{
    Elsewhere back = {.fn = e->fn, .standing = e->standing, .block = LLVMGetInsertBlock(e->b)};
    e->fn = fn;
    l_at(e, l_block(e, ""));
    return back;
}

static void come_back(Emit *e, Elsewhere back)
{
    e->fn = back.fn;
    l_at(e, back.block);
    if (back.standing)
        LLVMPositionBuilderBefore(e->b, back.standing);
    e->standing = back.standing;
}

/* Below so many instructions a call is as long as the region. */
static int long_region(const Emit *e) { return e->bits == 512 ? 96 : 16; }

/* How many registers are computed where a tape has one instruction; constants and bitcasts are none. */
static int instruction_length(const Emit *e, const TapeInst *n, bool vec)
{
    if (n->op == SOP_CONST || n->op == SOP_BITCAST)
        return 0;
    int all = vec ? stype_bits[n->type] * e->lanes : 0;
    return all > e->bits ? all / e->bits : 1;
}

/* The length of a region; those inside it that have a function of their own are left out. */
static int region_length(const Emit *e, const Tape *t, uint16_t r, bool vec)
{
    int length = 0;
    uint16_t i = t->cold[r].begin;
    for (uint16_t inner = (uint16_t)(r + 1); inner <= t->n_cold; inner = tape_region_after(t, inner)) {
        bool is_inside = inner < t->n_cold && t->cold[inner].begin < t->cold[r].end;
        for (uint16_t end = is_inside ? t->cold[inner].begin : t->cold[r].end; i < end; i++)
            length += instruction_length(e, &t->inst[i], vec);
        if (!is_inside)
            break;
        i = t->cold[inner].end;
        int inside = region_length(e, t, inner, vec);
        length += inside < long_region(e) ? inside : 0;
    }
    return length;
}

/* Which instructions go into a region from outside (constants are made anew), and which ones leave it. */
static void region_border(Emit *e, const Tape *t, const TapeCold *r, uint16_t **in, unsigned *n_in, uint16_t **out, unsigned *n_out)
{
    bool *is_in = ARENA_ARRAY(e->arena, bool, t->n), *is_out = ARENA_ARRAY(e->arena, bool, t->n);
    for (uint16_t i = r->begin; i < t->n; i++) {
        const TapeInst *n = &t->inst[i];
        const uint16_t operand[3] = {n->a, n->b, n->c};
        for (int k = 0; i < r->end && k < scalar_op_info[n->op].arity; k++)
            is_in[operand[k]] |= operand[k] < r->begin && t->inst[operand[k]].op != SOP_CONST;
        if (i >= r->end && merges(r, n))
            is_out[n->b] = true;
    }
    *in = ARENA_ARRAY(e->arena, uint16_t, t->n);
    *out = ARENA_ARRAY(e->arena, uint16_t, t->n);
    *n_in = *n_out = 0;
    for (uint16_t i = 0; i < t->n; i++) {
        if (is_in[i])
            (*in)[(*n_in)++] = i;
        if (is_out[i])
            (*out)[(*n_out)++] = i;
    }
}

/* What is in a region, into w->v. */
static void region_here(Emit *e, Walk *w, const TapeCold *r) { emit_walk(e, w, r->begin, r->end, (uint16_t)(r - w->t->cold + 1)); }

/* The same in a walk of its own, which knows nothing but what goes into the region. */
static void region_alone(Emit *e, Walk *w, const TapeCold *r)
{
    for (uint16_t i = 0; i < r->begin; i++)
        if (w->t->inst[i].op == SOP_CONST)
            w->v[i] = emit_inst(e, w->t, &w->t->inst[i], w->v, w->vec);
    region_here(e, w, r);
}

/* Lane after lane, where lanes are registers: of what a region has in between, those of one lane are enough. */
static void region_by_lanes(Emit *e, Walk *w, const TapeCold *r)
{
    const Tape *t = w->t;
    uint16_t *in, *out;
    unsigned n_in, n_out;
    region_border(e, t, r, &in, &n_in, &out, &n_out);
    for (unsigned k = 0; k < n_out; k++)
        w->v[out[k]] = LLVMGetPoison(l_vec(e, e->type[t->inst[out[k]].type]));
    for (int lane = 0; lane < e->lanes; lane++) {
        LV at = LLVMConstInt(e->type[SC_I32], (unsigned)lane, 0);
        Walk one = {.t = t, .in = w->in, .v = ARENA_ARRAY(e->arena, LV, t->n)};
        for (unsigned k = 0; k < n_in; k++)
            one.v[in[k]] = LLVMBuildExtractElement(e->b, w->v[in[k]], at, "");
        region_alone(e, &one, r);
        for (unsigned k = 0; k < n_out; k++)
            w->v[out[k]] = LLVMBuildInsertElement(e->b, w->v[out[k]], one.v[out[k]], at, "");
    }
}

static LV region_function(Emit *e, const Walk *w, struct Outlined *o, const uint16_t *in, unsigned n_in, const uint16_t *out,
                          unsigned n_out)
{
    const TapeCold *r = o->cold;
    const Tape *t = w->t;
    LLVMTypeRef *params = ARENA_ARRAY(e->arena, LLVMTypeRef, n_in + 1), *results = ARENA_ARRAY(e->arena, LLVMTypeRef, n_out + 1);
    for (unsigned k = 0; k < n_in; k++)
        params[k] = LLVMTypeOf(w->v[in[k]]);
    for (unsigned k = 0; k < n_out; k++)
        results[k] = w->vec ? l_vec(e, e->type[t->inst[out[k]].type]) : e->type[t->inst[out[k]].type];
    LLVMTypeRef result = LLVMStructTypeInContext(e->ctx, results, n_out, 0);
    LV fn = new_outlined(e, o, result, params, n_in);
    Elsewhere back = go_elsewhere(e, fn);
    Walk inner = {.t = t, .in = w->in, .v = ARENA_ARRAY(e->arena, LV, t->n), .vec = w->vec};
    for (unsigned k = 0; k < n_in; k++)
        inner.v[in[k]] = LLVMGetParam(fn, k);
    region_alone(e, &inner, r);
    LV all = LLVMGetPoison(result);
    for (unsigned k = 0; k < n_out; k++)
        all = LLVMBuildInsertValue(e->b, all, inner.v[out[k]], k, "");
    LLVMBuildRet(e->b, all);
    come_back(e, back);
    return fn;
}

/* Is a region written where it is needed? The third copy of one that is not tiny is a call. */
static bool is_here(Emit *e, const Walk *w, const TapeCold *r)
{
    enum { TINY = 16, COPIES = 2 };
    int length = region_length(e, w->t, (uint16_t)(r - w->t->cold), w->vec);
    if (length < TINY || length >= long_region(e))
        return length < TINY;
    return outlined(e, w->t, r, w->vec ? e->lanes : 0)->copies++ < COPIES;
}

/* The region's results into w->v: computed here, or by a call. */
static void region_body(Emit *e, Walk *w, const TapeCold *r)
{
    if (e->target->scalar_lanes && w->vec && e->lanes > 1) {
        region_by_lanes(e, w, r);
        return;
    }
    if (!e->target->calls || is_here(e, w, r)) {
        region_here(e, w, r);
        return;
    }
    uint16_t *in, *out;
    unsigned n_in, n_out;
    region_border(e, w->t, r, &in, &n_in, &out, &n_out);
    struct Outlined *o = outlined(e, w->t, r, w->vec ? e->lanes : 0);
    LV fn = o->fn ? o->fn : region_function(e, w, o, in, n_in, out, n_out);
    LV *args = ARENA_ARRAY(e->arena, LV, n_in + 1);
    for (unsigned k = 0; k < n_in; k++)
        args[k] = w->v[in[k]];
    LV all = LLVMBuildCall2(e->b, LLVMGlobalGetValueType(fn), fn, args, n_in, "");
    LLVMSetInstructionCallConv(all, LLVMGetFunctionCallConv(fn));
    for (unsigned k = 0; k < n_out; k++)
        w->v[out[k]] = LLVMBuildExtractValue(e->b, all, k, "");
}

/*
 * A mask of whole vectors, computed once more: where no registers hold masks (AVX2), one that is carried into another block is narrowed to
 * 16 bits a lane and widened there. The operands are frozen, so LLVM doesn't merge both.
 */
static LV mask_anew(Emit *e, LV mask)
{
    LV compare = LLVMIsACmpInst(mask), binary = LLVMIsABinaryOperator(mask);
    LV a = compare || binary ? LLVMGetOperand(mask, 0) : NULL, b = a ? LLVMGetOperand(mask, 1) : NULL;
    if (binary) {
        LV left = mask_anew(e, a), right = mask_anew(e, b);
        return LLVMBuildBinOp(e->b, LLVMGetInstructionOpcode(binary), left, right, "");
    }
    if (!compare)
        return LLVMIsConstant(mask) ? mask : LLVMBuildFreeze(e->b, mask, "");
    a = LLVMBuildFreeze(e->b, a, "");
    return LLVMIsAFCmpInst(compare) ? LLVMBuildFCmp(e->b, LLVMGetFCmpPredicate(compare), a, b, "")
                                    : LLVMBuildICmp(e->b, LLVMGetICmpPredicate(compare), a, b, "");
}

/* The masks that go into a region from outside, computed once more; back: those that they replace. */
static void masks_anew(Emit *e, Walk *w, const TapeCold *r, LV *back)
{
    for (uint16_t i = r->begin; i < r->end; i++) {
        const TapeInst *n = &w->t->inst[i];
        const uint16_t operand[3] = {n->a, n->b, n->c};
        for (int k = 0; k < scalar_op_info[n->op].arity; k++) {
            uint16_t o = operand[k];
            if (o >= r->begin || w->t->inst[o].type != SC_I1 || back[o])
                continue;
            back[o] = w->v[o];
            w->v[o] = mask_anew(e, w->v[o]);
        }
    }
}

/* What is late and goes with this region. */
static void emit_late(Emit *e, Walk *w, const TapeCold *r)
{
    for (uint16_t i = 0; w->late && i < r->begin; i++)
        if (w->late[i] == 1 + (r - w->t->cold))
            w->v[i] = emit_inst(e, w->t, &w->t->inst[i], w->v, w->vec);
}

static bool has_late(const Walk *w, const TapeCold *r)
{
    for (uint16_t i = 0; w->late && i < r->begin; i++)
        if (w->late[i] == 1 + (r - w->t->cold))
            return true;
    return false;
}

/* The SELECTs that merge the region's results, as far as they can be computed by now, of lanes that need it and others. */
static void choose(Emit *e, const Walk *w, const TapeCold *r, LV mask, LV *chosen)
{
    for (uint16_t i = r->end; i < w->t->n; i++) {
        const TapeInst *n = &w->t->inst[i];
        if (merges(r, n) && w->v[n->c])
            chosen[i] = LLVMBuildSelect(e->b, mask, w->v[n->b], w->v[n->c], "");
    }
}

/* No lane needs it: the SELECTs that merge its results take what they have else. */
static void pass_region(Emit *e, Walk *w, const TapeCold *r)
{
    emit_late(e, w, r);
    w->v[r->cond] = LLVMConstNull(LLVMTypeOf(w->v[r->cond]));
    for (uint16_t i = r->begin; i < r->end; i++)
        w->v[i] = LLVMConstNull(w->vec ? l_vec(e, e->type[w->t->inst[i].type]) : e->type[w->t->inst[i].type]);
}

static void emit_region(Emit *e, Walk *w, const TapeCold *r)
{
    LV cond = w->v[r->cond], *v = w->v;
    if (e->usual) {
        pass_region(e, w, r);
        return;
    }
    if (e->standing || r->begin == r->end || LLVMIsConstant(cond)) {
        emit_late(e, w, r);
        region_body(e, w, r);
        return;
    }
    bool late = has_late(w, r);
    LLVMBasicBlockRef before = LLVMGetInsertBlock(e->b), cold = l_block(e, "cold"), usual = late ? l_block(e, "usual") : NULL;
    LLVMBasicBlockRef join = l_block(e, ""), mixed = NULL;
    bool anew = w->vec && !e->target->scalar_lanes && e->bits < 512;
    LV mask = anew ? NULL : LLVMBuildFreeze(e->b, cond, "");
    LV branch = LLVMBuildCondBr(e->b, l_any(e, (Val){.v = cond, .vec = w->vec}), cold, late ? usual : join);
    l_unlikely(e, branch);
    LV *other = ARENA_ARRAY(e->arena, LV, w->t->n), *chosen = ARENA_ARRAY(e->arena, LV, w->t->n);
    if (late) {
        l_at(e, usual);
        emit_late(e, w, r);
        before = LLVMGetInsertBlock(e->b);
        LLVMBuildBr(e->b, join);
    }
    for (uint16_t i = r->end; i < w->t->n; i++)
        other[i] = merges(r, &w->t->inst[i]) ? v[w->t->inst[i].c] : NULL;
    l_at(e, cold);
    LV *back = ARENA_ARRAY(e->arena, LV, r->begin);
    if (anew)
        masks_anew(e, w, r, back);
    region_body(e, w, r);
    for (uint16_t i = 0; i < r->begin; i++)
        v[i] = back[i] ? back[i] : v[i];
    if (anew)
        mask = mask_anew(e, cond);
    LLVMBasicBlockRef from = LLVMGetInsertBlock(e->b);
    if (late) {
        mixed = l_block(e, "mixed");
        LV near = LLVMBuildNot(e->b, mask, "");
        LLVMBuildCondBr(e->b, l_any(e, (Val){.v = near, .vec = w->vec}), mixed, join);
        l_at(e, mixed);
        emit_late(e, w, r);
    }
    choose(e, w, r, mask, chosen);
    LLVMBuildBr(e->b, join);
    l_at(e, join);
    for (uint16_t i = r->end; i < w->t->n; i++) {
        const TapeInst *n = &w->t->inst[i];
        bool done =
            merges(r, n) && !chosen[i] && LLVMIsAPHINode(v[n->b]) && LLVMGetInstructionParent(v[n->b]) == join; /* by an earlier SELECT */
        if (!merges(r, n) || done)
            continue;
        LV inside = v[n->b], all = chosen[i] ? chosen[i] : inside, outside = chosen[i] ? other[i] : LLVMConstNull(LLVMTypeOf(inside));
        LV phi = LLVMBuildPhi(e->b, LLVMTypeOf(inside), "");
        LLVMAddIncoming(phi, (LV[]){all, outside, inside}, (LLVMBasicBlockRef[]){late ? mixed : from, before, from}, late ? 3 : 2);
        v[chosen[i] ? i : n->b] = phi;
    }
}

/*
 * What is emitted with a region: few instructions in front of it that only SELECTs need which merge its results. Of a long region only:
 * where some lanes need it and some do not, now and then, the second test is guessed wrongly, which took more than a short one saves.
 */
static const uint16_t *late_of(Emit *e, const Walk *w)
{
    enum { LEAST = 3, MOST = 8, LONG = 32 };
    const Tape *t = w->t;
    if (!w->vec || e->target->scalar_lanes || e->standing || !t->n_cold)
        return NULL;
    uint16_t *late = ARENA_ARRAY(e->arena, uint16_t, t->n);
    for (uint16_t r = 0; r < t->n_cold; r = tape_region_after(t, r)) {
        const TapeCold *cold = &t->cold[r];
        if (cold->end - cold->begin < LONG)
            continue;
        bool *is = ARENA_ARRAY(e->arena, bool, t->n), *needed = ARENA_ARRAY(e->arena, bool, t->n);
        int length = 0;
        needed[t->out] = true;
        for (uint16_t i = t->n; i-- > 0;) {
            const TapeInst *n = &t->inst[i];
            bool may = n->op != SOP_INPUT && n->op != SOP_CONST && n->op != SOP_ROW && n->op != SOP_SELECT; /* a SELECT may merge */
            is[i] = i < cold->begin && is[i] && !needed[i] && may && !late[i];
            for (uint16_t k = 0; k < r && is[i]; k++)
                is[i] = i < t->cold[k].begin || i >= t->cold[k].end;
            length += is[i] && n->op != SOP_BITCAST;
            const uint16_t operand[3] = {n->a, n->b, n->c};
            for (int k = 0; k < scalar_op_info[n->op].arity; k++)
                *((is[i] || (k == 2 && merges(cold, n)) ? is : needed) + operand[k]) = true;
        }
        for (uint16_t i = 0; i < cold->begin && length >= LEAST && length <= MOST; i++)
            late[i] = is[i] ? (uint16_t)(1 + r) : late[i];
    }
    return late;
}

/* Instructions [begin, end); `next` is the first region that begins there or later. */
static void emit_walk(Emit *e, Walk *w, uint16_t begin, uint16_t end, uint16_t next)
{
    const Tape *t = w->t;
    uint16_t passed = next; /* the regions before it were stepped over, those before `next` are emitted */
    uint16_t i = begin;
    while (i < end) {
        if (passed < t->n_cold && i == t->cold[passed].begin) {
            i = t->cold[passed].end;
            passed = tape_region_after(t, passed);
            continue;
        }
        uint16_t last = next;
        for (uint16_t r = next; r < passed; r = tape_region_after(t, r))
            if (merges(&t->cold[r], &t->inst[i]))
                last = tape_region_after(t, r);
        for (; next < last; next = tape_region_after(t, next))
            emit_region(e, w, &t->cold[next]);
        if (!w->late || !w->late[i])
            emit_one(e, w, i);
        i++;
    }
}

static Val tape_emit(Emit *e, const Tape *t, const Val *in, uint32_t n_in)
{
    Walk w = {.t = t, .in = in, .v = ARENA_ARRAY(e->arena, LV, t->n)};
    for (uint32_t i = 0; i < n_in; i++)
        w.vec |= in[i].vec;
    w.late = late_of(e, &w);
    emit_walk(e, &w, 0, t->n, 0);
    return (Val){.v = w.v[t->out], .vec = w.vec};
}

/* A whole tape by a call. */
static Val tape_call(Emit *e, const Tape *t, const Val *in, uint32_t n_in)
{
    bool vec = false;
    for (uint32_t i = 0; i < n_in; i++)
        vec |= in[i].vec;
    LV args[3];
    LLVMTypeRef params[3];
    for (uint32_t i = 0; i < n_in; i++) {
        args[i] = vec ? val_vector(e, in[i]) : in[i].v;
        params[i] = LLVMTypeOf(args[i]);
    }
    struct Outlined *o = outlined(e, t, NULL, vec ? e->lanes : 0);
    LV fn = o->fn;
    if (!fn) {
        LLVMTypeRef result = e->type[t->inst[t->out].type];
        fn = new_outlined(e, o, vec ? l_vec(e, result) : result, params, n_in);
        Elsewhere back = go_elsewhere(e, fn);
        Val inner[3];
        for (uint32_t i = 0; i < n_in; i++)
            inner[i] = (Val){.v = LLVMGetParam(fn, i), .vec = vec};
        LLVMBuildRet(e->b, tape_emit(e, t, inner, n_in).v);
        come_back(e, back);
    }
    return (Val){.v = LLVMBuildCall2(e->b, LLVMGlobalGetValueType(fn), fn, args, n_in, ""), .vec = vec};
}

/*
 * Is an op so often in this kernel that its tape is called? The bound is where the time saved shows: `bench/compile` (100 and 1,000 in
 * a chain). Bodies that are as common as a layer's stay below it and are inlined.
 */
static bool called(Emit *e, Op op, DType in, const Tape *t)
{
    enum { SHORTEST = 12, MANY = 400 };
    uint32_t length = tape_usual_length(t).all;
    if (!e->target->calls || length < SHORTEST)
        return false;
    if (!e->uses) {
        e->uses = ARENA_ARRAY(e->arena, uint32_t, OP_COUNT * DT_COUNT);
        for (uint32_t i = 0; i < e->k->inst.n; i++) {
            const KInst *n = &e->k->inst.at[i];
            if (n->kind == KI_OP)
                e->uses[n->op * DT_COUNT + e->k->inst.at[n->a].dtype]++;
        }
    }
    return e->uses[op * DT_COUNT + in] * length >= MANY;
}

static const Tape *tape_of(Emit *e, Op op, const DType *in, DType out)
{
    const Tape *t = tape_get(op, in, out, e->math);
    if (!t)
        longjmp(*e->arena->oom, 1);
    return t;
}

/* The f32 that an f16 or bf16 value was rounded from, or converted. */
static Val widened(Emit *e, DType t, Val v)
{
    if (v.wide)
        return (Val){.v = v.wide, .vec = v.vec};
    return tape_emit(e, tape_of(e, OP_CAST, &t, DT_F32), &v, 1);
}

static bool exactly(Emit *e, Op op, const DType *in_types, DType out, const Val *in, Val *r)
{
    return e->target->exact && e->target->exact(e, op, in_types, out, in, r);
}

static Val rounded(Emit *e, DType t, Val f32)
{
    static const DType from = DT_F32;
    Val r;
    if (!exactly(e, OP_CAST, &from, t, &f32, &r))
        r = tape_emit(e, tape_of(e, OP_CAST, &from, t), &f32, 1);
    r.wide = f32.v;
    return r;
}

/* Fast mode: an op on f16 or bf16 that its tape would compute in f32 anyway, without the
 * conversions in between. Casts that the program asks for do round; what moves or looks at bits, compares, or asks whether a value is
 * finite, takes the rounded ones: those are what the user sees. */
static bool computed_wide(const Emit *e, Op op, DType out)
{
    return e->math == MATH_FAST && dtype_is_half(out) && op != OP_CAST && op != OP_WHERE && op != OP_NEXTAFTER && op != OP_COPYSIGN;
}

/* Ops that jump where an operand passes a number, or are defined up to it only: one that is rounded to that number is taken for it. */
static bool sees_rounded(Op op)
{
    static const bool ops[OP_COUNT] = {
        [OP_SIGN] = true,     [OP_FLOOR] = true, [OP_CEIL] = true,  [OP_ROUND] = true, [OP_TRUNC] = true,
        [OP_FLOORDIV] = true, [OP_REM] = true,   [OP_FMOD] = true,  [OP_POW] = true,   [OP_SQRT] = true,
        [OP_RSQRT] = true,    [OP_LOG] = true,   [OP_LOG2] = true,  [OP_LOG10] = true, [OP_LOG1P] = true,
        [OP_ASIN] = true,     [OP_ACOS] = true,  [OP_ACOSH] = true, [OP_ATANH] = true,
    };
    return ops[op];
}

/* An op by its tape, or by what the target has instead; `rounded`: what the result will be rounded to; `stored`: the
 * kernel's dtype of the first operand. */
static Val op_computed(Emit *e, Op op, const DType *in, DType out, DType rounded, DType stored, const Val *x)
{
    Val r;
    bool fast = e->math == MATH_FAST && e->target->approximate && op != OP_CAST && out == DT_F32 && in[0] == DT_F32;
    if (fast && e->target->approximate(e, op, rounded, x, &r))
        return r;
    const Tape *t = tape_of(e, op, in, out);
    return (called(e, op, stored, t) ? tape_call : tape_emit)(e, t, x, (uint32_t)op_info[op].arity);
}

/* Where numbers below the least normal are zeros for arithmetic, a function, which looks at bits as well, neither gets nor gives one. */
static Val op_of_normals(Emit *e, Op op, const DType *in, DType out, DType rounded, DType stored, const Val *x)
{
    enum { SHORTEST = 8 };
    const Target *target = e->target;
    if (!target->normal || !target->normal(e, out, NULL) || tape_usual_length(tape_of(e, op, in, out)).all < SHORTEST)
        return op_computed(e, op, in, out, rounded, stored, x);
    Val y[3], r;
    for (int i = 0; i < op_info[op].arity; i++) {
        y[i] = x[i];
        (void)target->normal(e, in[i], &y[i]);
    }
    r = op_computed(e, op, in, out, rounded, stored, y);
    (void)target->normal(e, out, &r);
    return r;
}

Val op_emit(Emit *e, Op op, const DType *in_types, DType out, const Val *in)
{
    int arity = op_info[op].arity;
    Val exact;
    if (exactly(e, op, in_types, out, in, &exact))
        return exact;
    bool unrounded = false;
    for (int i = 0; i < arity; i++)
        unrounded |= in[i].wide != NULL;
    if (!computed_wide(e, op, out) || (op_keeps_halves(op) && !unrounded))
        return op_of_normals(e, op, in_types, out, out, in_types[0], in);
    Val wide[3] = {{0}};
    DType types[3] = {DT_F32, DT_F32, DT_F32};
    for (int i = 0; i < arity; i++) {
        Val x = in[i];
        if (sees_rounded(op))
            x.wide = NULL;
        wide[i] = dtype_is_half(in_types[i]) ? widened(e, in_types[i], x) : x;
        types[i] = dtype_is_half(in_types[i]) ? DT_F32 : in_types[i];
    }
    return rounded(e, out, op_of_normals(e, op, types, DT_F32, out, in_types[0], wide));
}

Val fold_emit(Emit *e, Fold fold, FoldTape which, unsigned part, DType state, const Val *in, uint32_t n)
{
    const Tape *t = fold_tape(fold, which, part, state);
    if (!t)
        longjmp(*e->arena->oom, 1);
    return tape_emit(e, t, in, n);
}

/* Of values that may have another number of lanes than there is now. */
static LV dot_emit(Emit *e, FoldTape which, DType acc, const LV *v, uint32_t n)
{
    LLVMTypeRef type = LLVMTypeOf(v[0]);
    bool vec = LLVMGetTypeKind(type) == LLVMVectorTypeKind;
    int lanes = e->lanes;
    Val in[3];
    for (uint32_t i = 0; i < n; i++)
        in[i] = (Val){.v = v[i], .vec = vec};
    e->lanes = vec ? (int)LLVMGetVectorSize(type) : lanes;
    LV result = fold_emit(e, FOLD_DOT, which, 0, acc, in, n).v;
    e->lanes = lanes;
    return result;
}

LV dot_step(Emit *e, DType acc, LV sum, LV a, LV b) { return dot_emit(e, FOLD_STEP, acc, (LV[]){sum, a, b}, 3); }

LV dot_merge(Emit *e, DType acc, LV total, LV part) { return dot_emit(e, FOLD_MERGE, acc, (LV[]){total, part}, 2); }

uint32_t op_length(Emit *e, Op op, const DType *in_types, DType out)
{
    static const DType f32[3] = {DT_F32, DT_F32, DT_F32};
    if (exactly(e, op, in_types, out, NULL, NULL))
        return 1;
    if (!computed_wide(e, op, out) || op_keeps_halves(op)) /* taken for one of rounded values */
        return tape_usual_length(tape_of(e, op, in_types, out)).all;
    return tape_usual_length(tape_of(e, op, f32, DT_F32)).all + op_length(e, OP_CAST, f32, out);
}

Val cast_emit(Emit *e, DType from, DType to, Val v)
{
    if (from == to)
        return v;
    if (dtype_is_half(from) && to == DT_F32)
        return widened(e, from, v);
    Val r = op_emit(e, OP_CAST, &from, to, &v);
    if (e->math == MATH_FAST && from == DT_F32 && dtype_is_half(to))
        r.wide = v.v;
    return r;
}
