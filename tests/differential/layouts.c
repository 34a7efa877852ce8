/* See layouts.h. One routine scatters the elements to a buffer described by strides; a layout is a choice of strides and of
 * the view that undoes what they are not meant to show. */
#include "tests/differential/layouts.h"

#include <stdlib.h>
#include <string.h>

const char *const layout_names[LAYOUTS_ALL] = {
    [LAYOUT_PLAIN] = "plain",          [LAYOUT_STRIDED] = "strided",       [LAYOUT_NEGATIVE] = "negative strides",
    [LAYOUT_COLUMNS] = "column-major", [LAYOUT_TRANSPOSED] = "transposed", [LAYOUT_SLICED] = "sliced",
    [LAYOUT_FLIPPED] = "flipped",      [LAYOUT_RESHAPED] = "reshaped",     [LAYOUT_COPIED] = "copied",
    [LAYOUT_EXPANDED] = "expanded",    [LAYOUT_STRIDE_0] = "stride 0",
};

bool axis_repeats(int rank, int axis) { return (rank - 1 - axis) % 2 == 0; }

/* Copies the first slice along each repeating axis to the others. */
void make_repeat(kiln_dtype dtype, kiln_shape shape, void *elements)
{
    size_t size = kiln_dtype_size(dtype);
    char *data = elements;
    int64_t n = shape_elements(shape);
    for (int64_t i = 0; i < n; i++) {
        int64_t rest = i, from = 0, stride = 1;
        for (int axis = shape.rank - 1; axis >= 0; axis--) {
            int64_t at = rest % shape.dim[axis];
            rest /= shape.dim[axis];
            from += axis_repeats(shape.rank, axis) ? 0 : at * stride;
            stride *= shape.dim[axis];
        }
        memmove(data + (size_t)i * size, data + (size_t)from * size, size);
    }
}

/* Where element (0, 0, ...) is in a buffer of `room` elements, and the strides. */
typedef struct Lie {
    int64_t stride[KILN_MAX_RANK], first, room;
} Lie;

/* Row-major, the innermost stride `inner`, `gap` elements between rows. */
static Lie lie_rows(kiln_shape s, int64_t inner, int64_t gap)
{
    Lie lie = {.room = 1};
    int64_t stride = inner;
    for (int i = s.rank - 1; i >= 0; i--) {
        lie.stride[i] = stride;
        lie.room += s.dim[i] > 0 ? (s.dim[i] - 1) * stride : 0;
        stride = stride * s.dim[i] + (s.dim[i] ? gap : 0);
    }
    return lie;
}

static Lie lie_columns(kiln_shape s)
{
    Lie lie = {.room = 1};
    int64_t stride = 1;
    for (int i = 0; i < s.rank; i++) {
        lie.stride[i] = stride;
        lie.room += s.dim[i] > 0 ? (s.dim[i] - 1) * stride : 0;
        stride *= s.dim[i];
    }
    return lie;
}

static Lie lie_negative(kiln_shape s)
{
    Lie lie = lie_rows(s, 1, 0);
    lie.first = lie.room - 1;
    for (int i = 0; i < s.rank; i++)
        lie.stride[i] = -lie.stride[i];
    return lie;
}

/* Elements 1, 3, 5... of each axis of an array with 2 dim + 1 there. */
static Lie lie_sliced(kiln_shape s)
{
    Lie lie = {.room = 1};
    for (int i = s.rank - 1; i >= 0; i--) {
        lie.first += lie.room;
        lie.stride[i] = 2 * lie.room;
        lie.room *= 2 * s.dim[i] + 1;
    }
    return lie;
}

static Lie lie_repeated(kiln_shape s)
{
    Lie lie = {.room = 1};
    for (int i = s.rank - 1; i >= 0; i--) {
        if (axis_repeats(s.rank, i))
            continue;
        lie.stride[i] = lie.room;
        lie.room *= s.dim[i];
    }
    return lie;
}

static void scatter(Lie lie, kiln_shape s, size_t size, const char *elements, char *data)
{
    int64_t n = shape_elements(s), index[KILN_MAX_RANK] = {0}, at = lie.first;
    for (int64_t i = 0; i < n; i++) {
        memcpy(data + (size_t)at * size, elements + (size_t)i * size, size);
        for (int axis = s.rank - 1; axis >= 0; axis--) {
            at += lie.stride[axis];
            if (++index[axis] < s.dim[axis])
                break;
            at -= lie.stride[axis] * s.dim[axis];
            index[axis] = 0;
        }
    }
}

/* Memory with the elements as `lie` says, the rest filled with a value that is legal in each dtype. */
static Placed lay(kiln_dtype dtype, kiln_shape shape, const void *elements, Lie lie)
{
    size_t size = kiln_dtype_size(dtype);
    int64_t room = shape_elements(shape) ? lie.room : 0;
    Placed p = {.memory = guarded_at_end((size_t)room * size, 0)};
    memset(p.memory.data, 1, p.memory.bytes);
    scatter(lie, shape, size, elements, p.memory.data);
    p.before = malloc(p.memory.bytes + 1);
    memcpy(p.before, p.memory.data, p.memory.bytes);
    return p;
}

/* The memory of the test is the host's; under KILN_DEVICE its contents go there. */
static kiln_tensor *moved(kiln_tensor *x)
{
    const char *device = getenv("KILN_DEVICE");
    return device ? kiln_to(x, device) : x;
}

