/* FORM_CONTRACT: shapes around the tile sizes, dtypes, layouts of the operands, prologues and
 * epilogues. */
#include "jit/target.h"
#include "tests/unit/kernel_ref.h"
#include "tests/unit/arena.h"

TestSuite(emit_contract, .init = setup, .fini = teardown);

typedef struct Case {
    DType t;
    int64_t batch, m, n, k;
    int64_t hint[2]; /* of rows and columns, which choose tiles; 0: the sizes themselves */
    bool a_transposed, b_transposed, fixed, prologue, epilogue;
    bool shared, special; /* one b for all batches; NaN, infinities, -0 and subnormals among the elements */
    bool by_pairs;        /* only that, in fast mode, where this CPU does it */
    bool split;           /* blocks of k are tasks */
    bool small;           /* ints that are cast to t ... */
    DType from[2];        /* ... from these */
} Case;

/* By pairs sums are stored as they are, which rounding to bf16 would hide. */
static DType result_of(const Case *c) { return c->by_pairs ? DT_F32 : c->t; }

/* out[batch, m, n] = relu(a @ b + bias[n]) with a, b in either layout; prologue: cast from another
 * dtype, times two */
static Kernel *matmul(const Case *c)
{
    Kernel *k = kernel_new(&arena);
    DType stored = c->small ? c->from[0] : c->prologue && dtype_is_float(c->t) ? DT_BF16 : c->t;
    k_arg(k, ARG_BUFFER, stored, false);
    DType out = result_of(c);
    k_arg(k, ARG_BUFFER, c->small ? c->from[1] : c->t, false);
    k_arg(k, ARG_BUFFER, out, true);
    const int64_t n[4] = {c->batch, c->m, c->n, c->k};
    IRef size[4], at[4];
    for (int i = 0; i < 4; i++) {
        uint32_t arg = k_arg(k, ARG_SIZE, DT_I64, false);
        size[i] = c->fixed ? kidx_const(k, n[i]) : kidx_arg(k, arg);
    }
    k_arg(k, ARG_BUFFER, out, false);
    for (int i = 0; i < 4; i++)
        at[i] = kidx_axis(k, k_axis(k, i < 3 ? AXIS_X : AXIS_R, size[i], (i == 1 || i == 2) && c->hint[i - 1] ? c->hint[i - 1] : n[i]));
    k->form = FORM_CONTRACT;
    k->vec_axis = 2;
#define AT(x, nx, y, ny) kidx_add(k, kidx_mul(k, kidx_add(k, kidx_mul(k, at[0], nx), x), ny), y)
    IRef ia = c->a_transposed ? AT(at[3], size[3], at[1], size[1]) : AT(at[1], size[1], at[3], size[3]);
    IRef ib = c->b_transposed ? AT(at[2], size[2], at[3], size[3]) : AT(at[3], size[3], at[2], size[2]);
    if (c->shared)
        ib = c->b_transposed ? kidx_add(k, kidx_mul(k, at[2], size[3]), at[3]) : kidx_add(k, kidx_mul(k, at[3], size[2]), at[2]);
    VRef a = k_load(k, 0, ia, VREF_NONE), b = k_load(k, 1, ib, VREF_NONE);
    if (c->small) {
        a = k_op(k, OP_CAST, c->t, a, VREF_NONE, VREF_NONE);
        b = k_op(k, OP_CAST, c->t, b, VREF_NONE, VREF_NONE);
    } else if (c->prologue) {
        if (stored != c->t)
            a = k_op(k, OP_CAST, c->t, a, VREF_NONE, VREF_NONE);
        a = k_op(k, OP_ADD, c->t, a, a, VREF_NONE);
        b = k_op(k, OP_NEG, c->t, b, VREF_NONE, VREF_NONE);
    }
    KInst sum = inst_new(KI_FOLD, out);
    sum.op = FOLD_DOT, sum.a = a, sum.b = b;
    VRef v = kernel_inst(k, sum);
    if (c->epilogue) {
        v = k_op(k, OP_ADD, out, v, k_load(k, 7, at[2], VREF_NONE), VREF_NONE);
        v = k_op(k, OP_RELU, out, v, VREF_NONE, VREF_NONE);
    }
    k_store(k, 2, AT(at[1], size[1], at[2], size[2]), v, VREF_NONE);
    k->split = c->split;
    if (c->split)
        k_arg(k, ARG_SCRATCH, DT_U8, true);
    return k;
}

