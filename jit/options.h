/* Options: one table (jit/options.def), read from KILN_<NAME> at first use, set by kiln_set_option. */
#ifndef JIT_OPTIONS_H
#define JIT_OPTIONS_H

#include "ir/base/status.h"
#include "ir/scalar.h"
#include "jit/cuda_target.h"
#include <stdbool.h>
#include <stdint.h>

typedef enum OptionId {
#define OPTION(id, name, kind, def, keyed, help) OPT_##id,
#include "jit/options.def"
#undef OPTION
    OPT_COUNT,
    OPT_SHOWN = OPT_EXTENSIONS /* those before it are users' to set and see */
} OptionId;

enum { MODE_JIT, MODE_EAGER, MODE_INTERP };
enum { OPT_MATH_FAST, OPT_MATH_STRICT };
enum { SUBNORMALS_KEEP, SUBNORMALS_FLUSH };
enum { DYNAMIC_NEVER, DYNAMIC_AUTO, DYNAMIC_ALWAYS };
enum { CHECK_OFF, CHECK_PURE, CHECK_REPEAT, CHECK_CACHE, CHECK_RULES };
enum { BANDS_OFF, BANDS_AUTO, BANDS_ALWAYS };
enum { REMAT_AUTO, REMAT_OFF, REMAT_MEMORY };
enum { CPU_HOST, CPU_V3, CPU_V4 };
enum { CACHE_ON, CACHE_OFF, CACHE_READONLY, CACHE_REFRESH };
enum { COMPILE_ON, COMPILE_OFF };
enum { TEST_MEMORY_POOLED, TEST_MEMORY_EXACT };
enum { PERF_OFF, PERF_SUMMARY, PERF_CSV };
enum { ON_RECOMPILE_IGNORE, ON_RECOMPILE_WARN, ON_RECOMPILE_ERROR };

/* Current values: INT and BOOL as they are, ENUM as the index of the value in its list, FILE as a hash of its contents. One relaxed atomic load. */
int64_t option_int(OptionId id);
/* TEXT and FILE options: copied to buf (truncated), returns buf. */
const char *option_text(OptionId id, char *buf, size_t size);

/* Sets one by name from text. ST_INVALID with a message that lists the valid names or values. LOG takes effect at once. */
Status option_set(const char *name, const char *value);
/* Its value as text into buf; ST_INVALID for an unknown name. */
Status option_get(const char *name, char *buf, size_t size);
/* Sets a hidden one from `before` to `now`; false: it has another value meanwhile. */
bool option_exchange(OptionId id, int64_t before, int64_t now);
/* Reads the environment once (thread-safe, idempotent). A bad value: one warning with the valid ones, default kept. An
 * unknown KILN_* name: one warning with the nearest valid one. */
void options_init(void);
uint64_t options_generation(void); /* changes whenever any option was set */

/* What a compilation uses: a snapshot, so that one compile sees one set. */
typedef struct JitOptions {
    int64_t value[OPT_COUNT];
    CudaTarget target; /* sm 0: this host */
} JitOptions;
void options_snapshot(JitOptions *out); /* for this host */
static inline MathMode options_math(const JitOptions *o) { return o->value[OPT_MATH] == OPT_MATH_STRICT ? MATH_STRICT : MATH_FAST; }

const char *option_name(OptionId id);
/* "KILN_MODE", and "jit, eager, interp" (what it may be) into buf; both return buf. */
const char *option_variable(OptionId id, char *buf, size_t size);
const char *option_values(OptionId id, char *buf, size_t size);

/* Where a value came from. INVALID: the environment has one that is none, so the default is used. */
typedef enum OptionOrigin { ORIGIN_DEFAULT, ORIGIN_ENVIRONMENT, ORIGIN_INVALID, ORIGIN_SET } OptionOrigin;
typedef struct OptionInfo {
    const char *name, *kind, *def, *help; /* kind: "bool", "int", "enum", "text", "file" */
    bool keyed;
    OptionOrigin origin;
} OptionInfo;
void option_describe(OptionId id, OptionInfo *out);
bool option_keyed(OptionId id);
/* What the file held when this was the value of a FILE option; it stays. NULL: there never was such a value; 0 is "no file". */
const char *option_contents(int64_t value);
/* All of what a value of a hidden option stands for; NULL: it is no hidden one. */
const char *option_hidden_text(OptionId id, int64_t value);
/* A value of an option (not TEXT; FILE: a hash of what it holds) as people write it: "strict", "512". */
void option_value_text(OptionId id, int64_t value, char *buf, size_t size);

#endif
