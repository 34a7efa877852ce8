/*
 * The maker part of the key text: entry format, library, LLVM, CPU or GPU, options. One line for each thing, so that `kiln cache diff` can name
 * what differs.
 */
#include "cache/maker.h"
#include "cache/entry.h"
#include "ir/base/os.h"
#include "jit/host_cpu.h"

#include <stdio.h>
#include <string.h>

static void add(Str *out, const char *name, const char *value) { key_line_add(out, name, value, strlen(value)); }

/* The host's features, but for one that a test takes away: KILN_TEST_FAIL=cpu:-NAME. */
static void add_features(Str *out)
{
    char hook[64], word[64];
    const char *features = host_cpu_features(), *at;
    option_text(OPT_TEST_FAIL, hook, sizeof hook);
    if (strncmp(hook, "cpu:-", 5) == 0) {
        snprintf(word, sizeof word, " %s ", hook + 5);
        at = strstr(features, word);
        if (at) {
            Str narrow;
            str_init(&narrow, out->arena);
            str_add(&narrow, features, (size_t)(at - features));
            str_add(&narrow, at + strlen(word) - 1, strlen(at + strlen(word) - 1));
            features = narrow.text;
        }
    }
    add(out, "features", features);
}

/* PTX is text that any driver of its version compiles, but the machine code beside it is made for one device by one driver. */
static void add_target(const CudaTarget *cuda, Str *out)
{
    char text[32];
    if (cuda->sm == 0) {
        add(out, "target", "x86_64-linux-gnu");
        add(out, "machine", host_cpu_name()); /* `cpu` is the option: which features of it are used */
        add_features(out);
        return;
    }
    add(out, "target", "nvptx64-nvidia-cuda");
    snprintf(text, sizeof text, "sm_%d%s", cuda->sm, cuda->arch ? "a" : "");
    add(out, "sm", text);
    snprintf(text, sizeof text, "%d", cuda->ptx);
    add(out, "ptx", text);
    snprintf(text, sizeof text, "%d", cuda->device);
    add(out, "device", text);
    snprintf(text, sizeof text, "%d", cuda->driver);
    add(out, "driver", text);
    snprintf(text, sizeof text, "%d x %d", cuda->multiprocessors, cuda->threads);
    add(out, "threads", text);
}

static const char *const of_device[] = {"sm", "ptx", "device", "driver", "threads"};
enum { OF_DEVICE = sizeof of_device / sizeof *of_device };

bool maker_device(const char *maker, size_t bytes, Str *out)
{
    for (int i = 0; i < OF_DEVICE; i++) {
        size_t n;
        const char *value = key_line_find(maker, bytes, of_device[i], &n);
        if (!value)
            return false;
        str_printf(out, "%s%s %.*s", i ? ", " : "", of_device[i], (int)n, value);
    }
    return true;
}

bool maker_of_machine(const char *name)
{
    bool found = strcmp(name, "target") == 0 || strcmp(name, "machine") == 0 || strcmp(name, "features") == 0;
    for (int i = 0; i < OF_DEVICE; i++)
        found |= strcmp(name, of_device[i]) == 0;
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
    add_target(&options->target, out);
    for (int id = 0; id < OPT_COUNT; id++)
        if (option_keyed((OptionId)id)) {
            const char *whole = option_hidden_text((OptionId)id, options->value[id]);
            option_value_text((OptionId)id, options->value[id], text, sizeof text);
            add(out, option_name((OptionId)id), whole ? whole : text);
        }
    return true;
}
