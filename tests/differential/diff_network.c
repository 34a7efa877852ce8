/* Matrix products, convolutions, composites, creation and random numbers on every dtype and many shapes. */
#include "tests/differential/engine.h"

#include <stddef.h>
#include <string.h>

/* --- matmul --- */

static int build_matmul(const Case *c, kiln_tensor *const *in, kiln_tensor **out)
{
    kiln_tensor *a = in[0], *b = in[1];
    if (c->arg[0] == 1) { /* fused with a prologue and an epilogue */
        a = kiln_neg(a);
        b = kiln_transpose(kiln_mul(kiln_transpose(b), kiln_int(2)));
    }
    out[0] = kiln_matmul(a, b);
    if (c->arg[0] == 1)
        out[0] = kiln_relu(kiln_add(out[0], kiln_int(1)));
    return 1;
}

static void group_matmul(const Group *g)
{
    static const kiln_shape shapes[][2] = {
        /* clang-format off */
        {{2, {7, 13}}, {2, {13, 5}}},        {{2, {65, 130}}, {2, {130, 33}}}, {{1, {13}}, {2, {13, 5}}},
        {{2, {7, 13}}, {1, {13}}},           {{1, {100}}, {1, {100}}},         {{3, {4, 7, 13}}, {2, {13, 5}}},
        {{4, {2, 1, 3, 4}}, {3, {5, 4, 6}}}, {{2, {3, 0}}, {2, {0, 4}}},       {{2, {0, 3}}, {2, {3, 4}}},
        {{2, {1, 1}}, {2, {1, 1}}},          {{2, {1, 1000}}, {2, {1000, 1}}}, {{2, {128, 256}}, {2, {256, 64}}},
        {{3, {2, 33, 40}}, {3, {2, 40, 35}}}, {{3, {3, 70, 17}}, {3, {1, 17, 65}}},
        /* clang-format on */
    };
    static const Values kinds[] = {VALUES_PLAIN, VALUES_WIDE, VALUES_SPARSE};
    int n = (int)(sizeof shapes / sizeof *shapes), number = 0;
    for (int dtype = 0; dtype < DTYPES; dtype++)
        for (int s = 0; s < n; s++) {
            int vector = shapes[s][0].rank == 1 || shapes[s][1].rank == 1;
            for (int around = 0; around < (vector ? 1 : 2); around++, number++) {
                Case c = {.op = g->name, .build = build_matmul, .n_in = 2, .arg = {around}};
                for (int i = 0; i < 2; i++)
                    c.in[i] = (Spec){(kiln_dtype)dtype, shapes[s][i], kinds[number % 3], 0};
                c.refused = dtype == KILN_BOOL ? KILN_BAD_DTYPE : KILN_OK;
                check(&c);
            }
        }
}

/* --- convolution: windows that are read where they lie, and others. arg: stride, padding, dilation, groups, channels last, what is fused --- */

typedef struct Image {
    int64_t images, in, out, size[2], taps[2];
    int64_t stride, padding, dilation, groups;
} Image;

static kiln_conv_options conv_options(const Case *c)
{
    kiln_conv_options o = {.groups = c->arg[3], .channels_last = c->arg[4]};
    for (int d = 0; d < 2; d++) {
        o.stride[d] = c->arg[0];
        o.padding[d] = (kiln_padding){c->arg[1], c->arg[1]};
        o.dilation[d] = c->arg[2];
    }
    return o;
}

static int build_convolution(const Case *c, kiln_tensor *const *in, kiln_tensor **out)
{
    kiln_conv_options o = conv_options(c);
    const bool fused = c->arg[5];
    o.bias = fused ? in[2] : NULL;
    out[0] = kiln_conv(fused ? kiln_relu(in[0]) : in[0], in[1], &o);
    if (fused)
        out[0] = kiln_add(kiln_relu(out[0]), out[0]);
    return 1;
}

