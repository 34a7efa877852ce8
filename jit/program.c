/* Programs as data: lifetime and text. */
#include "jit/program.h"
#include "ir/base/os.h"
#include "ir/body.h"

Program *program_retain(Program *program)
{
    atomic_fetch_add_explicit(&program->refs, 1, memory_order_relaxed);
    return program;
}

void program_release(Program *program)
{
    if (!program || atomic_fetch_sub_explicit(&program->refs, 1, memory_order_acq_rel) != 1)
        return;
    for (uint32_t i = 0; i < program->n_kernels && !program->inner; i++)
        kernel_table_release(program->kernels[i].compiled);
    for (uint32_t i = 0; i < program->n_bodies; i++)
        program_release(program->bodies[i]);
    if (!program->inner) {
        guards_free(&program->guards);
        os_free(program->kernels);
    }
    os_free(program->bodies);
    os_free(program->buffers);
    os_free(program->steps);
    os_free(program->args);
    os_free(program->bands);
    os_free(program->outputs);
    os_free(program->faults);
    os_free(program->host);
    os_free(program->texts);
    os_free(program->recipe);
    os_free(program);
}

void program_weigh(Program *p, size_t text_bytes)
{
    p->bytes = sizeof *p + text_bytes + sizeof *p->kernels * p->n_kernels + sizeof *p->buffers * p->n_buffers +
               sizeof *p->steps * p->n_steps + sizeof *p->args * p->n_args + sizeof *p->bands * p->n_bands + sizeof *p->host * p->n_host +
               sizeof(Guard) * p->guards.n + sizeof(SizeExpr) * p->guards.sizes.n;
    for (uint32_t i = 0; i < p->n_kernels && !p->inner; i++)
        p->bytes += p->kernels[i].compiled->bytes;
    for (uint32_t i = 0; i < p->n_bodies; i++)
        p->bytes += p->bodies[i]->bytes;
}

const char *program_name(const Program *p) { return p->entry[0] ? p->entry : p->id[0] ? p->id : "?"; }

uint32_t program_output(const Program *program, uint32_t buffer)
{
    uint32_t k = 0;
    while (program->outputs[k] != buffer)
        k++;
    return k;
}

double program_memory(const Program *p, const int64_t *sizes)
{
    double total = 0;
    for (uint32_t slot = 0; slot <= p->n_slots; slot++) { /* and then the outputs */
        double most = 0;
        for (uint32_t i = 0; i < p->n_buffers; i++) {
            const ProgBuffer *b = &p->buffers[i];
            double bytes = (double)sizes[b->numel] * (double)dtype_bytes((DType)b->dtype);
            if (b->kind == BUFFER_TEMP && b->slot == slot && bytes > most)
                most = bytes;
            if (b->kind == BUFFER_OUTPUT && slot == p->n_slots)
                most += bytes;
        }
        total += most;
    }
    for (uint32_t i = 0; i < p->n_bodies; i++)
        total += program_memory(p->bodies[i], sizes);
    return total;
}

bool program_calls(const Program *p)
{
    bool calls = false;
    for (uint32_t i = 0; i < p->n_steps && !calls; i++)
        calls = p->steps[i].kind == STEP_CALL;
    for (uint32_t i = 0; i < p->n_bodies && !calls; i++)
        calls = program_calls(p->bodies[i]);
    return calls;
}

static void print_args(const Program *p, const ProgStep *step, Str *out)
{
    for (uint32_t i = 0; i < step->n_args; i++) {
        const ProgArg *arg = &p->args[step->first_arg + i];
        str_printf(out, i ? ", " : "");
        switch ((BindKind)arg->kind) {
        case BIND_BUFFER: str_printf(out, "b%u", arg->value); break;
        case BIND_SIZE: str_printf(out, "size%u", arg->value); break;
        case BIND_SCALAR: str_printf(out, "k%u", arg->value); break;
        case BIND_HOST: str_printf(out, "h%u", arg->value); break;
        case BIND_SHARED: str_printf(out, "shared"); break;
        case BIND_SPANS: str_printf(out, "spans%u", arg->value); break;
        case BIND_FAULT: str_printf(out, "fault"); break;
        case BIND_NONE: str_printf(out, "-"); break;
        }
    }
}

