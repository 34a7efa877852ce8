/*
 * A program prepared for repeats: what launch() works out at each call from the program and its sizes is worked out once.
 *
 *   slots     the argument blocks of all steps, one after the other. Sizes are filled in once ...
 *   patches   ... and pointers and scalars at each call: one list that says which slot gets what
 *   host      what the host makes of scalars alone, made anew when one of those changed
 *   phases    every phase of every kernel with its tasks and how they are shared out, in order
 *
 * A kiln_function (runtime/function/template.c) keeps one with what it remembers of its last look-up: it is right for as long as that is.
 * The number of threads is an option, and a template does not outlive a change of options.
 */
#include "runtime/function/prepared.h"
#include "ir/base/os.h"
#include "runtime/eval/pool.h"

#include <string.h>

typedef enum PatchKind { PATCH_INPUT, PATCH_OUTPUT, PATCH_TEMP, PATCH_SCALAR, PATCH_HOST } PatchKind;

typedef struct Patch {
    uint32_t slot;
    uint32_t kind; /* PatchKind */
    size_t value;  /* the input's, output's or scalar's number; TEMP: where in the block */
} Patch;

struct Prepared {
    const Program *program;
    void **slots;
    Patch *patches;
    Phase *phases;
    uint64_t *host, *made_of; /* the program's host scalars, and the call's scalars that they were made of: those seldom change */
    uint32_t n_made_of;
    bool made;
    size_t *output_bytes;       /* by output */
    size_t temp_bytes, scratch; /* scratch: of the phase that needs most */
    const char *scratch_kernel; /* whose phase that is */
    int64_t bytes_moved;
    double ns; /* that its kernels take on one thread, about */
    uint32_t n_patches, n_phases;
};

/* Does every step and every output do what a Prepared can? */
static bool can_prepare(const Program *p)
{
    for (uint32_t i = 0; i < p->n_steps; i++)
        if (p->steps[i].kind != STEP_KERNEL)
            return false;
    if (p->n_bands)
        return false;
    for (uint32_t i = 0; i < p->n_args; i++)
        if (p->args[i].kind == BIND_SHARED || p->args[i].kind == BIND_FAULT)
            return false;
    for (uint32_t k = 0; k < p->n_outputs; k++) {
        if (p->buffers[p->outputs[k]].kind != BUFFER_OUTPUT)
            return false;
        for (uint32_t j = 0; j < k; j++)
            if (p->outputs[j] == p->outputs[k])
                return false;
    }
    return true;
}

static Patch patch_of(const Program *p, uint32_t slot, const int64_t *sizes, const size_t *slot_offset)
{
    const ProgArg *arg = &p->args[slot];
    if (arg->kind == BIND_SCALAR)
        return (Patch){slot, PATCH_SCALAR, arg->value};
    if (arg->kind == BIND_HOST)
        return (Patch){slot, PATCH_HOST, arg->value};
    const ProgBuffer *b = &p->buffers[arg->value];
    switch ((BufferKind)b->kind) {
    case BUFFER_INPUT: return (Patch){slot, PATCH_INPUT, b->index};
    case BUFFER_OUTPUT: return (Patch){slot, PATCH_OUTPUT, program_output(p, arg->value)};
    case BUFFER_TEMP:
    case BUFFER_BAND: break; /* the latter: no program with bands is prepared */
    }
    return (Patch){slot, PATCH_TEMP, launch_place(b, sizes, slot_offset)};
}

static bool plan_slots(Prepared *to, const int64_t *sizes)
{
    const Program *p = to->program;
    size_t *offset = os_calloc(p->n_slots + 1, sizeof *offset);
    to->slots = os_calloc(p->n_args + 1, sizeof *to->slots);
    to->patches = os_calloc(p->n_args + 1, sizeof *to->patches);
    to->output_bytes = os_calloc(p->n_outputs + 1, sizeof *to->output_bytes);
    bool ok = offset && to->slots && to->patches && to->output_bytes;
    if (ok) {
        to->temp_bytes = launch_slots(p, sizes, offset);
        for (uint32_t k = 0; k < p->n_outputs; k++)
            to->output_bytes[k] = buffer_bytes(&p->buffers[p->outputs[k]], sizes);
        for (uint32_t slot = 0; slot < p->n_args; slot++)
            if (p->args[slot].kind == BIND_SIZE)
                memcpy(&to->slots[slot], &sizes[p->args[slot].value], sizeof *to->slots);
            else
                to->patches[to->n_patches++] = patch_of(p, slot, sizes, offset);
    }
    os_free(offset);
    return ok;
}

static bool plan_host(Prepared *to)
{
    const Program *p = to->program;
    for (uint32_t i = 0; i < p->n_host; i++)
        if (p->host[i].op == OP_INPUT && p->host[i].in[0] >= to->n_made_of)
            to->n_made_of = p->host[i].in[0] + 1;
    to->host = os_calloc(p->n_host + 1, sizeof *to->host);
    to->made_of = os_calloc(to->n_made_of + 1, sizeof *to->made_of);
    return to->host && to->made_of;
}

