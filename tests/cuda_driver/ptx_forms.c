// Modifiers that do not go together, or not with a type: refused as ptxas refuses them, so that no text runs here whose
// meaning would be a guess. The tables are in ptx_forms.def; conversions, comparisons, loads and stores follow rules.
#include "tests/cuda_driver/exec.h"
#include "tests/cuda_driver/ptx.h"

#include <string.h>

static const struct Form {
    PtxOp op;
    const char *types, *rounds, *flags;
} forms[] = {
#define FORM(op, types, rounds, flags) {OP_##op, types, rounds, flags},
#include "tests/cuda_driver/ptx_forms.def"
};

static const struct AtomicForm {
    const char *types, *operations;
} atomic_forms[] = {
#define ATOMIC(types, operations) {types, operations},
#include "tests/cuda_driver/ptx_forms.def"
};

static bool listed(const char *list, const char *word)
{
    size_t n = strlen(word);
    for (const char *at = list; (at = strstr(at, word)); at += n)
        if ((at == list || at[-1] == ' ') && (at[n] == 0 || at[n] == ' '))
            return true;
    return false;
}

// Flags as the tables write them: in the order of ptx_modifiers.def, joined by dots.
static void flags_text(const Inst *in, char text[128])
{
    text[0] = 0;
    for (int m = M_FLAG_ftz; m <= M_FLAG_shiftamt; m++) {
        if (!(in->flags >> (m - M_FLAG_ftz) & 1))
            continue;
        if (text[0])
            strcat(text, ".");
        strcat(text, ptx_modifier_text(m));
    }
    if (!text[0])
        strcpy(text, "-");
}

static bool form_ok(const Inst *in)
{
    if (in->mod[C_WIDTH] && ptx_types[in->type[0]].cls == 'f')
        return false;
    bool named = false;
    char flags[128];
    flags_text(in, flags);
    const char *round = in->mod[C_ROUND] ? ptx_modifier_text(in->mod[C_ROUND]) : "-";
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        if (forms[i].op != in->op)
            continue;
        named = true;
        if (listed(forms[i].types, ptx_types[in->type[0]].text) && listed(forms[i].rounds, round) && listed(forms[i].flags, flags))
            return true;
    }
    return !named;
}

static bool set_result_ok(PtxType to, PtxType from)
{
    if (ptx_types[to].lanes == 2)
        return to == from;
    if (ptx_types[from].lanes == 2)
        return to == T_U32 || to == T_S32;
    if (to == T_U16 || to == T_S16)
        return from == T_F16 || from == T_BF16;
    return to == T_U32 || to == T_S32 || to == T_F32 || to == T_F16 || to == T_BF16;
}

static bool compare_ok(const Inst *in)
{
    PtxType type = (PtxType)in->type[in->op == OP_SET ? 1 : 0];
    const char *word = ptx_modifier_text(in->mod[C_COMPARE]);
    bool ftz_ok = type == T_F32 || type == T_F16 || type == T_F16X2;
    if (in->flags & ~(ftz_ok ? FLAG(ftz) : 0) || (in->op == OP_SET && !set_result_ok((PtxType)in->type[0], type)))
        return false;
    switch (ptx_types[type].cls) {
    case 'b': return listed("eq ne", word);
    case 's': return listed("eq ne lt le gt ge", word);
    case 'u': return listed("eq ne lt le gt ge lo ls hi hs", word);
    default: return !listed("lo ls hi hs", word);
    }
}

static bool atomic_ok(const Inst *in)
{
    const char *type = ptx_types[in->type[0]].text, *operation = ptx_modifier_text(in->mod[C_ATOMIC]);
    bool half = ptx_types[in->type[0]].cls == 'f' && in->type[0] != T_F32 && in->type[0] != T_F64;
    if (in->flags != (half ? FLAG(noftz) : 0) || (in->op == OP_RED && listed("cas exch", operation)))
        return false;
    for (size_t i = 0; i < sizeof atomic_forms / sizeof *atomic_forms; i++)
        if (listed(atomic_forms[i].types, type) && listed(atomic_forms[i].operations, operation))
            return true;
    return false;
}

