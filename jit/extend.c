/* Adding rules and passes of users, and taking them out: see jit/extensions.h. */
#include "jit/extensions.h"
#include "ir/base/os.h"
#include "ir/user_rule.h"
#include "jit/passes.h"

#include <stdio.h>
#include <string.h>
#include <threads.h>

static UserPass *_Atomic passes;  /* all that were ever registered */
static _Thread_local int at_work; /* passes that this thread is in */

static const Extensions *at_hand(void) { return extensions_of(option_int(OPT_EXTENSIONS)); }

/* ---- sets ---- */

static const char *place_name(int after) { return after == AT_START ? "start" : pass_name((PassId)after); }

static size_t write_text(const Extensions *set, char *text, size_t size)
{
    size_t at = 0;
    const char *between = "";
    for (uint32_t k = 0; k < set->n_rules; k++, between = "; ")
        at += (size_t)snprintf(at < size ? text + at : NULL, at < size ? size - at : 0, "%s%s", between, set->rules[k]->text);
    for (uint32_t k = 0; k < set->n_passes; k++, between = "; ")
        at += (size_t)snprintf(at < size ? text + at : NULL, at < size ? size - at : 0, "%spass %s %s after %s", between,
                               set->passes[k]->name, set->passes[k]->version, place_name(set->passes[k]->after));
    return at;
}

/* A set of so many, with room for a text of so many bytes, in one piece. NULL: no memory. */
static Extensions *set_new(uint32_t n_rules, uint32_t n_passes, size_t text)
{
    Extensions *set = os_calloc(1, sizeof *set + sizeof(void *) * (n_rules + n_passes) + text);
    if (!set)
        return NULL;
    set->rules = (const PatternRule **)(set + 1);
    set->passes = (UserPass **)(set->rules + n_rules);
    set->text = (char *)(set->passes + n_passes);
    return set;
}

/* Has it the same rules and passes? Equal ones are the same object. */
static bool same(const Extensions *a, const Extensions *b)
{
    return a->n_rules == b->n_rules && a->n_passes == b->n_passes && memcmp(a->rules, b->rules, sizeof *a->rules * a->n_rules) == 0 &&
           memcmp(a->passes, b->passes, sizeof *a->passes * a->n_passes) == 0;
}

/* The number of the set that is as this draft; -1: no memory. */
static int64_t intern(const Extensions *draft)
{
    if (!draft->n_rules && !draft->n_passes)
        return 0;
    size_t bytes = write_text(draft, NULL, 0) + 1;
    Extensions *made = NULL;
    for (Extensions *newest = extensions_newest();;) {
        for (const Extensions *set = newest; set; set = set->next) {
            if (same(set, draft)) {
                os_free(made);
                return set->id;
            }
        }
        if (!made) {
            made = set_new(draft->n_rules, draft->n_passes, bytes);
            if (!made)
                return -1;
            made->n_rules = draft->n_rules;
            made->n_passes = draft->n_passes;
            for (uint32_t k = 0; k < draft->n_rules; k++)
                made->rules[k] = draft->rules[k];
            for (uint32_t k = 0; k < draft->n_passes; k++)
                made->passes[k] = draft->passes[k];
            (void)write_text(made, made->text, bytes);
        }
        if (extensions_enter(made, &newest))
            return made->id;
    }
}

typedef struct Draft {
    Extensions set;
    const PatternRule *rules[MOST_RULES + 1];
    UserPass *passes[MOST_PASSES + 1];
} Draft;

/* What there is now, to be changed. */
static void draft_now(Draft *d, const Extensions *now)
{
    d->set = (Extensions){.n_rules = now->n_rules, .n_passes = now->n_passes, .rules = d->rules, .passes = d->passes};
    for (uint32_t k = 0; k < now->n_rules; k++)
        d->rules[k] = now->rules[k];
    for (uint32_t k = 0; k < now->n_passes; k++)
        d->passes[k] = now->passes[k];
}