static bool plan_phases(Prepared *to, const int64_t *sizes)
{
    const Program *p = to->program;
    to->phases = os_calloc(p->n_steps + 1, sizeof *to->phases); /* a kernel that shares nothing has one phase */
    for (uint32_t i = 0; to->phases && i < p->n_steps; i++) {
        const ProgStep *step = &p->steps[i];
        const ProgKernel *kernel = &p->kernels[step->kernel];
        void *const *args = &to->slots[step->first_arg];
        if (!kernel->compiled->run)
            return false;
        HostLaunch room;
        const HostLaunch *launch = kernel_launch(kernel->compiled, args, &room);
        if (launch->phases != 1)
            return false;
        Phase *phase = &to->phases[to->n_phases++];
        *phase = phase_of(kernel, launch, args, 0, pool_threads());
        to->bytes_moved += sizes[step->bytes];
        to->ns += (double)launch->points * kernel->cost;
        if (phase_scratch(phase) >= to->scratch) {
            to->scratch = phase_scratch(phase);
            to->scratch_kernel = kernel->name;
        }
    }
    return to->phases != NULL;
}

Prepared *prepared_new(const Program *program, const int64_t *sizes)
{
    Prepared *p = can_prepare(program) ? os_calloc(1, sizeof *p) : NULL;
    if (!p)
        return NULL;
    p->program = program;
    p->scratch_kernel = "none";
    if (plan_slots(p, sizes) && plan_host(p) && plan_phases(p, sizes))
        return p;
    prepared_free(p);
    return NULL;
}

void prepared_free(Prepared *p)
{
    if (!p)
        return;
    os_free(p->slots);
    os_free(p->patches);
    os_free(p->phases);
    os_free(p->output_bytes);
    os_free(p->host);
    os_free(p->made_of);
    os_free(p);
}

double prepared_seconds(const Prepared *p) { return 1e-9 * p->ns; }

static bool make_outputs(const Prepared *p, Result *outputs)
{
    for (uint32_t k = 0; k < p->program->n_outputs; k++) {
        outputs[k].storage = storage_new(p->output_bytes[k]);
        if (!outputs[k].storage) {
            while (k-- > 0)
                storage_release(outputs[k].storage);
            return false;
        }
        outputs[k].data = outputs[k].storage->data;
    }
    return true;
}

static void patch(Prepared *p, char *const *inputs, const uint64_t *scalars, const Result *outputs, char *temps)
{
    for (uint32_t i = 0; i < p->n_patches; i++) {
        const Patch *patch = &p->patches[i];
        void **slot = &p->slots[patch->slot];
        switch ((PatchKind)patch->kind) {
        case PATCH_INPUT: *slot = inputs[patch->value]; break;
        case PATCH_OUTPUT: *slot = outputs[patch->value].data; break;
        case PATCH_TEMP: *slot = temps ? temps + patch->value : NULL; break; /* NULL: all are empty */
        case PATCH_SCALAR: memcpy(slot, &scalars[patch->value], sizeof *slot); break;
        case PATCH_HOST: memcpy(slot, &p->host[patch->value], sizeof *slot); break;
        }
    }
}

static bool make_host(Prepared *p, const uint64_t *scalars)
{
    size_t bytes = sizeof *scalars * p->n_made_of;
    if (p->program->n_host == 0 || (p->made && memcmp(p->made_of, scalars, bytes) == 0))
        return true;
    if (bytes)
        memcpy(p->made_of, scalars, bytes);
    return p->made = host_scalars_run(p->program->host, p->program->n_host, (MathMode)p->program->math, scalars, p->host);
}

Status prepared_run(Evaluation *e, Prepared *p, char *const *inputs, const uint64_t *scalars, Result *outputs)
{
    char *room = launch_scratch(e, p->scratch, p->scratch_kernel);
    Storage *temps = p->temp_bytes && room ? storage_new(p->temp_bytes) : NULL;
    if (!room || (p->temp_bytes && !temps))
        return ST_OUT_OF_MEMORY;
    if (!make_host(p, scalars)) {
        storage_release(temps);
        return fail(ST_OUT_OF_MEMORY, "no memory for computing scalars");
    }
    if (!make_outputs(p, outputs)) {
        storage_release(temps);
        return ST_OUT_OF_MEMORY;
    }
    patch(p, inputs, scalars, outputs, temps ? temps->data : NULL);
    for (uint32_t i = 0; i < p->n_phases; i++)
        phase_run(&p->phases[i], room);
    storage_release(temps);
    e->launches += p->n_phases;
    e->moved += p->bytes_moved;
    return ST_OK;
}
