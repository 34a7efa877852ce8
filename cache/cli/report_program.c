/*
 * Programs' part of the report: folders that KILN_DUMP made, and entries of the cache. Both come to the page in one form: graphs by pass,
 * kernels with their texts, the launch plan, guards. First what explains a program, of all of them; then, as far as there is room, IR and assembly.
 *
 *     dump/0007_2198406e5fff067b/   00_graph_recorded.txt  02_graph_rules.txt ...  fusion.txt  kernel0_exp.txt .ll .s|.ptx  program.txt
 */
#include "cache/cli/report.h"
#include "ir/base/os_dir.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_PROGRAMS = 2000, MOST_FILES = 1000, MOST_KERNELS = 200, MOST_TEXT = 128 << 10, MARKUP = 60 };

/* Is there room for so much in the page? Then it is taken. */
static bool room_for(Report *report, size_t n)
{
    bool fits = n <= report->text;
    report->text -= fits ? n : 0;
    report->text_left_out |= !fits;
    return fits;
}

/* As it comes to stand in the page: escaped. */
static size_t page_bytes(const char *text, size_t n)
{
    size_t sum = 2;
    for (size_t i = 0; i < n; i++) {
        bool named = text[i] == '\n' || text[i] == '\t' || text[i] == '"' || text[i] == '\\';
        bool plain = (unsigned char)text[i] >= ' ' && (unsigned char)text[i] <= '~' && text[i] != '<';
        sum += named ? 2 : plain ? 1 : 6;
    }
    return sum;
}

/* null: there is none, or no room for it. */
static json_t *text_json(Report *report, const char *text, size_t n)
{
    return text && room_for(report, page_bytes(text, n)) ? js_bytes(text, n) : json_null();
}

static json_t *program_json(Report *report, const char *kind, const char *name)
{
    json_t *program = json_object();
    (void)room_for(report, MARKUP + page_bytes(name, strlen(name)));
    js_set(report->cli, program, "kind", js_text(kind));
    js_set(report->cli, program, "name", js_text(name));
    js_set(report->cli, program, "graphs", json_array());
    js_set(report->cli, program, "kernels", json_array());
    js_push(report->cli, report->programs, program);
    return program;
}

static void add_graph(Report *report, json_t *program, const char *pass, const char *text, size_t n)
{
    json_t *graph = json_object();
    (void)room_for(report, MARKUP);
    js_set(report->cli, graph, "pass", js_text(pass));
    js_set(report->cli, graph, "text", text_json(report, text, n));
    js_push(report->cli, json_object_get(program, "graphs"), graph);
}

/* The kernel of that number, made where it is not there yet; NULL: there are as many as there may be, or no room. */
static json_t *kernel_json(Report *report, json_t *program, size_t number, const char *name, size_t n)
{
    json_t *kernels = json_object_get(program, "kernels");
    if (number >= MOST_KERNELS)
        return NULL;
    while (json_array_size(kernels) <= number) {
        if (!room_for(report, 2 * MARKUP + page_bytes(name, n)))
            return NULL;
        json_t *made = json_object();
        js_push(report->cli, kernels, made);
        if (json_array_get(kernels, json_array_size(kernels) - 1) != made)
            return NULL; /* no memory: js_push noted it */
    }
    json_t *kernel = json_array_get(kernels, number);
    if (!json_object_get(kernel, "name"))
        js_set(report->cli, kernel, "name", js_bytes(name, n));
    return kernel;
}

/* ---- folders of KILN_DUMP ---- */

typedef struct Names {
    Arena *arena;
    VEC(const char *) at;
    bool folders, more; /* folders are wanted, not files; there were too many */
    int dir;
} Names;

static bool take_name(const char *name, void *user)
{
    Names *names = user;
    OsFileInfo info;
    if (!isdigit((unsigned char)*name) || !os_dir_info(names->dir, name, &info) || (names->folders ? !info.directory : !info.regular))
        return true;
    names->more = names->at.n == (names->folders ? MOST_PROGRAMS : MOST_FILES);
    if (!names->more)
        VEC_PUSH(names->arena, names->at, arena_strdup(names->arena, name));
    return !names->more;
}

