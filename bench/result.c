/* See result.h. */
#include "bench/result.h"

#include <kiln.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const outcomes[] = {"ok", "failed", "skipped"};

static struct {
    Row *at;
    int n, room;
} rows;

void add_row(const Row *row)
{
    if (rows.n == rows.room) {
        int room = rows.room ? 2 * rows.room : 64;
        Row *more = realloc(rows.at, sizeof *more * (size_t)room);
        if (!more) {
            fprintf(stderr, "bench: no memory for results\n");
            exit(1);
        }
        rows.at = more;
        rows.room = room;
    }
    rows.at[rows.n++] = *row;
}

const Row *all_rows(int *n)
{
    *n = rows.n;
    return rows.at;
}

bool row_meets_aim(const Row *row) { return row->at_least ? row->value >= row->aim : row->value <= row->aim; }

void result(const char *name, double value, const char *unit, double aim, bool at_least)
{
    Row row = {.value = value, .aim = aim, .at_least = at_least};
    snprintf(row.name, sizeof row.name, "%s", name);
    snprintf(row.unit, sizeof row.unit, "%s", unit);
    add_row(&row);
    printf("%-52s %12.3f %-9s", name, value, unit);
    if (aim > 0)
        printf(" %s %-8g %s", at_least ? ">=" : "<=", aim, row_meets_aim(&row) ? "yes" : "NO");
    printf("\n");
    fflush(stdout);
}

void named_result(const char *workload, const char *what, double value, const char *unit, double aim, bool at_least)
{
    char name[80];
    snprintf(name, sizeof name, "%s: %s", workload, what);
    result(name, value, unit, aim, at_least);
}

/* --- files ---------------------------------------------------------------------------------------------- */

static FILE *open_to_write(const char *path)
{
    FILE *file = fopen(path, "w");
    if (!file)
        perror(path);
    return file;
}

void json_text(FILE *file, const char *text)
{
    fputc('"', file);
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        if (*c == '"' || *c == '\\')
            fprintf(file, "\\%c", *c);
        else if (*c < 0x20 || *c > 0x7e) /* bytes beyond ASCII come from elsewhere and may be no UTF-8 */
            fprintf(file, "\\u%04x", *c);
        else
            fputc(*c, file);
    }
    fputc('"', file);
}

static void json_row(FILE *file, const Row *r)
{
    fprintf(file, "    {\"name\": ");
    json_text(file, r->name);
    if (*r->who) {
        fprintf(file, ", \"who\": ");
        json_text(file, r->who);
    }
    if (isfinite(r->value) && r->outcome == ROW_OK)
        fprintf(file, ", \"value\": %.6g", r->value);
    else
        fprintf(file, ", \"value\": null");
    fprintf(file, ", \"unit\": ");
    json_text(file, r->unit);
    if (r->aim > 0)
        fprintf(file, ", \"aim\": %g, \"better\": \"%s\"", r->aim, r->at_least ? "more" : "less");
    if (r->outcome != ROW_OK)
        fprintf(file, ", \"outcome\": \"%s\"", outcomes[r->outcome]);
    if (*r->note) {
        fprintf(file, ", \"note\": ");
        json_text(file, r->note);
    }
    fprintf(file, "}");
}

int write_json(const char *path, const char *more)
{
    FILE *file = open_to_write(path);
    if (!file)
        return 1;
    fprintf(file, "{\n  \"kiln\": \"%s\"%s%s,\n  \"results\": [\n", kiln_version(), *more ? ", " : "", more);
    for (int i = 0; i < rows.n; i++) {
        json_row(file, &rows.at[i]);
        fprintf(file, "%s\n", i + 1 < rows.n ? "," : "");
    }
    fprintf(file, "  ]\n}\n");
    return fclose(file) != 0;
}

int write_markdown(const char *path, const char *head)
{
    FILE *file = open_to_write(path);
    if (!file)
        return 1;
    fprintf(file, "| %s | measured | aim |\n| --- | --- | --- |\n", head);
    for (int i = 0; i < rows.n; i++) {
        const Row *r = &rows.at[i];
        fprintf(file, "| %s | %.3g%s%s | ", r->name, r->value, *r->unit ? " " : "", r->unit);
        if (r->aim > 0)
            fprintf(file, "%s %g ", r->at_least ? "at least" : "at most", r->aim);
        fprintf(file, "|\n");
    }
    return fclose(file) != 0;
}

void write_line(FILE *file, const Row *r)
{
    fprintf(file, "%s\t%s\t%.6g\t%s\t%g\t%s\t%s\t", r->name, r->who, r->value, r->unit, r->aim, r->at_least ? "more" : "less",
            outcomes[r->outcome]);
    for (const char *c = r->note; *c; c++)
        fputc(*c == '\t' || *c == '\n' ? ' ' : *c, file);
    fputc('\n', file);
    fflush(file);
}

/* The fields of one line, which is cut in pieces. */
static bool parse_line(char *line, Row *row)
{
    char *field[8], *rest = line;
    line[strcspn(line, "\n")] = '\0';
    for (int i = 0; i < 8; i++) {
        field[i] = strsep(&rest, "\t");
        if (!field[i])
            return false;
    }
    char *end;
    *row = (Row){.at_least = strcmp(field[5], "more") == 0};
    snprintf(row->name, sizeof row->name, "%s", field[0]);
    snprintf(row->who, sizeof row->who, "%s", field[1]);
    snprintf(row->unit, sizeof row->unit, "%s", field[3]);
    snprintf(row->note, sizeof row->note, "%s", field[7]);
    row->value = strtod(field[2], &end);
    bool number = end != field[2] && !*end;
    row->aim = strtod(field[4], NULL);
    for (int i = 0; i < 3; i++)
        if (strcmp(field[6], outcomes[i]) == 0) {
            row->outcome = (Outcome)i;
            return number && *field[0];
        }
    return false;
}

int read_lines(const char *path)
{
    FILE *file = fopen(path, "r");
    if (!file) {
        perror(path);
        return -1;
    }
    char line[1024];
    int bad = 0;
    while (fgets(line, sizeof line, file)) {
        Row row;
        if (parse_line(line, &row))
            add_row(&row);
        else if (*line)
            bad++;
    }
    fclose(file);
    return bad;
}
