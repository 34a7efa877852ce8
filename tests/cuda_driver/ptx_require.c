// What an instruction needs to be valid, so that a text is refused here as ptxas would refuse it: the architecture and the
// version of PTX (only what came after sm_70 and PTX 6.3 is listed: nothing older is of interest), and modifiers that may
// not be left out.
#include "tests/cuda_driver/ptx.h"

enum { ANY_OP = OP_COUNT };

typedef struct Requirement {
    int op;          // ANY_OP: all
    PtxType type;    // one of the instruction's types; T_NONE: any
    int modifier;    // that it must have; M_ABSENT: any
    int sm, version; // needed then
} Requirement;

static const Requirement requirements[] = {
    {OP_CP, T_NONE, 0, 80, 70},
    {OP_REDUX, T_NONE, 0, 80, 70},
    {OP_LDMATRIX, T_NONE, 0, 75, 65},
    {OP_STMATRIX, T_NONE, 0, 90, 78},
    {OP_ELECT, T_NONE, 0, 90, 80},
    {OP_MMA, T_F16, M_SHAPE_m16n8k8, 75, 65},
    {OP_MMA, T_NONE, M_SHAPE_m16n8k16, 80, 70},
    {OP_MMA, T_NONE, M_SHAPE_m16n8k32, 80, 70},
    {OP_MMA, T_BF16, 0, 80, 70},
    {OP_MMA, T_TF32, 0, 80, 70},
    {OP_MMA, T_F64, 0, 80, 70},
    {OP_SZEXT, T_NONE, 0, 70, 76},
    {OP_BMSK, T_NONE, 0, 70, 76},
    {ANY_OP, T_U16X2, 0, 90, 80},
    {ANY_OP, T_S16X2, 0, 90, 80},
    // arithmetic of short floats
    {OP_ADD, T_BF16, 0, 90, 78},
    {OP_ADD, T_BF16X2, 0, 90, 78},
    {OP_SUB, T_BF16, 0, 90, 78},
    {OP_SUB, T_BF16X2, 0, 90, 78},
    {OP_MUL, T_BF16, 0, 90, 78},
    {OP_MUL, T_BF16X2, 0, 90, 78},
    {OP_FMA, T_BF16, 0, 80, 70},
    {OP_FMA, T_BF16X2, 0, 80, 70},
    {OP_FMA, T_NONE, M_FLAG_relu, 80, 70},
    {OP_NEG, T_BF16, 0, 80, 70},
    {OP_NEG, T_BF16X2, 0, 80, 70},
    {OP_ABS, T_F16, 0, 70, 65},
    {OP_ABS, T_F16X2, 0, 70, 65},
    {OP_ABS, T_BF16, 0, 80, 70},
    {OP_ABS, T_BF16X2, 0, 80, 70},
    {OP_MIN, T_F16, 0, 80, 70},
    {OP_MIN, T_F16X2, 0, 80, 70},
    {OP_MIN, T_BF16, 0, 80, 70},
    {OP_MIN, T_BF16X2, 0, 80, 70},
    {OP_MAX, T_F16, 0, 80, 70},
    {OP_MAX, T_F16X2, 0, 80, 70},
    {OP_MAX, T_BF16, 0, 80, 70},
    {OP_MAX, T_BF16X2, 0, 80, 70},
    {OP_MIN, T_NONE, M_FLAG_nan, 80, 70},
    {OP_MAX, T_NONE, M_FLAG_nan, 80, 70},
    {OP_MIN, T_NONE, M_FLAG_xorsign, 86, 72},
    {OP_MAX, T_NONE, M_FLAG_xorsign, 86, 72},
    {OP_EX2, T_F16, 0, 75, 70},
    {OP_EX2, T_F16X2, 0, 75, 70},
    {OP_EX2, T_BF16, 0, 90, 78},
    {OP_EX2, T_BF16X2, 0, 90, 78},
    {OP_TANH, T_NONE, 0, 75, 70},
    {OP_TANH, T_BF16, 0, 90, 78},
    {OP_TANH, T_BF16X2, 0, 90, 78},
    {OP_SETP, T_BF16, 0, 90, 78},
    {OP_SETP, T_BF16X2, 0, 90, 78},
    {OP_SET, T_BF16, 0, 90, 78},
    {OP_SET, T_BF16X2, 0, 90, 78},
    // conversions
    {OP_CVT, T_BF16, 0, 80, 70},
    {OP_CVT, T_BF16X2, 0, 80, 70},
    {OP_CVT, T_F16X2, 0, 80, 70},
    {OP_CVT, T_TF32, 0, 80, 70},
    {OP_CVT, T_NONE, M_FLAG_relu, 80, 70},
    {OP_CVT, T_NONE, M_FLAG_satfinite, 75, 81},
    // memory
    {OP_ATOM, T_BF16, 0, 90, 78},
    {OP_ATOM, T_BF16X2, 0, 90, 78},
    {OP_RED, T_BF16, 0, 90, 78},
    {OP_RED, T_BF16X2, 0, 90, 78},
    {OP_CVTA, T_NONE, M_SPACE_param, 70, 77},
    {ANY_OP, T_NONE, M_SPACE_shared_cta, 30, 78},
    {ANY_OP, T_NONE, M_LEVEL_l1_no_allocate, 70, 74},
    {ANY_OP, T_NONE, M_LEVEL_l1_normal, 70, 74},
    {ANY_OP, T_NONE, M_LEVEL_l1_unchanged, 70, 74},
    {ANY_OP, T_NONE, M_LEVEL_l1_first, 70, 74},
    {ANY_OP, T_NONE, M_LEVEL_l1_last, 70, 74},
    {ANY_OP, T_NONE, M_LEVEL_l2_64, 75, 74},
    {ANY_OP, T_NONE, M_LEVEL_l2_128, 75, 74},
    {ANY_OP, T_NONE, M_LEVEL_l2_256, 80, 74},
    {OP_BAR, T_NONE, M_SCOPE_cta, 70, 78},
    {OP_BARRIER, T_NONE, M_SCOPE_cta, 70, 78},
};

