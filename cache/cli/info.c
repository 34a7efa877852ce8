/* `kiln info`: what this is, where its cache is, what the library last said of itself there, and
 * each option with its origin; or the licences. */
#include "cache/cli/entries.h"
#include "cache/machine.h"
#include "ir/base/os.h"
#include "ir/base/log.h"
#include "ir/base/os_term.h"
#include "jit/host_cpu.h"
#include "jit/options.h"

#include <stdio.h>
#include <string.h>

/* Warnings about the environment, kept for the end. */
typedef struct Warnings {
    Arena *arena;
    VEC(const char *) lines;
} Warnings;

static void keep_warning(void *user, int level, const char *topic, const char *line)
{
    Warnings *warnings = user;
    (void)topic;
    if (level == 0)
        VEC_PUSH(warnings->arena, warnings->lines, arena_strdup(warnings->arena, line));
}

static const char *const origins[] = {[ORIGIN_DEFAULT] = "default",
                                      [ORIGIN_ENVIRONMENT] = "environment",
                                      [ORIGIN_INVALID] = "default, the environment's value is invalid",
                                      [ORIGIN_SET] = "set"};

static const char *value_of(OptionId id, Arena *arena)
{
    char text[4096];
    return option_get(option_name(id), text, sizeof text) == ST_OK ? arena_strdup(arena, text) : "";
}

/* What is known of the cache directory; `problem` NULL: it can be used. */
typedef struct Place {
    const char *path, *problem, *info;
} Place;

static Place look(Cli *cli)
{
    char path[4096];
    Disk *disk = NULL;
    Place place = {.path = cli->flag[FLAG_DIR]};
    if (!place.path)
        place.path = disk_default_path(path, sizeof path) ? arena_strdup(cli->arena, path) : NULL;
    if (!place.path) {
        place.problem = "there is none: neither KILN_CACHE_DIR nor XDG_CACHE_HOME nor HOME is set";
    } else if (!os_path_exists(place.path)) {
        place.problem = "it is not there yet";
    } else if (disk_open(place.path, false, false, &disk) != ST_OK) {
        place.problem = arena_strdup(cli->arena, fail_message());
    } else {
        if (disk_text(disk, "info", cli->arena, &place.info) != ST_OK)
            place.problem = arena_strdup(cli->arena, fail_message());
        disk_close(disk);
    }
    return place;
}

/* Under the current KILN_THREADS. */
static int threads_now(void)
{
    int64_t threads = option_int(OPT_THREADS);
    return threads > 0 ? (int)threads : os_cpu_count();
}

/* What this machine can do: as kept, or measured now and kept. *known false: nobody measured it. */
static Status look_at_machine(const Place *place, bool measure, Machine *machine, bool *known)
{
    Disk *disk = NULL;
    *known = false;
    if (!measure && place->problem)
        return ST_OK;
    if (measure && !place->path)
        return fail(ST_IO, "nowhere to keep what is measured: %s", place->problem);
    TRY(disk_open(place->path, measure, measure, &disk));
    *known = measure || machine_read(disk, threads_now(), machine);
    if (measure)
        machine_measure(threads_now(), machine);
    Status status = measure ? machine_write(disk, machine) : ST_OK;
    disk_close(disk);
    return status;
}

static void print_machine(Cli *cli, const Machine *machine, bool known)
{
    print_title(cli, arena_printf(cli->arena, "what this machine can do, %d threads", threads_now()));
    if (!known)
        print_field(cli, "", "not measured; kiln info --measure does that");
    for (int id = 0; id < MACHINE_COUNT && known; id++)
        print_field(cli, machine_info[id].name,
                    machine->value[id] ? arena_printf(cli->arena, "%.2f %s   %s", (double)machine->value[id] / machine_info[id].scale,
                                                      machine_info[id].unit, machine_info[id].help)
                                       : "unknown");
    putchar('\n');
}

/* Does the library say the same there? Then it is printed once. */
static bool says(const char *info, const char *name, const char *value)
{
    KeyLine line;
    for (const char *at = info ? info : ""; info_next(&at, &line);)
        if (line.name_bytes == strlen(name) && memcmp(line.name, name, line.name_bytes) == 0)
            return line.n == strlen(value) && memcmp(line.bytes, value, line.n) == 0;
    return false;
}

static void print_library(Cli *cli, const char *info)
{
    if (!info) {
        print_field(cli, "", "no program has left word here yet; run one with KILN_CACHE=on");
        return;
    }
    KeyLine line;
    for (const char *at = info; info_next(&at, &line);)
        print_field(cli, arena_printf(cli->arena, "%.*s", (int)line.name_bytes, line.name),
                    arena_printf(cli->arena, "%.*s", (int)line.n, line.bytes));
}

