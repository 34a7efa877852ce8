/*
 * Bytes as what another library hands over by DLPack: kiln_from_dlpack takes it or refuses it with a message. What was taken reads the
 * elements that its shape and strides name, as long as they lie in the buffer; the deleter runs once if it was taken, else never.
 */
#include "target.h"

#include "kiln.h"
#include "runtime/api/dlpack.h"

#include <stdbool.h>
#include <string.h>

enum { BUFFER = 4096, NUMBERS = 12 };

static unsigned char buffer[BUFFER];
static int deleted;

static void on_delete(struct DLManagedTensorVersioned *self)
{
    (void)self;
    deleted++;
}

/* The first bytes of what is left, of any length. */
static void take_bytes(const uint8_t **at, size_t *left, void *to, size_t n)
{
    size_t some = n < *left ? n : *left;
    if (some)
        memcpy(to, *at, some);
    *at += some;
    *left -= some;
}

/* Do all elements lie in the buffer? *n: how many there are. */
static bool inside(const DlTensor *t, int64_t *n)
{
    __int128 low = (__int128)t->byte_offset, high = low, row = 1, size = t->type.bits / 8;
    *n = 1;
    for (int d = 0; d < t->rank; d++)
        *n *= t->shape[d] > BUFFER ? BUFFER + 1 : t->shape[d], *n = *n > BUFFER ? BUFFER + 1 : *n;
    for (int d = 0; d < t->rank; d++)
        if (t->shape[d] == 0)
            *n = 0;
    for (int d = t->rank - 1; d >= 0 && *n; d--) {
        __int128 far = (t->shape[d] - 1) * (t->strides ? (__int128)t->strides[d] : row) * size;
        low += far < 0 ? far : 0;
        high += far > 0 ? far : 0;
        row *= t->shape[d];
        if (low < 0 || high > BUFFER)
            return false;
    }
    return *n <= BUFFER && low >= 0 && high + size <= BUFFER;
}

static void look(const DlTensor *t, kiln_tensor *x)
{
    int64_t n;
    const void *elements;
    if (!inside(t, &n) || n == 0)
        return;
    REQUIRE(kiln_data(x, &elements) == KILN_OK, "%s", kiln_error_message());
    size_t size = t->type.bits / 8;
    const unsigned char *at = elements;
    int64_t index[8] = {0};
    for (int64_t i = 0; i < n; i++, at += size) {
        int64_t offset = 0, row = 1;
        for (int d = t->rank - 1; d >= 0; d--) {
            offset += index[d] * (t->strides ? t->strides[d] : row);
            row *= t->shape[d];
        }
        const unsigned char *from = buffer + t->byte_offset + offset * (int64_t)size;
        bool same = t->type.kind == DLPACK_KIND_BOOL ? *at == (*from != 0) : memcmp(at, from, size) == 0;
        REQUIRE(same, "element %lld", (long long)i);
        for (int d = t->rank - 1; d >= 0 && ++index[d] == t->shape[d]; d--)
            index[d] = 0;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    static bool ready;
    if (!ready) {
        for (int i = 0; i < BUFFER; i++)
            buffer[i] = (unsigned char)(i * 7 % 5 ? i * 31 % 251 : 0);
        REQUIRE(kiln_set_option("mode", "interp") == KILN_OK, "%s", kiln_error_message());
        ready = true;
    }
    struct {
        uint8_t what, device, kind, bits;
        uint16_t lanes, offset;
        int8_t rank;
        uint8_t versions;
    } head = {0};
    int64_t numbers[2 * NUMBERS] = {0};
    int16_t small[2 * NUMBERS] = {0};
    take_bytes(&bytes, &n, &head, sizeof head);
    if (head.what & 1) { /* numbers of any size, or some that mostly fit */
        take_bytes(&bytes, &n, numbers, sizeof numbers);
    } else {
        take_bytes(&bytes, &n, small, sizeof small);
        for (int i = 0; i < 2 * NUMBERS; i++)
            numbers[i] = small[i] % (i < NUMBERS ? 8 : 64);
    }
    struct DLManagedTensorVersioned m = {.version = {head.versions & 15, head.versions >> 4},
                                         .deleter = on_delete,
                                         .flags = head.what >> 4,
                                         .tensor = {.data = head.what & 2 ? NULL : buffer,
                                                    .device = {head.device, 0},
                                                    .rank = head.rank,
                                                    .type = {head.kind, head.bits, head.lanes},
                                                    .shape = head.what & 4 ? NULL : numbers,
                                                    .strides = head.what & 8 ? NULL : numbers + NUMBERS,
                                                    .byte_offset = head.offset}};
    if (head.device == DLPACK_CUDA)
        m.tensor.device.type = DLPACK_CPU;
    deleted = 0;
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x = kiln_from_dlpack(&m, head.lanes);
    if (x) {
        REQUIRE(kiln_rank(x) == m.tensor.rank && deleted == 0, "another rank");
        look(&m.tensor, x);
    } else {
        REQUIRE(strncmp(kiln_error_message(), "kiln_from_dlpack: ", 18) == 0, "message: %s", kiln_error_message());
        kiln_clear_error();
    }
    kiln_scope_end(scope);
    REQUIRE(deleted == (x != NULL), "%d", deleted);
    return 0;
}
