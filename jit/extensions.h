/*
 * What users add to the compiler while a process runs: rules (ir/user_rule.h) and passes (ir/view.h).
 *
 * All that there is at a time is one immutable set, known by a number that is the value of the hidden option `extensions`: so it is part of every
 * key in memory, a compile in another thread uses the set of its own snapshot of the options, and what was compiled under another set
 * is never found. On disk the set's text stands for it: rules as they were written, passes by name, version and place. A set that was there
 * before is that one again. Sets and rules live as long as the process; so there is a limit, and adding is for the beginning of a program.
 *
 *     extensions_add_*  the set at hand + 1 -> a set -> option_exchange; tried again where another thread was faster. No lock.
 */
#ifndef JIT_EXTENSIONS_H
#define JIT_EXTENSIONS_H

#include "ir/user_rule.h"
#include "ir/view.h"
#include "jit/options.h"

#include <stdatomic.h>

enum { MOST_RULES = 256, MOST_PASSES = 64, AT_START = -1 };

typedef struct UserPass {
    struct UserPass *next; /* of all that there ever were */
    char name[USER_NAME], version[USER_NAME];
    int after; /* PassId, or AT_START; those of one place run in the order of the set */
    /* call(view, callback, user): callback is the user's, which only `call` knows how to call. */
    Status (*call)(GraphView *view, void (*callback)(void), void *user);
    void (*callback)(void);
    void *user;
    atomic_bool gone;   /* it was removed */
    atomic_int running; /* so many compiles are in it */
} UserPass;

typedef struct Extensions {
    int64_t id;
    uint32_t n_rules, n_passes;
    const PatternRule **rules;
    UserPass **passes;
    char *text; /* "rule mul_one (mul x 1) -> x exact any; pass acme.quant 1.2 after rules" */
    struct Extensions *next;
} Extensions;

/* The set with this number; an empty one for 0. */
const Extensions *extensions_of(int64_t id);
/* All of them, newest first; and a new one before *newest, as which another may have come in between: false, it is *newest now. */
Extensions *extensions_newest(void);
bool extensions_enter(Extensions *made, Extensions **newest);

/* ST_INVALID: the name is taken, there are too many, or no such place (with those that there are). `rule` is given away, also on failure. */
Status extensions_add_rule(UserRule *rule);
Status extensions_add_pass(const char *name, const char *version, const char *after,
                           Status (*call)(GraphView *view, void (*callback)(void), void *user), void (*callback)(void), void *user);
/* ST_INVALID: there is none of that name. */
Status extensions_remove_rule(const char *name);
/* Compiles that read the options before go on calling it, ... */
Status extensions_remove_pass(const char *name, UserPass **removed);
/* ... until here; a compile that calls it later fails. Waits for those that are in it. */
void user_pass_retire(UserPass *pass);

/* A compile is about to call it; false: it was removed. While it is held, a removal waits. */
bool user_pass_hold(UserPass *pass);
void user_pass_let_go(UserPass *pass);
/* Is this thread in a pass? It may not wait for who may wait for the compile. */
bool user_pass_at_work(void);

#endif
