/* The sets that there are: see jit/extensions.h. Apart from jit/extend.c, so that the command `kiln`, which asks for the texts of options,
 * needs no more. */
#include "jit/extensions.h"

static Extensions *_Atomic sets; /* newest first; numbers 1, 2, ... */

static const Extensions none = {.text = ""};

const Extensions *extensions_of(int64_t id)
{
    const Extensions *set = extensions_newest();
    while (set && set->id != id)
        set = set->next;
    return set ? set : &none;
}

Extensions *extensions_newest(void) { return atomic_load(&sets); }

bool extensions_enter(Extensions *made, Extensions **newest)
{
    made->next = *newest;
    made->id = *newest ? (*newest)->id + 1 : 1;
    return atomic_compare_exchange_strong(&sets, newest, made);
}