static void group_convolution(const Group *g)
{
    static const Image images[] = {
        {1, 3, 4, {9, 7}, {3, 3}, 1, 1, 1, 1},     {1, 16, 24, {14, 14}, {3, 3}, 1, 1, 1, 1},  {2, 16, 16, {14, 28}, {3, 3}, 1, 1, 1, 1},
        {1, 16, 32, {13, 17}, {3, 3}, 1, 1, 1, 1}, {2, 3, 64, {28, 28}, {7, 7}, 2, 3, 1, 1},   {1, 24, 16, {16, 16}, {3, 3}, 2, 1, 1, 1},
        {1, 16, 16, {20, 20}, {3, 3}, 1, 2, 2, 1}, {3, 17, 20, {12, 6}, {1, 1}, 1, 0, 1, 1},   {1, 16, 16, {12, 24}, {5, 2}, 1, 0, 1, 1},
        {2, 16, 16, {10, 12}, {3, 3}, 1, 1, 1, 4}, {1, 16, 16, {11, 12}, {3, 3}, 1, 1, 1, 16}, {0, 4, 4, {8, 8}, {3, 3}, 1, 1, 1, 1},
        {1, 64, 8, {8, 7}, {3, 3}, 1, 1, 1, 1},    {1, 8, 64, {1, 56}, {1, 3}, 1, 0, 1, 1},
    };
    static const kiln_dtype dtypes[] = {KILN_F32, KILN_F64, KILN_F16, KILN_BF16, KILN_I32, KILN_I8};
    static const Values kinds[] = {VALUES_PLAIN, VALUES_WIDE, VALUES_SPARSE};
    int number = 0;
    for (size_t i = 0; i < sizeof images / sizeof *images; i++)
        for (int last = 0; last < 2; last++)
            for (size_t t = 0; t < (size_t)(last ? 2 : 6); t++, number++) {
                const Image *m = &images[i];
                Case c = {.op = g->name, .build = build_convolution};
                const int64_t arg[] = {m->stride, m->padding, m->dilation, m->groups, last, number % 2};
                memcpy(c.arg, arg, sizeof arg);
                c.n_in = c.arg[5] ? 3 : 2;
                c.in[0].shape =
                    last ? KILN_SHAPE(m->images, m->size[0], m->size[1], m->in) : KILN_SHAPE(m->images, m->in, m->size[0], m->size[1]);
                c.in[1].shape = KILN_SHAPE(m->out, m->in / m->groups, m->taps[0], m->taps[1]);
                c.in[2].shape = KILN_SHAPE(m->out);
                for (int k = 0; k < c.n_in; k++) {
                    c.in[k].dtype = dtypes[t];
                    c.in[k].values = kinds[number % 3];
                }
                check(&c);
            }
}

/* --- composites: arg[0] axis, arg[1] which form --- */

typedef int Composite(const Case *c, kiln_tensor *const *in, kiln_tensor **out);
typedef struct CompositeRow {
    Composite *build;
    int n_in; /* x, and weight and bias of the length of the last axis, or labels */
    int forms;
    bool labels;
} CompositeRow;

static int softmax(const Case *c, kiln_tensor *const *in, kiln_tensor **out)
{
    out[0] = c->arg[1] ? kiln_log_softmax(in[0], (int)c->arg[0]) : kiln_softmax(in[0], (int)c->arg[0]);
    return 1;
}

static int normalize(const Case *c, kiln_tensor *const *in, kiln_tensor **out)
{
    out[0] = kiln_normalize(in[0], c->arg[1] ? KILN_ALL_AXES : KILN_AXES((int)c->arg[0]), 1e-5);
    return 1;
}

static int layer_norm(const Case *c, kiln_tensor *const *in, kiln_tensor **out)
{
    (void)c;
    out[0] = kiln_layer_norm(in[0], in[1], in[2], 1e-5);
    return 1;
}

static int rms_norm(const Case *c, kiln_tensor *const *in, kiln_tensor **out)
{
    (void)c;
    out[0] = kiln_rms_norm(in[0], in[1], 1e-6);
    return 1;
}

