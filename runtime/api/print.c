/*
 * Printing like NumPy (str of an array, with its default print options): precision 8, lines of 75,
 * arrays of more than 1000 elements shown by 3 at either end of each axis.
 *
 * How it works: one pass over the elements that will be shown finds the widths; a second writes. A
 * float is shown by the fewest digits that give it back in its dtype, at most 8 after the point.
 * All floats of an array are written in scientific form when the largest has more digits than its
 * dtype keeps (f64: at least 1e8), the smallest other than 0 is below 1e-4, or they span more than
 * three decades.
 * The text grows in a heap buffer; running out of memory is remembered and reported at the end.
 */
#include "ir/base/os.h"
#include "runtime/eval/sync.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE = 75, THRESHOLD = 1000, EDGE = 3, PRECISION = 8, WORD = 400 };

typedef struct Text {
    char *at;
    size_t len, cap;
    bool failed;
} Text;

static void text_add(Text *t, const char *s, size_t n)
{
    if (t->failed)
        return;
    if (t->len + n + 1 > t->cap) {
        size_t cap = t->cap ? t->cap : 256;
        while (cap < t->len + n + 1)
            cap *= 2;
        char *grown = os_realloc(t->at, cap);
        if (!grown) {
            t->failed = true;
            return;
        }
        t->at = grown;
        t->cap = cap;
    }
    if (n)
        memcpy(t->at + t->len, s, n);
    t->len += n;
    t->at[t->len] = '\0';
}

static void text_fill(Text *t, char c, int n)
{
    for (int i = 0; i < n; i++)
        text_add(t, &c, 1);
}

/* ---- one number ---- */

/* The power of ten whose digits a float dtype always keeps. */
static double decimals(DType dtype) { return dtype == DT_BF16 ? 1e2 : dtype == DT_F16 ? 1e3 : dtype == DT_F32 ? 1e6 : 1e15; }

/* A finite float as decimal digits d.ddd * 10^exponent. */
typedef struct Decimal {
    char digit[24];
    int n, exponent;
    bool negative;
} Decimal;

/* Makes a '.' of the locale's decimal point in a number that printf wrote. */
static void plain_point(char *text)
{
    char *at = text + strspn(text, "-0123456789"), *rest = at + strcspn(at, "e0123456789");
    if (at == rest)
        return;
    *at = '.';
    memmove(at + 1, rest, strlen(rest) + 1);
}

/* The fewest digits that read back as the same element. */
static Decimal shortest(DType dtype, uint64_t bits)
{
    Decimal d = {.n = 0};
    double x = scalar_to_double(dtype, bits);
    char text[40];
    d.negative = signbit(x) != 0;
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*e", digits - 1, fabs(x));
        if (digits == 17 || scalar_to_double(dtype, scalar_from_double(dtype, strtod(text, NULL))) == fabs(x))
            break;
    }
    plain_point(text);
    char *e = strchr(text, 'e');
    d.exponent = atoi(e + 1);
    for (char *c = text; c < e; c++)
        if (*c != '.')
            d.digit[d.n++] = *c;
    while (d.n > 1 && d.digit[d.n - 1] == '0')
        d.n--;
    return d;
}

/* Writes "int.frac" with the digits after the point that are needed (at most PRECISION); returns
 * how many those are. */
static int positional(DType dtype, uint64_t bits, char *out, size_t size)
{
    Decimal d = shortest(dtype, bits);
    int after = d.n - 1 - d.exponent;
    if (after > PRECISION) {
        snprintf(out, size, "%.*f", PRECISION, scalar_to_double(dtype, bits));
        plain_point(out);
        char *end = out + strlen(out);
        while (end[-1] == '0')
            *--end = '\0';
        return (int)strlen(strchr(out, '.') + 1);
    }
    size_t at = 0;
    if (d.negative)
        out[at++] = '-';
    for (int i = 0; i <= d.exponent || i == 0; i++) {
        int k = d.exponent < 0 ? -1 : i;
        out[at++] = k >= 0 && k < d.n ? d.digit[k] : '0';
        if (d.exponent < 0)
            break;
    }
    out[at++] = '.';
    for (int i = 1; i <= after; i++) {
        int k = d.exponent + i;
        out[at++] = k >= 0 && k < d.n ? d.digit[k] : '0';
    }
    out[at] = '\0';
    return after > 0 ? after : 0;
}

