/*
 * The maker part of the key text: entry format, library, LLVM, CPU or GPU, options. One line for each thing, so that `kiln cache diff` can name
 * what differs.
 */
#include "cache/maker.h"
#include "cache/entry.h"
#include "ir/base/os.h"
#include "jit/target.h"

#include <stdio.h>
#include <string.h>

static void add(Str *out, const char *name, const char *value) { key_line_add(out, name, value, strlen(value)); }

bool maker_device(const char *maker, size_t bytes, Str *out)
{
    size_t n, begin = out->len;
    for (TargetFact fact = 0; fact < TARGET_FACTS; fact++) {
        if (target_fact_of(fact, TARGET_HOST)) /* of a CPU, too */
            continue;
        const char *value = key_line_find(maker, bytes, target_fact_name(fact), &n);
        if (!value)
            return false;
        str_printf(out, "%s%s %.*s", out->len > begin ? ", " : "", target_fact_name(fact), (int)n, value);
    }
    return true;
}

bool maker_of_machine(const char *name)
{
    bool found = false;
    for (TargetFact fact = 0; fact < TARGET_FACTS; fact++)
        found |= strcmp(name, target_fact_name(fact)) == 0;
    return found;
}

bool maker_text(const JitOptions *options, Str *out)
{
    char text[64];
    snprintf(text, sizeof text, "%d", ENTRY_FORMAT);
    add(out, "format", text);
    add(out, "version", KILN_VERSION_STRING);
    if (!os_build_id(text, sizeof text))
        return false;
    add(out, "build", text);
    add(out, "llvm", KILN_LLVM_VERSION);
    for (TargetFact fact = 0; fact < TARGET_FACTS; fact++)
        if (target_fact_of(fact, target_kind(&options->target)->device)) {
            Str value;
            str_init(&value, out->arena);
            target_fact_print(fact, &options->target, &value);
            add(out, target_fact_name(fact), value.text);
        }
    for (int id = 0; id < OPT_COUNT; id++)
        if (option_keyed((OptionId)id)) {
            const char *whole = option_hidden_text((OptionId)id, options->value[id]);
            option_value_text((OptionId)id, options->value[id], text, sizeof text);
            add(out, option_name((OptionId)id), whole ? whole : text);
        }
    return true;
}
