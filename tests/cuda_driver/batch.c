// batch FOLDER OUT: puts the PTX texts of FOLDER (NAME.ptx) together in few files for ptxas, whose start costs as much as
// a kernel: OUT/SM_NUMBER.ptx, with the names of the texts in OUT/SM_NUMBER.list. Prints one line per call of ptxas: file and target.
//
// What a text defines outside of functions, kernels and variables, gets "__NAME" behind its name, so that nothing clashes and
// ptxas's messages say which text they are about. Texts that are equal but for those names, comments and the lines before
// ".address_size" are one: the one of the oldest architecture and version is taken, since newer ones accept all that it may
// hold. Each is for what is as new or newer of its own architecture, where that is older than sm_80, sm_80 and sm_90a.
//
// A run takes a slice of the texts (support/slice.h), by what a text holds: which others are there doesn't matter, so a text that fails in one run
// fails in each that takes its slice.
#include "tests/support/slice.h"

#include <ctype.h>
#include <dirent.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_NAMES = 256, BATCH_BYTES = 1 << 20 }; // about two seconds of ptxas

// One text. `body` is what follows its first lines, without comments; a name that it defines is a byte 1 and its number, 1..255.
typedef struct Text {
    char name[64], target[16];
    int sm, version; // 90 and 80: "sm_90a", "8.0"
    char *body;
    size_t bytes;
    uint64_t hash;
    char *names[MOST_NAMES];
    int n_names;
} Text;

static void *need(void *memory)
{
    if (!memory) {
        fprintf(stderr, "batch: out of memory\n");
        exit(2);
    }
    return memory;
}

static _Noreturn void malformed(const char *path, const char *what)
{
    fprintf(stderr, "batch: %s: %s\n", path, what);
    exit(2);
}

static char *read_text(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f || fseek(f, 0, SEEK_END))
        malformed(path, "cannot be read");
    long size = ftell(f);
    char *text = need(malloc((size_t)size + 1));
    rewind(f);
    if (fread(text, 1, (size_t)size, f) != (size_t)size)
        malformed(path, "cannot be read");
    fclose(f);
    text[size] = 0;
    return text;
}

static bool starts_word(char c) { return isalpha((unsigned char)c) || c == '_'; }
static bool in_word(char c) { return isalnum((unsigned char)c) || c == '_' || c == '$'; }

static size_t word_length(const char *at)
{
    size_t n = 0;
    while (in_word(at[n]))
        n++;
    return n;
}

// At a word that is no part of another one: no directive (".b8"), register ("%r1"), label ("$L") or number.
static bool at_word(const char *text, const char *at)
{
    return starts_word(*at) && (at == text || (!in_word(at[-1]) && at[-1] != '.' && at[-1] != '%'));
}

static void drop_comments(char *text)
{
    char *to = text;
    for (const char *at = text; *at;) {
        if (at[0] == '/' && at[1] == '/') {
            at += strcspn(at, "\n");
            while (to > text && (to[-1] == ' ' || to[-1] == '\t'))
                to--;
        } else {
            *to++ = *at++;
        }
    }
    *to = 0;
}

// The number of a name that the text defines, from 1; 0: none of them. A parameter is its kernel's name with an ending.
static int number_of(const Text *t, const char *word, size_t length)
{
    for (int i = 0; i < t->n_names; i++) {
        size_t n = strlen(t->names[i]);
        if (length >= n && !memcmp(word, t->names[i], n) && (length == n || !strncmp(word + n, "_param_", 7)))
            return i + 1;
    }
    return 0;
}

// What stands outside of all brackets and is a plain word. A function that the text does not define keeps the name by which ptxas knows it.
static void find_names(Text *t, const char *text, const char *path)
{
    static const char declared[] = ".extern .func";
    int depth = 0;
    for (const char *at = text; *at;) {
        if (!depth && !strncmp(at, declared, strlen(declared)))
            at += strcspn(at, ";");
        depth += (*at == '{' || *at == '(' || *at == '[') - (*at == '}' || *at == ')' || *at == ']');
        if (depth || !at_word(text, at)) {
            at++;
            continue;
        }
        size_t n = word_length(at);
        if (!number_of(t, at, n)) {
            if (t->n_names == MOST_NAMES - 1)
                malformed(path, "defines too many names");
            t->names[t->n_names++] = need(strndup(at, n));
        }
        at += n;
    }
}

static void number_names(Text *t, const char *text)
{
    t->body = need(malloc(strlen(text) + 1)); // a name is no shorter than what stands for it, but for names of one letter
    char *to = t->body;
    for (const char *at = text; *at;) {
        size_t n = at_word(text, at) ? word_length(at) : 0;
        int number = n ? number_of(t, at, n) : 0;
        if (number && strlen(t->names[number - 1]) > 1) {
            size_t name = strlen(t->names[number - 1]);
            *to++ = 1;
            *to++ = (char)number;
            at += name;
            n -= name;
        }
        n = n ? n : 1;
        memcpy(to, at, n);
        to += n;
        at += n;
    }
    t->bytes = (size_t)(to - t->body);
    t->hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < t->bytes; i++)
        t->hash = (t->hash ^ (uint8_t)t->body[i]) * UINT64_C(0x100000001b3);
}

