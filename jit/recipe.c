/* What a program computes, as words that are equal where that is: see jit/program.h. */
#include "ir/base/hash.h"
#include "ir/base/os.h"
#include "jit/program.h"

static void word(Recipe *r, uint64_t value) { r->word[r->n_words++] = value; }

/* The number that a number of the program around has here. */
static uint64_t renumber(uint32_t *list, uint32_t *n, uint32_t number)
{
    uint32_t k = 0;
    while (k < *n && list[k] != number)
        k++;
    if (k == *n)
        list[(*n)++] = number;
    return k;
}

static void write_recipe(Recipe *r, const Program *p)
{
    word(r, p->math);
    for (uint32_t i = 0; i < p->n_buffers; i++) {
        const ProgBuffer *b = &p->buffers[i];
        word(r, b->kind | (uint64_t)b->dtype << 8 | (uint64_t)b->slot << 32);
        word(r, renumber(r->size, &r->n_sizes, b->numel));
        if (b->kind == BUFFER_INPUT)
            word(r, renumber(r->input, &r->n_inputs, b->index));
    }
    for (uint32_t i = 0; i < p->n_host; i++) {
        const HostScalar *h = &p->host[i];
        word(r, h->op | (uint64_t)h->dtype << 8);
        word(r, h->bits);
        for (int k = 0; k < 3; k++)
            word(r, h->op == OP_INPUT && k == 0 ? renumber(r->scalar, &r->n_scalars, h->in[k]) : h->in[k]);
    }
    for (uint32_t i = 0; i < p->n_steps; i++) {
        const ProgStep *s = &p->steps[i];
        word(r, s->kind | (uint64_t)s->dtype << 8 | (uint64_t)s->descending << 16 | (uint64_t)s->values << 17 | (uint64_t)s->n_args << 32);
        word(r, s->kind == STEP_KERNEL ? (uintptr_t)p->kernels[s->kernel].compiled : 0);
        for (uint32_t a = 0; a < s->n_args; a++) {
            const ProgArg *arg = &p->args[s->first_arg + a];
            uint64_t value = arg->kind == BIND_SIZE     ? renumber(r->size, &r->n_sizes, arg->value)
                             : arg->kind == BIND_SCALAR ? renumber(r->scalar, &r->n_scalars, arg->value)
                                                        : arg->value;
            word(r, arg->kind | value << 8);
        }
    }
    for (uint32_t k = 0; k < p->n_outputs; k++)
        word(r, p->outputs[k]);
}

Recipe *recipe_new(const Program *p)
{
    const size_t most = p->n_args + p->n_buffers + p->n_host; /* of each list */
    const size_t words = 1 + 3 * (size_t)p->n_buffers + 5 * (size_t)p->n_host + 2 * (size_t)p->n_steps + p->n_args + p->n_outputs;
    Recipe *r = os_calloc(1, sizeof *r + sizeof *r->word * words + 3 * sizeof *r->input * most);
    if (!r)
        return NULL;
    r->word = (uint64_t *)(r + 1);
    r->input = (uint32_t *)(r->word + words);
    r->size = r->input + most;
    r->scalar = r->size + most;
    write_recipe(r, p);
    r->hash = hash64(r->word, sizeof *r->word * r->n_words);
    return r;
}
