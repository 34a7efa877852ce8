/* How the rules of jit/rules.def are asked for the schedule of a CPU's kernel. */
#include "jit/rules_inside.h"

#include "jit/pieces.h"

#include <string.h>

int64_t rule_limit(int64_t bits, LimitId id)
{
    static const int64_t limits[][2] = {
#define LIMIT(id, narrow, wide, unit, measured) {narrow, wide},
#include "jit/limits.def"
#undef LIMIT
    };
    return limits[id][bits >= 512];
}

/* ---- the table ---- */

typedef struct Rule {
    const char *name;
    Group group;
    Give *give;
    uint32_t gives; /* a bit for each directive */
} Rule;

enum {
#define DIRECTIVE(forms, field, kind, help) DIRECTIVE_##field,
#include "jit/directives.def"
#undef DIRECTIVE
    DIRECTIVE_stages
};

_Static_assert(RULES <= 64 && DIRECTIVE_stages < 32, "a bit for each");

static const Rule *rule_at(RuleId id)
{
    enum {
#define DIRECTIVE(forms, field, kind, help) field = 1 << DIRECTIVE_##field,
#include "jit/directives.def"
#undef DIRECTIVE
        stages = 1 << DIRECTIVE_stages
    };
    static const Rule rules[] = {
#define RULE(id, group, gives, sentence) {#id, group, give_##id, gives},
#include "jit/rules.def"
#undef RULE
    };
    return &rules[id];
}

/* What of two schedules is not the same: a bit for each directive. */
static uint32_t changed(const Schedule *a, const Schedule *b)
{
    uint32_t bits = (uint32_t)(a->n_stages != b->n_stages || memcmp(a->stage_lanes, b->stage_lanes, sizeof a->stage_lanes) != 0)
                    << DIRECTIVE_stages;
#define DIRECTIVE(forms, field, kind, help) bits |= (uint32_t)(a->field != b->field) << DIRECTIVE_##field;
#include "jit/directives.def"
#undef DIRECTIVE
    return bits;
}

static bool takes_one(Group group) { return group != ALL_AHEAD && group != ALL_BODY && group != ALL_MORE && group != ALL_LAST; }

/* What the rules of a group gave before is for the caller to take back. */
void rules_ask(Choice *c, Group group, Weight w, Schedule *s)
{
    const Weight before = c->w;
    c->w = w;
    for (RuleId id = 0; id < RULES; id++)
        if (rule_at(id)->group == group)
            s->rules &= ~(UINT64_C(1) << id);
    for (RuleId id = 0; id < RULES; id++) {
        const Rule *rule = rule_at(id);
        Schedule with = *s;
        if (rule->group != group || !rule->give(c, &with))
            continue;
        if (changed(s, &with) & ~rule->gives)
            c->broken = rule->name;
        *s = with;
        s->rules |= UINT64_C(1) << id;
        if (takes_one(group))
            break;
    }
    c->w = before;
}

static void choose_loops(Choice *c, Schedule *s)
{
    s->lanes = 1;
    s->across = s->pieces = s->inside = -1;
    rules_ask(c, ONE_ALONG, (Weight){0}, s);
    rules_ask(c, ONE_SPLIT, (Weight){0}, s);
    Weight w = facts_weigh(c->f, s, NULL);
    rules_ask(c, ALL_AHEAD, w, s);
    rules_ask_lanes(c, w, s);
    rules_ask(c, ALL_MORE, w, s);
}

static void choose_product(Choice *c, Schedule *s)
{
    c->dot = dot_facts(c->f, dot_last(c->f));
    rules_ask(c, ONE_SIDES, (Weight){0}, s);
    if (!s->in_place && !rows_are_dots(c))
        rules_ask(c, ONE_SPLIT, (Weight){0}, s);
    Weight w = facts_weigh(c->f, s, NULL);
    for (Group group = ONE_WAY; group <= ALL_LAST; group++)
        rules_ask(c, group, w, s);
    if (c->dot.has_lanes)
        rules_ask(c, ALL_AHEAD, w, s);
}

Status rules_choose(const KernelFacts *f, Schedule *s)
{
    Choice c = {.f = f};
    *s = (Schedule){.bits = f->bits};
    if (f->k->form == FORM_CONTRACT)
        choose_product(&c, s);
    else
        choose_loops(&c, s);
    return c.broken ? fail(ST_INTERNAL, "rule %s sets a directive that jit/rules.def does not name", c.broken) : ST_OK;
}

ScheduleFacts rules_allow(const KernelFacts *f, const Schedule *own)
{
    ScheduleFacts facts = {.own = own,
                           .n_x = f->n_x,
                           .n_r = f->n_r,
                           .n_stages = f->n_stages,
                           .order_lanes = f->order.lanes,
                           .in_order = f->in_order,
                           .carries = has(f->k, carries),
                           .columns = folds_columns(f),
                           .strips = folds_in_strips(f),
                           .points = constant_r(f),
                           .last_x = last_x(f)};
    if (f->k->form == FORM_CONTRACT) {
        DotFacts dot = dot_facts(f, own->along);
        facts.product = true;
        facts.regular = dot.regular;
        facts.along_k = dot.along[LANE_SIDE];
        facts.vector = dot.lanes;
        DotPlaces places;
        if (own->in_place && dot_places(f, dot.operand[ROW_SIDE], (int)own->across, &places) && places.fixed)
            facts.place_rows = places.length;
    }
    for (uint32_t a = 0; a < f->n_x && f->k->form == FORM_LOOPS; a++)
        facts.cut |= pieces_of(f, a) ? 1u << a : 0;
    facts.overlap = f->k->form == FORM_LOOPS && rules_overlap(f);
    facts.twice = f->k->form == FORM_LOOPS && facts_twice(f);
    facts.inside = f->k->form == FORM_LOOPS && f->n_x && inside_of(f, f->n_x - 1);
    return facts;
}

void rules_print(const Schedule *s, Str *out)
{
    const char *before = "// ";
    for (RuleId id = 0; id < RULES; id++)
        if (s->rules >> id & 1) {
            str_printf(out, "%s%s", before, rule_at(id)->name);
            before = ", ";
        }
    if (!s->rules)
        str_printf(out, "// of a file");
}