/* Writes "d.ddde+xx" with exactly `after` digits after the point, or with `after` < 0 those that
 * are needed (at most PRECISION), and at least `digits` digits of the exponent; returns how many
 * are after the point. */
static int scientific(DType dtype, uint64_t bits, int after, int digits, char *out, size_t size)
{
    char text[64];
    bool cut = false;
    if (after < 0) {
        after = shortest(dtype, bits).n - 1;
        cut = after > PRECISION;
        after = cut ? PRECISION : after;
    }
    snprintf(text, sizeof text, "%.*e", after, scalar_to_double(dtype, bits));
    for (const char *e = strchr(text, 'e'); cut && after > 0 && e[-1] == '0'; e--)
        after--;
    snprintf(text, sizeof text, "%.*e", after, scalar_to_double(dtype, bits));
    plain_point(text);
    char *e = strchr(text, 'e');
    snprintf(out, size, "%.*s%se%c%0*d", (int)(e - text), text, after ? "" : ".", e[1], digits, atoi(e + 2));
    return after;
}

/* ---- the elements of an array ---- */

typedef struct Style {
    const RtNode *node;
    const char *data;
    int64_t stride[MAX_RANK]; /* dense, in elements */
    bool summary;
    bool scientific;
    int left, right; /* characters before and after the point; ints and bools: left only */
    int after;       /* in scientific form: digits after the point */
    int exponent;    /* and of the exponent */
} Style;

static uint64_t element(const Style *s, int64_t index)
{
    DType dtype = (DType)s->node->dtype;
    return scalar_load(dtype, s->data + index * (int64_t)dtype_bytes(dtype));
}

typedef void Visit(Style *s, uint64_t bits, void *user);

/* Calls visit for each element that is shown. */
static void each(Style *s, int axis, int64_t base, Visit *visit, void *user)
{
    if (axis == s->node->rank) {
        visit(s, element(s, base), user);
        return;
    }
    int64_t n = s->node->dim[axis];
    for (int64_t i = 0; i < n; i++) {
        if (s->summary && n > 2 * EDGE && i == EDGE)
            i = n - EDGE;
        each(s, axis + 1, base + i * s->stride[axis], visit, user);
    }
}

typedef struct Range {
    double max, min; /* of the absolute values other than 0 */
    bool any, finite, nan, inf, minus_inf;
} Range;

static void find_range(Style *s, uint64_t bits, void *user)
{
    Range *r = user;
    double x = scalar_to_double((DType)s->node->dtype, bits), a = fabs(x);
    r->nan |= x != x;
    r->inf |= a == INFINITY;
    r->minus_inf |= x == -INFINITY;
    if (!isfinite(x))
        return;
    r->finite = true;
    if (a == 0)
        return;
    r->max = !r->any || a > r->max ? a : r->max;
    r->min = !r->any || a < r->min ? a : r->min;
    r->any = true;
}

static void find_width(Style *s, uint64_t bits, void *user)
{
    char word[WORD];
    int left, right = 0;
    DType dtype = (DType)s->node->dtype;
    (void)user;
    if (dtype_is_int(dtype)) {
        left = dtype == DT_U64 ? snprintf(word, sizeof word, "%" PRIu64, bits)
                               : snprintf(word, sizeof word, "%" PRId64, scalar_to_int(dtype, bits));
    } else {
        if (!isfinite(scalar_to_double(dtype, bits)))
            return;
        right = s->scientific ? scientific(dtype, bits, -1, 2, word, sizeof word) : positional(dtype, bits, word, sizeof word);
        left = (int)(strchr(word, '.') - word);
        if (s->scientific) {
            int exponent = (int)strlen(strchr(word, 'e')) - 2;
            s->after = right > s->after ? right : s->after;
            s->exponent = exponent > s->exponent ? exponent : s->exponent;
            right = s->after + 2 + s->exponent;
        }
    }
    s->left = left > s->left ? left : s->left;
    s->right = right > s->right ? right : s->right;
}