static void load(Text *t, const char *folder, const char *file)
{
    char path[4096];
    int major, minor;
    snprintf(path, sizeof path, "%s/%s", folder, file);
    snprintf(t->name, sizeof t->name, "%.*s", (int)(strlen(file) - strlen(".ptx")), file);
    char *text = read_text(path);
    drop_comments(text);
    const char *version = strstr(text, ".version"), *target = strstr(text, ".target"), *size = strstr(text, ".address_size 64");
    if (!version || !target || !size || sscanf(version, ".version %d.%d", &major, &minor) != 2 ||
        sscanf(target, ".target %15[a-z0-9_]", t->target) != 1 || sscanf(t->target, "sm_%d", &t->sm) != 1)
        malformed(path, "begins with no .version, .target and .address_size 64");
    t->version = 10 * major + minor;
    const char *body = size + strlen(".address_size 64");
    find_names(t, body, path);
    number_names(t, body);
    free(text);
}

// Oldest first, and what goes into one file side by side.
static int by_age(const void *a, const void *b)
{
    const Text *x = a, *y = b;
    int order = (x->sm > y->sm) - (x->sm < y->sm);
    order = order ? order : strcmp(x->target, y->target);
    order = order ? order : (x->version > y->version) - (x->version < y->version);
    return order ? order : strcmp(x->name, y->name);
}

static bool same(const Text *a, const Text *b) { return a->hash == b->hash && a->bytes == b->bytes && !memcmp(a->body, b->body, a->bytes); }

static void text_free(Text *t)
{
    for (int i = 0; i < t->n_names; i++)
        free(t->names[i]);
    free(t->body);
}

// Leaves the first of equal ones. Returns how many are left.
static size_t drop_equals(Text *text, size_t n)
{
    size_t room = 1, left = 0;
    while (room < 2 * n)
        room *= 2;
    size_t *table = need(calloc(room, sizeof *table)); // index + 1 of what is left
    for (size_t i = 0; i < n; i++) {
        size_t at = (size_t)text[i].hash & (room - 1);
        while (table[at] && !same(&text[table[at] - 1], &text[i]))
            at = (at + 1) & (room - 1);
        if (table[at]) {
            text_free(&text[i]);
            continue;
        }
        text[left++] = text[i];
        table[at] = left;
    }
    free(table);
    return left;
}

static void write_text(FILE *out, const Text *t)
{
    for (size_t i = 0; i < t->bytes; i++) {
        if (t->body[i] == 1)
            fprintf(out, "%s__%s", t->names[(uint8_t)t->body[++i] - 1], t->name);
        else
            fputc(t->body[i], out);
    }
}

static FILE *create(const char *out, const Text *first, int number, const char *ending)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s_%03d.%s", out, first->target, number, ending);
    FILE *f = fopen(path, "w");
    if (!f)
        malformed(path, "cannot be written");
    if (!strcmp(ending, "ptx")) {
        fprintf(f, ".version %d.%d\n.target %s\n.address_size 64\n", first->version / 10, first->version % 10, first->target);
        if (first->sm < 80)
            printf("%s %s\n", path, first->target);
        if (first->sm <= 80)
            printf("%s sm_80\n", path);
        printf("%s sm_90a\n", path);
    }
    return f;
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: batch FOLDER OUT\n");
        return 2;
    }
    size_t n = 0, room = 0;
    Text *text = NULL;
    DIR *folder = opendir(argv[1]);
    if (!folder)
        malformed(argv[1], "cannot be read");
    for (const struct dirent *entry; (entry = readdir(folder));) {
        size_t length = strlen(entry->d_name);
        if (length < 5 || strcmp(entry->d_name + length - 4, ".ptx"))
            continue;
        if (n == room)
            text = need(realloc(text, (room = 2 * room + 64) * sizeof *text));
        text[n] = (Text){0};
        load(&text[n++], argv[1], entry->d_name);
    }
    closedir(folder);
    if (!n)
        return 0;
    qsort(text, n, sizeof *text, by_age);
    size_t left = drop_equals(text, n), bytes = 0, chosen = 0, of_slice = 0;
    for (size_t i = 0; i < left; i++)
        of_slice += slice_takes(text[i].hash);
    FILE *batch = NULL, *list = NULL;
    const Text *first = NULL;
    int number = 0, failed = 0;
    for (size_t i = 0; i < left; i++) {
        if (of_slice && !slice_takes(text[i].hash)) /* of few texts none may be the slice's: then all are taken */
            continue;
        if (!first || bytes > BATCH_BYTES || strcmp(first->target, text[i].target) || first->version != text[i].version) {
            failed |= batch && (fclose(batch) | fclose(list));
            first = &text[i];
            bytes = 0;
            batch = create(argv[2], first, ++number, "ptx");
            list = create(argv[2], first, number, "list");
        }
        bytes += text[i].bytes;
        write_text(batch, &text[i]);
        fprintf(list, "%s\n", text[i].name);
        chosen++;
    }
    failed |= fclose(batch) | fclose(list); /* there is one: n is not 0 */
    for (size_t i = 0; i < left; i++)
        text_free(&text[i]);
    free(text);
    fprintf(stderr, "%zu texts, %zu of them different, %zu chosen\n", n, left, chosen);
    return failed ? 2 : 0;
}
