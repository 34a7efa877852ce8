/*
 * The rows that the parts of bench/gpu wrote, as one table and one JSON file.
 *
 *     report ROWS JSON [MEMBERS]      MEMBERS: more members of the JSON object, as text: "\"seconds\": 12"
 *
 * A workload is a line: what kiln needs and reaches, then each other program's time and, behind it, how many
 * times kiln's that is. Exit status: 0, 1 a row says that something failed, 2 the rows cannot be read.
 */
#include "bench/result.h"

#include <kiln.h>
#include <math.h>
#include <string.h>

enum { MAX_SUBJECTS = 64 };
static const char *const others[] = {"torch", "torch.compile", "jax.jit"};
enum { OTHERS = sizeof others / sizeof *others };

static const Row *find(const char *subject, const char *what, const char *who)
{
    char name[160];
    int n;
    const Row *rows = all_rows(&n);
    snprintf(name, sizeof name, "%.79s: %s", subject, what);
    for (int i = n - 1; i >= 0; i--) /* the last one counts */
        if (strcmp(rows[i].name, name) == 0 && strcmp(rows[i].who, who) == 0)
            return &rows[i];
    return NULL;
}

static double value(const char *subject, const char *what, const char *who)
{
    const Row *row = find(subject, what, who);
    return row && row->outcome == ROW_OK ? row->value : NAN;
}

static bool is_subject(const Row *row, char *subject, size_t room)
{
    const char *colon = strstr(row->name, ": time");
    if (!colon || strcmp(colon, ": time") != 0)
        return false;
    snprintf(subject, room, "%.*s", (int)(colon - row->name), row->name);
    return true;
}

/* The names of the workloads, in the order of their first rows. */
static int find_subjects(char subjects[][80])
{
    int n, found = 0;
    const Row *rows = all_rows(&n);
    for (int i = 0; i < n; i++) {
        char subject[80];
        bool new = is_subject(&rows[i], subject, sizeof subject);
        if (new &&strncmp(subject, "matmul", 6) == 0)
            new = false; /* a yardstick, none of kiln's */
        for (int k = 0; k < found && new; k++)
            new = strcmp(subjects[k], subject) != 0;
        if (new &&found < MAX_SUBJECTS)
            memcpy(subjects[found++], subject, sizeof subject);
    }
    return found;
}

static void derived(const char *subject, const char *what, const char *who, double ratio)
{
    Row row = {.value = ratio, .at_least = true};
    snprintf(row.name, sizeof row.name, "%.30s: %s", subject, what);
    snprintf(row.who, sizeof row.who, "%s", who);
    snprintf(row.unit, sizeof row.unit, "x");
    if (isfinite(ratio))
        add_row(&row);
}

/* Ratios become rows too. */
static void add_ratios(char subjects[][80], int n)
{
    for (int i = 0; i < n; i++) {
        const char *own = subjects[i];
        for (int k = 0; k < OTHERS; k++)
            derived(own, "time over kiln's", others[k], value(own, "time", others[k]) / value(own, "time", "kiln"));
        const char *dtype = strrchr(own, '_');
        char product[40];
        snprintf(product, sizeof product, "matmul%.20s", dtype ? dtype : "");
        derived(own, "rate over that of torch's large product", "kiln", value(own, "rate", "kiln") / value(product, "rate", "torch"));
    }
}

/* --- the table ------------------------------------------------------------------------------------------ */

static void cell(double v, int width, const char *format)
{
    char text[40] = "-";
    if (isfinite(v))
        snprintf(text, sizeof text, format, v);
    printf(" %*s", width, text);
}