static int cross_entropy(const Case *c, kiln_tensor *const *in, kiln_tensor **out)
{
    out[0] = kiln_cross_entropy(in[0], in[1]);
    if (c->arg[1])
        out[0] = kiln_mean(out[0]);
    return 1;
}

static int losses(const Case *c, kiln_tensor *const *in, kiln_tensor **out)
{
    kiln_seed(7);
    switch (c->arg[1]) {
    case 0: out[0] = kiln_mse(in[0], kiln_flip(in[0], KILN_AXES(-1))); break;
    case 1: out[0] = kiln_binary_cross_entropy(in[0], kiln_sigmoid(in[0])); break;
    case 2: out[0] = kiln_norm_axes(in[0], KILN_AXES((int)c->arg[0]), false); break;
    default: out[0] = kiln_dropout(in[0], 0.3);
    }
    return 1;
}

static int one_hot(const Case *c, kiln_tensor *const *in, kiln_tensor **out)
{
    out[0] = kiln_one_hot(in[1], kiln_dim(in[0], -1), kiln_dtype_of(in[0]));
    if (c->arg[1])
        out[0] = kiln_mul(out[0], in[0]);
    return 1;
}

static void group_composite(const Group *g)
{
    static const kiln_shape shapes[] = {{2, {7, 13}}, {3, {3, 5, 4}}, {2, {33, 1000}}, {2, {1, 1}},
                                        {2, {0, 3}},  {1, {17}},      {2, {5, 4096}},  {2, {257, 129}}};
    static const Values kinds[] = {VALUES_PLAIN, VALUES_WIDE, VALUES_SPARSE};
    static const kiln_dtype labels[] = {KILN_I64, KILN_I32, KILN_U8, KILN_I16};
    const CompositeRow *row = g->row;
    int number = 0;
    for (int dtype = 0; dtype < DTYPES; dtype++)
        for (int s = 0; s < (dtype_is_float((kiln_dtype)dtype) ? 8 : 2); s++)
            for (int form = 0; form < row->forms; form++, number++) {
                kiln_shape shape = shapes[s];
                int64_t last = shape.dim[shape.rank - 1];
                if (shape_elements(shape) == 0 && row->build == cross_entropy && form)
                    continue;
                Case c = {.op = g->name, .build = row->build, .row = row, .n_in = row->n_in, .arg = {number % 2 ? -1 : 0, form}};
                c.in[0] = (Spec){(kiln_dtype)dtype, shape, kinds[number % 3], 0};
                for (int i = 1; i < row->n_in; i++)
                    c.in[i] = (Spec){(kiln_dtype)dtype, (kiln_shape){1, {last}}, VALUES_PLAIN, 0};
                if (row->labels) {
                    shape.rank--;
                    c.in[1] = (Spec){labels[number % 4], shape, VALUES_INDEX, last < 100 ? last : 100};
                }
                check(&c);
            }
}

/* --- creation: arg[0] which, arg[1] dtype --- */

static int build_creation(const Case *c, kiln_tensor *const *in, kiln_tensor **out)
{
    kiln_dtype d = (kiln_dtype)c->arg[1];
    (void)in;
    switch (c->arg[0]) {
    case 0:
        out[0] = kiln_zeros(d, KILN_SHAPE(3, 5));
        out[1] = kiln_ones(d, KILN_SHAPE(0, 5));
        out[2] = kiln_full(d, KILN_SHAPE(), 1.0);
        out[3] = kiln_full_int(d, KILN_SHAPE(70), 1);
        return 4;
    case 1:
        out[0] = kiln_arange(d, 0, 100, 1);
        out[1] = kiln_arange(d, 10, 3, -2);
        out[2] = kiln_arange(d, 0, 0, 1);
        out[3] = kiln_arange(d, 0, 20, 3);
        return d == KILN_BOOL ? 0 : 4;
    case 2:
        out[0] = kiln_eye(d, 5, 7, 0);
        out[1] = kiln_eye(d, 5, 5, -2);
        out[2] = kiln_eye(d, 0, 3, 0);
        out[3] = kiln_eye(d, 4, 4, 9);
        return 4;
    case 3:
        out[0] = kiln_linspace(d, -1, 2, 100);
        out[1] = kiln_linspace(d, 1, 2, 1);
        out[2] = kiln_linspace(d, 3, -1, 7);
        return 3;
    }
    out[0] = kiln_add(kiln_full(d, KILN_SHAPE(9), 3), kiln_reshape(kiln_arange(d, 0, 9, 1), KILN_SHAPE(9)));
    out[1] = kiln_sum(kiln_mul(kiln_eye(d, 6, 6, 0), kiln_full(d, KILN_SHAPE(6, 6), 2)));
    return 2;
}