static bool matches(const Requirement *r, const Inst *in)
{
    if (r->op != ANY_OP && r->op != in->op)
        return false;
    bool type = r->type == T_NONE, modifier = r->modifier == M_ABSENT;
    for (int i = 0; i < in->types; i++)
        type |= in->type[i] == r->type;
    for (int c = 0; c < C_COUNT; c++)
        modifier |= c != C_FLAG && in->mod[c] != M_ABSENT && in->mod[c] == r->modifier;
    if (r->modifier >= M_FLAG_ftz && r->modifier <= M_FLAG_shiftamt)
        modifier |= (in->flags >> (r->modifier - M_FLAG_ftz) & 1) != 0;
    return type && modifier;
}

// Conversions of bf16: from f32 first, then to f32, then the rest.
static void require_bf16(const Inst *in, int *sm, int *version)
{
    PtxType to = (PtxType)in->type[0], from = (PtxType)in->type[1];
    if (in->op != OP_CVT || (to != T_BF16 && from != T_BF16) || (to == T_BF16 && from == T_F32))
        return;
    *sm = to == T_F32 ? 80 : 90;
    *version = to == T_F32 ? 71 : 78;
}

// Classes of which the instruction must name a member.
static const struct Needed {
    PtxOp op;
    PtxClass cls;
    const char *text;
} needed[] = {
    /* clang-format off */
    {OP_SETP, C_COMPARE, "a comparison"},   {OP_SET, C_COMPARE, "a comparison"},  {OP_ATOM, C_ATOMIC, "an operation"},
    {OP_RED, C_ATOMIC, "an operation"},     {OP_REDUX, C_ATOMIC, "an operation"}, {OP_SHFL, C_SHUFFLE, "a mode"},
    {OP_VOTE, C_VOTE, "a mode"},            {OP_MATCH, C_VOTE, "a mode"},         {OP_ISSPACEP, C_SPACE, "a space"},
    {OP_CVTA, C_SPACE, "a space"},          {OP_SHF, C_DIRECTION, ".l or .r"},    {OP_SHF, C_SHIFT, ".wrap or .clamp"},
    {OP_SZEXT, C_SHIFT, ".wrap or .clamp"}, {OP_BMSK, C_SHIFT, ".wrap or .clamp"}, {OP_TESTP, C_TEST, "a property"},
    {OP_CP, C_ASYNC, ".async"},
    /* clang-format on */
};

