/*
 * DLPack: the structs are laid out as the specification and Debian's header have them; what comes in and goes out shares memory, with its
 * strides, on the CPU and on a CUDA device; each deleter runs once, when nothing uses the memory any more.
 */
#include "on_cuda.h"
#include "runtime/api/dlpack.h"

#define DLManagedTensor TheirManagedTensor
#include <dlpack/dlpack.h>
#undef DLManagedTensor

#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <unistd.h>

/* ---- layout ---- */

#define SAME_PLACE(ours, field, theirs, their_field)                                      \
    cr_assert(offsetof(ours, field) == offsetof(theirs, their_field) &&                   \
                  sizeof(((ours *)NULL)->field) == sizeof(((theirs *)NULL)->their_field), \
              #ours "." #field)

Test(dlpack, the_layout_is_that_of_the_header)
{
    typedef struct DLManagedTensor Ours;
    typedef struct DLManagedTensorVersioned Versioned;
    cr_assert(sizeof(DlTensor) == sizeof(DLTensor) && sizeof(DlType) == sizeof(DLDataType) && sizeof(DlDevice) == sizeof(DLDevice));
    cr_assert(sizeof(Ours) == sizeof(TheirManagedTensor));
    SAME_PLACE(DlTensor, data, DLTensor, data);
    SAME_PLACE(DlTensor, device, DLTensor, device);
    SAME_PLACE(DlTensor, rank, DLTensor, ndim);
    SAME_PLACE(DlTensor, type, DLTensor, dtype);
    SAME_PLACE(DlTensor, shape, DLTensor, shape);
    SAME_PLACE(DlTensor, strides, DLTensor, strides);
    SAME_PLACE(DlTensor, byte_offset, DLTensor, byte_offset);
    SAME_PLACE(DlDevice, type, DLDevice, device_type);
    SAME_PLACE(DlDevice, id, DLDevice, device_id);
    SAME_PLACE(DlType, kind, DLDataType, code);
    SAME_PLACE(DlType, bits, DLDataType, bits);
    SAME_PLACE(DlType, lanes, DLDataType, lanes);
    SAME_PLACE(Ours, tensor, TheirManagedTensor, dl_tensor);
    SAME_PLACE(Ours, context, TheirManagedTensor, manager_ctx);
    SAME_PLACE(Ours, deleter, TheirManagedTensor, deleter);
    /* newer than Debian's header: the specification's figures for 64-bit machines */
    cr_assert(offsetof(Versioned, version) == 0 && offsetof(Versioned, context) == 8 && offsetof(Versioned, deleter) == 16);
    cr_assert(offsetof(Versioned, flags) == 24 && offsetof(Versioned, tensor) == 32 && sizeof(Versioned) == 80);
    static const int numbers[][2] = {{DLPACK_CPU, kDLCPU},
                                     {DLPACK_CUDA, kDLCUDA},
                                     {DLPACK_CUDA_HOST, kDLCUDAHost},
                                     {DLPACK_ROCM, kDLROCM},
                                     {DLPACK_METAL, kDLMetal},
                                     {DLPACK_CUDA_MANAGED, kDLCUDAManaged},
                                     {DLPACK_KIND_INT, kDLInt},
                                     {DLPACK_KIND_UINT, kDLUInt},
                                     {DLPACK_KIND_FLOAT, kDLFloat},
                                     {DLPACK_KIND_BFLOAT, kDLBfloat},
                                     {DLPACK_KIND_COMPLEX, kDLComplex}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        cr_assert(numbers[i][0] == numbers[i][1], "row %d", (int)i);
}

/* ---- in ---- */

/* A producer's array, in either struct. */
typedef struct Array {
    struct DLManagedTensorVersioned versioned;
    struct DLManagedTensor unversioned;
    int64_t shape[9], strides[9];
    int deleted;
} Array;

static void deleted_versioned(struct DLManagedTensorVersioned *self) { ((Array *)self->context)->deleted++; }
static void deleted_unversioned(struct DLManagedTensor *self) { ((Array *)self->context)->deleted++; }

/* Of a shape and strides (rank -1: row-major) in `data`. */
static void fill(Array *a, void *data, int kind, int bits, kiln_shape shape, kiln_shape strides)
{
    DlTensor t = {.data = data,
                  .device = {DLPACK_CPU, 0},
                  .rank = shape.rank,
                  .type = {(uint8_t)kind, (uint8_t)bits, 1},
                  .shape = a->shape,
                  .strides = strides.rank < 0 ? NULL : a->strides};
    *a = (Array){.versioned = {.version = {1, 3}, .context = a, .deleter = deleted_versioned, .tensor = t},
                 .unversioned = {.context = a, .deleter = deleted_unversioned, .tensor = t}};
    memcpy(a->shape, shape.dim, sizeof shape.dim);
    memcpy(a->strides, strides.dim, sizeof strides.dim);
}

static const kiln_shape ROWS = {-1, {0}};

static kiln_tensor *take(Array *a, bool versioned)
{
    return versioned ? kiln_from_dlpack(&a->versioned, 0) : kiln_from_dlpack_unversioned(&a->unversioned, 0);
}

Test(dlpack, arrays_come_in_where_they_are)
{
    for (int versioned = 0; versioned < 2; versioned++) {
        float data[6] = {1, 2, 3, 4, 5, 6};
        Array a;
        const void *at;
        fill(&a, data, DLPACK_KIND_FLOAT, 32, KILN_SHAPE(2, 3), ROWS);
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *x = take(&a, versioned);
        EXPECT(x, KILN_F32, KILN_SHAPE(2, 3), 0, 1, 2, 3, 4, 5, 6);
        cr_assert(kiln_data(x, &at) == KILN_OK && at == data);
        kiln_tensor *later = kiln_add(x, x); /* recorded, so it still needs the memory */
        kiln_retain(later);
        cr_assert(a.deleted == 0);
        kiln_scope_end(scope);
        cr_assert(a.deleted == 0);
        EXPECT(later, KILN_F32, KILN_SHAPE(2, 3), 0, 2, 4, 6, 8, 10, 12);
        kiln_release(later);
        cr_assert(a.deleted == 1, "%d", a.deleted);
    }
}

Test(dlpack, every_type_comes_in)
{
    static const struct {
        int kind, bits;
        kiln_dtype dtype;
        unsigned char three[8]; /* the number 3; of bool true */
    } rows[] = {
        {DLPACK_KIND_BOOL, 8, KILN_BOOL, {3}},
        {DLPACK_KIND_INT, 8, KILN_I8, {3}},
        {DLPACK_KIND_INT, 16, KILN_I16, {3}},
        {DLPACK_KIND_INT, 32, KILN_I32, {3}},
        {DLPACK_KIND_INT, 64, KILN_I64, {3}},
        {DLPACK_KIND_UINT, 8, KILN_U8, {3}},
        {DLPACK_KIND_UINT, 16, KILN_U16, {3}},
        {DLPACK_KIND_UINT, 32, KILN_U32, {3}},
        {DLPACK_KIND_UINT, 64, KILN_U64, {3}},
        {DLPACK_KIND_FLOAT, 16, KILN_F16, {0, 0x42}},
        {DLPACK_KIND_BFLOAT, 16, KILN_BF16, {0x40, 0x40}},
        {DLPACK_KIND_FLOAT, 32, KILN_F32, {0, 0, 0x40, 0x40}},
        {DLPACK_KIND_FLOAT, 64, KILN_F64, {0, 0, 0, 0, 0, 0, 8, 0x40}},
    };
    for (int eager = 0; eager < 2; eager++)
        for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
            _Alignas(8) unsigned char data[16] = {0};
            Array a;
            struct DLManagedTensorVersioned *out;
            set_option("mode", eager ? "eager" : "jit");
            memcpy(data + rows[k].bits / 8, rows[k].three, 8);
            fill(&a, data, rows[k].kind, rows[k].bits, KILN_SHAPE(2), ROWS);
            kiln_scope *scope = kiln_scope_begin();
            kiln_tensor *x = kiln_from_dlpack(&a.versioned, -1);
            EXPECT(x, rows[k].dtype, KILN_SHAPE(2), 0, 0, rows[k].dtype == KILN_BOOL ? 1 : 3);
            cr_assert(kiln_to_dlpack(x, 0, &out) == KILN_OK, "%s", kiln_error_message());
            cr_assert(out->tensor.type.kind == rows[k].kind && out->tensor.type.bits == rows[k].bits && out->tensor.type.lanes == 1);
            out->deleter(out);
            kiln_scope_end(scope);
            cr_assert(a.deleted == 1, "row %d: %d", (int)k, a.deleted);
        }
}

Test(dlpack, strides_and_empty_arrays_come_in)
{
    float data[6] = {1, 2, 3, 4, 5, 6};
    Array a;
    fill(&a, data, DLPACK_KIND_FLOAT, 32, KILN_SHAPE(3, 2), KILN_SHAPE(1, 3));
    EXPECT(kiln_from_dlpack(&a.versioned, 0), KILN_F32, KILN_SHAPE(3, 2), 0, 1, 4, 2, 5, 3, 6);
    fill(&a, data + 5, DLPACK_KIND_FLOAT, 32, KILN_SHAPE(2, 3), KILN_SHAPE(-3, -1));
    EXPECT(kiln_from_dlpack(&a.versioned, 0), KILN_F32, KILN_SHAPE(2, 3), 0, 6, 5, 4, 3, 2, 1);
    fill(&a, data, DLPACK_KIND_FLOAT, 32, KILN_SHAPE(2, 2), KILN_SHAPE(0, 2));
    EXPECT(kiln_from_dlpack(&a.versioned, 0), KILN_F32, KILN_SHAPE(2, 2), 0, 1, 3, 1, 3);
    fill(&a, data, DLPACK_KIND_FLOAT, 32, KILN_SHAPE(), ROWS);
    a.versioned.tensor.byte_offset = 8;
    a.versioned.tensor.shape = NULL;
    EXPECT(kiln_from_dlpack(&a.versioned, 0), KILN_F32, KILN_SHAPE(), 0, 3);
    fill(&a, NULL, DLPACK_KIND_FLOAT, 32, KILN_SHAPE(3, 0), ROWS);
    EXPECT_EMPTY(kiln_from_dlpack(&a.versioned, 0), KILN_F32, KILN_SHAPE(3, 0));
    unsigned char truth[6] = {0, 9, 1, 9, 255, 9};
    fill(&a, truth, DLPACK_KIND_BOOL, 8, KILN_SHAPE(3), KILN_SHAPE(2));
    kiln_tensor *x = kiln_from_dlpack(&a.versioned, 0);
    EXPECT(x, KILN_BOOL, KILN_SHAPE(3), 0, 0, 1, 1);
    EXPECT(kiln_sum(x), KILN_I64, KILN_SHAPE(), 0, 2);
}

Test(dlpack, what_is_refused_stays_the_callers)
{
    static float data[16];
    Array a;
#define REFUSED(status, text, ...)                                                                            \
    do {                                                                                                      \
        fill(&a, data, DLPACK_KIND_FLOAT, 32, KILN_SHAPE(2, 3), KILN_SHAPE(3, 1));                            \
        DlTensor *t = &a.versioned.tensor;                                                                    \
        (void)t;                                                                                              \
        __VA_ARGS__;                                                                                          \
        EXPECT_ERROR(kiln_from_dlpack(&a.versioned, 0), status, text, "kiln_from_dlpack: ", "test_dlpack.c"); \
        cr_assert(a.deleted == 0);                                                                            \
    } while (0)
    REFUSED(KILN_UNSUPPORTED, "DLPack 2.0", a.versioned.version.major = 2; a.versioned.version.minor = 0);
    REFUSED(KILN_UNSUPPORTED, "DLPack 0.9", a.versioned.version.major = 0; a.versioned.version.minor = 9);
    REFUSED(KILN_DEVICE, "type 10, ROCm", t->device.type = 10);
    REFUSED(KILN_DEVICE, "type 8, Metal", t->device.type = 8);
    REFUSED(KILN_DEVICE, "type 13, managed memory of CUDA", t->device.type = 13);
    REFUSED(KILN_DEVICE, "type 5, unknown", t->device.type = 5);
    REFUSED(KILN_DEVICE, "type -3, unknown", t->device.type = -3);
    REFUSED(KILN_DEVICE, "CUDA device -1", t->device.type = 2; t->device.id = -1);
    REFUSED(KILN_UNSUPPORTED, "complex (code 5) of 64 bits", t->type.kind = 5; t->type.bits = 64);
    REFUSED(KILN_UNSUPPORTED, "float8_e4m3fn (code 10) of 8 bits", t->type.kind = 10; t->type.bits = 8);
    REFUSED(KILN_UNSUPPORTED, "4 lanes", t->type.lanes = 4);
    REFUSED(KILN_UNSUPPORTED, "float (code 2) of 128 bits", t->type.bits = 128);
    REFUSED(KILN_UNSUPPORTED, "int (code 0) of 4 bits", t->type.kind = 0; t->type.bits = 4);
    REFUSED(KILN_UNSUPPORTED, "unknown (code 200)", t->type.kind = 200);
    REFUSED(KILN_BAD_SHAPE, "-2", t->rank = -2);
    REFUSED(KILN_BAD_SHAPE, "9", t->rank = 9);
    REFUSED(KILN_BAD_SHAPE, "-5", a.shape[1] = -5);
    REFUSED(KILN_INVALID, "shape is NULL", t->shape = NULL);
    REFUSED(KILN_INVALID, "data is NULL", t->data = NULL);
    REFUSED(KILN_INVALID, "aligned to 4 bytes", t->byte_offset = 2);
    REFUSED(KILN_OVERFLOW, "4294967296", a.shape[0] = a.shape[1] = INT64_C(1) << 32);
    REFUSED(KILN_OVERFLOW, "2^62 bytes", a.shape[0] = INT64_C(1) << 61; a.shape[1] = 1);
    REFUSED(KILN_OVERFLOW, "strides reach", a.strides[0] = INT64_MAX);
    EXPECT_ERROR(kiln_from_dlpack_unversioned(NULL, 0), KILN_INVALID, "tensor is NULL");
    fill(&a, data, DLPACK_KIND_FLOAT, 32, KILN_SHAPE(2), ROWS);
    a.versioned.deleter = NULL; /* the array is its owner's for ever */
    kiln_scope *scope = kiln_scope_begin();
    cr_assert(kiln_from_dlpack(&a.versioned, 0));
    kiln_scope_end(scope);
}

/* What lies in memory of others is read, whatever is computed from it. */
Test(dlpack, nothing_is_overwritten)
{
    float data[1024];
    Array a;
    for (int i = 0; i < 1024; i++)
        data[i] = 1;
    for (int round = 0; round < 3; round++) {
        fill(&a, data, DLPACK_KIND_FLOAT, 32, KILN_SHAPE(1024), ROWS);
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *x = kiln_from_dlpack(&a.versioned, 0);
        cr_assert(kiln_assign(x, kiln_add(x, kiln_scalar(1))) == KILN_OK && kiln_eval(x) == KILN_OK);
        kiln_scope_end(scope);
        cr_assert(a.deleted == 1 && data[0] == 1 && data[1023] == 1);
    }
    /* and what went out stays what it was */
    struct DLManagedTensorVersioned *out[4];
    kiln_tensor *p = kiln_zeros(KILN_F32, KILN_SHAPE(1024));
    for (int i = 0; i < 4; i++) {
        kiln_scope *scope = kiln_scope_begin();
        cr_assert(kiln_assign(p, kiln_add(p, kiln_scalar(1))) == KILN_OK && kiln_to_dlpack(p, 0, &out[i]) == KILN_OK);
        kiln_scope_end(scope);
    }
    for (int i = 0; i < 4; i++) {
        cr_assert(((float *)out[i]->tensor.data)[7] == (float)(i + 1));
        out[i]->deleter(out[i]);
    }
}

/* ---- out ---- */

Test(dlpack, tensors_go_out_where_they_are)
{
    struct DLManagedTensorVersioned *out;
    struct DLManagedTensor *old;
    const void *at;
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x = kiln_add(F32(KILN_SHAPE(2, 3), 1, 2, 3, 4, 5, 6), kiln_scalar(1));
    cr_assert(kiln_to_dlpack(x, 0, &out) == KILN_OK && kiln_to_dlpack_unversioned(x, 0, &old) == KILN_OK, "%s", kiln_error_message());
    cr_assert(kiln_data(x, &at) == KILN_OK && out->tensor.data == at && old->tensor.data == at);
    kiln_scope_end(scope); /* they outlive it */
    const DlTensor *both[] = {&out->tensor, &old->tensor};
    for (int i = 0; i < 2; i++) {
        const DlTensor *t = both[i];
        cr_assert(t->device.type == DLPACK_CPU && t->device.id == 0 && t->rank == 2 && t->byte_offset == 0);
        cr_assert(t->shape[0] == 2 && t->shape[1] == 3 && t->strides[0] == 3 && t->strides[1] == 1);
        for (int k = 0; k < 6; k++)
            cr_assert(((const float *)t->data)[k] == (float)(k + 2));
    }
    cr_assert(out->version.major == 1 && out->flags == DLPACK_READ_ONLY);
    out->deleter(out);
    cr_assert(((const float *)old->tensor.data)[5] == 7);
    old->deleter(old);

    float data[6] = {1, 2, 3, 4, 5, 6};
    kiln_tensor *strided = kiln_wrap_strided(KILN_F32, KILN_SHAPE(3, 2), (int64_t[]){1, 3}, data, NULL, NULL);
    cr_assert(kiln_to_dlpack(strided, 0, &out) == KILN_OK);
    cr_assert(out->tensor.data == data && out->tensor.strides[0] == 1 && out->tensor.strides[1] == 3);
    out->deleter(out);
    cr_assert(kiln_to_dlpack(kiln_zeros(KILN_F64, KILN_SHAPE(3, 0)), 0, &out) == KILN_OK);
    cr_assert(out->tensor.data == NULL && out->tensor.shape[0] == 3 && out->tensor.shape[1] == 0);
    out->deleter(out);
    cr_assert(kiln_to_dlpack(kiln_scalar(2.5), 0, &out) == KILN_OK);
    cr_assert(out->tensor.rank == 0 && out->tensor.type.bits == 64 && *(double *)out->tensor.data == 2.5);
    out->deleter(out);

    out = (void *)data;
    expect_status(kiln_to_dlpack(NULL, 0, &out), KILN_INVALID, "kiln_to_dlpack: x is NULL");
    cr_assert(out == NULL);
    expect_status(kiln_to_dlpack(x = kiln_zeros(KILN_F32, KILN_SHAPE(1)), 0, NULL), KILN_INVALID, "tensor is NULL");
    expect_status(kiln_to_dlpack_unversioned(x, 0, NULL), KILN_INVALID, "tensor is NULL");
}

Test(dlpack, there_and_back)
{
    struct DLManagedTensorVersioned *out;
    struct DLManagedTensor *old;
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x = F32(KILN_SHAPE(3), 1, 2, 3);
    cr_assert(kiln_to_dlpack(x, 0, &out) == KILN_OK && kiln_to_dlpack_unversioned(x, 0, &old) == KILN_OK);
    kiln_tensor *y = kiln_retain(kiln_from_dlpack(out, 0)), *z = kiln_from_dlpack_unversioned(old, 0);
    EXPECT(kiln_add(y, z), KILN_F32, KILN_SHAPE(3), 0, 2, 4, 6);
    kiln_scope_end(scope);
    EXPECT(y, KILN_F32, KILN_SHAPE(3), 0, 1, 2, 3);
    kiln_release(y);
}

/* The older struct cannot say that memory is for reading only: where it is so by force, it is copied. */
Test(dlpack, what_nobody_may_write_is_copied_for_the_older_struct)
{
    char path[512];
    struct DLManagedTensorVersioned *out;
    struct DLManagedTensor *old;
    const void *at;
    const char *tmp = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/kiln_dlpack_%ld", tmp ? tmp : "/tmp", (long)getpid());
    cr_assert(kiln_save_safetensors(path, 1, &(kiln_named){"x", F32(KILN_SHAPE(2), 1, 2)}, 0, NULL) == KILN_OK);
    kiln_file *f = kiln_load_safetensors(path);
    kiln_tensor *x = kiln_file_tensor(f, "x");
    cr_assert(remove(path) == 0 && kiln_data(x, &at) == KILN_OK);
    cr_assert(kiln_to_dlpack(x, 0, &out) == KILN_OK && out->tensor.data == at);
    cr_assert(kiln_to_dlpack_unversioned(x, 0, &old) == KILN_OK && old->tensor.data != at);
    ((float *)old->tensor.data)[0] = 7; /* a crash otherwise */
    cr_assert(((float *)old->tensor.data)[1] == 2);
    out->deleter(out);
    old->deleter(old);
    kiln_file_free(f);
    EXPECT(x, KILN_F32, KILN_SHAPE(2), 0, 1, 2);
}

/* ---- threads ---- */

static void *release(void *x)
{
    double sum = 0;
    cr_assert(kiln_item(kiln_sum(x), &sum) == KILN_OK && sum == 6);
    kiln_release(x);
    return NULL;
}

static void *give_back(void *tensor)
{
    struct DLManagedTensorVersioned *out = tensor;
    out->deleter(out);
    return NULL;
}

Test(dlpack, deleters_run_once_in_any_thread)
{
    enum { N = 8 };
    static float data[3] = {1, 2, 3};
    static Array arrays[N];
    pthread_t thread[2 * N];
    for (int i = 0; i < N; i++) {
        struct DLManagedTensorVersioned *out;
        fill(&arrays[i], data, DLPACK_KIND_FLOAT, 32, KILN_SHAPE(3), ROWS);
        kiln_scope *scope = kiln_scope_begin();
        kiln_tensor *x = kiln_retain(kiln_from_dlpack(&arrays[i].versioned, 0));
        cr_assert(kiln_to_dlpack(kiln_neg(x), 0, &out) == KILN_OK);
        kiln_scope_end(scope);
        cr_assert(pthread_create(&thread[2 * i], NULL, release, x) == 0);
        cr_assert(pthread_create(&thread[2 * i + 1], NULL, give_back, out) == 0);
    }
    for (int i = 0; i < 2 * N; i++)
        pthread_join(thread[i], NULL);
    for (int i = 0; i < N; i++)
        cr_assert(arrays[i].deleted == 1, "%d", arrays[i].deleted);
}

/* ---- on a CUDA device ---- */

/* The other library, which calls the driver itself. */
static void put_on(void *stream, uint64_t to, const void *from, size_t bytes)
{
    int (*copy)(uint64_t, const void *, size_t, void *) =
        (int (*)(uint64_t, const void *, size_t, void *))driver_symbol("cuMemcpyHtoDAsync_v2");
    cr_assert(copy(to, from, bytes, stream) == 0);
}

static void get_from(void *stream, void *to, uint64_t from, size_t bytes)
{
    int (*copy)(void *, uint64_t, size_t, void *) = (int (*)(void *, uint64_t, size_t, void *))driver_symbol("cuMemcpyDtoHAsync_v2");
    int (*wait)(void *) = (int (*)(void *))driver_symbol("cuStreamSynchronize");
    cr_assert(copy(to, from, bytes, stream) == 0 && wait(stream) == 0);
}

static uint64_t allocated(size_t bytes)
{
    int (*allocate)(uint64_t *, size_t) = (int (*)(uint64_t *, size_t))driver_symbol("cuMemAlloc_v2");
    uint64_t p = 0;
    cr_assert(allocate(&p, bytes) == 0);
    return p;
}

static void *new_stream(void)
{
    int (*create)(void **, unsigned) = (int (*)(void **, unsigned))driver_symbol("cuStreamCreate");
    void *stream = NULL;
    cr_assert(create(&stream, 1) == 0);
    return stream;
}

/* The memory goes with its array: what is queued and still reads it would be a violation. */
static void freed(struct DLManagedTensorVersioned *self)
{
    int (*let_go)(uint64_t) = (int (*)(uint64_t))driver_symbol("cuMemFree_v2");
    Array *a = self->context;
    a->deleted++;
    cr_assert(let_go((uint64_t)(uintptr_t)self->tensor.data) == 0);
}

/* The memory is used again at once, as by an allocator that keeps it: what is queued and still reads it would be wrong. */
static void reused(struct DLManagedTensorVersioned *self)
{
    static float garbage[5000];
    float back;
    void *stream = new_stream();
    Array *a = self->context;
    a->deleted++;
    put_on(stream, (uint64_t)(uintptr_t)self->tensor.data, garbage, sizeof *garbage * (size_t)a->shape[0]);
    get_from(stream, &back, (uint64_t)(uintptr_t)self->tensor.data, sizeof back);
}

static void fill_cuda(Array *a, uint64_t data, kiln_shape shape, kiln_shape strides)
{
    fill(a, (void *)(uintptr_t)data, DLPACK_KIND_FLOAT, 32, shape, strides);
    a->versioned.tensor.device = (DlDevice){DLPACK_CUDA, 0};
    a->versioned.deleter = freed;
}

static bool start(void)
{
    if (!software_driver())
        return false;
    start_exact("streams=late");
    cr_assert(kiln_eval(kiln_ones(KILN_F32, KILN_SHAPE(2))) == KILN_OK, "%s", kiln_error_message()); /* the context is current */
    return true;
}

static void no_violations(void) { cr_assert(counted().violations == 0, "%s", DRIVER(test_cuda_report)()); }

Test(dlpack, on_a_device_streams_wait_for_each_other)
{
    if (!start())
        return;
    enum { N = 5000 };
    static float host[N], back[N];
    for (int i = 0; i < N; i++)
        host[i] = (float)i;
    void *stream = new_stream();
    Array a;
    fill_cuda(&a, allocated(sizeof host), KILN_SHAPE(N), ROWS);
    put_on(stream, (uint64_t)(uintptr_t)a.versioned.tensor.data, host, sizeof host); /* queued, not done: streams=late */
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x = kiln_from_dlpack(&a.versioned, (int64_t)(uintptr_t)stream), *y = kiln_mul(x, kiln_scalar(2));
    struct DLManagedTensorVersioned *out;
    expect_device(x, "cuda:0");
    cr_assert(kiln_to_dlpack(y, (int64_t)(uintptr_t)stream, &out) == KILN_OK, "%s", kiln_error_message());
    cr_assert(out->tensor.device.type == DLPACK_CUDA && out->tensor.device.id == 0);
    cr_assert(a.deleted == 0);
    get_from(stream, back, (uint64_t)(uintptr_t)out->tensor.data, sizeof back);
    for (int i = 0; i < N; i++)
        cr_assert(back[i] == 2 * (float)i, "%d: %g", i, (double)back[i]);
    out->deleter(out);
    kiln_tensor *z = kiln_retain(kiln_mul(x, kiln_scalar(3)));
    a.versioned.deleter = reused;
    cr_assert(kiln_eval(z) == KILN_OK);
    kiln_scope_end(scope); /* the kernel may not have run: its input must not go before */
    cr_assert(a.deleted == 1);
    cr_assert(kiln_read(z, KILN_F32, back, sizeof back) == KILN_OK);
    kiln_release(z);
    for (int i = 0; i < N; i++)
        cr_assert(back[i] == 3 * (float)i, "%d: %g", i, (double)back[i]);
    freed(&a.versioned);
    no_violations();
}

Test(dlpack, on_a_device_strides_bools_and_what_is_not_overwritten)
{
    static const char *const modes[] = {"jit", "eager", "interp"};
    if (!start())
        return;
    for (int mode = 0; mode < 3; mode++) {
        set_option("mode", modes[mode]);
        static const float six[6] = {1, 2, 3, 4, 5, 6};
        void *stream = new_stream();
        static const unsigned char odd[4] = {0, 7, 1, 255};
        Array a, b;
        kiln_scope *scope = kiln_scope_begin();
        uint64_t p = allocated(sizeof six), q = allocated(sizeof odd);
        put_on(stream, p, six, sizeof six);
        fill_cuda(&a, p, KILN_SHAPE(3, 2), KILN_SHAPE(1, 3));
        a.versioned.deleter = deleted_versioned; /* to be looked at afterwards */
        kiln_tensor *x = kiln_from_dlpack(&a.versioned, (int64_t)(uintptr_t)stream);
        cr_assert(x, "%s", kiln_error_message());
        EXPECT(x, KILN_F32, KILN_SHAPE(3, 2), 0, 1, 4, 2, 5, 3, 6);
        EXPECT(kiln_add(x, kiln_scalar(1)), KILN_F32, KILN_SHAPE(3, 2), 0, 2, 5, 3, 6, 4, 7);
        EXPECT(kiln_transpose(x), KILN_F32, KILN_SHAPE(2, 3), 0, 1, 2, 3, 4, 5, 6);
        EXPECT(kiln_to(x, "cpu"), KILN_F32, KILN_SHAPE(3, 2), 0, 1, 4, 2, 5, 3, 6);
        Array c; /* backwards, and with gaps */
        uint64_t eight = allocated(8 * sizeof(float));
        put_on(stream, eight, (float[]){0, 1, 2, 3, 4, 5, 6, 7}, 8 * sizeof(float));
        fill_cuda(&c, eight, KILN_SHAPE(2, 2), KILN_SHAPE(-4, 2));
        c.versioned.tensor.byte_offset = 5 * sizeof(float);
        kiln_tensor *back = kiln_from_dlpack(&c.versioned, (int64_t)(uintptr_t)stream);
        EXPECT(back, KILN_F32, KILN_SHAPE(2, 2), 0, 5, 7, 1, 3);
        EXPECT(kiln_neg(back), KILN_F32, KILN_SHAPE(2, 2), 0, -5, -7, -1, -3);
        put_on(stream, q, odd, sizeof odd);
        fill_cuda(&b, q, KILN_SHAPE(4), ROWS);
        b.versioned.tensor.type = (DlType){DLPACK_KIND_BOOL, 8, 1};
        EXPECT(kiln_from_dlpack(&b.versioned, (int64_t)(uintptr_t)stream), KILN_BOOL, KILN_SHAPE(4), 0, 0, 1, 1, 1);
        for (int i = 0; i < 3; i++) {
            cr_assert(kiln_assign(x, kiln_add(x, kiln_scalar(1))) == KILN_OK && kiln_eval(x) == KILN_OK);
            float now[6];
            get_from(stream, now, p, sizeof now);
            cr_assert(memcmp(now, six, sizeof six) == 0, "the producer's memory was written");
            EXPECT(x, KILN_F32, KILN_SHAPE(3, 2), 0, 2 + i, 5 + i, 3 + i, 6 + i, 4 + i, 7 + i);
            if (i < 2)
                continue;
            struct DLManagedTensorVersioned *out;
            cr_assert(kiln_to_dlpack(x, 2, &out) == KILN_OK);
            EXPECT(kiln_reshape(x, KILN_SHAPE(6)), KILN_F32, KILN_SHAPE(6), 0, 4, 7, 5, 8, 6, 9); /* an input that is the result */
            out->deleter(out);
        }
        kiln_scope_end(scope);
        cr_assert(a.deleted == 1 && b.deleted == 1 && c.deleted == 1, "%s: %d, %d, %d", modes[mode], a.deleted, b.deleted, c.deleted);
        freed(&a.versioned);
    }
    no_violations();
}

Test(dlpack, on_a_device_that_is_not_there)
{
    if (!start())
        return;
    Array a;
    fill_cuda(&a, 4096, KILN_SHAPE(2), ROWS);
    a.versioned.tensor.device.id = 7;
    EXPECT_ERROR(kiln_from_dlpack(&a.versioned, 0), KILN_INVALID, "cuda:7 does not exist");
    cr_assert(a.deleted == 0);
}
