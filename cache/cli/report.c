/*
 * `kiln report`: what a run left as one page of HTML, or its data as JSON.
 *
 *     page   <!--kiln report--> markup, style | data as JSON in a script element | script
 *
 * The parts around the data are the files of report/, put together by the build (cmake/KilnCommand.cmake). In the data every '<' is written
 * \u003c and everything beyond ASCII likewise, so that no name can end the element, open a comment or break a line of script.
 */
#include "cache/cli/report.h"
#include "cache/cli/trace.h"
#include "ir/base/hash.h"
#include "ir/base/os.h"
#include "ir/base/os_output.h"
#include "ir/base/os_term.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MOST_STRING_BYTES = 1200 << 10, MOST_DATA_BYTES = 4300 << 10, LEAST_TEXT_BYTES = 600 << 10, MOST_RECORDED = 500 };
static const char magic[] = "<!--kiln report-"; /* what a page begins with: one may be replaced */
static const char DEFAULT_PATH[] = "report.html";
extern const char report_before[], report_after[]; /* made of report/ */

/* ---- texts that stand there many times ---- */

json_int_t report_string(Report *report, const char *text)
{
    Strings *s = &report->strings;
    Arena *arena = report->cli->arena;
    if (!text || !*text)
        return 0;
    uint32_t hash = table_key(hash64(text, strlen(text)));
    for (uint32_t probe = 0, i; table_next(&s->table, hash, &probe, &i);)
        if (strcmp(s->at.at[i], text) == 0)
            return i;
    if (s->bytes > MOST_STRING_BYTES) {
        s->full = true;
        return 1; /* "..." */
    }
    for (const char *c = text; *c; c++) /* as they come to stand in the page */
        s->bytes += *c == '<' || *c < ' ' ? 6 : 1;
    table_add(arena, &s->table, hash, s->at.n);
    VEC_PUSH(arena, s->at, arena_strdup(arena, text));
    return s->at.n - 1;
}

static json_t *strings_json(Report *report)
{
    json_t *all = json_array();
    for (uint32_t i = 0; i < report->strings.at.n; i++)
        js_push(report->cli, all, js_text(report->strings.at.at[i]));
    return all;
}

/* ---- what the sources add ---- */

void report_note(Report *report, const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    js_push(report->cli, report->notes, js_text(text));
}

json_t *report_source(Report *report, const char *kind, const char *path)
{
    json_t *source = json_object();
    js_set(report->cli, source, "kind", js_text(kind));
    js_set(report->cli, source, "path", js_text(path));
    js_push(report->cli, report->sources, source);
    return source;
}

/* ---- the page ---- */

static int put_escaped(const char *text, size_t n, void *user)
{
    FILE *file = user;
    for (size_t from = 0; from < n;) {
        const char *mark = memchr(text + from, '<', n - from);
        size_t run = mark ? (size_t)(mark - text) - from : n - from;
        if (fwrite(text + from, 1, run, file) != run || (mark && fputs("\\u003c", file) < 0))
            return -1;
        from += run + (mark != NULL);
    }
    return 0;
}

static int write_page(const json_t *data, const char *path)
{
    OsOutput out;
    Status status = os_output_open(path, magic, sizeof magic - 1, &out);
    if (status != ST_OK)
        return complain_last(status);
    bool good = fputs(report_before, out.file) >= 0 &&
                json_dump_callback(data, put_escaped, out.file, JSON_COMPACT | JSON_ENSURE_ASCII) == 0 &&
                fputs(report_after, out.file) >= 0;
    bool standard = out.standard;
    status = os_output_close(&out, good);
    if (status != ST_OK)
        return complain_last(status);
    if (!good) {
        complain("%s was not written: out of memory, or no room", path);
        return END_TROUBLE;
    }
    if (!standard)
        printf("%s\n", path);
    return END_FINE;
}

static void begin(Report *report, Cli *cli)
{
    *report = (Report){.cli = cli,
                       .root = json_object(),
                       .sources = json_array(),
                       .notes = json_array(),
                       .programs = json_array(),
                       .scratch = arena_scratch(cli->arena)};
    VEC_PUSH(cli->arena, report->strings.at, "");
    VEC_PUSH(cli->arena, report->strings.at, "...");
    js_set(cli, report->root, "kiln", js_text(KILN_VERSION_STRING));
    js_set(cli, report->root, "sources", report->sources);
    js_set(cli, report->root, "programs", report->programs);
    js_set(cli, report->root, "notes", report->notes);
}