unsigned ptx_types_of(PtxOp op)
{
    if (op == OP_MMA)
        return 4;
    return op == OP_CVT || op == OP_SET || op == OP_SLCT || op == OP_DP4A ? 2 : 1;
}

// The modifier without which the instruction is incomplete, as text; NULL: nothing is missing.
static const char *missing_modifier(const Inst *in)
{
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        if (needed[i].op == in->op && in->mod[needed[i].cls] == M_ABSENT)
            return needed[i].text;
    if (ptx_types_of((PtxOp)in->op) == 2 && in->types != 2)
        return "two types";
    const PtxTypeInfo *type = &ptx_types[in->type[0]], *from = &ptx_types[in->type[1]];
    bool round = in->mod[C_ROUND] != M_ABSENT, approx = (in->flags & (FLAG(approx) | FLAG(full))) != 0;
    switch ((PtxOp)in->op) {
    case OP_FMA: return round ? NULL : "a rounding mode";
    case OP_MAD:
    case OP_MUL:
        if (type->cls != 'f')
            return in->mod[C_WIDTH] ? NULL : ".lo, .hi or .wide";
        return round || in->op == OP_MUL ? NULL : "a rounding mode";
    case OP_DIV:
    case OP_RCP:
    case OP_SQRT: return type->cls != 'f' || round || approx ? NULL : "a rounding mode or .approx";
    case OP_RSQRT:
    case OP_SIN:
    case OP_COS:
    case OP_LG2:
    case OP_EX2:
    case OP_TANH: return approx ? NULL : ".approx";
    case OP_CVT: {
        bool to_float = type->cls == 'f', from_float = from->cls == 'f';
        bool exact = to_float == from_float && (!to_float || from->bits < type->bits || in->type[0] == in->type[1]);
        return round || exact ? NULL : "a rounding mode";
    }
    case OP_ATOM: return (in->mod[C_ATOMIC] == M_ATOMIC_cas) == (in->operands == 4) ? NULL : "three or four operands";
    case OP_BAR:
    case OP_BARRIER:
        if (!(in->flags & FLAG(sync)) && !in->mod[C_SYNC])
            return ".sync, .arrive or .red";
        return in->mod[C_SYNC] == M_SYNC_red && (!in->mod[C_REDUCE] || in->types != 1) ? "a reduction and its type" : NULL;
    case OP_SHFL:
    case OP_VOTE:
    case OP_MATCH: return in->flags & FLAG(sync) ? NULL : ".sync";
    default: return NULL;
    }
}

void ptx_require(Parser *p, const Inst *in)
{
    const PtxModule *m = p->module;
    int sm = 0, version = 0;
    for (size_t i = 0; i < sizeof requirements / sizeof *requirements; i++)
        if (matches(&requirements[i], in)) {
            sm = requirements[i].sm > sm ? requirements[i].sm : sm;
            version = requirements[i].version > version ? requirements[i].version : version;
        }
    require_bf16(in, &sm, &version);
    const char *missing = missing_modifier(in);
    if (missing)
        ptx_fail(p, in->line, "this '%s' needs %s", ptx_op_names[in->op], missing);
    if (!ptx_form_ok(in))
        ptx_fail(p, in->line, "'%s' with modifiers that do not go together, or not with its type", ptx_op_names[in->op]);
    if (sm > m->target || version > m->version)
        ptx_fail(p, in->line, "this '%s' needs sm_%d and PTX %d.%d, the text says sm_%d and PTX %d.%d", ptx_op_names[in->op], sm,
                 version / 10, version % 10, m->target, m->version / 10, m->version % 10);
}

void ptx_require_version(Parser *p, uint32_t line)
{
    static const struct {
        int target, version;
    } table[] = {{0, 10}, {60, 50}, {70, 60}, {72, 61}, {75, 63}, {80, 70}, {86, 71}, {87, 74}, {89, 78}, {90, 78}, {100, 86}, {120, 87}};
    const PtxModule *m = p->module;
    int least = 10;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (table[i].target <= m->target)
            least = table[i].version;
    if (m->target == 90 && m->target_suffix == 'a')
        least = 80;
    if (m->version < least)
        ptx_fail(p, line, "PTX %d.%d does not know sm_%d%.1s: it came with %d.%d", m->version / 10, m->version % 10, m->target,
                 &m->target_suffix, least / 10, least % 10);
}
