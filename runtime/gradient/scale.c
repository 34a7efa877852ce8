/*
 * What is done to gradients before a step: clipping by their global norm, and the scale that keeps those of f16 from vanishing.
 *
 *   loss * scale -> kiln_grad -> kiln_scaler_unscale: gradients / scale, and whether all are finite -> kiln_optimizer_step_where
 *
 * The scale is a power of two as long as it begins as one, so that scaling is exact. It changes inside the program; the host looks at nothing.
 */
#define KILN_NO_LOCATIONS
#include "ir/base/os.h"
#include "runtime/function/trace.h"
#include "runtime/gradient/param.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Gradient i: a float. */
static RtNode *gradient_in(Rec *r, kiln_tensor *grad, int i)
{
    char name[64], text[SHAPE_TEXT];
    snprintf(name, sizeof name, "grads[%d]", i);
    RtNode *g = rec_in(r, grad, name);
    if (g && (g->weak || !dtype_is_float(node_dtype(g))))
        return rec_fail(r, ST_DTYPE, "%s is %s: a float is needed", name, node_text(g, text));
    return param_constant(r, g);
}

static uint8_t every_axis(const RtNode *x) { return (uint8_t)((1u << x->rank) - 1); }

/* Fills results[0..n) with handles of value[0..n), or NULL after an error. Ends the call. */
static kiln_status hand_out(Rec *r, int n, RtNode *const *value, kiln_tensor **results)
{
    for (int i = 0; i < n && results; i++)
        results[i] = r->status == ST_OK ? rec_out(r, value[i]) : NULL;
    for (int i = 0; i < n && results && r->status != ST_OK; i++)
        results[i] = NULL;
    rec_end(r, NULL);
    return (kiln_status)r->status;
}

/* ---- clipping ---- */

kiln_status kiln_clip_by_global_norm(kiln_tensor *const *grads, int n, double max_norm, kiln_tensor **clipped, kiln_tensor **norm)
{
    return kiln_clip_by_global_norm_at(grads, n, max_norm, clipped, norm, NULL, 0);
}

kiln_status kiln_clip_by_global_norm_at(kiln_tensor *const *grads, int n, double max_norm, kiln_tensor **clipped, kiln_tensor **norm,
                                        const char *file, int line)
{
    Rec r = REC(kiln_clip_by_global_norm);
    RtNode **g = NULL, *total = NULL;
    DType dtype = DT_F32;
    if (norm)
        *norm = NULL;
    if (n < 0 || (n && (!grads || !clipped)))
        rec_fail(&r, ST_INVALID, "grads, n (%d), clipped: n >= 0 gradients and room for as many are needed", n);
    else if (!(max_norm >= 0))
        rec_fail(&r, ST_INVALID, "max_norm is %g: a number, at least 0, is needed", max_norm);
    else if (!(g = os_calloc((size_t)n + 1, sizeof *g)))
        rec_fail(&r, ST_OUT_OF_MEMORY, "out of memory");
    for (int i = 0; i < n && r.status == ST_OK; i++) {
        g[i] = gradient_in(&r, grads[i], i);
        if (g[i] && node_dtype(g[i]) == DT_F64)
            dtype = DT_F64;
    }
    for (int i = 0; i < n && r.status == ST_OK; i++) {
        RtNode *squares = rec_ew1(&r, OP_SQUARE, rec_cast(&r, g[i], dtype));
        RtNode *sum = squares ? rec_reduce(&r, OP_REDUCE_SUM, squares, every_axis(squares), false) : NULL;
        total = total ? rec_ew2(&r, OP_ADD, total, sum) : sum;
    }
    if (r.status == ST_OK) {
        RtNode *size = rec_ew1(&r, OP_SQRT, total ? total : rec_scalar(&r, dtype, 0));
        RtNode *share = rec_ew2(&r, OP_DIV, rec_scalar(&r, dtype, max_norm), rec_ew2(&r, OP_ADD, size, rec_scalar(&r, dtype, 1e-6)));
        share = rec_ew2(&r, OP_MINIMUM, share, rec_scalar(&r, dtype, 1));
        for (int i = 0; i < n && r.status == ST_OK; i++)
            g[i] = rec_cast(&r, rec_ew2(&r, OP_MUL, rec_cast(&r, g[i], dtype), share), node_dtype(g[i]));
        if (norm && r.status == ST_OK)
            *norm = rec_out(&r, size);
    }
    kiln_status status = hand_out(&r, n > 0 ? n : 0, g, clipped);
    if (norm && status != KILN_OK)
        *norm = NULL;
    os_free(g);
    return status;
}

/* ---- loss scaling ---- */

enum { FACTOR = 2 }; /* by which the scale grows and shrinks */

struct kiln_scaler {
    int64_t interval;
    kiln_tensor *scale, *good; /* f32; i64: finite steps in a row */
};

kiln_scaler *kiln_scaler_new(double scale, int64_t interval) { return kiln_scaler_new_at(scale, interval, NULL, 0); }

kiln_scaler *kiln_scaler_new_at(double scale, int64_t interval, const char *file, int line)
{
    Rec r = REC(kiln_scaler_new);
    kiln_scaler *s = NULL;
    if (!(scale > 0 && isfinite((float)scale)))
        rec_fail(&r, ST_INVALID, "scale is %g: a number above 0 that f32 holds is needed", scale);
    else if (interval < 1)
        rec_fail(&r, ST_INVALID, "interval is %lld: at least 1 is needed", (long long)interval);
    else if (trace_current)
        rec_fail(&r, ST_INVALID, "inside a kiln_function: its scale would be made anew at each call; make it outside");
    else if (!(s = os_calloc(1, sizeof *s)))
        rec_fail(&r, ST_OUT_OF_MEMORY, "out of memory");
    if (s) {
        s->interval = interval;
        s->scale = state_new(&r, rec_scalar(&r, DT_F32, scale), 0, NULL);
        s->good = state_new(&r, rec_int(&r, DT_I64, 0), 0, NULL);
        if (!s->scale || !s->good) {
            kiln_scaler_free(s);
            s = NULL;
        }
    }
    rec_end(&r, NULL);
    return s;
}