static void check(Case c)
{
    Kernel *k = matmul(&c);
    DType second = c.small ? c.from[1] : c.t;
    size_t bytes = dtype_bytes(second), na = (size_t)(c.batch * c.m * c.k), nb = (size_t)((c.shared ? 1 : c.batch) * c.k * c.n);
    size_t no = (size_t)(c.batch * c.m * c.n);
    DType stored = (DType)k->args.at[0].dtype, out = result_of(&c);
    size_t wide = dtype_bytes(out);
    CheckArg args[] = {{.data = filled(stored, na, c.special), .bytes = na * dtype_bytes(stored)},
                       {.data = filled(second, nb, c.special), .bytes = nb * bytes},
                       {.data = filled(out, no, false), .bytes = no * wide},
                       {.value = c.batch},
                       {.value = c.m},
                       {.value = c.n},
                       {.value = c.k},
                       {.data = filled(out, (size_t)c.n, false), .bytes = (size_t)c.n * wide},
                       {.value = 0}};
    char what[128];
    snprintf(what, sizeof what, "matmul %s%s %d x [%d,%d,%d] at %d bt %d fixed %d pro %d epi %d", c.split ? "split " : "", dtype_name(c.t),
             (int)c.batch, (int)c.m, (int)c.n, (int)c.k, c.a_transposed, c.b_transposed, c.fixed, c.prologue, c.epilogue);
    (c.by_pairs ? check_by_pairs : check_kernel)(k, args, what);
    for (int i = 0; i < 3; i++)
        os_free((void *)(uintptr_t)args[i].data);
    os_free((void *)(uintptr_t)args[7].data);
}

static const int64_t shapes[][3] = {{1, 1, 1},    {1, 40, 9},  {40, 1, 9},  {3, 5, 7},   {8, 32, 16}, {9, 33, 17},
                                    {17, 31, 40}, {20, 70, 5}, {64, 64, 8}, {33, 2, 12}, {130, 34, 6}};

static void check_dtype(DType t)
{
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        check((Case){.t = t,
                     .batch = s % 3 == 1 ? 2 : 1,
                     .m = shapes[s][0],
                     .n = shapes[s][1],
                     .k = shapes[s][2],
                     .a_transposed = s & 1,
                     .b_transposed = s >> 1 & 1,
                     .fixed = s >> 2 & 1,
                     .prologue = s % 3 == 0,
                     .epilogue = s % 2 == 0});
}

