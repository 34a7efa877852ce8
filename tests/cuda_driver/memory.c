// Allocations: device memory, page-locked host memory, variables of modules.
//
// Device addresses are not host addresses: they grow from a fixed base and are never used twice, with a gap behind each
// allocation. So a pointer into the void, into freed memory, or a host pointer given to a kernel is always caught. Live
// allocations are kept in an array sorted by address; the last freed ones are remembered for the texts.
#include "tests/cuda_driver/driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FREED_KEPT = 64, ALIGNMENT = 512 };
#define DEVICE_BASE UINT64_C(0x0000700000000000) // above what the host maps
#define HUGE_SIZE (UINT64_C(16) << 20)           // not filled with rubbish: its pages stay untouched until used

static struct Memory {
    Allocation **live;
    size_t count, room;
    uint64_t next_address, next_number;
    size_t in_use[MAX_DEVICES];
    struct Freed {
        uint64_t address, number;
        size_t size;
    } freed[FREED_KEPT];
    size_t freed_at;
    Allocation *last;
} memory;

size_t memory_in_use(int device) { return memory.in_use[device]; }

// Index of the first allocation that starts above `address`.
static size_t above(uint64_t address)
{
    size_t low = 0, high = memory.count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (memory.live[middle]->address <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

Allocation *memory_find(uint64_t address)
{
    Allocation *a = memory.last;
    if (a && address - a->address < a->size)
        return a;
    size_t i = above(address);
    a = i ? memory.live[i - 1] : NULL;
    if (!a || address - a->address >= a->size)
        return NULL;
    return memory.last = a;
}

Allocation *memory_at(uint64_t address)
{
    size_t i = above(address);
    Allocation *a = i ? memory.live[i - 1] : NULL;
    return a && a->address == address ? a : NULL;
}

static bool counts(AllocationKind kind) { return kind == ALLOCATION_DEVICE; }

CUresult memory_new(Allocation **out, size_t size, AllocationKind kind, int device)
{
    *out = NULL;
    if (counts(kind) && (size > memory_total() || memory.in_use[device] > memory_total() - size))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (memory.count == memory.room) {
        size_t room = memory.room ? 2 * memory.room : 64;
        Allocation **grown = realloc(memory.live, room * sizeof(Allocation *));
        if (!grown)
            return CUDA_ERROR_OUT_OF_MEMORY;
        memory.live = grown;
        memory.room = room;
    }
    Allocation *a = calloc(1, sizeof *a);
    bool plain = kind == ALLOCATION_DEVICE;
    size_t room = (size + 4095) & ~(size_t)4095;
    if (a && room >= size)
        a->bytes = kind == ALLOCATION_HOST ? aligned_alloc(4096, room ? room : 4096) : calloc(1, room);
    if (a && a->bytes && plain)
        a->written = calloc(1, room);
    if (!a || !a->bytes || (plain && !a->written)) {
        if (a)
            free(a->bytes);
        free(a);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (plain && size <= HUGE_SIZE)
        memset(a->bytes, 0xa5, size);
    a->size = size;
    a->kind = kind;
    a->device = device;
    a->number = ++memory.next_number;
    if (kind == ALLOCATION_HOST) {
        a->address = (uint64_t)(uintptr_t)a->bytes;
    } else {
        if (!memory.next_address)
            memory.next_address = DEVICE_BASE;
        a->address = memory.next_address;
        memory.next_address += (size + 2 * ALIGNMENT - 1) & ~(uint64_t)(ALIGNMENT - 1);
    }
    size_t i = above(a->address);
    memmove(memory.live + i + 1, memory.live + i, (memory.count - i) * sizeof(Allocation *));
    memory.live[i] = a;
    memory.count++;
    if (counts(kind)) {
        memory.in_use[device] += size;
        counters.allocations++;
        counters.bytes_live += size;
        if (counters.bytes_live > counters.bytes_peak)
            counters.bytes_peak = counters.bytes_live;
    }
    *out = a;
    return CUDA_SUCCESS;
}

void memory_free(Allocation *a)
{
    size_t i = above(a->address) - 1;
    memmove(memory.live + i, memory.live + i + 1, (memory.count - i - 1) * sizeof(Allocation *));
    memory.count--;
    memory.last = NULL;
    if (counts(a->kind)) {
        memory.in_use[a->device] -= a->size;
        counters.frees++;
        counters.bytes_live -= a->size;
    }
    memory.freed[memory.freed_at++ % FREED_KEPT] = (struct Freed){a->address, a->number, a->size};
    free(a->bytes);
    free(a->written);
    free(a);
}

static const char *const kind_names[] = {"device memory", "host memory", "module variable", "module constant"};

const char *memory_describe(uint64_t address, size_t size)
{
    static char text[256];
    size_t i = above(address);
    const Allocation *before = i ? memory.live[i - 1] : NULL;
    const Allocation *after = i < memory.count ? memory.live[i] : NULL;
    if (before && address - before->address < before->size) {
        uint64_t offset = address - before->address;
        snprintf(text, sizeof text, "offset %llu of allocation #%llu (%s, %zu bytes at 0x%llx)%s", (unsigned long long)offset,
                 (unsigned long long)before->number, kind_names[before->kind], before->size, (unsigned long long)before->address,
                 offset + size > before->size ? ", reaches past its end" : "");
        return text;
    }
    for (size_t f = 0; f < FREED_KEPT; f++) {
        const struct Freed *freed = &memory.freed[f];
        if (freed->size && address - freed->address < freed->size) {
            snprintf(text, sizeof text, "inside allocation #%llu of %zu bytes, which has been freed", (unsigned long long)freed->number,
                     freed->size);
            return text;
        }
    }
    if (before && address - before->address < before->size + (64 << 10))
        snprintf(text, sizeof text, "no allocation, %llu bytes behind the end of #%llu (%zu bytes)",
                 (unsigned long long)(address - before->address - before->size), (unsigned long long)before->number, before->size);
    else if (after && after->address - address < 64 << 10)
        snprintf(text, sizeof text, "no allocation, %llu bytes before #%llu (%zu bytes)", (unsigned long long)(after->address - address),
                 (unsigned long long)after->number, after->size);
    else
        snprintf(text, sizeof text, "no allocation near it%s", address < 4096 ? " (null pointer?)" : "");
    return text;
}

bool memory_host(const void *p, size_t size)
{
    Allocation *a = memory_find((uint64_t)(uintptr_t)p);
    return a && a->kind == ALLOCATION_HOST && (uint64_t)(uintptr_t)p - a->address + size <= a->size;
}

size_t memory_leaks(char *text, size_t room, size_t *used)
{
    size_t leaks = 0;
    for (size_t i = 0; i < memory.count; i++) {
        const Allocation *a = memory.live[i];
        if (a->kind != ALLOCATION_DEVICE && a->kind != ALLOCATION_HOST)
            continue; // belongs to a module
        leaks++;
        if (*used >= room)
            continue;
        int n = snprintf(text + *used, room - *used, "%s #%llu: %zu bytes at 0x%llx\n", kind_names[a->kind], (unsigned long long)a->number,
                         a->size, (unsigned long long)a->address);
        *used += n > 0 ? (size_t)n : 0;
    }
    return leaks;
}

void memory_free_device(int device)
{
    for (size_t i = memory.count; i-- > 0;)
        if (memory.live[i]->kind != ALLOCATION_HOST && memory.live[i]->device == device)
            memory_free(memory.live[i]);
}

void memory_reset(void)
{
    while (memory.count)
        memory_free(memory.live[memory.count - 1]);
    free(memory.live);
    memory = (struct Memory){.next_address = memory.next_address, .next_number = memory.next_number};
}