static void group_creation(const Group *g)
{
    for (int which = 0; which < 5; which++)
        for (int dtype = 0; dtype < DTYPES; dtype++) {
            if ((which == 1 || which == 4) && dtype == KILN_BOOL)
                continue;
            Case c = {.op = g->name, .build = build_creation, .arg = {which, dtype}, .flags = MAY_BE_FREE};
            c.refused = which == 3 && !dtype_is_float((kiln_dtype)dtype) ? KILN_BAD_DTYPE : KILN_OK;
            check(&c);
        }
}

/* --- random numbers: a seed gives one stream in every mode. arg: which, dtype, n --- */

static int build_random(const Case *c, kiln_tensor *const *in, kiln_tensor **out)
{
    kiln_dtype d = (kiln_dtype)c->arg[1];
    (void)in;
    kiln_seed(12345);
    kiln_shape shape = c->arg[2] == 0 ? KILN_SHAPE() : c->arg[2] == 1 ? KILN_SHAPE(7, 13, 5) : KILN_SHAPE(0, 3);
    if (c->arg[2] == 3)
        shape = KILN_SHAPE(size_here(100003));
    for (int i = 0; i < 2; i++)
        out[i] = c->arg[0] == 0   ? kiln_uniform(d, shape, -3, 5)
                 : c->arg[0] == 1 ? kiln_normal(d, shape, 1, 2)
                                  : kiln_randint(d, shape, 0, 100);
    out[2] = kiln_mul(kiln_add(out[0], out[1]), out[0]); /* fused with its consumer */
    return 3;
}

static void group_random(const Group *g)
{
    for (int which = 0; which < 3; which++)
        for (int dtype = KILN_I8; dtype < DTYPES; dtype++)
            for (int n = 0; n < 4; n++) {
                bool wanted = dtype_is_float((kiln_dtype)dtype) == (which < 2);
                if (!wanted && n)
                    continue;
                Case c = {.op = g->name, .build = build_random, .arg = {which, dtype, n}};
                c.refused = wanted ? KILN_OK : KILN_BAD_DTYPE;
                check(&c);
            }
}

#define COMPOSITE(name, build, n_in, forms, labels)                                 \
    {                                                                               \
        name, group_composite, &(const CompositeRow) { build, n_in, forms, labels } \
    }

static const Group groups[] = {
    {"matmul", group_matmul, NULL},
    {"convolution", group_convolution, NULL},
    COMPOSITE("softmax", softmax, 1, 2, false),
    COMPOSITE("normalize", normalize, 1, 2, false),
    COMPOSITE("layer_norm", layer_norm, 3, 1, false),
    COMPOSITE("rms_norm", rms_norm, 2, 1, false),
    COMPOSITE("cross_entropy", cross_entropy, 2, 2, true),
    COMPOSITE("losses", losses, 1, 4, false),
    COMPOSITE("one_hot", one_hot, 2, 2, true),
    {"creation", group_creation, NULL},
    {"random", group_random, NULL},
};

int main(int argc, char **argv) { return run_groups("diff_network", groups, sizeof groups / sizeof *groups, argc, argv); }
