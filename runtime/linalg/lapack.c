/* Opening the LAPACK library (lapack.h). Once it is open it stays; where it is not there each call looks again. */
#include "runtime/linalg/lapack.h"
#include "ir/base/os.h"
#include "jit/options.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

static const Lapack *_Atomic opened;

/* The first function that the library lacks; NULL: none. */
static const char *load(void *library, Lapack *of)
{
    const char *lacks = NULL;
#define ONE(table, name, symbol)                             \
    {                                                        \
        void *address = os_library_symbol(library, #symbol); \
        memcpy(&(table)->name, &address, sizeof address);    \
        lacks = address ? lacks : #symbol;                   \
    }
#define LAPACK_SYM(name, parameters) ONE(&of[0], name, s##name##_) ONE(&of[1], name, d##name##_)
#include "runtime/linalg/lapack.def"
#undef LAPACK_SYM
#undef ONE
    return lacks;
}

static Status open_first(Lapack *of)
{
    static const char *const usual[] = {"liblapack.so.3", "libopenblas.so.0"};
    char name[256], first[512] = "";
    option_text(OPT_LIBLAPACK, name, sizeof name);
    for (int k = 0; k < (name[0] ? 1 : 2); k++) {
        void *library = os_library_open(name[0] ? name : usual[k]);
        const char *lacks = library ? load(library, of) : NULL;
        if (library && !lacks)
            return ST_OK;
        if (!first[0] && library)
            snprintf(first, sizeof first, "%s lacks %s", name[0] ? name : usual[k], lacks);
        else if (!first[0])
            snprintf(first, sizeof first, "%s", os_library_error());
    }
    return fail(ST_UNSUPPORTED,
                "needs a LAPACK library: %s; install the Debian package liblapack3 or libopenblas0, or name another with KILN_LIBLAPACK",
                first);
}

Status lapack_open(const Lapack **of)
{
    *of = atomic_load_explicit(&opened, memory_order_acquire);
    if (*of)
        return ST_OK;
    Lapack *table = os_calloc(2, sizeof *table);
    if (!table)
        return fail(ST_OUT_OF_MEMORY, "out of memory");
    int cancel = os_cancel_off();
    Status status = open_first(table);
    os_cancel_restore(cancel);
    if (status == ST_OK && atomic_compare_exchange_strong(&opened, of, table)) {
        *of = table;
        return ST_OK;
    }
    os_free(table); /* or another thread was first, and *of is its */
    return status;
}