static void print_options(Cli *cli)
{
    static const Column columns[] = {{.title = "OPTION", .style = STYLE_KEY}, {.title = "VALUE", .shrink = true}, {.title = "FROM"}};
    Table table;
    table_init(&table, cli->arena, columns, 3);
    for (int id = 0; id < OPT_SHOWN; id++) {
        OptionInfo option;
        char variable[64];
        option_describe((OptionId)id, &option);
        const char **row = table_row(&table);
        row[0] = arena_strdup(cli->arena, option_variable((OptionId)id, variable, sizeof variable));
        row[1] = value_of((OptionId)id, cli->arena);
        row[2] = origins[option.origin];
    }
    table_print(cli, &table);
}

static json_t *options_json(Cli *cli)
{
    static const char *const words[] = {
        [ORIGIN_DEFAULT] = "default", [ORIGIN_ENVIRONMENT] = "environment", [ORIGIN_INVALID] = "invalid", [ORIGIN_SET] = "set"};
    json_t *all = json_object();
    for (int id = 0; id < OPT_SHOWN; id++) {
        OptionInfo option;
        char variable[64];
        json_t *row = json_object();
        option_describe((OptionId)id, &option);
        js_set(cli, row, "value", js_text(value_of((OptionId)id, cli->arena)));
        js_set(cli, row, "from", js_text(words[option.origin]));
        js_set(cli, row, "default", js_text(option.def));
        js_set(cli, all, option_variable((OptionId)id, variable, sizeof variable), row);
    }
    return all;
}

/* null where it was not measured; whole bytes and operations a second, nanoseconds. */
static json_t *machine_json(Cli *cli, const Machine *machine, bool known)
{
    json_t *all = known ? json_object() : json_null();
    if (known)
        js_set(cli, all, "threads", json_integer(machine->threads));
    for (int id = 0; id < MACHINE_COUNT && known; id++)
        js_set(cli, all, machine_info[id].name, json_integer(machine->value[id]));
    return all;
}

/* The options, the directory, the machine. Warnings about the environment are kept. */
static Status gather(Cli *cli, Warnings *warnings, Place *place, Machine *machine, bool *known)
{
    log_set_sink(keep_warning, warnings);
    options_init();
    *place = look(cli);
    log_set_sink(NULL, NULL);
    return look_at_machine(place, flag_on(cli, FLAG_MEASURE), machine, known);
}

json_t *info_machine(Cli *cli)
{
    Warnings warnings = {.arena = cli->arena};
    Place place;
    Machine machine;
    bool known;
    Status status = gather(cli, &warnings, &place, &machine, &known);
    return machine_json(cli, &machine, status == ST_OK && known);
}

static int info_json(Cli *cli, const Place *place, const Warnings *warnings, json_t *machine)
{
    json_t *root = json_object(), *library = json_object(), *list = json_array();
    js_set(cli, root, "machine", machine);
    js_set(cli, root, "version", js_text(KILN_VERSION_STRING));
    js_set(cli, root, "cpu", js_text(host_cpu_name()));
    js_set(cli, root, "features", js_text(host_cpu_features()));
    js_set(cli, root, "directory", js_text(place->path));
    js_set(cli, root, "problem", js_text(place->problem));
    KeyLine line;
    for (const char *at = place->info ? place->info : ""; info_next(&at, &line);)
        js_set(cli, library, arena_printf(cli->arena, "%.*s", (int)line.name_bytes, line.name), js_bytes(line.bytes, line.n));
    js_set(cli, root, "library", library);
    js_set(cli, root, "options", options_json(cli));
    for (uint32_t i = 0; i < warnings->lines.n; i++)
        js_push(cli, list, js_text(warnings->lines.at[i]));
    js_set(cli, root, "warnings", list);
    return js_print(cli, root);
}

extern const char licenses_text[]; /* LICENSE and NOTICE: cmake/KilnCommand.cmake */

static int licenses(Cli *cli)
{
    if (!flag_on(cli, FLAG_JSON)) {
        fputs(licenses_text, stdout);
        return END_FINE;
    }
    json_t *root = json_object();
    js_set(cli, root, "licenses", js_text(licenses_text));
    return js_print(cli, root);
}

int cmd_INFO(Cli *cli)
{
    if (flag_on(cli, FLAG_LICENSES))
        return licenses(cli);
    Warnings warnings = {.arena = cli->arena};
    Place place;
    Machine machine;
    bool known;
    Status status = gather(cli, &warnings, &place, &machine, &known);
    if (status != ST_OK)
        return complain_last(status);
    if (flag_on(cli, FLAG_JSON))
        return info_json(cli, &place, &warnings, machine_json(cli, &machine, known));
    print_title(cli, "kiln " KILN_VERSION_STRING);
    print_field(cli, "cpu", host_cpu_name());
    if (!says(place.info, "features", host_cpu_features()))
        print_field(cli, "features", host_cpu_features());
    print_field(cli, "cache", place.path ? place.path : "none");
    print_field(cli, "", place.problem);
    putchar('\n');
    print_title(cli, "the library, as it last wrote into the cache directory");
    print_library(cli, place.info);
    putchar('\n');
    print_machine(cli, &machine, known);
    print_options(cli);
    for (uint32_t i = 0; i < warnings.lines.n; i++)
        complain("%s", warnings.lines.at[i]);
    return END_FINE;
}