static bool memory_ok(const Inst *in)
{
    Space space = exec_space(in);
    int cache = in->mod[C_CACHE], semantics = in->mod[C_SEMANTICS];
    bool load = in->op == OP_LD;
    int vector = in->mod[C_VECTOR];
    unsigned lanes = vector == M_VECTOR_v8 ? 8 : vector == M_VECTOR_v4 ? 4 : vector == M_VECTOR_v2 ? 2 : 1;
    if (lanes * ptx_types[in->type[0]].bits > 128)
        return false; // 256 bits come with sm_100
    if (cache && semantics)
        return false;
    if (semantics && semantics != M_SEMANTICS_weak && space != SPACE_GENERIC && space != SPACE_GLOBAL && space != SPACE_SHARED)
        return false;
    if (semantics == M_SEMANTICS_acq_rel || semantics == M_SEMANTICS_sc)
        return false;
    if (load)
        return semantics != M_SEMANTICS_release && cache != M_CACHE_wb && cache != M_CACHE_wt &&
               (cache != M_CACHE_nc || space == SPACE_GLOBAL);
    return semantics != M_SEMANTICS_acquire && space != SPACE_CONST && cache != M_CACHE_nc && cache != M_CACHE_ca && cache != M_CACHE_cv &&
           cache != M_CACHE_lu;
}

// ---- conversions ----

static bool to_integral(int round) { return round == M_ROUND_rni || round == M_ROUND_rzi || round == M_ROUND_rmi || round == M_ROUND_rpi; }

// Every value of `from` is one of `to`: .sat would have no meaning.
static bool always_fits(PtxType to, PtxType from)
{
    bool to_signed = ptx_types[to].cls == 's', from_signed = ptx_types[from].cls == 's';
    unsigned m = ptx_types[to].bits, n = ptx_types[from].bits;
    return to_signed == from_signed ? m >= n : to_signed && m > n;
}

static bool convert_ok(const Inst *in)
{
    PtxType to = (PtxType)in->type[0], from = (PtxType)in->type[1];
    bool to_float = ptx_types[to].cls == 'f', from_float = ptx_types[from].cls == 'f';
    int round = in->mod[C_ROUND];
    bool bf16 = to == T_BF16 || from == T_BF16, f32 = to == T_F32 || from == T_F32;
    uint32_t allowed = (f32 && !(to == T_TF32) && ptx_types[to].lanes == 1 ? FLAG(ftz) : 0) | (bf16 ? 0 : FLAG(sat));
    bool short_from_f32 = from == T_F32 && (to == T_F16 || to == T_BF16 || to == T_TF32 || ptx_types[to].lanes == 2);
    if (short_from_f32 && !to_integral(round))
        allowed |= FLAG(relu) | FLAG(satfinite);
    if (to == T_TF32 || ptx_types[to].lanes == 2)
        allowed = FLAG(relu) | FLAG(satfinite);
    if (in->flags & ~allowed || (in->flags & (FLAG(relu) | FLAG(satfinite)) && in->flags & (FLAG(ftz) | FLAG(sat))))
        return false;
    if (to == T_TF32)
        return from == T_F32 && (round == M_ROUND_rn || round == M_ROUND_rz || round == M_ROUND_rna);
    if (ptx_types[to].lanes == 2)
        return from == T_F32 && (round == M_ROUND_rn || round == M_ROUND_rz);
    if (from == T_TF32 || ptx_types[from].lanes == 2 || round == M_ROUND_rna)
        return false;
    if (!to_float && !from_float)
        return round == M_ABSENT && !(in->flags & FLAG(ftz)) && !(in->flags & FLAG(sat) && always_fits(to, from));
    if (!to_float)
        return to_integral(round) && !(from == T_BF16 && ptx_types[to].bits == 8);
    if (!from_float || ptx_types[from].bits > ptx_types[to].bits || (to != from && bf16 && ptx_types[to].bits == 16))
        return round != M_ABSENT && !to_integral(round);
    return to == from ? round == M_ABSENT || to_integral(round) : round == M_ABSENT;
}

bool ptx_form_ok(const Inst *in)
{
    switch ((PtxOp)in->op) {
    case OP_SETP:
    case OP_SET: return compare_ok(in);
    case OP_ATOM:
    case OP_RED: return atomic_ok(in);
    case OP_LD:
    case OP_ST: return memory_ok(in);
    case OP_CVT: return convert_ok(in);
    case OP_SLCT: return in->type[1] == T_S32 || in->type[1] == T_F32;
    default: return form_ok(in);
    }
}
