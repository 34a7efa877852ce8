/*
 * KILN_LOG=recompiles: what is new about a graph that was never seen, at a sync point that compiled another one before.
 *
 *     never_seen: this graph was not seen before; this sync point computed another one before: %2 is add, was mul (recorded at train.c:12)
 *
 * Graphs are compared as text, a line for each node (runtime/eval/key_text.c); the first line that differs is told, since numbers of nodes
 * shift behind it. Only kept while somebody reads the log.
 */
#define KILN_NO_LOCATIONS
#include "ir/base/os.h"
#include "jit/target.h"
#include "runtime/eval/store.h"
#include "runtime/record/record.h"

#include <stdio.h>
#include <string.h>

enum { SITES = 64 };

/* A sync point that compiled something; under the evaluation lock. The file's name is hashed, for it may go with the plugin it lies in. */
typedef struct CallSite {
    Hash128 file;
    int line;
    JitOptions options;
    char *graph; /* its text */
} CallSite;

static CallSite sites[SITES];
static uint32_t n_sites; /* the oldest makes room */

static CallSite *find(Loc loc)
{
    Hash128 file = hash128(loc.file, strlen(loc.file));
    for (uint32_t i = 0; i < n_sites && i < SITES; i++)
        if (sites[i].line == loc.line && sites[i].file.lo == file.lo && sites[i].file.hi == file.hi)
            return &sites[i];
    return NULL;
}

/* --- comparing ------------------------------------------------------------------------------------------------------------------- */

typedef struct Part {
    const char *at;
    int n;
} Part;

/* "%2 = mul f32[?,?] %0 %1 axes(1)" */
typedef struct NodeLine {
    Part op, dtype, type, rest;
} NodeLine;

static Part cut(const char **at, const char *stop)
{
    Part part = {*at, (int)strcspn(*at, stop)};
    *at += part.n;
    *at += **at == ' ';
    return part;
}

static NodeLine parse(const char *line)
{
    NodeLine n;
    const char *at = strstr(line, "= ");
    at = at ? at + 2 : line; /* "return %3" */
    n.op = cut(&at, " \n");
    const char *type = at;
    n.dtype = cut(&type, "[ \n");
    n.type = cut(&at, " \n");
    n.rest = cut(&at, "\n");
    return n;
}

static bool same(Part a, Part b) { return a.n == b.n && memcmp(a.at, b.at, (size_t)a.n) == 0; }

static int rank_of(Part type)
{
    int rank = 0;
    for (int i = 0; i < type.n; i++)
        rank += type.at[i] == '?';
    return rank;
}

static void tell_line(const char *now, const char *before, Str *out)
{
    NodeLine a = parse(now), b = parse(before);
    int number = (int)strcspn(now, " \n");
    if (*now != '%')
        str_printf(out, "it returns %.*s, returned %.*s", a.type.n, a.type.at, b.type.n, b.type.at);
    else if (!same(a.op, b.op))
        str_printf(out, "%.*s is %.*s, was %.*s", number, now, a.op.n, a.op.at, b.op.n, b.op.at);
    else if (rank_of(a.type) != rank_of(b.type))
        str_printf(out, "%.*s %.*s is of rank %d, was of rank %d", number, now, a.op.n, a.op.at, rank_of(a.type), rank_of(b.type));
    else if (!same(a.dtype, b.dtype))
        str_printf(out, "%.*s %.*s is %.*s, was %.*s", number, now, a.op.n, a.op.at, a.dtype.n, a.dtype.at, b.dtype.n, b.dtype.at);
    else
        str_printf(out, "%.*s %.*s is of %.*s, was of %.*s", number, now, a.op.n, a.op.at, a.rest.n, a.rest.at, b.rest.n, b.rest.at);
}

/* The first option that changes code and has another value; false: none. */
static bool tell_option(const JitOptions *now, const JitOptions *before, Str *out)
{
    char a[160], b[160];
    for (int id = 0; id < OPT_COUNT; id++) {
        if (!option_keyed((OptionId)id) || now->value[id] == before->value[id])
            continue;
        option_value_text((OptionId)id, now->value[id], a, sizeof a);
        option_value_text((OptionId)id, before->value[id], b, sizeof b);
        if (id == OPT_EXTENSIONS)
            str_printf(out, "rules and passes of the program's own are %s, were %s", *a ? a : "none", *b ? b : "none");
        else
            str_printf(out, "option %s is %s, was %s", option_name((OptionId)id), a, b);
        return true;
    }
    if (target_same(&now->target, &before->target))
        return false;
    str_printf(out, "it is computed on another device");
    return true;
}

static void tell_difference(const CallSite *site, const Call *call, const char *graph, const JitOptions *options, Str *out)
{
    str_printf(out, "; this sync point computed another one before: ");
    if (tell_option(options, &site->options, out))
        return;
    const char *now = graph, *before = site->graph;
    size_t number = 0;
    for (;; number += *now != ' ' && *now) { /* lines that begin so are inside of bodies */
        size_t n = strcspn(now, "\n"), m = strcspn(before, "\n");
        if (n != m || memcmp(now, before, n) != 0 || !*now)
            break;
        now += n + 1;
        before += m + 1;
    }
    if (!*now || !*before)
        str_printf(out, "a mark of an axis, or what its program was made for, is another");
    else
        tell_line(now, before, out);
    if (number < call->nodes.n && call->nodes.at[number]->loc.file)
        str_printf(out, " (recorded at %s:%d)", call->nodes.at[number]->loc.file, call->nodes.at[number]->loc.line);
}

void call_site_compiles(const Call *call, bool never_seen, const JitOptions *options, Loc loc, Str *out)
{
    Str graph;
    if (!loc.file)
        return;
    str_init(&graph, out->arena);
    call_graph_text(call, &graph);
    CallSite *site = find(loc);
    if (site && site->graph && never_seen)
        tell_difference(site, call, graph.text, options, out);
    if (!site)
        site = &sites[n_sites++ % SITES];
    os_free(site->graph);
    *site = (CallSite){.file = hash128(loc.file, strlen(loc.file)),
                       .line = loc.line,
                       .options = *options,
                       .graph = os_copy(graph.text, graph.len + 1)}; /* NULL, without memory: nothing to compare with */
}
