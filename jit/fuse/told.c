/*
 * What KILN_LOG=fusion and kiln_explain are told of a finished plan: what is stored or apart and why (refusals.def), what was recognised
 * (recognise.def), its kernels.
 */
#include "jit/fuse/fuse.h"
#include "jit/fuse/recognise.h"

void fuser_tell(Fuser *f, const char *line)
{
    if (!fuser_tells(f))
        return;
    if (log_on(LOG_FUSION))
        log_line(LOG_FUSION, "%s", line);
    if (f->told)
        str_printf(f->told, "%s\n", line);
}

/* What has a buffer for a reason that is told is loaded for that one. */
static void log_refused(Fuser *f)
{
    bool *told = ARENA_ARRAY(f->arena, bool, f->n + 1);
    for (uint32_t i = 0; i < f->decisions.n; i++) {
        const Refused *r = &f->decisions.at[i];
        if (!has_buffer(f, r->n))
            continue;
        told[r->n] = true;
        fuser_tell(f, refused_line(f, r));
    }
    for (uint32_t i = 0; i < f->unattended.n; i++)
        fuser_tell(f, refused_line(f, &(Refused){.id = f->unattended.at[i].why, .root = f->unattended.at[i].product}));
    for (uint32_t i = 0; i < f->reasons.n; i++)
        if (!(told[f->reasons.at[i].n] && refusal_group(f->reasons.at[i].id) == GROUP_MADE))
            fuser_tell(f, refused_line(f, &f->reasons.at[i]));
}

static void log_recognised(Fuser *f)
{
    Str out;
    str_init(&out, f->arena);
    recognised_print(f, &out);
    if (!out.len)
        return;
    log_text(LOG_FUSION, out.text);
    if (f->told)
        str_printf(f->told, "%s", out.text);
}

void log_plan(Fuser *f)
{
    if (fuser_tells(f)) {
        log_refused(f);
        log_recognised(f);
    }
    for (uint32_t s = 0; s < f->plan->steps.n; s++) {
        const PlanStep *step = &f->plan->steps.at[s];
        if (fuser_tells(f))
            fuser_tell(f, arena_printf(f->arena, "kernel %u %s makes %%%u: %u instructions, %lld bytes", s, step->what, step->node,
                                       step->kernel ? step->kernel->inst.n : 0, (long long)dim_hint(f->g, step->bytes)));
        if (log_on(LOG_KERNELS) && step->kernel) {
            Str text;
            str_init(&text, f->arena);
            kernel_print(step->kernel, &text);
            log_line(LOG_KERNELS, "kernel %u: %s", s, step->what);
            log_text(LOG_KERNELS, text.text);
        }
    }
}