static double rounded(DType dtype, double x) { return scalar_to_double(dtype, scalar_from_double(dtype, x)); }

/* Finds how the elements are written. NumPy compares in the array's dtype. */
static void choose_style(Style *s)
{
    DType dtype = (DType)s->node->dtype;
    int64_t row = 1;
    for (int d = s->node->rank - 1; d >= 0; d--) {
        s->stride[d] = row;
        row *= s->node->dim[d];
    }
    s->summary = row > THRESHOLD;
    if (dtype == DT_BOOL)
        return;
    Range r = {0};
    if (dtype_is_float(dtype)) {
        each(s, 0, 0, find_range, &r);
        double largest = decimals(dtype) < 1e8 ? decimals(dtype) : 1e8;
        s->scientific = r.any && (r.max >= largest || r.min < rounded(dtype, 1e-4) || rounded(dtype, r.max / r.min) > 1000);
    }
    each(s, 0, 0, find_width, NULL);
    if (r.nan || r.inf) {
        int widest = r.minus_inf ? 4 : 3, need = widest - (s->right + 1);
        s->left = need > s->left ? need : s->left;
    }
}

/* Writes one element, padded. */
static void write_word(const Style *s, uint64_t bits, char *word)
{
    DType dtype = (DType)s->node->dtype;
    if (dtype == DT_BOOL) {
        snprintf(word, WORD, "%5s", bits ? "True" : "False");
    } else if (dtype == DT_U64) {
        snprintf(word, WORD, "%*" PRIu64, s->left, bits);
    } else if (dtype_is_int(dtype)) {
        snprintf(word, WORD, "%*" PRId64, s->left, scalar_to_int(dtype, bits));
    } else {
        double x = scalar_to_double(dtype, bits);
        if (!isfinite(x)) {
            snprintf(word, WORD, "%*s", s->left + 1 + s->right, x != x ? "nan" : x > 0 ? "inf" : "-inf");
            return;
        }
        char number[WORD];
        if (s->scientific)
            scientific(dtype, bits, s->after, s->exponent, number, sizeof number);
        else
            positional(dtype, bits, number, sizeof number);
        size_t n = strlen(number), before = (size_t)(strchr(number, '.') - number), width = (size_t)(s->left + 1 + s->right);
        size_t skip = (size_t)s->left - before;
        memset(word, ' ', width);
        memcpy(word + skip, number, n);
        word[width > skip + n ? width : skip + n] = '\0';
    }
}

/* Adds a word to the line, or begins a new line with it. *column is the line's width so far. */
static void add_word(Text *t, const char *word, int indent, int width, int *column)
{
    int n = (int)strlen(word);
    if (*column + n > width && *column > indent) {
        while (t->len && t->at[t->len - 1] == ' ')
            t->len--;
        text_add(t, "\n", 1);
        text_fill(t, ' ', indent);
        *column = indent;
    }
    text_add(t, word, (size_t)n);
    *column += n;
}

/* Writes the sub-array at `base` in brackets. `indent`: the column after its opening bracket. */
static void write_axis(const Style *s, Text *t, int axis, int64_t base, int indent, int width)
{
    int64_t n = s->node->dim[axis];
    bool cut = s->summary && n > 2 * EDGE;
    int left = s->node->rank - axis;
    int column = indent;
    text_add(t, "[", 1);
    for (int64_t i = 0; i < n; i++) {
        bool dots = cut && i == EDGE;
        if (dots)
            i = n - EDGE - 1;
        if (left == 1) {
            char word[WORD] = "...";
            if (!dots)
                write_word(s, element(s, base + i * s->stride[axis]), word);
            add_word(t, word, indent, width - 1, &column);
            if (i + 1 < n) {
                text_add(t, " ", 1);
                column++;
            }
            continue;
        }
        if (i > 0) {
            text_fill(t, '\n', left - 1);
            text_fill(t, ' ', indent);
        }
        if (dots)
            text_add(t, "...", 3);
        else
            write_axis(s, t, axis + 1, base + i * s->stride[axis], indent + 1, width - 1);
    }
    text_add(t, "]", 1);
}

