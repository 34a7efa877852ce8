/* Text for people: complaints, colours, sizes, times, aligned tables. */
#include "cache/cli/cli.h"
#include "jit/options.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static void put_text(FILE *out, const char *text, size_t n)
{
    for (size_t k = 0; k < n; k++) {
        unsigned char c = (unsigned char)text[k];
        if ((c < 32 && c != '\n' && c != '\t') || c == 127)
            fprintf(out, "\\x%02x", c);
        else
            putc(c, out);
    }
}

void complain(const char *format, ...)
{
    char line[2048];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    fflush(stdout); /* in the order in which things happened */
    progress_line_clear();
    fputs("kiln: ", stderr);
    put_text(stderr, line, n < 0 ? 0 : n < (int)sizeof line ? (size_t)n : sizeof line - 1);
    putc('\n', stderr);
}

ProgressLine cli_progress(void) { return progress_line_begin(option_int(OPT_PROGRESS) != 0); }

int complain_last(Status status)
{
    complain("%s", status == ST_OUT_OF_MEMORY ? "out of memory" : fail_message());
    return END_TROUBLE;
}

bool ask(const char *format, ...)
{
    char question[2048], answer[16] = "";
    va_list args;
    va_start(args, format);
    vsnprintf(question, sizeof question, format, args);
    va_end(args);
    fflush(stdout);
    put_text(stderr, question, strlen(question));
    fputs(" [y/N] ", stderr);
    return fgets(answer, sizeof answer, stdin) && (answer[0] == 'y' || answer[0] == 'Y');
}

/* ---- style ---- */

void style_begin(const Cli *cli, Style style)
{
    static const char *const codes[] = {
        [STYLE_PLAIN] = "",        [STYLE_TITLE] = "\033[1m", [STYLE_KEY] = "\033[33m",
        [STYLE_GOOD] = "\033[32m", [STYLE_BAD] = "\033[31m",  [STYLE_DIM] = "\033[2m",
    };
    if (cli->color)
        fputs(codes[style], stdout);
}

void style_end(const Cli *cli)
{
    if (cli->color)
        fputs("\033[0m", stdout);
}

void print_text(const char *text, size_t n) { put_text(stdout, text, n); }

void print_bytes(const char *text, size_t n) { fwrite(text, 1, n, stdout); }

void print_title(const Cli *cli, const char *title)
{
    style_begin(cli, STYLE_TITLE);
    fputs(title, stdout);
    style_end(cli);
    putchar('\n');
}

void print_field(const Cli *cli, const char *name, const char *value)
{
    if (!value)
        return;
    style_begin(cli, STYLE_DIM);
    printf("  %-14s ", name);
    style_end(cli);
    print_text(value, strlen(value));
    putchar('\n');
}

/* ---- quantities ---- */

const char *size_text(Arena *arena, uint64_t bytes)
{
    static const char units[] = "kMGTPE";
    if (bytes < 1024)
        return arena_printf(arena, "%" PRIu64, bytes);
    double value = (double)bytes / 1024;
    int unit = 0;
    while (value >= 1023.95 && unit < 5) {
        value /= 1024;
        unit++;
    }
    return arena_printf(arena, "%.1f%c", value, units[unit]);
}

const char *age_text(Arena *arena, int64_t seconds)
{
    if (seconds < 0)
        seconds = 0;
    if (seconds < 60)
        return arena_printf(arena, "%" PRId64 "s", seconds);
    if (seconds < 3600)
        return arena_printf(arena, "%" PRId64 "m", seconds / 60);
    if (seconds < 2 * 86400)
        return arena_printf(arena, "%" PRId64 "h", seconds / 3600);
    return arena_printf(arena, "%" PRId64 "d", seconds / 86400);
}

const char *time_text(Arena *arena, int64_t unix_time)
{
    char text[64];
    time_t at = (time_t)unix_time;
    struct tm parts;
    if (!localtime_r(&at, &parts) || !strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &parts))
        return arena_printf(arena, "%" PRId64, unix_time);
    return arena_strdup(arena, text);
}

const char *seconds_text(Arena *arena, double seconds)
{
    if (seconds == 0)
        return "0 s";
    if (seconds < 1e-3)
        return arena_printf(arena, "%.0f us", seconds * 1e6);
    if (seconds < 1)
        return arena_printf(arena, "%.1f ms", seconds * 1e3);
    if (seconds < 1e5)
        return arena_printf(arena, "%.1f s", seconds);
    return arena_printf(arena, "%.1f h", seconds / 3600);
}

