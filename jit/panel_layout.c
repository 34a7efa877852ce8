/* How panels that are kept lie, and where each element is in them: what a kernel's text says, and its verifier asks. */
#include "jit/dot_facts.h"
#include "jit/panels.h"

static bool grow(int64_t *elements, int64_t by) { return by > 0 && !__builtin_mul_overflow(*elements, by, elements); }

static bool constant_size(const Kernel *k, uint32_t axis, int64_t *size) { return kidx_is_const(k, k->axes.at[axis].size, size); }

bool panel_layout(const Kernel *k, uint32_t axes, uint32_t lane, int64_t width, int64_t each, PanelLayout *out)
{
    const uint32_t last = k->axes.n - 1;
    int64_t size;
    *out = (PanelLayout){.lane = lane, .axes = axes & ~(1u << lane | 1u << last), .width = width, .each = each};
    if (lane >= last || !constant_size(k, last, &size))
        return false;
    out->steps = (size + each - 1) / each;
    if (out->steps < 2 || !constant_size(k, lane, &size)) /* of one step rows and panels are one axis, and its index is another */
        return false;
    out->panels = (size + width - 1) / width;
    out->elements = width * each;
    bool fits = grow(&out->elements, out->steps) && grow(&out->elements, out->panels);
    for (uint32_t a = last; a-- > 0 && fits;) {
        out->stride[a] = out->elements;
        fits = !(out->axes >> a & 1) || (constant_size(k, a, &size) && grow(&out->elements, size));
    }
    return fits && out->elements <= INT64_MAX / 8;
}

VRef panel_product(const Kernel *k, VRef load)
{
    VRef found = VREF_NONE;
    for (VRef v = load + 1; v < k->inst.n; v++) {
        VRef in[4];
        uint32_t n = kernel_operands(&k->inst.at[v], in);
        for (uint32_t i = 0; i < n; i++) {
            if (in[i] == load && (found != VREF_NONE || !(inst_is_dot(&k->inst.at[v]) || dot_uncast(k, v) == load)))
                return VREF_NONE;
            found = in[i] == load ? v : found;
        }
    }
    return found == VREF_NONE || inst_is_dot(&k->inst.at[found]) ? found : panel_product(k, found);
}

bool panel_layout_of(const Kernel *k, VRef load, PanelLayout *out)
{
    const KArg *arg = &k->args.at[k->inst.at[load].arg];
    const VRef product = panel_product(k, load);
    if (product == VREF_NONE)
        return false;
    const size_t each = dtype_bytes(dot_accumulator((DType)k->inst.at[product].dtype)) / dtype_bytes((DType)k->inst.at[load].dtype);
    return panel_layout(k, k->inst_axes.at[load], arg->panel_axis, arg->panel, (int64_t)each, out);
}

IRef panel_index(Kernel *k, const PanelLayout *l)
{
    IRef lane = kidx_axis(k, l->lane), step = kidx_axis(k, k->axes.n - 1), width = kidx_const(k, l->width), each = kidx_const(k, l->each);
    IRef at = kidx_mul(k, kidx_div(k, lane, width), kidx_const(k, l->steps * l->width * l->each));
    at = kidx_add(k, at, kidx_mul(k, kidx_div(k, step, each), kidx_const(k, l->width * l->each)));
    at = kidx_add(k, at, kidx_mul(k, kidx_mod(k, lane, width), each));
    at = kidx_add(k, at, kidx_mod(k, step, each));
    for (uint32_t a = 0; a < k->axes.n; a++)
        if (l->axes >> a & 1)
            at = kidx_add(k, at, kidx_mul(k, kidx_axis(k, a), kidx_const(k, l->stride[a])));
    return at;
}
