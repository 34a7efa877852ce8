/* Kernels' objects: put together, taken apart. */
#include "jit/kernel_object.h"
#include "ir/base/os.h"

#include <string.h>

typedef struct Head {
    char magic[8];
    uint32_t plan_bytes, cuda; /* cuda: 1 or 0 */
    uint64_t code_bytes;       /* of the ELF object, or of the PTX with its end */
    uint64_t cubin_bytes;
} Head;

static const char magic[8] = {'k', 'i', 'l', 'n', 'c', 'o', 'd', 'e'};

enum { PART_ALIGN = 16 }; /* machine code is read as words */

static size_t whole(size_t bytes) { return (bytes + PART_ALIGN - 1) / PART_ALIGN * PART_ALIGN; }

Status kernel_object_make(const KernelObject *from, void **object, size_t *bytes)
{
    const void *code = from->elf ? from->elf : from->ptx;
    Head head = {.plan_bytes = (uint32_t)from->plan.bytes,
                 .cuda = !from->elf,
                 .code_bytes = from->elf ? from->elf_bytes : strlen(from->ptx) + 1,
                 .cubin_bytes = from->cubin_bytes};
    size_t plan = whole(head.plan_bytes), room = whole(head.code_bytes), all = sizeof head + plan + room + from->cubin_bytes;
    char *at = *object = os_calloc(1, all);
    *bytes = 0;
    if (!at)
        return fail(ST_OUT_OF_MEMORY, "no memory for %zu bytes of code", all);
    *bytes = all;
    memcpy(head.magic, magic, sizeof magic);
    memcpy(at, &head, sizeof head);
    memcpy(at + sizeof head, from->plan.packed, head.plan_bytes);
    memcpy(at + sizeof head + plan, code, head.code_bytes);
    if (from->cubin_bytes)
        memcpy(at + sizeof head + plan + room, from->cubin, from->cubin_bytes);
    return ST_OK;
}

static Status bad(void) { return fail(ST_FORMAT, "not a well-formed kernel object"); }

Status kernel_object_open(const void *object, size_t bytes, KernelObject *out)
{
    Head head;
    *out = (KernelObject){0};
    if (bytes < sizeof head)
        return bad();
    memcpy(&head, object, sizeof head);
    const char *at = (const char *)object + sizeof head;
    size_t left = bytes - sizeof head, plan = whole(head.plan_bytes);
    if (memcmp(head.magic, magic, sizeof magic) || head.cuda > 1 || plan > left || head.code_bytes > left || head.code_bytes == 0 ||
        whole(head.code_bytes) > left - plan || head.cubin_bytes != left - plan - whole(head.code_bytes))
        return bad();
    TRY(launch_plan_open(at, head.plan_bytes, &out->plan));
    const char *code = at + plan;
    if (!head.cuda == (out->plan.phase[0].threads > 0) || (head.cuda ? code[head.code_bytes - 1] != 0 : head.cubin_bytes > 0))
        return bad();
    if (head.cuda) {
        out->ptx = code;
        out->cubin = head.cubin_bytes ? code + whole(head.code_bytes) : NULL;
        out->cubin_bytes = head.cubin_bytes;
    } else {
        out->elf = code;
        out->elf_bytes = head.code_bytes;
    }
    return ST_OK;
}