void kiln_scaler_free(kiln_scaler *s)
{
    if (!s)
        return;
    kiln_release(s->scale);
    kiln_release(s->good);
    os_free(s);
}

kiln_tensor *kiln_scaler_state(const kiln_scaler *s, int i, const char **name)
{
    static const char *const names[] = {"scale", "good_steps"};
    bool there = s && i >= 0 && i < 2;
    if (name)
        *name = there ? names[i] : NULL;
    return there ? i ? s->good : s->scale : NULL;
}

API2(kiln_tensor *, kiln_scaler_scale, kiln_scaler *, scaler, kiln_tensor *, loss)
{
    static const char *const names[] = {"loss"};
    Rec r = REC(kiln_scaler_scale);
    RtNode *x = rec_in(&r, loss, "loss");
    if (!scaler)
        rec_fail(&r, ST_INVALID, "scaler is NULL");
    if (r.status != ST_OK || !rec_promote(&r, PREP_FLOAT, 1, &x, names))
        return rec_end(&r, NULL);
    DType dtype = compute_dtype(node_dtype(x));
    RtNode *scale = rec_cast(&r, param_constant(&r, rec_in(&r, scaler->scale, "scale")), dtype);
    return rec_end(&r, rec_ew2(&r, OP_MUL, rec_cast(&r, x, dtype), scale));
}

/* The scale and the count after this step: doubled after `interval` finite ones, halved at one that is not. */
static void record_scale(Rec *r, const kiln_scaler *s, RtNode *finite, RtNode *scale)
{
    RtNode *good = rec_ew2(r, OP_ADD, param_constant(r, rec_in(r, s->good, "good_steps")), rec_int(r, DT_I64, 1)),
           *none = rec_int(r, DT_I64, 0);
    RtNode *grows = rec_ew2(r, OP_GE, good, rec_int(r, DT_I64, s->interval));
    RtNode *larger = rec_ew2(r, OP_MUL, scale, rec_scalar(r, DT_F32, FACTOR));
    RtNode *smaller = rec_ew2(r, OP_MUL, scale, rec_scalar(r, DT_F32, 1.0 / FACTOR));
    smaller = rec_ew2(r, OP_MAXIMUM, smaller, rec_scalar(r, DT_F32, FLT_MIN));
    larger = rec_ew3(r, OP_WHERE, rec_ew1(r, OP_ISFINITE, larger), larger, scale);
    RtNode *values[] = {rec_ew3(r, OP_WHERE, finite, rec_ew3(r, OP_WHERE, grows, larger, scale), smaller),
                        rec_ew3(r, OP_WHERE, rec_ew2(r, OP_AND, finite, rec_ew1(r, OP_NOT, grows)), good, none)};
    rec_assign(r, 2, (kiln_tensor *[]){s->scale, s->good}, values);
}

kiln_tensor *kiln_scaler_unscale(kiln_scaler *scaler, kiln_tensor *const *grads, int n, kiln_tensor **unscaled)
{
    return kiln_scaler_unscale_at(scaler, grads, n, unscaled, NULL, 0);
}

kiln_tensor *kiln_scaler_unscale_at(kiln_scaler *scaler, kiln_tensor *const *grads, int n, kiln_tensor **unscaled, const char *file,
                                    int line)
{
    Rec r = REC(kiln_scaler_unscale);
    RtNode **g = NULL, *finite = NULL;
    kiln_tensor *all = NULL;
    if (!scaler)
        rec_fail(&r, ST_INVALID, "scaler is NULL");
    else if (n < 0 || (n && (!grads || !unscaled)))
        rec_fail(&r, ST_INVALID, "grads, n (%d), unscaled: n >= 0 gradients and room for as many are needed", n);
    else if (!(g = os_calloc((size_t)n + 1, sizeof *g)))
        rec_fail(&r, ST_OUT_OF_MEMORY, "out of memory");
    RtNode *scale = r.status == ST_OK ? param_constant(&r, rec_in(&r, scaler->scale, "scale")) : NULL;
    RtNode *share = rec_ew1(&r, OP_RECIPROCAL, scale);
    for (int i = 0; i < n && r.status == ST_OK; i++) {
        RtNode *x = gradient_in(&r, grads[i], i);
        DType dtype = x ? compute_dtype(node_dtype(x)) : DT_F32;
        g[i] = rec_ew2(&r, OP_MUL, rec_cast(&r, x, dtype), rec_cast(&r, share, dtype));
        RtNode *fine = rec_ew1(&r, OP_ISFINITE, x);
        fine = fine ? rec_reduce(&r, OP_REDUCE_ALL, fine, every_axis(fine), false) : NULL;
        finite = finite ? rec_ew2(&r, OP_AND, finite, fine) : fine;
    }
    if (r.status == ST_OK && !finite)
        finite = rec_bits(&r, DT_BOOL, 1);
    if (r.status == ST_OK)
        all = rec_out(&r, finite);
    if (r.status == ST_OK)
        record_scale(&r, scaler, finite, scale);
    kiln_status status = hand_out(&r, n > 0 ? n : 0, g, unscaled);
    os_free(g);
    return status == KILN_OK ? all : NULL;
}