static int by_name(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

/* "0007_..." in the order of their numbers. false: it cannot be read; errno. */
static bool list(int dir, bool folders, Arena *arena, Names *out)
{
    *out = (Names){.arena = arena, .folders = folders, .dir = dir};
    if (!os_dir_each(dir, take_name, out))
        return false;
    if (out->at.n)
        qsort(out->at.at, out->at.n, sizeof *out->at.at, by_name);
    return true;
}

/* A whole file in the scratch arena; NULL: it cannot be read, or is longer than a text may be. */
static const char *read_whole(Report *report, int dir, const char *name, size_t *n)
{
    OsFileInfo info;
    int file = os_file_open(dir, name, &info);
    char *text = NULL;
    if (file >= 0 && info.regular && info.bytes <= MOST_TEXT) {
        *n = (size_t)info.bytes;
        text = arena_alloc(report->scratch, *n + 1);
        text = os_file_read(file, text, *n) ? text : NULL;
    }
    if (file >= 0)
        os_file_close(file);
    report->text_left_out |= !text;
    return text;
}

/* What a file of a program's folder holds, by the end of its name: NN_graph_PASS.txt, NN_kernelK_NAME.ENDING, NN_fusion.txt, NN_program.txt.
 * `code`: IR and assembly, or all the rest. */
static void take_file(Report *report, json_t *program, int dir, const char *name, bool code)
{
    static const struct {
        const char *ending, *key;
        bool code;
    } endings[] = {{".txt", "text", false}, {".ll", "ir", true}, {".s", "assembly", true}, {".ptx", "ptx", true}};
    const char *what = strchr(name, '_'), *ending = strrchr(name, '.');
    size_t n = 0, kind = 0;
    while (kind < sizeof endings / sizeof *endings && (!ending || strcmp(ending, endings[kind].ending) != 0))
        kind++;
    if (!what || kind == sizeof endings / sizeof *endings || endings[kind].code != code)
        return;
    const char *text = read_whole(report, dir, name, &n);
    what++;
    if (strncmp(what, "graph_", 6) == 0 && !code) {
        add_graph(report, program, arena_printf(report->scratch, "%.*s", (int)(ending - what - 6), what + 6), text, n);
    } else if (strncmp(what, "kernel", 6) == 0 && isdigit((unsigned char)what[6])) {
        char *rest;
        size_t number = strtoul(what + 6, &rest, 10);
        rest += *rest == '_';
        json_t *kernel = rest <= ending ? kernel_json(report, program, number, rest, (size_t)(ending - rest)) : NULL;
        if (kernel)
            js_set(report->cli, kernel, endings[kind].key, text_json(report, text, n));
    } else if (strcmp(what, "fusion.txt") == 0 || strcmp(what, "program.txt") == 0) {
        js_set(report->cli, program, *what == 'f' ? "fusion" : "plan", text_json(report, text, n));
    }
}

/* The files of one program's folder; false: it cannot be read. */
static bool take_folder(Report *report, json_t *program, int all, const char *name, bool code)
{
    Names files;
    int dir = os_dir_open(all, name);
    bool good = dir >= 0 && list(dir, false, report->scratch, &files);
    for (uint32_t i = 0; good && i < files.at.n; i++)
        take_file(report, program, dir, files.at.at[i], code);
    if (good && files.more)
        report->text_left_out = true;
    if (dir >= 0)
        os_dir_close(dir);
    return good;
}

/* "0007_2198406e5fff067b" is the folder of the graph of that id, as traces and logs name it. */
static void take_program(Report *report, json_t *program, int all, const char *name, const char *title, bool code)
{
    const char *id = strchr(title, '_');
    arena_reset(report->scratch);
    if (!code && id)
        js_set(report->cli, program, "id", js_text(id + 1));
    if (!take_folder(report, program, all, name, code) && !code)
        report_note(report, "%s cannot be read: %s.", title, strerror(errno));
}

int report_dump(Report *report, const char *path)
{
    Cli *cli = report->cli;
    Names programs = {0};
    Names files = {0};
    int all = os_dir_open(-1, arena_printf(cli->arena, "%s/.", path)); /* through a link, too */
    if (all < 0 || !list(all, true, cli->arena, &programs) || !list(all, false, cli->arena, &files)) {
        complain("%s: %s", path, strerror(errno));
        if (all >= 0)
            os_dir_close(all);
        return END_TROUBLE;
    }
    bool one = !programs.at.n && files.at.n; /* the folder of one program */
    if (!programs.at.n && !one) {
        complain("%s: it is no folder of dumps as kiln writes them (KILN_DUMP=%s)", path, path);
        os_dir_close(all);
        return END_TROUBLE;
    }
    js_set(cli, report_source(report, "dump", path), "programs", json_integer(one ? 1 : programs.at.n));
    size_t first = json_array_size(report->programs);
    const char *last = strrchr(path, '/');
    for (int code = 0; code < 2; code++)
        for (uint32_t i = 0; i < (one ? 1 : programs.at.n); i++) {
            const char *title = !one ? programs.at.at[i] : last && last[1] ? last + 1 : path;
            if (!code)
                (void)program_json(report, "dump", title);
            json_t *program = json_array_get(report->programs, first + i);
            if (program)
                take_program(report, program, all, one ? "." : programs.at.at[i], title, code);
        }
    os_dir_close(all);
    if (programs.more)
        report_note(report, "Of the programs in %s only %d are shown.", path, MOST_PROGRAMS);
    return END_FINE;
}

/* ---- entries of the cache ---- */

static void add_kernels(Report *report, json_t *program, const Entry *entry, const EntryTexts *texts)
{
    Cli *cli = report->cli;
    bool ptx = strcmp(entry->device, "cpu") != 0;
    for (uint32_t i = 0; i < entry->view.n_kernels; i++) {
        const EntryKernel *k = &entry->view.kernels[i];
        json_t *kernel = kernel_json(report, program, i, k->name, strlen(k->name));
        if (!kernel)
            return;
        js_set(cli, kernel, "text", text_json(report, k->key, k->key_bytes));
        js_set(cli, kernel, "code_bytes", json_integer((json_int_t)k->code_bytes));
        const char *const code[2] = {texts->kernel_ir ? texts->kernel_ir[i] : NULL,
                                     texts->kernel_assembly ? texts->kernel_assembly[i] : NULL};
        for (int form = 0; form < 2; form++)
            if (code[form])
                js_set(cli, kernel, !form ? "ir" : ptx ? "ptx" : "assembly", text_json(report, code[form], strlen(code[form])));
    }
}

int report_entry(Report *report, const char *key)
{
    Cli *cli = report->cli;
    Entry entry;
    EntryTexts texts;
    int end = entry_open_key(cli, key, &report->store, &entry);
    if (end >= 0)
        return end;
    Status status = entry_texts(&entry.view, cli->arena, &texts);
    if (status != ST_OK)
        return complain_last(status);
    js_set(cli, report_source(report, "entry", entry.item->name), "directory", js_text(report->store.path));
    json_t *program = program_json(report, "entry", entry.key);
    json_t *whole = entry_json(cli, &entry);
    (void)json_object_del(whole, "kernels"); /* they come with their texts */
    js_set(cli, program, "entry", whole);
    if (texts.recorded)
        add_graph(report, program, "recorded", texts.recorded, strlen(texts.recorded));
    if (texts.optimised)
        add_graph(report, program, "all passes", texts.optimised, strlen(texts.optimised));
    add_kernels(report, program, &entry, &texts);
    return END_FINE;
}