static void print_workloads(char subjects[][80], int n)
{
    printf("%-11s %7s %9s %9s %8s %8s %8s %8s", "workload", "kernels", "kiln us", "function", "GB/s", "of copy", "TFLOP/s", "error");
    for (int k = 0; k < OTHERS; k++)
        printf(" %13s        ", others[k]);
    printf("\n");
    for (int i = 0; i < n; i++) {
        const char *own = subjects[i];
        printf("%-11s", own);
        cell(value(own, "kernels", "kiln"), 7, "%.0f");
        cell(value(own, "time", "kiln"), 9, "%.1f");
        cell(value(own, "time through kiln_function", "kiln"), 9, "%.1f");
        cell(value(own, "bandwidth", "kiln"), 8, "%.4g");
        cell(value(own, "of copy", "kiln"), 8, "%.3f");
        cell(value(own, "rate", "kiln"), 8, "%.4g");
        cell(value(own, "error", "kiln"), 8, "%.1e");
        for (int k = 0; k < OTHERS; k++) {
            cell(value(own, "time", others[k]), 13, "%.1f");
            cell(value(own, "time over kiln's", others[k]), 7, "%.2fx");
        }
        printf("\n");
    }
}

static void print_row(const Row *r)
{
    static const char *const marks[] = {"", "  FAILED", "  skipped"};
    printf("%-50.50s %-13s", r->name, r->who);
    if (isfinite(r->value) && r->outcome == ROW_OK && (r->value > 0 || r->value < 0 || !*r->note))
        printf(" %12.5g %-7s", r->value, r->unit);
    if (r->aim > 0 && r->outcome == ROW_OK && isfinite(r->value))
        printf("  aim %s %-6g %s", r->at_least ? ">=" : "<=", r->aim, row_meets_aim(r) ? "met" : "MISSED");
    printf("%s%s%s\n", marks[r->outcome], *r->note ? "  " : "", r->note);
}

static bool starts(const Row *r, const char *prefix) { return strncmp(r->name, prefix, strlen(prefix)) == 0; }
static bool is_test(const Row *r) { return starts(r, "test: ") || starts(r, "sanitizer: "); }
static bool is_fact(const Row *r) { return starts(r, "device: ") || starts(r, "torch: ") || starts(r, "jax: "); }
static bool is_host(const Row *r)
{
    static const char *const parts[] = {"host: ", ": first call, compiled", ": first call, from disk", "large product", "matmul"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (strstr(r->name, parts[i]))
            return true;
    return false;
}
static bool is_aimed(const Row *r) { return r->aim > 0 && !strstr(r->name, ": error") && !is_host(r); }
static bool went_wrong(const Row *r) { return r->outcome != ROW_OK && !is_test(r) && !is_fact(r); }

static void section(const char *title, bool (*belongs)(const Row *row))
{
    int n, printed = 0;
    const Row *rows = all_rows(&n);
    for (int i = 0; i < n; i++) {
        if (!belongs(&rows[i]))
            continue;
        if (printed++ == 0)
            printf("\n%s\n", title);
        print_row(&rows[i]);
    }
}

int main(int argc, char **argv)
{
    static char subjects[MAX_SUBJECTS][80];
    if (argc < 3 || argc > 4) {
        fprintf(stderr, "usage: report ROWS JSON [MEMBERS]\n");
        return 2;
    }
    int bad = read_lines(argv[1]), n;
    if (bad < 0)
        return 2;
    int n_subjects = find_subjects(subjects);
    add_ratios(subjects, n_subjects);
    printf("kiln %s, bench/gpu\n", kiln_version());
    section("The device and the other programs", is_fact);
    if (n_subjects) {
        printf("\nTimes of one call in microseconds; 1.50x: takes 1.5 times as long as kiln\n");
        print_workloads(subjects, n_subjects);
    }
    section("Aims", is_aimed);
    section("Host, first calls, large products", is_host);
    section("Tests on the device", is_test);
    section("Failed or left out", went_wrong);

    int failed = 0, skipped = 0;
    const Row *rows = all_rows(&n);
    for (int i = 0; i < n; i++) {
        failed += rows[i].outcome == ROW_FAILED;
        skipped += rows[i].outcome == ROW_SKIPPED;
    }
    printf("\n%d figures, %d failed, %d skipped", n, failed, skipped);
    if (bad)
        printf(", %d lines that cannot be read", bad);
    printf("\n");
    if (write_json(argv[2], argc > 3 ? argv[3] : ""))
        return 2;
    return failed || bad;
}
