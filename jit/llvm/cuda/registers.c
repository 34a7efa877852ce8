/*
 * How many blocks of threads a multiprocessor is to hold at once, hence how many registers ptxas may give a thread.
 *
 * Left to itself ptxas puts a few registers away into memory where that makes room for one more block; asked for a
 * number of blocks, it takes what they leave, as far as it has a use for it. So every kernel asks: for as many blocks as
 * leave room for the most registers that are live at once. Those are read off the finished PTX, whose virtual registers
 * have known widths, by the textbook's liveness analysis: what is live at the starts of its basic blocks, again and
 * again until nothing changes.
 *
 * That is no exact measure: ptxas orders instructions anew, so that wide bodies need less; it unrolls loops and calls
 * functions for divisions, so that others need more. `room` gives what was seen to be enough for the texts of all
 * tests, on sm_80 and sm_90a; cuda/assemble holds it to that. What must not be misread is the text's form, which is
 * LLVM's own: one instruction a line, "%" before registers, "$L__BB" before labels. A wrong count costs speed only.
 */
#include "ir/base/os.h"
#include "jit/llvm/cuda/cuda.h"

#include <stdio.h>

enum { REGISTERS = 65536, MOST_REGISTERS = 255, MOST_BLOCKS = 16 };

/* Registers of 32 bits that a virtual one takes. Values of 16 bits count twice: conversions stand beside them, and
 * ptxas unrolls loops over them. There are registers apart for predicates. */
enum { KIND_HALVES, KIND_DOUBLES, KIND_WORDS, KIND_FLOATS, KIND_PAIRS, KIND_QUADS, KIND_PREDICATES, KINDS };
static const struct RegisterKind {
    char name[4];
    unsigned width;
} kinds[KINDS] = {[KIND_HALVES] = {"rs", 2}, [KIND_DOUBLES] = {"fd", 2}, [KIND_WORDS] = {"r", 1},     [KIND_FLOATS] = {"f", 1},
                  [KIND_PAIRS] = {"rd", 2},  [KIND_QUADS] = {"rq", 4},   [KIND_PREDICATES] = {"p", 0}};

/* Registers that an instruction reads or writes, in a list for all of them. */
typedef struct Operand {
    uint32_t reg;
    bool defines;
} Operand;

typedef struct Instruction {
    uint32_t first, n; /* its operands */
} Instruction;

typedef struct Block {
    uint32_t first, n; /* its instructions */
    int64_t target;    /* label of the branch at its end; -1: none */
    bool falls;        /* into the next one */
    uint64_t *live;    /* at its start */
} Block;

typedef struct Function {
    Arena *arena;
    uint32_t first[KINDS], count[KINDS], n_regs; /* of each kind: numbers first, first + 1, ... */
    Operand *operand;
    Instruction *instruction;
    Block *block;
    uint32_t n_operands, n_instructions, n_blocks, n_labels;
    uint32_t *labelled; /* block of each label */
    bool calls;
} Function;

/* ---- reading ---- */

static const char *line_end(const char *at, const char *end)
{
    const char *n = memchr(at, '\n', (size_t)(end - at));
    return n ? n : end;
}

static uint32_t number(const char **at)
{
    uint32_t n = 0;
    for (; **at >= '0' && **at <= '9'; ++*at)
        n = 10 * n + (uint32_t)(**at - '0');
    return n;
}

static uint32_t kind_at(const char *at, size_t *length)
{
    for (*length = 0; at[*length] >= 'a' && at[*length] <= 'z';)
        ++*length;
    for (uint32_t k = 0; k < KINDS; k++)
        if (strlen(kinds[k].name) == *length && !memcmp(at, kinds[k].name, *length))
            return k;
    return KINDS;
}

/* "	.reg .b64 	%rd<40>;": all of a kind have numbers below 40. */
static void declare(Function *f, const char *at, const char *end)
{
    size_t length;
    const char *name = memchr(at, '%', (size_t)(end - at));
    uint32_t kind = name ? kind_at(name + 1, &length) : KINDS;
    if (kind == KINDS || name[1 + length] != '<')
        return;
    at = name + length + 2;
    f->first[kind] = f->n_regs;
    f->count[kind] = number(&at);
    f->n_regs += f->count[kind];
}