const char *lower_text(Arena *arena, const char *text)
{
    char *copy = arena_strdup(arena, text);
    for (char *c = copy; *c; c++)
        *c = (char)tolower((unsigned char)*c);
    return copy;
}

/* ---- tables ---- */

enum { LEAST = 8 };

void table_init(Table *table, Arena *arena, const Column *columns, uint32_t n)
{
    *table = (Table){.arena = arena, .columns = columns, .n_columns = n};
}

const char **table_row(Table *table)
{
    if (table->n_rows == table->cap) {
        uint32_t cap = table->cap ? 2 * table->cap : 32;
        const char **grown = ARENA_ARRAY(table->arena, const char *, (size_t)cap * table->n_columns);
        if (table->n_rows)
            memcpy(grown, table->cells, sizeof *grown * table->n_rows * table->n_columns);
        table->cells = grown;
        table->cap = cap;
    }
    return &table->cells[(size_t)table->n_rows++ * table->n_columns];
}

/* Columns that a text takes on the screen: bytes that begin a character, and four for an escaped
 * control character. */
static uint32_t columns_of(const char *text)
{
    uint32_t n = 0;
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        n += c < 32 || c == 127 ? 4 : (c & 0xc0) != 0x80;
    }
    return n;
}

/* Prints at most `width` columns of a text, the last two as dots where some is left out. */
static void print_cut(const char *text, uint32_t width)
{
    uint32_t all = columns_of(text), shown = all <= width ? all : width > 2 ? width - 2 : 0, n = 0;
    const char *at = text;
    for (; *at; at++) {
        unsigned char c = (unsigned char)*at;
        uint32_t step = c < 32 || c == 127 ? 4 : (c & 0xc0) != 0x80;
        if (n + step > shown)
            break;
        n += step;
    }
    print_text(text, (size_t)(at - text));
    if (all > width)
        fputs(&".."[2 - (width < 2 ? width : 2)], stdout);
    for (uint32_t pad = n + (all > width ? 2 : 0); all > width && pad < width; pad++)
        putchar(' ');
}

/* The width of each column: what its cells need, then less for those that may shrink until the line
 * fits. Returns the blanks between. */
static int fit(const Cli *cli, const Table *table, uint32_t *width)
{
    uint32_t total = 2 * (table->n_columns - 1), gap = 2;
    for (uint32_t c = 0; c < table->n_columns; c++) {
        width[c] = columns_of(table->columns[c].title);
        for (uint32_t r = 0; r < table->n_rows; r++) {
            const char *cell = table->cells[(size_t)r * table->n_columns + c];
            uint32_t n = cell ? columns_of(cell) : 0;
            width[c] = n > width[c] ? n : width[c];
        }
        total += width[c];
    }
    if (cli->width && total > (uint32_t)cli->width) {
        total -= table->n_columns - 1;
        gap = 1;
    }
    while (cli->width && total > (uint32_t)cli->width) {
        uint32_t widest = table->n_columns;
        for (uint32_t c = 0; c < table->n_columns; c++)
            if (table->columns[c].shrink && width[c] > LEAST && (widest == table->n_columns || width[c] > width[widest]))
                widest = c;
        if (widest == table->n_columns)
            break;
        width[widest]--;
        total--;
    }
    return (int)gap;
}

static void print_row(const Cli *cli, const Table *table, const uint32_t *width, int gap, const char *const *cells)
{
    uint32_t last = table->n_columns;
    while (last && (!cells ? false : !cells[last - 1] || !*cells[last - 1]))
        last--; /* no blanks at the end of a line */
    for (uint32_t c = 0; c < last; c++) {
        const Column *column = &table->columns[c];
        const char *text = cells ? cells[c] : column->title;
        text = text ? text : "";
        uint32_t n = columns_of(text), pad = n < width[c] ? width[c] - n : 0;
        Style style = cells ? column->style : STYLE_TITLE;
        if (c)
            printf("%*s", gap, "");
        if (column->right)
            printf("%*s", (int)pad, "");
        if (style != STYLE_PLAIN)
            style_begin(cli, style);
        print_cut(text, width[c]);
        if (style != STYLE_PLAIN)
            style_end(cli);
        if (!column->right && c + 1 < last)
            printf("%*s", (int)pad, "");
    }
    putchar('\n');
}

void table_print(const Cli *cli, const Table *table)
{
    uint32_t *width = ARENA_ARRAY(table->arena, uint32_t, table->n_columns);
    int gap = fit(cli, table, width);
    print_row(cli, table, width, gap, NULL);
    for (uint32_t r = 0; r < table->n_rows; r++)
        print_row(cli, table, width, gap, &table->cells[(size_t)r * table->n_columns]);
}