/* A value of rank 0, as NumPy prints a scalar. */
static void write_scalar(Text *t, DType dtype, uint64_t bits)
{
    char word[WORD];
    double x = scalar_to_double(dtype, bits);
    if (dtype == DT_BOOL) {
        snprintf(word, sizeof word, "%s", bits ? "True" : "False");
    } else if (dtype == DT_U64) {
        snprintf(word, sizeof word, "%" PRIu64, bits);
    } else if (dtype_is_int(dtype)) {
        snprintf(word, sizeof word, "%" PRId64, scalar_to_int(dtype, bits));
    } else if (!isfinite(x)) {
        snprintf(word, sizeof word, "%s", x != x ? "nan" : x > 0 ? "inf" : "-inf");
    } else {
        Decimal d = shortest(dtype, bits);
        size_t at = 0;
        if (d.negative)
            word[at++] = '-';
        double largest = dtype == DT_F64 ? 1e16 : decimals(dtype);
        if (x != 0 && (fabs(x) >= largest || fabs(x) < 1e-4)) {
            word[at++] = d.digit[0];
            if (d.n > 1)
                word[at++] = '.';
            memcpy(word + at, d.digit + 1, (size_t)(d.n - 1));
            at += (size_t)(d.n - 1);
            snprintf(word + at, sizeof word - at, "e%c%02d", d.exponent < 0 ? '-' : '+', abs(d.exponent));
        } else {
            int after = d.n - 1 - d.exponent;
            for (int k = d.exponent < 0 ? d.exponent : 0; k < d.n || k <= d.exponent; k++) {
                if (k == d.exponent + 1)
                    word[at++] = '.';
                word[at++] = k >= 0 && k < d.n ? d.digit[k] : '0';
            }
            word[at] = '\0';
            if (after <= 0)
                snprintf(word + at, sizeof word - at, ".0");
        }
    }
    text_add(t, word, strlen(word));
}

/* ---- the public functions ---- */

/* The text of x. The caller frees text->at. */
static kiln_status format(kiln_tensor *x, const char *api, Loc loc, Text *text)
{
    kiln_status status;
    void *copy;
    const void *data;
    RtNode *node = sync_dense(x, api, loc, &data, &copy, &status);
    if (!node)
        return status;
    Style style = {.node = node, .data = data};
    if (node->rank == 0) {
        write_scalar(text, (DType)node->dtype, element(&style, 0));
    } else if (node_elements(node) == 0) {
        text_add(text, "[]", 2);
    } else {
        choose_style(&style);
        write_axis(&style, text, 0, 0, 1, LINE);
    }
    os_free(copy);
    node_release(node);
    if (text->failed)
        return error_sync(fail(ST_OUT_OF_MEMORY, "out of memory"), api, loc);
    return KILN_OK;
}

API4(kiln_status, kiln_format, kiln_tensor *, x, char *, buffer, size_t, size, size_t *, needed)
{
    static const char api[] = "kiln_format";
    Loc loc = {file, line};
    Text text = {0};
    if (x && !buffer && size)
        return error_sync(fail(ST_INVALID, "buffer is NULL"), api, loc);
    FpMode caller = fp_enter();
    kiln_status status = format(x, api, loc, &text);
    fp_leave(caller);
    if (status == KILN_OK && size)
        snprintf(buffer, size, "%s", text.at);
    if (needed)
        *needed = status == KILN_OK ? text.len : 0;
    os_free(text.at);
    return status;
}

API1(kiln_status, kiln_print, kiln_tensor *, x)
{
    static const char api[] = "kiln_print";
    Loc loc = {file, line};
    Text text = {0};
    FpMode caller = fp_enter();
    kiln_status status = format(x, api, loc, &text);
    fp_leave(caller);
    if (status == KILN_OK) {
        text_add(&text, "\n", 1);
        if (text.failed)
            status = error_sync(fail(ST_OUT_OF_MEMORY, "out of memory"), api, loc);
        else if (fwrite(text.at, 1, text.len, stdout) != text.len)
            status = error_sync(fail(ST_IO, "stdout cannot be written"), api, loc);
    }
    os_free(text.at);
    return status;
}