#define OF(id) \
    Test(emit_contract, of_##id) { check_dtype(DT_##id); }
OF(I8)
OF(I16)
OF(I32)
OF(I64)
OF(U8)
OF(U16)
OF(U32)
OF(U64)
OF(F16)
OF(BF16)
OF(F32)
OF(F64)

Test(emit_contract, layouts)
{
    for (int bits = 0; bits < 32; bits++)
        check((Case){.t = DT_F32,
                     .batch = 1 + (bits >> 4 & 1),
                     .m = 19,
                     .n = 37,
                     .k = 11,
                     .a_transposed = bits & 1,
                     .b_transposed = bits >> 1 & 1,
                     .fixed = bits >> 2 & 1,
                     .prologue = bits >> 3 & 1,
                     .epilogue = true});
}

Test(emit_contract, empty)
{
    for (int fixed = 0; fixed < 2; fixed++)
        for (int i = 0; i < 4; i++)
            for (int64_t m = 3; m < 40; m += 30) {
                int64_t n[4] = {2, m, 9, 5};
                n[i] = 0;
                check((Case){.t = DT_F32, .batch = n[0], .m = n[1], .n = n[2], .k = n[3], .fixed = fixed, .epilogue = true});
            }
}

/* Programs for up to 4, up to 8 and more rows, strips and packed, with code for each number of rows and a few heights; more or fewer than planned for, too. */
Test(emit_contract, numbers_of_rows)
{
    static const int64_t planned[] = {4, 8, 40};
    for (int64_t i = 0; i < 48; i++) {
        int64_t m = i < 32 ? 1 + i : 1 + 3 * (i - 32) % 13, plan = planned[i < 32 ? (m > 4) + (m > 8) : (i + 1) % 3];
        check((Case){.t = i % 5 == 4 ? DT_F64 : DT_F32,
                     .batch = 1 + (i % 7 == 6),
                     .m = m,
                     .n = 131,
                     .k = m > 8 ? 530 : 261,
                     .hint = {plan},
                     .a_transposed = i & 1,
                     .epilogue = i % 3 == 0});
    }
}

/* several batches, with rows enough for packing, in every layout and with and without conversion */
Test(emit_contract, batches)
{
    for (int bits = 0; bits < 16; bits++)
        check((Case){.t = bits & 8 ? DT_BF16 : DT_F32,
                     .batch = 3,
                     .m = bits & 1 ? 40 : 18,
                     .n = 35,
                     .k = 9,
                     .a_transposed = bits & 1,
                     .b_transposed = bits >> 1 & 1,
                     .fixed = bits >> 2 & 1,
                     .prologue = bits >> 3 & 1,
                     .epilogue = bits & 1});
}

/* beyond the blocks of k, rows and tiles */
Test(emit_contract, blocks)
{
    check((Case){.t = DT_F32, .batch = 1, .m = 17, .n = 3, .k = 2100, .fixed = true});
    check((Case){.t = DT_F32, .batch = 1, .m = 17, .n = 20, .k = 1025, .prologue = true});
    check((Case){.t = DT_F32, .batch = 1, .m = 530, .n = 5, .k = 3, .b_transposed = true});
    check((Case){.t = DT_BF16, .batch = 1, .m = 140, .n = 300, .k = 2, .epilogue = true});
}

#ifndef CHECK_PTX /* host only */
/* Blocks of k are tasks: one and many, a last one that is short, none at all; few results in every way; of any size also more results than are
 * worth it, and so many sums of blocks that a phase has some only. */
Test(emit_contract, blocks_as_tasks)
{
    static const int64_t sizes[][3] = {{17, 20, 2100}, {3, 5, 2049}, {1, 40, 700}, {40, 1, 700},
                                       {70, 33, 513},  {9, 12, 256}, {6, 7, 0},    {9, 70, 4}};
    static const DType types[] = {DT_F32, DT_BF16, DT_F64, DT_I32, DT_I8, DT_F16, DT_I64};
    for (size_t i = 0; i < 4 * sizeof sizes / sizeof *sizes; i++) {
        const int64_t *n = sizes[i / 4];
        check((Case){.t = types[i % 7],
                     .batch = i % 5 < 3 ? 1 : 2,
                     .m = n[0],
                     .n = n[1],
                     .k = n[2],
                     .a_transposed = i & 1,
                     .b_transposed = i >> 1 & 1,
                     .prologue = i % 3 == 0,
                     .epilogue = i % 3 != 1,
                     .special = i % 5 == 0,
                     .split = true,
                     .fixed = i / 4 % 2});
    }
    for (int any = 0; any < 4; any++)
        check((Case){.t = any == 3 ? DT_I32 : DT_F32,
                     .batch = 1,
                     .m = 21,
                     .n = any ? 20 : 600,
                     .k = any ? 4200 : 2100,
                     .hint = {any ? 100000 : 20, any ? 3000 : 20},
                     .b_transposed = any == 2,
                     .split = true});
}
#endif

/* Every tile that a device may choose, with parts of tiles, in every layout. */
Test(emit_contract, tiles)
{
    static const int64_t hints[][2] = {{4096, 4096}, {1280, 640}, {64, 12800}, {512, 512}, {32, 32}, {1, 100000}, {100000, 1}};
    for (int i = 0; i < 28; i++)
        check((Case){.t = i % 9 == 8 ? DT_F64 : DT_F32,
                     .batch = 1,
                     .m = (i ^ i >> 2) & 1 ? 132 : 67,
                     .n = (i ^ i >> 2) & 1 ? 68 : 141,
                     .k = i & 8 ? 32 : 20 + i % 7,
                     .hint = {hints[i / 4][0], hints[i / 4][1]},
                     .a_transposed = i & 1,
                     .b_transposed = i >> 1 & 1,
                     .fixed = i % 3 == 0,
                     .prologue = i % 5 == 4,
                     .epilogue = i % 2});
}

/* Few rows of a wide operand, in each layout: strips of k, and squares transposed; more than a block of k, with rests. */
Test(emit_contract, thin)
{
    static const DType types[] = {DT_F32, DT_F64, DT_BF16, DT_I8, DT_F32, DT_I64};
    static const int64_t ks[] = {257, 256, 301, 515};
    for (int i = 0; i < 24; i++)
        check((Case){.t = types[i % 6],
                     .batch = i % 5 == 4 ? 2 : 1,
                     .m = 1 + i % 8,
                     .n = i % 2 ? 130 : 128 + 17 * (i % 3),
                     .k = ks[i % 4],
                     .hint = {i % 3 == 2 ? 8 : 0, i % 3 == 2 ? 4096 : 0},
                     .b_transposed = i / 2 % 2,
                     .a_transposed = i / 4 % 2,
                     .fixed = i % 3 == 0,
                     .prologue = i % 7 == 3,
                     .epilogue = i % 2});
    for (int i = 0; i < 6; i++) /* strips of several tasks, which are walked together up to the end of the rows, or of what a thread has */
        check((Case){.t = types[i % 3],
                     .batch = 2,
                     .m = i == 5 ? 11 : 1 + i,
                     .n = i % 2 ? 3001 : 2048,
                     .k = i < 3 ? 17 : 16,
                     .hint = {i == 5 ? 2 : 0, i == 4 ? 4096 : 0},
                     .fixed = i == 1 || i == 3,
                     .epilogue = i % 2});
    for (int i = 0; i < 15; i++) /* several groups of rows go over each strip */
        check((Case){.t = i == 14 ? DT_F32 : types[i % 3],
                     .batch = 1 + (i % 4 == 3),
                     .m = i == 14 ? 9 : 1 + 5 * i % 37,
                     .n = i == 14 ? 4097
                          : i % 2 ? 70
                                  : 2600,
                     .k = i == 14 ? 1025
                          : i % 3 ? 257
                                  : 64 + i,
                     .hint = {i == 14 ? 0 : 9 + i % 3 * 3, i == 14 ? 0 : 1 << 20},
                     .fixed = i == 14,
                     .epilogue = i % 2});
    for (int64_t k = 1; k < 40; k += 5)
        check((Case){.t = k % 2 ? DT_F32 : DT_F64, .batch = 1, .m = 1 + k % 3, .n = 21, .k = k, .b_transposed = true, .fixed = k % 4 == 1});
    static const int64_t columns[] = {32, 37, 100}, short_ks[] = {64, 70, 128, 31};
    for (int i = 0; i < 12; i++) /* two squares side by side */
        check((Case){.t = types[i / 3 % 3],
                     .batch = 1 + i % 2,
                     .m = 1 + i % 4,
                     .n = columns[i % 3],
                     .k = short_ks[i / 3],
                     .b_transposed = true,
                     .fixed = true,
                     .epilogue = i % 2});
    for (int64_t n = 1; n < 8; n += 3) /* the operands change roles */
        check((Case){.t = DT_F32, .batch = 1, .m = 150, .n = n, .k = 300, .fixed = n == 4, .a_transposed = n == 7, .epilogue = true});
}

/* A batch over which the wide operand is one takes the place of the rows. */
Test(emit_contract, shared_by_the_batch)
{
    for (int i = 0; i < 16; i++)
        check((Case){.t = i % 3 ? DT_F32 : DT_BF16,
                     .batch = i & 8 ? 23 : 5,
                     .m = i & 4 ? 1 : 2,
                     .n = 37,
                     .k = i & 8 ? 70 : 9,
                     .b_transposed = i & 1,
                     .fixed = i >> 1 & 1,
                     .epilogue = i & 1,
                     .shared = true});
}

/* Plain loads that are not packed: whole tiles, last ones, and such of which half or three quarters of the lanes are past the end; a rest of a
 * group's rows. */
Test(emit_contract, last_tiles)
{
    static const DType types[] = {DT_F32, DT_F64, DT_I32, DT_I64};
    for (int i = 0; i < 34; i++)
        check((Case){.t = types[i / 2 % 4],
                     .batch = 1 + i % 3,
                     .m = 9 + i % 5,
                     .n = 1 + 2 * i,
                     .k = i % 8 == 7 ? 515 : 1 + i,
                     .hint = {i % 5 == 4 ? 64 : 0, i % 5 == 4 ? 64 : 0},
                     .a_transposed = i / 3 & 1,
                     .fixed = i & 1,
                     .epilogue = i % 3 == 1,
                     .special = i % 7 == 1});
    for (int i = 0; i < 16; i++) /* a part of a tile that is full */
        check(
            (Case){.t = types[i % 4], .batch = 3, .m = 9, .n = 2 + 2 * i, .k = i % 5 == 4 ? 300 : 7, .hint = {64, 64}, .epilogue = i % 2});
}

/* Sizes are arguments: columns that are just a part of a tile, whose rows are whole groups, or are not. */
Test(emit_contract, squares)
{
    static const DType types[] = {DT_F32, DT_F64, DT_F32, DT_BF16, DT_I32};
    static const int64_t rows[] = {4, 8, 16, 7, 12, 72, 9, 2, 24, 1, 6}, columns[] = {4, 8, 16, 2, 12}, steps[] = {8, 4, 300, 1, 0};
    for (int i = 0; i < 55; i++)
        check((Case){.t = types[i % 7 % 5],
                     .batch = 1 + i % 3,
                     .m = rows[i % 11],
                     .n = columns[i % 5],
                     .k = steps[i % 8 % 5],
                     .hint = {i % 3 ? 64 : 0, i % 4 ? 64 : 0},
                     .a_transposed = i % 9 == 4,
                     .b_transposed = i % 13 == 6,
                     .prologue = i % 10 == 5,
                     .epilogue = i % 6 == 5,
                     .special = i % 17 == 3});
}

/* Packed, over several blocks of k; and what is no number, or is in the padding's place. */
Test(emit_contract, packed)
{
    static const DType types[] = {DT_F32, DT_F64, DT_F16, DT_I32, DT_U8};
    for (int i = 0; i < 20; i++)
        check((Case){.t = types[i % 5],
                     .batch = 1 + i % 2,
                     .m = i % 6 == 0 ? 515
                          : i % 3    ? 15
                                     : 29, /* of a few rows, or what are planned to be, plain loads are not packed */
                     .n = i % 2 ? 45 : 64,
                     .k = i % 4 == 3 ? 512 : 259 + i,
                     .hint = {i % 3 ? 1024 : 0},
                     .a_transposed = i & 1,
                     .b_transposed = i >> 1 & 1,
                     .fixed = i % 3 == 0,
                     .prologue = i % 7 == 2,
                     .epilogue = i % 2,
                     .special = i % 3 == 1});
}

/* Panels narrower than a vector: what is packed of one does not reach into the next, which is there already. */
Test(emit_contract, few_rows_packed)
{
    for (int64_t m = 8; m < 18; m++)
        check((Case){.t = DT_F32, .batch = 2, .m = m, .n = 64, .k = 259, .a_transposed = true, .b_transposed = true, .fixed = true});
}

/* By pairs of k: each way, packed or not, even and odd numbers of points, none, parts of vectors and of blocks; what is no number or too small a one. */
Test(emit_contract, pairs)
{
    static const int64_t m[] = {1, 2, 3, 8, 15, 29, 40}, n[] = {1, 2, 3, 5, 8, 16, 17, 37, 64, 130},
                         k[] = {1, 2, 3, 4, 7, 8, 9, 31, 32, 33, 63, 64, 65, 255, 256, 257, 259, 511, 512, 513, 600, 0};
    for (int i = 0; i < 220; i++) {
        uint64_t bits = next_random() >> 16;
        if (!slice_takes((uint64_t)i))
            continue;
        check((Case){.t = DT_BF16,
                     .by_pairs = true,
                     .batch = 1 + (i % 4 == 3),
                     .m = m[i % 7],
                     .n = n[bits >> 8 & 63 ? (bits >> 8) % 10 : 3],
                     .k = k[i % 22],
                     .hint = {bits >> 20 & 1 ? 8 : 0, bits >> 20 & 1 ? 4096 : 0},
                     .a_transposed = bits & 1,
                     .b_transposed = bits >> 1 & 1,
                     .fixed = bits >> 2 & 1,
                     .prologue = (bits >> 3 & 3) == 0,
                     .epilogue = bits >> 5 & 1,
                     .special = bits >> 6 & 1,
                     .shared = (bits >> 22 & 3) == 0});
    }
}

/* Small ints by pairs of k, and what is not: each way, even and odd numbers of points; the least and the greatest numbers, with sums that wrap. */
Test(emit_contract, pairs_of_ints)
{
    static const DType to[] = {DT_I32, DT_U32},
                       from[][2] = {{DT_I8, DT_I8},  {DT_U8, DT_I8},   {DT_I8, DT_I16},   {DT_I16, DT_I16}, {DT_U8, DT_U8},
                                    {DT_U16, DT_I8}, {DT_I16, DT_U16}, {DT_BOOL, DT_I16}, {DT_I8, DT_I64}};
    static const int64_t m[] = {1, 2, 3, 8, 15, 29, 40}, n[] = {1, 2, 3, 5, 8, 16, 17, 37, 64, 130},
                         k[] = {1, 2, 3, 4, 7, 8, 9, 31, 32, 33, 63, 64, 65, 255, 256, 257, 259, 511, 512, 513, 600, 0};
    for (int i = 0; i < 90; i++) {
        uint64_t bits = next_random() >> 16;
        const int which = i % 9;
        check((Case){.t = to[bits >> 23 & 1],
                     .small = true,
                     .from = {from[which][0], from[which][1]},
                     .batch = 1 + (i % 4 == 3),
                     .m = m[i % 7],
                     .n = n[(bits >> 8) % 10],
                     .k = k[i % 22],
                     .hint = {bits >> 20 & 1 ? 8 : 0, bits >> 20 & 1 ? 4096 : 0},
                     .a_transposed = bits & 1,
                     .b_transposed = bits >> 1 & 1,
                     .fixed = bits >> 2 & 1,
                     .epilogue = bits >> 5 & 1,
                     .special = true,
                     .shared = (bits >> 22 & 3) == 0});
    }
}

/* Bytes, by fours where this CPU does that: with and without a sign, results that are bytes, too; each number of points that are no whole step. */
Test(emit_contract, fours_of_bytes)
{
    static const DType to[] = {DT_I32, DT_I32, DT_U32, DT_I8},
                       from[][2] = {{DT_I8, DT_I8}, {DT_U8, DT_I8}, {DT_I8, DT_U8}, {DT_U8, DT_U8}, {DT_BOOL, DT_I8}, {DT_BOOL, DT_U8}};
    static const int64_t m[] = {1, 2, 4, 7, 8, 15, 29, 40, 130}, n[] = {1, 3, 8, 16, 17, 37, 64, 100, 130, 300},
                         k[] = {1, 2, 3, 4, 5, 6, 7, 63, 64, 65, 66, 127, 254, 257, 511, 512, 513, 514, 515, 600, 1027, 0};
    for (int i = 0; i < 132; i++) {
        uint64_t bits = next_random() >> 16;
        const DType t = to[bits >> 22 & 3];
        check((Case){.t = t,
                     .small = t != DT_I8,
                     .from = {from[i % 6][0], from[i % 6][1]},
                     .batch = 1 + (i % 4 == 3),
                     .m = m[i % 9],
                     .n = n[(bits >> 8) % 10],
                     .k = k[i % 22],
                     .hint = {bits >> 20 & 1 ? 8 : 0, bits >> 20 & 1 ? 4096 : 0},
                     .a_transposed = bits & 1,
                     .b_transposed = bits >> 1 & 1,
                     .fixed = bits >> 2 & 1,
                     .epilogue = bits >> 5 & 1,
                     .special = true,
                     .shared = (bits >> 24 & 3) == 0});
    }
}

/* ---- windows of images, whose rows are read where they lie ---- */

typedef struct Windows {
    DType t;
    int64_t n, in, out, high, wide, taps, stride; /* places; taps along each of two axes */
    int64_t planned;                              /* 0: sizes are constants; else arguments, and so many places are planned for */
    bool last, swapped, special;                  /* stored with channels last; the windows are the first operand */
} Windows;

static void check_windows(Windows c)
{
    enum { N, IN, OUT, HIGH, WIDE, SIZES };
    Kernel *k = kernel_new(&arena);
    const int64_t size[SIZES] = {c.n, c.in, c.out, c.high, c.wide};
    IRef s[SIZES], at[4];
    for (uint32_t a = 0; a < 3; a++)
        k_arg(k, ARG_BUFFER, c.t, a == 2);
    for (int i = 0; i < SIZES; i++)
        s[i] = c.planned ? kidx_arg(k, k_arg(k, ARG_SIZE, DT_I64, false)) : kidx_const(k, size[i]);
#define CONST(value) kidx_const(k, value)
#define ADD(a, b) kidx_add(k, a, b)
#define MUL(a, b) kidx_mul(k, a, b)
    IRef pitch = ADD(MUL(s[WIDE], CONST(c.stride)), CONST(c.taps - 1)), places = MUL(s[HIGH], s[WIDE]),
         image = MUL(pitch, ADD(MUL(s[HIGH], CONST(c.stride)), CONST(c.taps - 1))), steps = MUL(s[IN], CONST(c.taps * c.taps));
    const IRef axes[4] = {s[N], c.swapped ? places : s[OUT], c.swapped ? s[OUT] : places, steps};
    const int64_t n_places = c.high * c.wide, n_steps = c.in * c.taps * c.taps, planned = c.planned ? c.planned : n_places,
                  points[4] = {c.n, c.swapped ? planned : c.out, c.swapped ? c.out : planned, n_steps};
    for (int i = 0; i < 4; i++)
        at[i] = kidx_axis(k, k_axis(k, i < 3 ? AXIS_X : AXIS_R, axes[i], points[i]));
    k->form = FORM_CONTRACT;
    k->vec_axis = 2;
    IRef channel = at[c.swapped ? 2 : 1], place = at[c.swapped ? 1 : 2], tap = at[3], taps = CONST(c.taps);
    IRef from = ADD(MUL(kidx_div(k, place, s[WIDE]), MUL(pitch, CONST(c.stride))), MUL(kidx_mod(k, place, s[WIDE]), CONST(c.stride)));
    from = ADD(from, MUL(kidx_div(k, tap, CONST(c.taps * c.taps)), image));
    from = ADD(from, MUL(kidx_mod(k, kidx_div(k, tap, taps), taps), pitch));
    from = ADD(from, ADD(kidx_mod(k, tap, taps), MUL(at[0], MUL(image, s[IN]))));
    VRef x = k_load(k, 1, from, VREF_NONE), w = k_load(k, 0, ADD(MUL(channel, steps), tap), VREF_NONE);
    KInst sum = inst_new(KI_FOLD, c.t);
    sum.op = FOLD_DOT, sum.a = c.swapped ? x : w, sum.b = c.swapped ? w : x;
    VRef y = k_op(k, OP_RELU, c.t, kernel_inst(k, sum), VREF_NONE, VREF_NONE);
    IRef to = c.last ? ADD(MUL(place, s[OUT]), channel) : ADD(MUL(channel, places), place);
    k_store(k, 2, ADD(MUL(at[0], MUL(s[OUT], places)), to), y, VREF_NONE);
#undef CONST
#undef ADD
#undef MUL
    const int64_t n_image = (c.wide * c.stride + c.taps - 1) * (c.high * c.stride + c.taps - 1);
    const size_t count[3] = {(size_t)(c.out * n_steps), (size_t)(c.n * c.in * n_image), (size_t)(c.n * c.out * n_places)};
    CheckArg args[3 + SIZES];
    for (int a = 0; a < 3; a++)
        args[a] = (CheckArg){.data = filled(c.t, count[a], c.special && a < 2), .bytes = count[a] * dtype_bytes(c.t)};
    for (int i = 0; i < SIZES; i++)
        args[3 + i] = (CheckArg){.value = size[i]};
    char what[160];
    snprintf(what, sizeof what, "windows %s %d x %d to %d channels at %d x %d, %d taps, stride %d, last %d, swapped %d, planned %d",
             dtype_name(c.t), (int)c.n, (int)c.in, (int)c.out, (int)c.high, (int)c.wide, (int)c.taps, (int)c.stride, c.last, c.swapped,
             (int)c.planned);
    check_kernel(k, args, what);
    for (int a = 0; a < 3; a++)
        os_free((void *)(uintptr_t)args[a].data);
}

/* Rows of the image that tiles end with, and rows in which the last tile begins earlier. */
Test(emit_contract, windows)
{
    static const int64_t wide[] = {14, 28, 7, 13, 8, 17, 12, 5};
    for (int i = 0; i < 32; i++)
        check_windows((Windows){.t = i % 4 == 3 ? DT_F64 : DT_F32,
                                .n = 1 + i % 3,
                                .in = i % 5 == 4 ? 31 : 5, /* more than a block of the order, or less */
                                .out = i % 3 ? 35 : 64,
                                .high = i % 2 ? 13 : 9,
                                .wide = wide[i % 8],
                                .taps = i % 7 == 6 ? 2 : 3,
                                .stride = 1 + i / 4 % 2,
                                .last = i / 2 % 2,
                                .swapped = i / 8 % 2,
                                .special = i % 6 == 5});
}

/* As many channels as half a vector of 512 bits has, or fewer. */
Test(emit_contract, windows_of_half_vectors)
{
    for (int i = 0; i < 32; i++)
        check_windows((Windows){.t = i % 4 == 3 ? DT_F64 : DT_F32,
                                .n = 1 + i % 3,
                                .in = i % 5 == 4 ? 31 : 5,
                                .out = i / 2 % 2 ? 4 : 8,
                                .high = 13,
                                .wide = 6 + i,
                                .taps = 3,
                                .stride = 1 + i / 4 % 2,
                                .planned = i % 3 == 2 ? 300 : 0,
                                .last = i / 8 % 2,
                                .swapped = i / 16,
                                .special = i % 6 == 5});
}

/* Sizes are arguments: rows of any length, images and batches that may be empty, whatever was planned for. */
Test(emit_contract, windows_of_any_size)
{
    for (int64_t wide = 0; wide < 34; wide++) {
        int i = (int)wide;
        check_windows((Windows){.t = i % 5 == 3 ? DT_F64 : DT_F32,
                                .n = i % 13 == 12 ? 0 : 1 + i % 3,
                                .in = i % 7 == 4 ? 31 : 5,
                                .out = i % 3 ? 35 : 64,
                                .high = i % 11 == 10 ? 0 : 1 + i * 5 % 9,
                                .wide = wide,
                                .taps = i % 7 == 6 ? 2 : 3,
                                .stride = 1 + i / 2 % 2,
                                .planned = i % 4 == 1 ? 3136 : 300,
                                .last = i % 2,
                                .swapped = i / 4 % 2,
                                .special = i % 6 == 5});
    }
}

/* ---- what the micro-kernel is in machine code ---- */

static void check_micro_kernel(Setting s, Case c, const char *multiply, int number)
{
    c.batch = 1;
    c.m = c.n = c.k = 512;
    c.fixed = true;
    Kernel *k = matmul(&c);
    JitOptions o = setting_options(s);
    Emitted out;
    set_orders(k, ORDER_HOST, s.math);
    cr_assert_eq(llvm_emit_host(k, "micro", &o, true, &out), ST_OK, "%s", fail_message());
    int found = 0;
    bool stack = false, spilled = false;
    for (const char *line = out.assembly; *line && strncmp(line, "run:", 4) != 0; line += strcspn(line, "\n"), line += *line == '\n') {
        char text[256];
        snprintf(text, sizeof text, "%.*s", (int)strcspn(line, "\n"), line);
        if (strstr(text, "(%rsp") || strstr(text, "(%rbp"))
            stack = true;
        if (!strstr(text, multiply))
            continue;
        spilled |= stack && found; /* between two of them */
        stack = false;
        found++;
    }
    cr_assert_eq(found, number, "%d %s, not %d:\n%s", found, multiply, number, out.assembly);
    cr_assert_not(spilled, "sums on the stack:\n%s", out.assembly);
    free_emitted(&out);
}

/* One copy: two steps, four of a narrow tile, and one; all sums in registers. */
Test(emit_contract, micro_kernel)
{
    static const DType types[] = {DT_F32, DT_F64};
    const Case bytes = {.t = DT_I32, .small = true, .from = {DT_I8, DT_U8}}, flipped = {.t = DT_I32, .small = true, .from = {DT_I8, DT_I8}};
    for (int t = 0; t < 2; t++) {
        check_micro_kernel((Setting){512, 1, MATH_STRICT, CPU_V4}, (Case){.t = types[t]}, "vfmadd", 3 * 14 * 2);
        check_micro_kernel((Setting){256, 1, MATH_STRICT, CPU_V3}, (Case){.t = types[t]}, "vfmadd", 5 * 6 * 2);
        check_micro_kernel((Setting){128, 1, MATH_STRICT, CPU_V3}, (Case){.t = types[t]}, "vfmadd", 5 * 6 * 2);
    }
    check_micro_kernel((Setting){512, 1, MATH_STRICT, CPU_V4}, bytes, "vpmaddwd", 3 * 14 * 2);
    check_micro_kernel((Setting){256, 1, MATH_STRICT, CPU_V3}, bytes, "vpmaddwd", 5 * 6 * 2);
    check_micro_kernel((Setting){128, 1, MATH_STRICT, CPU_V3}, bytes, "vpmaddwd", 5 * 6 * 2);
    for (int bits = 512; bits >= 128; bits /= 2) {
        const Setting s = {bits, 1, MATH_STRICT, CPU_HOST};
        JitOptions o = setting_options(s);
        if (!target_multiplies_fours(&o, bits))
            continue;
        check_micro_kernel(s, bytes, "vpdpbusd", (bits == 512 ? 3 * 14 : 5 * 6) * 2);
        check_micro_kernel(s, flipped, "vpdpbusd", (bits == 512 ? 3 * 14 : 5 * 6) * 2);
    }
}

static int count(const char *text, const char *what)
{
    int n = 0;
    for (; (text = strstr(text, what)); text++)
        n++;
    return n;
}

static Emitted emitted(Setting s, Case c)
{
    Kernel *k = matmul(&c);
    JitOptions o = setting_options(s);
    Emitted out;
    set_orders(k, ORDER_HOST, s.math);
    cr_assert_eq(llvm_emit_host(k, "product", &o, true, &out), ST_OK, "%s", fail_message());
    return out;
}

#ifndef CHECK_PTX /* host only */
/* The even phases have a task for each block of each result, as many as there is room for, one at least. */
Test(emit_contract, phases_of_blocks)
{
    static const struct {
        int64_t m, n, k;
        bool fixed;
        int64_t hint, phases, even, odd;
    } cases[] = {{16, 16, 65536, true, 16, 2, 256, 1},      {16, 16, 65536, false, 16, 2, 256, 1},
                 {16, 16, 2100, false, 16, 2, 9, 1},        {16, 16, 1700, false, 16, 2, 7, 1},
                 {3000, 16, 8000, false, 16, 4, 3674, 167}, {300000, 16, 600, false, 16, 6, 16667, 16667}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Case c = {.t = DT_F32, .batch = 1, .m = cases[i].m, .n = cases[i].n, .k = cases[i].k, .fixed = cases[i].fixed, .split = true};
        c.hint[0] = cases[i].hint;
        CompiledKernel *code = compile_kernel(matmul(&c), settings[1]);
        void *args[9] = {0};
        const int64_t size[4] = {c.batch, c.m, c.n, c.k};
        for (int a = 0; a < 4; a++)
            args[3 + a] = (void *)(intptr_t)size[a];
        HostLaunch launch = launch_of(code, args);
        cr_expect_eq(launch.phases, cases[i].phases, "case %zu: %d phases", i, (int)launch.phases);
        cr_expect_eq(launch.tasks[0], cases[i].even, "case %zu: %d tasks", i, (int)launch.tasks[0]);
        cr_expect_eq(launch.tasks[1], cases[i].odd, "case %zu: %d tasks", i, (int)launch.tasks[1]);
        kernel_table_release(code);
    }
}
#endif

/* Rows that are read side by side are asked for; more of them than a set of the first cache holds go to the second one. */
Test(emit_contract, rows_of_dots_are_asked_for)
{
    for (int bits = 256; bits <= 512; bits *= 2) {
        const bool wide = bits == 512;
        Emitted out = emitted((Setting){bits, 1, MATH_STRICT, wide ? CPU_V4 : CPU_V3},
                              (Case){.t = DT_F32, .batch = 1, .m = 4, .n = 512, .k = 2048, .b_transposed = true, .fixed = true});
        cr_expect_eq(count(out.assembly, "prefetcht0"), wide ? 0 : 8, "%d bits:\n%s", bits, out.assembly);
        cr_expect_eq(count(out.assembly, "prefetcht1"), wide ? 16 : 0, "%d bits:\n%s", bits, out.assembly);
        free_emitted(&out);
    }
}

/* Of many rows sums leave no room for a whole square: words of two points come from memory together, and change no places. */
Test(emit_contract, words_of_dots_are_read_side_by_side)
{
    for (int64_t m = 4; m <= 8; m += 4) {
        Emitted out = emitted((Setting){256, 1, MATH_STRICT, CPU_V3},
                              (Case){.t = DT_F32, .batch = 1, .m = m, .n = 512, .k = 2048, .b_transposed = true, .fixed = true});
        cr_expect_eq(count(out.assembly, "vperm2f128"), m == 8 ? 0 : 4, "%d rows:\n%s", (int)m, out.assembly);
        free_emitted(&out);
    }
}

/*
 * Of a square that is packed along k a line of each row, a tile's of one along the columns, and a tile's of the result, which is stored last. Of a
 * panel that the first cache does not hold beside others what later steps read: of two steps at once, and of one.
 */
Test(emit_contract, rows_of_packed_products_are_asked_for)
{
    for (int bits = 128; bits <= 512; bits *= 2) {
        const Case c = {.t = DT_F32, .batch = 1, .m = 512, .n = 512, .k = 512, .fixed = true};
        Emitted out = emitted((Setting){bits, 1, MATH_STRICT, bits == 512 ? CPU_V4 : CPU_V3}, c);
        const int lines = bits == 512 ? 2 : 1;
        cr_expect_eq(count(out.assembly, "prefetcht1"), bits / 32 + 2 * lines, "%d bits:\n%s", bits, out.assembly);
        cr_expect_eq(count(out.assembly, "prefetcht0"), bits == 512 ? 3 * lines : 0, "%d bits:\n%s", bits, out.assembly);
        free_emitted(&out);
    }
}

/* Panels of bytes are for that alone. */
Test(emit_contract, panels_of_bytes_are_refused_without_fours)
{
    Kernel *k = matmul(&(Case){.t = DT_I32, .small = true, .from = {DT_I8, DT_I8}, .batch = 1, .m = 64, .n = 64, .k = 64, .fixed = true});
    JitOptions o = setting_options((Setting){512, 1, MATH_STRICT, CPU_V4});
    Emitted out;
    k->args.at[1].panel = 32;
    k->args.at[1].panel_axis = 2;
    cr_assert_eq(llvm_emit_host(k, "panels", &o, false, &out), ST_UNSUPPORTED);
    cr_assert(strstr(fail_message(), "does not multiply four bytes at a time"), "%s", fail_message());
}
