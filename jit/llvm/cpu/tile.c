/*
 * What works on whole registers: the micro-kernel, and the transposition of squares.
 *
 * The micro-kernel is one internal function a kernel, called for each tile:
 *
 *     multiply(a [k][panel], b [k][width], c [rows][width], k, first)      c = first ? sum : c + sum, sum = steps k of a[k][r] * b[k][w]
 *     multiply(a, b, c, k, first, offset [k])                             in place: a[k][r] is at a + offset[k] bytes + r * in_place elements
 *     multiply(a, b, c, k, first, offset [k], a1, a2...)                  the same, of several rows of the image: each begins at its own
 *     multiply(a, b, c, k, first, [offset,] start [rows])                 sums of each row start with that (factor.c: upper bits are flipped)
 *
 * rows x vectors accumulators, as many loads of b as there are vectors and one broadcast of a after the other: no register is left over.
 * b is asked for STEPS_AHEAD steps before it is read where the first cache does not hold a panel of it, or memory alone has it: kept panels.
 */
#include "jit/llvm/cpu/contract.h"
#include "jit/llvm/cpu/subnormals.h"

LV add_block(Emit *e, const Contract *c, LV total, LV block, LV first)
{
    int64_t known;
    if (l_is_const(first, &known) && known)
        return block;
    return LLVMBuildSelect(e->b, first, block, dot_merge(e, c->dot.acc, total, block), "");
}

/* ---- the micro-kernel ---- */

typedef struct Tile {
    const Contract *c;
    int64_t rows;
    int vectors;
    LLVMTypeRef element;
    LV a[PLACE_RUNS], b, offset, start, sum[64];
} Tile;

/* In place: bytes from step 0 to step k + more. */
static LV step_offset(Emit *e, const Tile *t, LV k, int more)
{
    LLVMTypeRef i64 = e->type[SC_I64];
    return l_load(e, i64, l_gep(e, i64, t->offset, l_add(e, k, l_i64(e, more))), 8);
}

/* In place, for step k + more: what it reads will be read PLACE_AHEAD steps later. Rows in lines of their own take turns: each line is of several
 * steps. Of those side by side the first and the last do: the taps of a row of a window, step by step, have all of the lines between (Cascade Lake, the
 * loop of 3x3 of 64 channels at 56, of 152 GFLOP/s: 134 -> 140). */
static void ask_ahead(Emit *e, const Tile *t, LV k, int more)
{
    const int64_t bytes = t->c->in_place * (int64_t)dtype_bytes(t->c->dot.acc) / t->c->dot.each;
    LV at = l_gep_bytes(e, t->a[0], step_offset(e, t, k, more + PLACE_AHEAD));
    if (bytes >= LINE) {
        LV row = LLVMBuildAnd(e->b, l_add(e, k, l_i64(e, more)), l_i64(e, t->c->row_lanes - 1), "");
        at = l_gep_bytes(e, at, l_mul(e, row, l_i64(e, bytes)));
    } else if (more % 2) {
        at = l_gep_bytes(e, at, l_i64(e, (t->rows / t->c->runs - 1) * bytes));
    }
    l_prefetch(e, at, 0, 1);
}

/*
 * How often steps ask. A core multiplies two vectors a cycle, loads two, and begins four instructions, or six: where loads are nearly as many as
 * multiplications, of rows side by side the last of two steps asks, for what the tile before has not read. (Cascade Lake, one thread, ms, each step and each
 * second: 3x3 of 64 channels at 56 with AVX2 7.40 -> 6.89, of 256 at 14 3.94 -> 3.80; but tiles of 14 x 2 vectors, AVX-512, 2.09 -> 2.22.)
 */
static int steps_an_ask(const Tile *t)
{
    enum { ROOM = 8 };
    const bool beside = t->c->in_place * (int64_t)dtype_bytes(t->c->dot.acc) / t->c->dot.each < LINE;
    return beside && t->rows * t->vectors < t->rows + t->vectors + ROOM ? 2 : 1;
}