static void print_buffers(const Program *p, int depth, Str *out)
{
    static const char *const kind_name[] = {"input", "output", "temp", "rows"};
    for (uint32_t i = 0; i < p->n_buffers; i++) {
        const ProgBuffer *b = &p->buffers[i];
        str_printf(out, "%*sb%u: %s %s, size%u elements", 2 * depth, "", i, kind_name[b->kind], dtype_name((DType)b->dtype), b->numel);
        if (b->kind == BUFFER_INPUT)
            str_printf(out, ", input %u", b->index);
        if (b->kind == BUFFER_TEMP)
            str_printf(out, ", slot %u", b->slot);
        if (b->kind == BUFFER_TEMP && b->offset != NO_OFFSET)
            str_printf(out, " from size%u on", b->offset);
        if (b->kind == BUFFER_BAND)
            str_printf(out, ", of size%u each, slot %u of a thread", b->row, b->slot);
        if (b->kind == BUFFER_OUTPUT && b->alias_input != NO_BUFFER)
            str_printf(out, ", may take over input %u", b->alias_input);
        str_printf(out, "\n");
    }
    for (uint32_t i = 0; i < p->n_host; i++) {
        str_printf(out, "%*s", 2 * depth, "");
        host_scalar_print(p->host, i, out);
        str_printf(out, "\n");
    }
}

/* Buffers and steps, and below a step those of its bodies. */
static void print_plan(const Program *p, int depth, Str *out)
{
    print_buffers(p, depth, out);
    for (uint32_t i = 0; i < p->n_steps; i++) {
        const ProgStep *s = &p->steps[i];
        for (uint32_t b = 0; b < p->n_bands; b++)
            if (p->bands[b].first == i)
                str_printf(out, "%*sin bands of rows, size%u x size%u: the next %u steps\n", 2 * depth, "", p->bands[b].batch,
                           p->bands[b].rows, p->bands[b].n);
        str_printf(out, "%*sstep %u: %s(", 2 * depth, "", i, s->what);
        print_args(p, s, out);
        str_printf(out, ")\n");
        for (uint32_t b = 0; b < s->n_bodies; b++) {
            const Program *body = p->bodies[s->body + b];
            str_printf(out, "%*s%s gives", 2 * depth + 2, "", body_name(s->kind == STEP_COND ? OP_COND : OP_LOOP, b));
            for (uint32_t k = 0; k < body->n_outputs; k++)
                str_printf(out, " b%u", body->outputs[k]);
            str_printf(out, "\n");
            print_plan(body, depth + 2, out);
        }
    }
}

void program_print(const Program *p, Str *out)
{
    str_printf(out, "program: %u kernel%s, %u step%s, %u guard%s%s\n", p->n_kernels, p->n_kernels == 1 ? "" : "s", p->n_steps,
               p->n_steps == 1 ? "" : "s", p->guards.n, p->guards.n == 1 ? "" : "s",
               !p->general   ? ""
               : p->guards.n ? ", general"
                             : ", accepts every shape");
    print_plan(p, 1, out);
    for (uint32_t k = 0; k < p->n_constants; k++) {
        const Program *constant = program_constant(p, k);
        str_printf(out, "  input %u is made once, of constants, and kept: b%u of\n", p->n_inputs + k, constant->outputs[0]);
        print_plan(constant, 3, out);
    }
    for (uint32_t i = 0; i < p->guards.n; i++) {
        str_printf(out, "  guard ");
        guard_print(&p->guards, &p->guards.at[i], out);
        str_printf(out, "   (asked by %s)\n", p->guards.at[i].who);
    }
}
