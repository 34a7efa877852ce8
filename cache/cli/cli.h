/*
 * The `kiln` command: a verb, its arguments and options, and what the verbs share.
 *
 * Texts for people go to stdout through print.c, JSON through json.c, complaints to stderr. Memory: one arena for the process,
 * `entry` for one entry at a time. A verb returns the status that the process ends with. Nothing here ever maps or runs the
 * code of an entry.
 */
#ifndef CACHE_CLI_CLI_H
#define CACHE_CLI_CLI_H

#include "ir/base/arena.h"
#include "ir/base/progress_line.h"
#include "ir/base/status.h"
#include "ir/base/str.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* How the process ends; documented in kiln(1). */
enum {
    END_FINE = 0,
    END_FOUND = 1,  /* a difference, damage, a refused entry, no such entry */
    END_USAGE = 2,  /* the command line makes no sense */
    END_TROUBLE = 3 /* input or output failed, the directory was refused, memory ran out */
};

typedef enum FlagId {
#define FLAG(id, name, value, help) FLAG_##id,
#include "cache/cli/verbs.def"
    FLAG_COUNT
} FlagId;

typedef enum VerbId {
#define VERB(id, name, arguments, flags, help, detail) VERB_##id,
#include "cache/cli/verbs.def"
    VERB_COUNT
} VerbId;

typedef struct Cli Cli;

typedef struct FlagInfo {
    const char *name, *value, *help;
} FlagInfo;
extern const FlagInfo flag_info[FLAG_COUNT];

typedef struct VerbInfo {
    const char *name, *arguments, *help, *detail;
    int (*run)(Cli *cli);
    uint32_t flags; /* bit FLAG_x: takes it */
} VerbInfo;
extern const VerbInfo verb_info[VERB_COUNT];

struct Cli {
    Arena *arena; /* until the process ends */
    VerbId verb;
    const char **args;
    uint32_t n_args;
    const char *flag[FLAG_COUNT]; /* NULL: not given; "" when it takes no value */
    bool color;
    int width;        /* of the terminal; 0: no limit */
    int64_t now;      /* Unix seconds */
    bool json_broken; /* memory ran out while JSON was made */
};

#define VERB(id, name, arguments, flags, help, detail) int cmd_##id(Cli *cli);
#include "cache/cli/verbs.def"

/* ---- args.c ---- */

/* Reads the command line into cli. -1: go on; otherwise the status to end with, all being said. */
int args_parse(Cli *cli, int argc, char **argv);
/* "64k" -> 65536, "2w" -> 1209600; false: no such number. */
bool parse_size(const char *text, uint64_t *bytes);
bool parse_age(const char *text, int64_t *seconds);
bool parse_percent(const char *text, double *fraction); /* "10%" or "10" -> 0.1 */
static inline bool flag_on(const Cli *cli, FlagId id) { return cli->flag[id] != NULL; }

static inline bool verb_takes(VerbId verb, int flag) { return verb_info[verb].flags >> flag & 1; }
static inline bool verb_hidden(VerbId verb) { return !*verb_info[verb].help; }

/* ---- help.c ---- */

void help_print(FILE *out, const char *group); /* all verbs; group: only those that begin with it ("cache"), or NULL */
int help_group(Cli *cli, const char *group);   /* the same to stdout, or as JSON; "": all. The status to end with */
int help_verb(Cli *cli, VerbId verb);

/* ---- print.c ---- */

typedef enum Style { STYLE_PLAIN, STYLE_TITLE, STYLE_KEY, STYLE_GOOD, STYLE_BAD, STYLE_DIM } Style;

/* "kiln: ..." on stderr. complain_last prints the message of the last failure (fail_message). */
void complain(const char *format, ...) __attribute__((format(printf, 1, 2)));
int complain_last(Status status); /* returns END_TROUBLE */
/* Asks on the terminal, on stderr; everything but a yes is a no. */
bool ask(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* For a loop over many entries (progress_line_step). With KILN_PROGRESS=1 it is drawn at once. */
ProgressLine cli_progress(void);

void style_begin(const Cli *cli, Style style);
void style_end(const Cli *cli);
/* Text from an entry: control characters but newline and tab are shown as \xNN. */
void print_text(const char *text, size_t n);
void print_bytes(const char *text, size_t n); /* as they are */
void print_title(const Cli *cli, const char *title);
/* "  name      value": a line of a description; nothing for a NULL value. */
void print_field(const Cli *cli, const char *name, const char *value);

const char *size_text(Arena *arena, uint64_t bytes);    /* "812", "64.0k", "1.5M" */
const char *age_text(Arena *arena, int64_t seconds);    /* "12s", "3m", "5h", "12d" */
const char *time_text(Arena *arena, int64_t unix_time); /* "2026-01-31 12:00:00", local time */
const char *seconds_text(Arena *arena, double seconds); /* "12.3 ms" */
const char *lower_text(Arena *arena, const char *text); /* X_Y -> x_y */

/* A table: rows of cells under titles, aligned. The columns marked `shrink` give way when the terminal is too narrow, the
 * widest first. */
typedef struct Column {
    const char *title;
    bool right, shrink;
    Style style;
} Column;
typedef struct Table {
    Arena *arena;
    const Column *columns;
    uint32_t n_columns;
    const char **cells; /* row after row */
    uint32_t n_rows, cap;
} Table;
void table_init(Table *table, Arena *arena, const Column *columns, uint32_t n);
const char **table_row(Table *table); /* the cells of a new row; NULL cells are empty. Until the next call */
void table_print(const Cli *cli, const Table *table);

/* ---- info.c ---- */

/* What this machine can do, as it is kept in the cache directory, in the form of `kiln info --json`; null: it was not measured. */
json_t *info_machine(Cli *cli);

/* ---- json.c ---- */

/* Adds to an object or an array; NULL values mean that memory ran out, which json_print says. */
void js_set(Cli *cli, json_t *object, const char *name, json_t *value);
void js_push(Cli *cli, json_t *array, json_t *value);
json_t *js_text(const char *text); /* null for NULL; bytes that are no UTF-8 become U+FFFD */
json_t *js_bytes(const char *text, size_t n);
int js_print(Cli *cli, json_t *value); /* takes it over; END_FINE, or END_TROUBLE */

#endif