/* Steps [k, k + n) */
static void tile_steps(Emit *e, const Tile *t, LV k, int n)
{
    enum { STEPS_AHEAD = 32, FIRST_CACHE = 32768 };
    int64_t rows = t->rows, lanes = t->c->dot.lanes;
    unsigned bytes = (unsigned)dtype_bytes(t->c->dot.acc), align = bytes * (t->c->some_kept ? 1 : (unsigned)lanes);
    unsigned in = bytes / (unsigned)t->c->dot.each;     /* of an element as memory has it */
    int64_t apart = t->c->in_place, panel = t->c->rows; /* which may have more rows than are multiplied */
    int64_t run = t->c->runs > 1 ? rows / t->c->runs : rows;
    LV a = l_gep(e, t->element, t->a[0], l_mul(e, k, l_i64(e, panel))), b = l_gep(e, t->element, t->b, l_mul(e, k, l_i64(e, t->c->width)));
    for (int u = 0; u < n; u++) {
        LV wide[16];
        for (int v = 0; v < t->vectors; v++)
            wide[v] = l_load(e, t->c->vector, l_gep(e, t->element, b, l_i64(e, u * t->c->width + v * lanes)), align);
        LV offset = apart ? step_offset(e, t, k, u) : NULL;
        for (int64_t r = 0; r < rows; r++) {
            if (apart && r % run == 0)
                a = l_gep_bytes(e, t->a[r / run], offset);
            LV at = apart ? l_gep_bytes(e, a, l_i64(e, r % run * apart * in)) : l_gep(e, t->element, a, l_i64(e, u * panel + r));
            LV x = l_load(e, t->element, at, apart ? in : bytes);
            LV all = l_splat_n(e, x, (unsigned)lanes);
            for (int v = 0; v < t->vectors; v++) {
                LV sum = t->sum[r * t->vectors + v];
                l_store(e, contract_step(e, t->c, l_load(e, t->c->vector, sum, 0), all, wide[v]), sum, 0);
            }
        }
    }
    const int64_t step = t->c->width * bytes;
    if (t->c->some_kept || step * t->c->most_steps >= FIRST_CACHE)
        for (int64_t at = 0; at < n * step; at += LINE)
            l_prefetch(e, l_gep_bytes(e, b, l_i64(e, STEPS_AHEAD * step + at)), 0, 3);
    const int each = steps_an_ask(t);
    for (int u = each - 1; apart && u < n; u += each) /* here: instructions are not moved across it, which takes registers */
        ask_ahead(e, t, k, u);
}

/* A function that is never inlined, and its body's start. */
static LV own_function(Emit *e, const char *name, LLVMTypeRef *params, unsigned n)
{
    LV fn = LLVMAddFunction(e->module, name, LLVMFunctionType(LLVMVoidTypeInContext(e->ctx), params, n, 0));
    LLVMSetLinkage(fn, LLVMInternalLinkage);
    l_attribute(e, fn, "noinline");
    function_open(e, fn, NULL);
    return fn;
}

LV tile_function(Emit *e, const Contract *c, int64_t rows)
{
    enum { FEW_SUMS = 16 }; /* whose steps are short beside a jump (the same 3x3 of 256 channels with AVX2: 3.80 -> 3.67) */
    LLVMTypeRef params[7 + PLACE_RUNS] = {e->ptr, e->ptr, e->ptr, e->type[SC_I64], e->type[SC_I64]};
    const unsigned before_start = c->in_place ? 6 : 5, n_params = c->in_place ? 5 + (unsigned)c->runs : before_start + c->flips[ROW_SIDE];
    for (unsigned i = 5; i < n_params; i++)
        params[i] = e->ptr;
    LV fn = own_function(e, "multiply", params, n_params);
    Tile t = {.c = c, .rows = rows, .vectors = (int)(c->width / c->dot.lanes), .element = LLVMGetElementType(c->vector)};
    t.a[0] = LLVMGetParam(fn, 0);
    for (unsigned i = 1; i < c->runs; i++)
        t.a[i] = LLVMGetParam(fn, 5 + i);
    t.b = LLVMGetParam(fn, 1);
    t.offset = c->in_place ? LLVMGetParam(fn, 5) : NULL;
    t.start = c->flips[ROW_SIDE] ? LLVMGetParam(fn, before_start) : NULL;
    LV to = LLVMGetParam(fn, 2), k = LLVMGetParam(fn, 3);
    unsigned align = (unsigned)dtype_bytes(c->dot.acc) * (unsigned)c->dot.lanes;
    const int64_t n = rows * t.vectors;
    const int at_once = n <= FEW_SUMS ? 4 : 2;
    for (int64_t i = 0; i < n; i++) {
        LV start = t.start ? l_gep(e, t.element, t.start, l_i64(e, i % t.vectors * c->dot.lanes)) : NULL;
        t.sum[i] = l_alloca(e, c->vector, 0, "sum");
        l_store(e, start ? l_load(e, c->vector, start, 4) : LLVMConstNull(c->vector), t.sum[i], 0);
    }
    LV mode = contract_flushes(e, c) ? subnormals_flush(e) : NULL;
    LV steps = l_mul(e, l_div(e, k, l_i64(e, at_once)), l_i64(e, at_once));
    Loop most = loop_begin(e, l_i64(e, 0), steps, l_i64(e, at_once), "k");
    tile_steps(e, &t, most.iv, at_once);
    loop_end(e, &most);
    Loop rest = loop_begin(e, steps, k, l_i64(e, 1), "rest");
    tile_steps(e, &t, rest.iv, 1);
    loop_end(e, &rest);
    If more = if_begin(e, LLVMBuildICmp(e->b, LLVMIntEQ, LLVMGetParam(fn, 4), l_i64(e, 0), ""), "add");
    for (int64_t i = 0; i < n; i++) {
        LV old = l_load(e, c->vector, l_gep(e, t.element, to, l_i64(e, i * c->dot.lanes)), align);
        l_store(e, add_block(e, c, old, l_load(e, c->vector, t.sum[i], 0), LLVMConstNull(e->type[SC_I1])), t.sum[i], 0);
    }
    if_end(e, &more);
    for (int64_t i = 0; i < n; i++)
        l_store(e, l_load(e, c->vector, t.sum[i], 0), l_gep(e, t.element, to, l_i64(e, i * c->dot.lanes)), align);
    if (mode)
        subnormals_keep(e, mode);
    LLVMBuildRetVoid(e->b);
    return fn;
}