/* Makes the draft what there is if that is still `now`. *done: it was. */
static Status publish(const Draft *d, const Extensions *now, bool *done)
{
    int64_t id = intern(&d->set);
    if (id < 0)
        return fail(ST_OUT_OF_MEMORY, "no memory for a set of rules and passes");
    *done = option_exchange(OPT_EXTENSIONS, now->id, id);
    return ST_OK;
}

/* ---- rules ---- */

static uint32_t find_rule(const Extensions *set, const char *name)
{
    uint32_t k = 0;
    while (k < set->n_rules && strcmp(set->rules[k]->name, name) != 0)
        k++;
    return k;
}

/* The rule with this text that there was before; NULL: none. */
static const PatternRule *older_rule(const char *text)
{
    for (const Extensions *set = extensions_newest(); set; set = set->next)
        for (uint32_t k = 0; k < set->n_rules; k++)
            if (strcmp(set->rules[k]->text, text) == 0)
                return set->rules[k];
    return NULL;
}

static Status add_rule(const PatternRule *rule)
{
    for (bool done = false; !done;) {
        Draft d;
        const Extensions *now = at_hand();
        uint32_t taken = find_rule(now, rule->name);
        if (taken < now->n_rules)
            return fail(ST_INVALID, "there is one of this name already: %s", now->rules[taken]->text);
        if (now->n_rules == MOST_RULES)
            return fail(ST_INVALID, "rule \"%s\" would be one more than %d, which is the most", rule->name, MOST_RULES);
        draft_now(&d, now);
        d.rules[d.set.n_rules++] = rule;
        TRY(user_rule_check_end(d.rules, d.set.n_rules));
        TRY(publish(&d, now, &done));
    }
    return ST_OK;
}

Status extensions_add_rule(UserRule *made)
{
    const PatternRule *older = older_rule(made->rule.text);
    Status status = add_rule(older ? older : &made->rule);
    if (older || status != ST_OK)
        os_free(made);
    return status;
}

Status extensions_remove_rule(const char *name)
{
    for (bool done = false; !done;) {
        Draft d;
        const Extensions *now = at_hand();
        uint32_t at = find_rule(now, name);
        if (at == now->n_rules)
            return fail(ST_INVALID, "there is no rule \"%s\"", name);
        draft_now(&d, now);
        d.set.n_rules--;
        for (; at < d.set.n_rules; at++)
            d.rules[at] = d.rules[at + 1];
        TRY(publish(&d, now, &done));
    }
    return ST_OK;
}

/* ---- passes ---- */

static uint32_t find_pass(const Extensions *set, const char *name)
{
    uint32_t k = 0;
    while (k < set->n_passes && strcmp(set->passes[k]->name, name) != 0)
        k++;
    return k;
}

/* Where `after` is: *place, and *at, where in the set. Behind remat nodes are copies of each other, which no pass may take apart. */
static Status find_place(const Extensions *set, const char *after, int *place, uint32_t *at)
{
    *place = AT_START;
    *at = set->n_passes;
    uint32_t user = after ? find_pass(set, after) : set->n_passes;
    if (user < set->n_passes) {
        *place = set->passes[user]->after;
        *at = user + 1;
        return ST_OK;
    }
    for (int id = 0; after && id < PASS_REMAT; id++)
        if (strcmp(pass_name((PassId)id), after) == 0) {
            *place = id;
            return ST_OK;
        }
    if (!after)
        return ST_OK;
    char names[256];
    size_t n = 0;
    for (int id = 0; id < PASS_REMAT && n < sizeof names; id++)
        n += (size_t)snprintf(names + n, sizeof names - n, "%s, ", pass_name((PassId)id));
    return fail(ST_INVALID, "a pass cannot run after \"%s\": %sor a pass of yours that is there (NULL: before all)", after, names);
}

