/*
 * The steps of a loop's body, worked out once for all iterations: what run_steps() does each time from the program and its sizes.
 *
 *   slots     the argument blocks of all steps, one after the other, filled in once; in each iteration change only ...
 *   patches   ... addresses of what the body is given and makes: carries, slices, the number of the iteration
 *   phases    every phase of every kernel with its tasks and how they are shared out, in order
 *   copies    results that are something else already: an operand, or another result
 *
 * On the CPU, of kernels alone, where nobody measures them. (runtime/function/prepared.c does so for a whole program, whose results are new
 * each time.)
 */
#include "ir/base/os.h"
#include "runtime/device/device.h"
#include "runtime/eval/pool.h"
#include "runtime/eval/run.h"

#include <string.h>

typedef struct Patch {
    void **slot;
    void *const *from;
} Patch;

typedef struct Copy {
    void *const *to, *const *from;
    size_t bytes;
} Copy;

struct Repeat {
    void **slots;
    Patch *patches;
    Copy *copies;
    Phase *phases;
    uint32_t n_patches, n_copies, n_phases;
    size_t scratch; /* of the phase that needs most, ... */
    const char *scratch_kernel;
    int64_t launches, moved;
};

static bool can_repeat(const Run *run)
{
    const Program *p = run->p;
    bool kernels = !p->n_bands && !run->kind->queues && !run_timed(run) && !run_traced(run);
    for (uint32_t i = 0; i < p->n_steps && kernels; i++)
        kernels = p->steps[i].kind == STEP_KERNEL && run->p->kernels[p->steps[i].kernel].compiled->run;
    return kernels;
}

/* Where the address of a buffer that changes lies; NULL: it stays. */
static void *const *changes(const Program *p, uint32_t buffer, void *const *in, void *const *out)
{
    const ProgBuffer *b = &p->buffers[buffer];
    return b->kind == BUFFER_INPUT ? &in[b->index] : b->kind == BUFFER_OUTPUT ? &out[program_output(p, buffer)] : NULL;
}

static void plan_slots(Repeat *r, Run *run, void *const *in, void *const *out)
{
    const Program *p = run->p;
    void **args = run->args;
    for (uint32_t i = 0; i < p->n_steps; i++) {
        const ProgStep *step = &p->steps[i];
        run->args = &r->slots[step->first_arg];
        bind_args(run, step);
        for (uint32_t k = 0; k < step->n_args; k++) {
            const ProgArg *arg = &p->args[step->first_arg + k];
            void *const *from = arg->kind == BIND_BUFFER ? changes(p, arg->value, in, out) : NULL;
            if (from)
                r->patches[r->n_patches++] = (Patch){&run->args[k], from};
        }
        r->moved += run->sizes[step->bytes];
    }
    run->args = args;
    r->launches = p->n_steps;
    for (uint32_t k = 0; k < p->n_outputs; k++) {
        void *const *from = changes(p, p->outputs[k], in, out);
        if (!from) /* an output that is a temporary */
            from = &run->address[p->outputs[k]];
        if (from != &out[k])
            r->copies[r->n_copies++] = (Copy){&out[k], from, buffer_bytes(&p->buffers[p->outputs[k]], run->sizes)};
    }
}

static const HostLaunch *launch_of(const Repeat *r, const Run *run, uint32_t step, HostLaunch *room)
{
    const ProgStep *s = &run->p->steps[step];
    return kernel_launch(run->p->kernels[s->kernel].compiled, &r->slots[s->first_arg], room);
}

/* Room for partial results is one for all kernels: the largest that one of them asks for. */
static Status plan_shared(Repeat *r, Run *run)
{
    const Program *p = run->p;
    size_t most = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t i = 0; i < p->n_steps; i++)
            for (uint32_t k = 0; k < p->steps[i].n_args; k++) {
                uint32_t slot = p->steps[i].first_arg + k;
                if (p->args[slot].kind != BIND_SHARED)
                    continue;
                HostLaunch room;
                size_t bytes = (size_t)launch_of(r, run, i, &room)->scratch;
                most = bytes > most ? bytes : most;
                if (pass)
                    r->slots[slot] = run->shared->data;
            }
        if (most == 0)
            return ST_OK;
        if (pass == 0)
            TRY(storage_new_on(run->device, most, &run->shared));
    }
    return ST_OK;
}

static bool plan_phases(Repeat *r, const Run *run)
{
    const Program *p = run->p;
    HostLaunch room;
    size_t n = 1;
    for (uint32_t i = 0; i < p->n_steps; i++)
        n += (size_t)launch_of(r, run, i, &room)->phases;
    r->phases = os_calloc(n, sizeof *r->phases);
    for (uint32_t i = 0; r->phases && i < p->n_steps; i++) {
        const ProgKernel *kernel = &run->p->kernels[p->steps[i].kernel];
        const HostLaunch *launch = launch_of(r, run, i, &room);
        for (int64_t number = 0; number < launch->phases; number++) {
            Phase *phase = &r->phases[r->n_phases++];
            *phase = phase_of(kernel, launch, &r->slots[p->steps[i].first_arg], number, pool_threads());
            if (phase_scratch(phase) >= r->scratch) {
                r->scratch = phase_scratch(phase);
                r->scratch_kernel = kernel->name;
            }
        }
    }
    return r->phases != NULL;
}

Status repeat_new(Run *run, void *const *in, void *const *out, Repeat **made)
{
    const Program *p = run->p;
    *made = NULL;
    if (!can_repeat(run))
        return ST_OK;
    Repeat *r = *made =
        os_calloc(1, sizeof *r + sizeof *r->slots * (p->n_args + 1) + sizeof *r->patches * p->n_args + sizeof *r->copies * p->n_outputs);
    if (!r)
        return fail(ST_OUT_OF_MEMORY, "no memory for a loop");
    r->slots = (void **)(r + 1);
    r->patches = (Patch *)(r->slots + p->n_args + 1);
    r->copies = (Copy *)(r->patches + p->n_args);
    r->scratch_kernel = "none";
    plan_slots(r, run, in, out);
    TRY(plan_shared(r, run));
    return plan_phases(r, run) ? ST_OK : fail(ST_OUT_OF_MEMORY, "no memory for a loop");
}

void repeat_free(Repeat *r)
{
    if (!r)
        return;
    os_free(r->phases);
    os_free(r);
}

Status repeat_run(const Repeat *r, Run *run)
{
    char *room = launch_scratch(run->e, r->scratch, r->scratch_kernel); /* another body may have made it larger, elsewhere */
    if (!room)
        return ST_OUT_OF_MEMORY;
    for (uint32_t i = 0; i < r->n_patches; i++)
        *r->patches[i].slot = *r->patches[i].from;
    for (uint32_t i = 0; i < r->n_phases && !run->fault; i++)
        phase_run(&r->phases[i], room);
    run->e->launches += r->launches;
    run->e->moved += r->moved;
    for (uint32_t i = 0; i < r->n_copies && !run->fault; i++) {
        const Copy *copy = &r->copies[i];
        if (*copy->to != *copy->from)
            memmove(*copy->to, *copy->from, copy->bytes);
    }
    return ST_OK;
}