/* ---- squares ---- */

enum { WORD = 16 }; /* bytes within which the machine interleaves at will */

static LV shuffled(Emit *e, LV a, LV b, const int *from, int n)
{
    LV at[MAX_LANES];
    for (int i = 0; i < n; i++)
        at[i] = LLVMConstInt(e->type[SC_I32], (unsigned)from[i], 0);
    return LLVMBuildShuffleVector(e->b, a, b, LLVMConstVector(at, (unsigned)n), "");
}

/* Of each word of a and b the lower or upper halves, elements in turns. */
static LV interleaved(Emit *e, LV a, LV b, int n, int word, bool upper)
{
    int from[MAX_LANES];
    for (int i = 0; i < n; i++) {
        int in = i % word;
        from[i] = (in % 2 ? n : 0) + i - in + (upper ? word / 2 : 0) + in / 2;
    }
    return shuffled(e, a, b, from, n);
}

/* Of the words of a, then of b, those of even or odd number. */
static LV every_other(Emit *e, LV a, LV b, int n, int word, bool odd)
{
    int from[MAX_LANES];
    for (int i = 0; i < n; i++)
        from[i] = (2 * (i / word) + odd) * word + i % word;
    return shuffled(e, a, b, from, n);
}

/* n vectors whose words are [vector][number] become [number][vector]. */
static void transpose_words(Emit *e, LV *v, int count, int n, int word)
{
    LV part[2][MAX_LANES];
    if (count == 1)
        return;
    for (int odd = 0; odd < 2; odd++) {
        for (int i = 0; i < count / 2; i++)
            part[odd][i] = every_other(e, v[2 * i], v[2 * i + 1], n, word, odd);
        transpose_words(e, part[odd], count / 2, n, word);
    }
    for (int i = 0; i < count; i++)
        v[i] = part[i % 2][i / 2];
}

int tile_word(const Emit *e, LLVMTypeRef element, int n)
{
    const int bytes = element == e->type[SC_F64] ? 8 : element == e->type[SC_F32] ? 4 : (int)LLVMGetIntTypeWidth(element) / 8;
    return WORD / bytes < n ? WORD / bytes : n;
}

void tile_transpose_words(Emit *e, LV *v, int n, int word)
{
    for (int pass = 1; pass < word; pass *= 2) { /* interleaves what lies half of them apart */
        LV t[WORD];
        for (int i = 0; i < word; i++)
            t[i] = interleaved(e, v[i / 2], v[i / 2 + word / 2], n, word, i % 2);
        memcpy(v, t, (size_t)word * sizeof *t);
    }
}

/*
 * One instruction a shuffle: first the elements of words change places among as many vectors as a word has elements, then words. 16 x 16 f32 take 64.
 */
void tile_transpose(Emit *e, LV *v, int n)
{
    const int word = tile_word(e, LLVMGetElementType(LLVMTypeOf(v[0])), n);
    for (int g = 0; g < n; g += word)
        tile_transpose_words(e, v + g, n, word);
    for (int i = 0; i < word; i++) {
        LV same[MAX_LANES];
        for (int g = 0; g < n / word; g++)
            same[g] = v[g * word + i];
        transpose_words(e, same, n / word, n, word);
        for (int g = 0; g < n / word; g++)
            v[g * word + i] = same[g];
    }
}

LV square_function(Emit *e, const Contract *c)
{
    LV v[MAX_LANES];
    unsigned bytes = (unsigned)dtype_bytes(c->dot.acc);
    LV fn = own_function(e, "square", (LLVMTypeRef[]){e->ptr, e->ptr, e->type[SC_I64]}, 3);
    for (int i = 0; i < c->dot.lanes; i++)
        v[i] = l_load(e, c->vector, l_gep(e, LLVMGetElementType(c->vector), LLVMGetParam(fn, 0), l_i64(e, i * c->dot.lanes)), bytes);
    tile_transpose(e, v, c->dot.lanes);
    for (int i = 0; i < c->dot.lanes; i++) /* in order: what is past the panel's width is overwritten by the next step */
        l_store(e, v[i], l_gep(e, LLVMGetElementType(c->vector), LLVMGetParam(fn, 1), l_mul(e, LLVMGetParam(fn, 2), l_i64(e, i))), bytes);
    LLVMBuildRetVoid(e->b);
    return fn;
}