/* What a source is: a folder holds dumps, and hexadecimal digits that name no file are a key, as `kiln cache list` prints it or whole. */
typedef int AddSource(Report *report, const char *source);

static AddSource *kind_of(const char *source)
{
    size_t hex = strspn(source, "0123456789abcdef-");
    bool key = hex && (!source[hex] || strcmp(source + hex, ".kiln") == 0);
    if (os_is_folder(source))
        return report_dump;
    return key && !os_path_exists(source) ? report_entry : report_trace;
}

/* The trace first: programs take what room it leaves. */
static int add_sources(Report *report)
{
    Cli *cli = report->cli;
    int end = END_FINE;
    for (uint32_t i = 0; i < cli->n_args; i++) {
        if (kind_of(cli->args[i]) != report_trace || os_path_exists(cli->args[i]))
            continue;
        complain("%s: No such file or folder. A folder of dumps is made where the program compiles something: with KILN_CACHE=off it does, "
                 "whatever "
                 "was kept",
                 cli->args[i]);
        return END_TROUBLE;
    }
    for (bool programs = false;; programs = true) {
        if (programs) {
            size_t so_far = json_dumpb(report->root, NULL, 0, JSON_COMPACT | JSON_ENSURE_ASCII) + report->strings.bytes;
            report->text = so_far + LEAST_TEXT_BYTES < MOST_DATA_BYTES ? MOST_DATA_BYTES - so_far : LEAST_TEXT_BYTES;
        }
        for (uint32_t i = 0; i < cli->n_args && end == END_FINE; i++) {
            AddSource *add = kind_of(cli->args[i]);
            if ((add != report_trace) == programs)
                end = add(report, cli->args[i]);
        }
        if (programs)
            break;
    }
    if (end == END_FINE && report->store.path) {
        js_set(cli, report->root, "cache", store_stats_json(cli, &report->store));
        js_set(cli, report->root, "recorded", store_misses_json(cli, &report->store, MOST_RECORDED));
    }
    store_close(&report->store);
    return end;
}

/* The page, or its data. Takes the data over. */
static int end_with(Report *report, const char *path)
{
    Cli *cli = report->cli;
    if (report->strings.full)
        report_note(report, "Some names and details are left out: there were too many.");
    if (report->text_left_out)
        report_note(report, "Some texts of programs are left out: the page has room for %d KiB of data, and for none longer than 128 KiB.",
                    MOST_DATA_BYTES >> 10);
    js_set(cli, report->root, "strings", strings_json(report));
    if (flag_on(cli, FLAG_JSON))
        return js_print(cli, report->root);
    int end = END_TROUBLE;
    if (cli->json_broken)
        complain("out of memory");
    else
        end = write_page(report->root, path);
    json_decref(report->root);
    return end;
}

static int report_diff(Cli *cli)
{
    Report report;
    TraceDiff *diff;
    if (cli->n_args != TRACE_SIDES) {
        complain("report --diff compares two traces: kiln report --diff A B");
        return END_USAGE;
    }
    int end = trace_diff(cli, cli->args, &diff);
    if (end != END_FINE)
        return end;
    if (flag_on(cli, FLAG_OUTPUT)) {
        begin(&report, cli);
        js_set(cli, report.root, "diff", trace_diff_json(diff));
        for (uint32_t i = 0; i < TRACE_SIDES; i++)
            (void)report_source(&report, "trace", cli->args[i]);
        end = end_with(&report, cli->flag[FLAG_OUTPUT]);
    } else if (flag_on(cli, FLAG_JSON)) {
        end = js_print(cli, trace_diff_json(diff));
    } else {
        trace_diff_print(diff);
    }
    int found = trace_diff_end(diff);
    return end == END_FINE ? found : end;
}

int cmd_REPORT(Cli *cli)
{
    Report report;
    if (flag_on(cli, FLAG_DIFF))
        return report_diff(cli);
    if (flag_on(cli, FLAG_FAIL_ABOVE)) {
        complain("--fail-above goes with --diff A B");
        return END_USAGE;
    }
    begin(&report, cli);
    js_set(cli, report.root, "machine", info_machine(cli));
    int end = add_sources(&report);
    if (end == END_FINE)
        return end_with(&report, flag_on(cli, FLAG_OUTPUT) ? cli->flag[FLAG_OUTPUT] : DEFAULT_PATH);
    json_decref(report.root);
    return end;
}