/* The pass that was registered so before, or a new one. NULL: no memory. */
static UserPass *same_pass(const UserPass *wanted)
{
    for (UserPass *p = atomic_load(&passes); p; p = p->next)
        if (strcmp(p->name, wanted->name) == 0 && strcmp(p->version, wanted->version) == 0 && p->after == wanted->after &&
            p->call == wanted->call && p->callback == wanted->callback && p->user == wanted->user)
            return p;
    UserPass *made = os_calloc(1, sizeof *made);
    if (!made)
        return NULL;
    memcpy(made->name, wanted->name, sizeof made->name);
    memcpy(made->version, wanted->version, sizeof made->version);
    made->after = wanted->after;
    made->call = wanted->call;
    made->callback = wanted->callback;
    made->user = wanted->user;
    atomic_init(&made->gone, false);
    atomic_init(&made->running, 0);
    made->next = atomic_load(&passes);
    while (!atomic_compare_exchange_weak(&passes, &made->next, made))
        ;
    return made;
}

Status extensions_add_pass(const char *name, const char *version, const char *after,
                           Status (*call)(GraphView *view, void (*callback)(void), void *user), void (*callback)(void), void *user)
{
    TRY(user_name_check("the name of a pass", name));
    TRY(user_name_check("the version of a pass", version));
    for (int id = 0; id < PASS_COUNT; id++)
        if (strcmp(pass_name((PassId)id), name) == 0)
            return fail(ST_INVALID, "\"%s\" is a pass of kiln's own", name);
    for (bool done = false; !done;) {
        Draft d;
        UserPass wanted = {.call = call, .callback = callback, .user = user};
        uint32_t at;
        const Extensions *now = at_hand();
        if (find_pass(now, name) < now->n_passes)
            return fail(ST_INVALID, "there is a pass \"%s\" already, of version %s", name, now->passes[find_pass(now, name)]->version);
        if (now->n_passes == MOST_PASSES)
            return fail(ST_INVALID, "pass \"%s\" would be one more than %d, which is the most", name, MOST_PASSES);
        TRY(find_place(now, after, &wanted.after, &at));
        snprintf(wanted.name, sizeof wanted.name, "%s", name);
        snprintf(wanted.version, sizeof wanted.version, "%s", version);
        UserPass *pass = same_pass(&wanted);
        if (!pass)
            return fail(ST_OUT_OF_MEMORY, "no memory for a pass");
        atomic_store(&pass->gone, false);
        draft_now(&d, now);
        for (uint32_t k = d.set.n_passes++; k > at; k--)
            d.passes[k] = d.passes[k - 1];
        d.passes[at] = pass;
        TRY(publish(&d, now, &done));
    }
    return ST_OK;
}

Status extensions_remove_pass(const char *name, UserPass **removed)
{
    UserPass *pass = NULL;
    if (at_work)
        return fail(ST_INVALID, "a pass at work cannot remove one: who removes waits for those at work");
    for (bool done = false; !done;) {
        Draft d;
        const Extensions *now = at_hand();
        uint32_t at = find_pass(now, name);
        if (at == now->n_passes)
            return fail(ST_INVALID, "there is no pass \"%s\"", name);
        draft_now(&d, now);
        pass = d.passes[at];
        d.set.n_passes--;
        for (; at < d.set.n_passes; at++)
            d.passes[at] = d.passes[at + 1];
        TRY(publish(&d, now, &done));
    }
    *removed = pass;
    return ST_OK;
}

void user_pass_retire(UserPass *pass)
{
    atomic_store(&pass->gone, true);
    while (atomic_load(&pass->running))
        thrd_sleep(&(struct timespec){.tv_nsec = 100000}, NULL);
}

bool user_pass_hold(UserPass *pass)
{
    atomic_fetch_add(&pass->running, 1);
    at_work++;
    if (!atomic_load(&pass->gone))
        return true;
    user_pass_let_go(pass);
    return false;
}

void user_pass_let_go(UserPass *pass)
{
    at_work--;
    atomic_fetch_sub(&pass->running, 1);
}

bool user_pass_at_work(void) { return at_work > 0; }
