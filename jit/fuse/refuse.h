/*
 * Why fusion says no: the rows of jit/fuse/refusals.def, each with its function, and what is told of them.
 */
#ifndef JIT_FUSE_REFUSE_H
#define JIT_FUSE_REFUSE_H

#include "ir/graph.h"

typedef struct Fuser Fuser;
typedef struct Build Build;
typedef struct Unit Unit;
typedef struct Space Space;
typedef struct Where Where;
typedef struct Attention Attention;
typedef struct LoopKernel LoopKernel;
typedef struct Bands Bands;
typedef struct Uniting Uniting;
typedef struct PlanStep PlanStep;

typedef enum RefusalId { /* groups are counted, too, each before its rows; 0 is one: nothing is refused */
#define GROUP(id, line) GROUP_##id,
#define REFUSAL(id, sentence) REFUSAL_##id,
#define TOLD(id, sentence) REFUSAL_##id,
#include "jit/fuse/refusals.def"
#undef GROUP
#undef REFUSAL
#undef TOLD
                         REFUSALS,
                         REFUSAL_NONE = 0
} RefusalId;

/* What is asked: may node n be there? A group's functions read what of this the group is about. */
typedef struct Asked {
    Fuser *f;
    Build *b; /* the kernel; NULL: before there are any */
    Ref n;
    Ref product; /* STRIDED: which n is an operand of, and the side */
    uint32_t side;
    uint32_t at; /* where the kernel reads it, and under which predicate; BUCKET: from which element of it on it would lie */
    uint32_t pred;
    uint32_t axes[MAX_RANK], count, used; /* FOLD: the axes it folds; those of the kernel that its coordinates follow */
    const Unit *before;                   /* ROOTS: what made n in the round before, ... */
    const Space *own;                     /* ... the kernel's loops; `at` becomes where those have n */
    Where *where;                         /* COST: of each node, what the round has shown of it, and what computing it costs */
    const uint32_t *cost;
    const Attention *attention;
    uint32_t in[2];       /* ATTEND_...: the values that it would be made of */
    LoopKernel *loop;     /* LOOP: what is known of it so far, to which they add */
    Bands *bands;         /* BAND: the same */
    Uniting *uniting;     /* UNION: the same; ... */
    const PlanStep *with; /* ... of the kernel that makes this step's node */
    int64_t numbers[2];   /* that belong to the sentence: the one there is and the one there should be; else equal */
} Asked;

/* The first row of a group that holds of what is asked; REFUSAL_NONE: none does. */
RefusalId refuse(RefusalId group, Asked *a);

/* A line of the log: node n is refused by a row, in the kernel of `root`. */
typedef struct Refused {
    RefusalId id;
    Ref n, root;
    int64_t numbers[2];
} Refused;
typedef VEC(Refused) RefusedList;

/* Appends to the list, which lives in the fuser's arena, unless nobody is told. */
void refused_note(Fuser *f, RefusedList *list, RefusalId id, const Asked *a);
const char *refused_line(const Fuser *f, const Refused *r); /* in the fuser's arena */
const char *refusal_sentence(RefusalId id);                 /* NULL: of a group */
RefusalId refusal_group(RefusalId id);

#define GROUP(id, line)
#define REFUSAL(id, sentence) bool refuses_##id(Asked *a);
#define TOLD(id, sentence)
#include "jit/fuse/refusals.def"
#undef GROUP
#undef REFUSAL
#undef TOLD

#endif