/* The registers in [at, end). */
static void operands(Function *f, const char *at, const char *end, bool define)
{
    while ((at = memchr(at, '%', (size_t)(end - at)))) {
        size_t length;
        uint32_t kind = kind_at(++at, &length);
        at += length;
        if (kind == KINDS || *at < '0' || *at > '9')
            continue;
        uint32_t reg = number(&at);
        if (reg < f->count[kind])
            f->operand[f->n_operands++] = (Operand){f->first[kind] + reg, define};
    }
}

static bool starts(const char *at, const char *end, const char *what)
{
    size_t n = strlen(what);
    return (size_t)(end - at) >= n && !memcmp(at, what, n);
}

/* "$L__BB0_12": 12. */
static int64_t label_at(const char *at, const char *end)
{
    while (at < end && *at != '_' && *at != ':' && *at != ';')
        at++;
    if (!starts(at, end, "__BB"))
        return -1;
    for (at += 4; at < end && *at != '_';)
        at++;
    return at < end ? (at++, (int64_t)number(&at)) : -1;
}

static bool is_call(const char *at, const char *end)
{
    static const char *const names[] = {"div.rn.f64", "sqrt.rn.f64", "rcp.rn.f64", "div.s64", "div.u64", "rem.s64", "rem.u64"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (starts(at, end, names[i]))
            return true;
    return false;
}

static void new_block(Function *f)
{
    Block *last = f->n_blocks ? &f->block[f->n_blocks - 1] : NULL;
    if (last && !last->n && last->target < 0 && last->falls)
        return;
    f->block[f->n_blocks++] = (Block){.first = f->n_instructions, .target = -1, .falls = true};
}

static void instruction(Function *f, const char *at, const char *end)
{
    static const char *const no_result[] = {"st.", "red.", "bar.", "membar", "fence", "bra", "ret", "cp.async", "exit"};
    Block *b = &f->block[f->n_blocks - 1];
    uint32_t first = f->n_operands;
    bool maybe = *at == '@';
    if (maybe) {
        const char *guard = at;
        while (at < end && *at != ' ' && *at != '\t')
            at++;
        operands(f, guard, at, false);
        while (at < end && (*at == ' ' || *at == '\t'))
            at++;
    }
    bool result = true;
    for (size_t i = 0; i < sizeof no_result / sizeof *no_result; i++)
        result &= !starts(at, end, no_result[i]);
    f->calls |= is_call(at, end);
    /* the result is the first operand, or the list in braces that it is */
    const char *rest = at;
    while (rest < end && *rest != ' ' && *rest != '\t')
        rest++;
    const char *cut = rest;
    while (cut < end && (*cut == ' ' || *cut == '\t'))
        cut++;
    char until = cut < end && *cut == '{' ? '}' : ',';
    const char *comma = result ? memchr(cut, until, (size_t)(end - cut)) : NULL;
    cut = comma ? comma : result ? end : rest;
    operands(f, rest, cut, result && !maybe); /* under a guard the old value may stay */
    operands(f, cut, end, false);
    f->instruction[f->n_instructions++] = (Instruction){first, f->n_operands - first};
    b->n++;
    if (starts(at, end, "bra")) {
        const char *to = memchr(at, '$', (size_t)(end - at));
        b->target = to ? label_at(to, end) : -1;
        b->falls = maybe;
        new_block(f);
    } else if (starts(at, end, "ret") || starts(at, end, "exit")) {
        b->falls = maybe;
        new_block(f);
    }
}

/* A function's body, from its brace on: at most one instruction a line, as LLVM writes them. */
static void read_body(Function *f, const char *at, const char *end)
{
    uint32_t lines = 2, percents = 1;
    for (const char *c = at; c < end; c++)
        lines += *c == '\n', percents += *c == '%';
    f->operand = ARENA_ARRAY(f->arena, Operand, percents);
    f->instruction = ARENA_ARRAY(f->arena, Instruction, lines);
    f->block = ARENA_ARRAY(f->arena, Block, lines);
    f->labelled = ARENA_ARRAY(f->arena, uint32_t, lines);
    f->n_labels = lines;
    new_block(f);
    for (const char *next; at < end; at = next) {
        const char *stop = line_end(at, end);
        next = stop < end ? stop + 1 : end;
        while (at < stop && (*at == ' ' || *at == '\t'))
            at++;
        if (at == stop || *at == '/' || *at == '{' || *at == '}')
            continue;
        if (*at == '$') {
            int64_t label = label_at(at, stop);
            new_block(f);
            if (label >= 0 && label < f->n_labels)
                f->labelled[label] = f->n_blocks; /* + 1 */
        } else if (starts(at, stop, ".reg")) {
            declare(f, at, stop);
        } else if (*at != '.') {
            instruction(f, at, stop);
        }
    }
}

/* ---- liveness ---- */

static bool has(const uint64_t *set, uint32_t i) { return set[i / 64] >> (i % 64) & 1; }

/* Takes what is live after an instruction to what is live before it; the sum of widths follows. */
static void step_back(const Function *f, const Instruction *i, uint64_t *live, const uint8_t *width, uint32_t *sum)
{
    for (uint32_t pass = 0; pass < 2; pass++)
        for (uint32_t n = i->first; n < i->first + i->n; n++) {
            Operand o = f->operand[n];
            uint64_t bit = UINT64_C(1) << (o.reg % 64);
            if (o.defines != (pass == 0) || has(live, o.reg) != o.defines)
                continue;
            live[o.reg / 64] ^= bit;
            *sum = o.defines ? *sum - width[o.reg] : *sum + width[o.reg];
        }
}

static void live_at_end(const Function *f, uint32_t b, uint32_t words, uint64_t *out)
{
    const Block *at = &f->block[b];
    memset(out, 0, words * sizeof *out);
    uint32_t target = at->target >= 0 && at->target < f->n_labels ? f->labelled[at->target] : 0;
    const uint64_t *after[2] = {at->falls && b + 1 < f->n_blocks ? f->block[b + 1].live : NULL, target ? f->block[target - 1].live : NULL};
    for (int s = 0; s < 2; s++)
        for (uint32_t w = 0; after[s] && w < words; w++)
            out[w] |= after[s][w];
}

/* The most registers that are live before an instruction, or written by it. */
static uint32_t most_live(Function *f)
{
    uint32_t words = f->n_regs / 64 + 1, most = 0;
    uint8_t *width = ARENA_ARRAY(f->arena, uint8_t, f->n_regs + 1);
    for (uint32_t k = 0; k < KINDS; k++)
        memset(width + f->first[k], (int)kinds[k].width, f->count[k]);
    uint64_t *live = ARENA_ARRAY(f->arena, uint64_t, words);
    for (uint32_t b = 0; b < f->n_blocks; b++)
        f->block[b].live = ARENA_ARRAY(f->arena, uint64_t, words);
    for (bool changed = true; changed;) {
        changed = false;
        for (uint32_t b = f->n_blocks; b-- > 0;) {
            uint32_t sum = 0;
            live_at_end(f, b, words, live);
            for (uint32_t w = 0; w < words; w++)
                for (uint64_t rest = live[w]; rest; rest &= rest - 1)
                    sum += width[64 * w + (uint32_t)__builtin_ctzll(rest)];
            for (uint32_t i = f->block[b].n; i-- > 0;) {
                const Instruction *in = &f->instruction[f->block[b].first + i];
                uint32_t unread = 0; /* a result that nobody reads takes a register, too */
                for (uint32_t n = in->first; n < in->first + in->n; n++)
                    if (f->operand[n].defines && !has(live, f->operand[n].reg))
                        unread += width[f->operand[n].reg];
                most = sum + unread > most ? sum + unread : most;
                step_back(f, in, live, width, &sum);
                most = sum > most ? sum : most;
            }
            if (memcmp(live, f->block[b].live, words * sizeof *live)) {
                memcpy(f->block[b].live, live, words * sizeof *live);
                changed = true;
            }
        }
    }
    return most;
}

/* ---- blocks ---- */

/* Registers of a thread where a multiprocessor holds `blocks` of them. */
static uint32_t registers_of(uint32_t threads, uint32_t blocks)
{
    uint32_t warps = (threads + WARP - 1) / WARP, each = REGISTERS / (warps * WARP * blocks) / 8 * 8;
    return each < MOST_REGISTERS ? each : MOST_REGISTERS;
}

/* What a thread is given where at most `live` registers are live: about those, and some for divisions that are calls, for the
 * predicates of values of 8 and 16 bits, more than there are registers for, and for the pairs that f64 takes in wide bodies.
 * Narrow bodies without either need less, since ptxas does them lane after lane; not those that consist of addresses in
 * 64 bits, nor the wider of them with many conditions (softcapped scores, transposed: 64 to 88 bytes were put away). Rows of
 * comparisons of 16-bit values need more: ptxas loads them all in front and has 7 predicates. */
static uint32_t room(const Function *f, uint32_t live)
{
    enum {
        LEAST = 64,
        FUNCTION_CALL = 16,
        ABOUT = 4,
        PREDICATES = 24,
        NARROW = 80,
        MANY_PREDICATES = 64,
        ADDRESSES = 48,
        ADDRESSES_OF_DOUBLES = 68
    };
    uint32_t need = live + (f->calls ? FUNCTION_CALL : 0);
    bool addresses = f->count[KIND_PAIRS] > f->count[KIND_WORDS] + f->count[KIND_FLOATS];
    if (f->count[KIND_HALVES])
        need += ABOUT;
    else if (f->count[KIND_DOUBLES])
        need = need > (addresses ? ADDRESSES_OF_DOUBLES : NARROW) ? need * 5 / 4 : need > ABOUT ? need - ABOUT : 0;
    else if (addresses && need >= ADDRESSES)
        need = need * 5 / 4;
    else if (need <= NARROW)
        need = need > NARROW * 9 / 10 && f->count[KIND_PREDICATES] > MANY_PREDICATES ? need + ABOUT : LEAST;
    need = need < LEAST ? LEAST : need;
    return f->count[KIND_HALVES] && f->count[KIND_PREDICATES] > f->count[KIND_HALVES] ? need + PREDICATES : need;
}

static uint32_t blocks_for(uint32_t threads, uint32_t need)
{
    uint32_t n = MOST_BLOCKS;
    while (n > 1 && registers_of(threads, n) < need)
        n--;
    return n;
}

/* The text with a number of blocks behind each number of threads that has none, if it is `least` or more, in the arena. */
static char *with_blocks(Arena *arena, const char *ptx, size_t bytes, unsigned least)
{
    static const char threads_of[] = "\n.maxntid ";
    size_t entries = 0;
    for (const char *at = ptx; (at = strstr(at, threads_of)); at++)
        entries++;
    char *out = arena_alloc(arena, bytes + entries * sizeof "\n.minnctapersm 16" + 1), *to = out;
    const char *end = ptx + bytes, *from = ptx;
    for (const char *at = ptx; (at = strstr(at, threads_of));) {
        const char *digits = at + sizeof threads_of - 1, *stop = line_end(digits, end), *body = stop;
        uint32_t threads = number(&digits);
        at = stop;
        if (starts(stop, end, "\n.minnctapersm"))
            continue;
        while (body < end && !starts(body, end, "\n{"))
            body++;
        const char *last = body;
        while (last < end && !starts(last, end, "\n}"))
            last++;
        Function f = {.arena = arena};
        read_body(&f, body, last);
        memcpy(to, from, (size_t)(stop - from));
        to += stop - from;
        from = stop;
        uint32_t blocks = blocks_for(threads, room(&f, most_live(&f)));
        to += blocks < least ? 0 : sprintf(to, "\n.minnctapersm %u", blocks);
    }
    memcpy(to, from, (size_t)(end - from) + 1);
    return out;
}

char *cuda_ask_for_blocks(const char *ptx, size_t *bytes, unsigned least)
{
    Arena arena;
    jmp_buf oom;
    char *volatile copy = NULL;
    arena_init(&arena, &oom);
    if (setjmp(oom) == 0) {
        const char *text = with_blocks(&arena, ptx, *bytes, least);
        *bytes = strlen(text);
        copy = os_copy(text, *bytes + 1);
    }
    arena_free(&arena);
    return copy;
}
