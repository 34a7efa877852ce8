// The live objects behind handles. A handle is a pointer that anyone may have kept too long or made up, so it is looked for
// in a table before it is followed.
#include "tests/cuda_driver/driver.h"

#include <stdlib.h>

enum { BUCKETS = 1024 };

const char *const object_names[OBJECT_KINDS] = {"context", "module", "function",   "stream",     "event",
                                                "linker",  "graph",  "graph node", "graph exec", "conditional handle"};

static struct Objects {
    Object *bucket[BUCKETS];
    Object *oldest[OBJECT_KINDS], *newest[OBJECT_KINDS];
    uint64_t serial;
} objects;

static size_t bucket_of(const void *p)
{
    uint64_t v = (uint64_t)(uintptr_t)p >> 4;
    return (size_t)((v ^ v >> 10 ^ v >> 20) % BUCKETS);
}

void *object_new(ObjectKind kind, size_t size)
{
    Object *o = calloc(1, size);
    if (!o)
        return NULL;
    o->kind = kind;
    o->number = ++objects.serial;
    Object **bucket = &objects.bucket[bucket_of(o)];
    o->next = *bucket;
    *bucket = o;
    o->older = objects.newest[kind];
    if (o->older)
        o->older->newer = o;
    else
        objects.oldest[kind] = o;
    objects.newest[kind] = o;
    return o;
}

void object_free(void *object)
{
    Object *o = object, **at = &objects.bucket[bucket_of(o)];
    while (*at != o)
        at = &(*at)->next;
    *at = o->next;
    *(o->older ? &o->older->newer : &objects.oldest[o->kind]) = o->newer;
    *(o->newer ? &o->newer->older : &objects.newest[o->kind]) = o->older;
    free(o);
}

void *object_check(const void *handle, ObjectKind kind)
{
    for (Object *o = objects.bucket[bucket_of(handle)]; o; o = o->next)
        if (o == handle)
            return o->kind == kind ? o : NULL;
    return NULL;
}

Object *object_first(ObjectKind kind) { return objects.oldest[kind]; }

Object *object_next(const Object *object) { return object->newer; }