static Placed wrap_strided(kiln_dtype dtype, kiln_shape shape, const void *elements, Lie lie)
{
    Placed p = lay(dtype, shape, elements, lie);
    char *first = (char *)p.memory.data + (p.memory.bytes ? (size_t)lie.first * kiln_dtype_size(dtype) : 0);
    p.tensor = moved(kiln_wrap_strided(dtype, shape, lie.stride, first, NULL, NULL));
    return p;
}

/* The elements in the order of `lie`, wrapped as a row-major array of `base`. */
static Placed wrap_base(kiln_dtype dtype, kiln_shape shape, const void *elements, Lie lie, kiln_shape base)
{
    Placed p = lay(dtype, shape, elements, lie);
    if (p.memory.bytes == 0) { /* no elements, but the base has some */
        guarded_free(&p.memory);
        free(p.before);
        p.memory = guarded_at_end((size_t)shape_elements(base) * kiln_dtype_size(dtype), 0);
        p.before = calloc(p.memory.bytes + 1, 1);
    }
    p.tensor = moved(kiln_wrap(dtype, base, p.memory.data, NULL, NULL));
    return p;
}

static Placed place_transposed(kiln_dtype dtype, kiln_shape shape, const void *elements)
{
    kiln_shape base = shape;
    kiln_axes order = {shape.rank, {0}};
    for (int i = 0; i < shape.rank; i++) {
        order.axis[i] = shape.rank - 1 - i;
        base.dim[i] = shape.dim[shape.rank - 1 - i];
    }
    Placed p = wrap_base(dtype, shape, elements, lie_columns(shape), base);
    p.tensor = kiln_permute(p.tensor, order);
    return p;
}

static Placed place_sliced(kiln_dtype dtype, kiln_shape shape, const void *elements)
{
    kiln_shape base = shape;
    kiln_range ranges[KILN_MAX_RANK];
    for (int i = 0; i < shape.rank; i++) {
        base.dim[i] = 2 * shape.dim[i] + 1;
        ranges[i] = (kiln_range){1, KILN_NONE, 2};
    }
    Placed p = wrap_base(dtype, shape, elements, lie_sliced(shape), base);
    p.tensor = kiln_slice(p.tensor, shape.rank, ranges);
    return p;
}

static Placed place_expanded(kiln_dtype dtype, kiln_shape shape, const void *elements)
{
    kiln_shape base = shape;
    for (int i = 0; i < shape.rank; i++)
        if (axis_repeats(shape.rank, i))
            base.dim[i] = 1;
    Placed p = wrap_base(dtype, shape, elements, lie_repeated(shape), base);
    p.tensor = kiln_expand(p.tensor, shape);
    return p;
}

Placed place(kiln_dtype dtype, kiln_shape shape, const void *elements, Layout layout)
{
    Placed p = {0};
    switch (layout) {
    case LAYOUT_PLAIN: p = wrap_base(dtype, shape, elements, lie_rows(shape, 1, 0), shape); break;
    case LAYOUT_STRIDED: p = wrap_strided(dtype, shape, elements, lie_rows(shape, 2, 3)); break;
    case LAYOUT_NEGATIVE: p = wrap_strided(dtype, shape, elements, lie_negative(shape)); break;
    case LAYOUT_COLUMNS: p = wrap_strided(dtype, shape, elements, lie_columns(shape)); break;
    case LAYOUT_TRANSPOSED: p = place_transposed(dtype, shape, elements); break;
    case LAYOUT_SLICED: p = place_sliced(dtype, shape, elements); break;
    case LAYOUT_FLIPPED:
        p = wrap_base(dtype, shape, elements, lie_negative(shape), shape);
        p.tensor = kiln_flip(p.tensor, KILN_ALL_AXES);
        break;
    case LAYOUT_RESHAPED:
        p = wrap_base(dtype, shape, elements, lie_rows(shape, 1, 0), KILN_SHAPE(shape_elements(shape)));
        p.tensor = kiln_reshape(p.tensor, shape);
        break;
    case LAYOUT_COPIED: p.tensor = kiln_from(dtype, shape, elements); break;
    case LAYOUT_EXPANDED: p = place_expanded(dtype, shape, elements); break;
    case LAYOUT_STRIDE_0: p = wrap_strided(dtype, shape, elements, lie_repeated(shape)); break;
    case LAYOUTS_ALL: break;
    }
    return p;
}

bool layout_matters(Layout layout)
{
    return !getenv("KILN_DEVICE") || layout == LAYOUT_PLAIN || layout == LAYOUT_TRANSPOSED || layout == LAYOUT_SLICED ||
           layout == LAYOUT_FLIPPED || layout == LAYOUT_RESHAPED || layout == LAYOUT_EXPANDED;
}

Placed place_at(kiln_dtype dtype, kiln_shape shape, const void *elements, size_t offset)
{
    size_t size = kiln_dtype_size(dtype), bytes = (size_t)shape_elements(shape) * size;
    Placed p = {.memory = guarded_at_start(bytes, offset * size), .before = malloc(bytes + 1)};
    memcpy(p.memory.data, elements, bytes);
    memcpy(p.before, elements, bytes);
    p.tensor = moved(kiln_wrap(dtype, shape, p.memory.data, NULL, NULL));
    return p;
}

bool placed_intact(const Placed *p)
{
    return !p->before || (memcmp(p->before, p->memory.data, p->memory.bytes) == 0 && guarded_intact(&p->memory));
}

void placed_free(Placed *p)
{
    if (p->before)
        guarded_free(&p->memory);
    free(p->before);
    *p = (Placed){0};
}
