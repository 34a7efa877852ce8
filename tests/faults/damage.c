/*
 * Damaged entries: cut at every length, with every bit flipped, zeroed, foreign, of an old format, longer than they say, or no files
 * at all. Each is refused with a reason and removed, nothing is ever computed with it, and where compiling is allowed the program is
 * made anew and kept. All in one process, which forgets its programs between the look-ups.
 */
#include "tests/faults/harness.h"
#include "tests/faults/whole.h"
#include "tests/support/stats.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_BYTES = 1 << 20 };

static const char *cache;
static char entry[2 * PATH_BYTES];
static unsigned char good[MOST_BYTES], bad[MOST_BYTES];
static size_t n_good;

static bool with_body; /* the program has a loop: its step is a program of its own in the entry */

static void step(kiln_tensor *i, kiln_tensor **carry, kiln_tensor **x, kiln_tensor **carry_out, kiln_tensor **y, void *user)
{
    (void)i, (void)x, (void)y, (void)user;
    carry_out[0] = kiln_sub(kiln_sum(carry[0]), carry[0]);
}

static kiln_tensor *looped(kiln_tensor *x)
{
    kiln_tensor *last = NULL;
    (void)kiln_scan(step, 2, 0, 1, &x, &last, 0, NULL, 0, NULL, NULL);
    return last;
}

/* The program in question. KILN_COMPILE where it is neither in memory nor on disk and must not be compiled. */
static kiln_status compute(void)
{
    static const float data[3] = {1, 2, 3}, negative[3] = {-1, -2, -3}, summed[3] = {7, 8, 9};
    const float *wanted = with_body ? summed : negative;
    float got[3] = {0};
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x = kiln_from(KILN_F32, KILN_SHAPE(3), data);
    kiln_status status = kiln_read(with_body ? looped(x) : kiln_neg(x), KILN_F32, got, sizeof got);
    if (status == KILN_OK)
        CHECK(memcmp(got, wanted, sizeof got) == 0, "wrong value: %g %g %g", (double)got[0], (double)got[1], (double)got[2]);
    kiln_scope_end(scope);
    return status;
}

static kiln_status look_up(const char *compile)
{
    set_option("compile", compile);
    forget_programs();
    return compute();
}

static void found(const char *path, void *user)
{
    (void)user;
    snprintf(entry, sizeof entry, "%s", path);
}

/* Compiles the program into a directory of its own and reads its entry. */
static void begin(void)
{
    cache = new_folder();
    set_option("cache", "on");
    set_option("cache_dir", cache);
    CHECK(look_up("on") == KILN_OK, "%s", kiln_error_message());
    CHECK(entries(cache, NULL, NULL) == 1, "%d entries", entries(cache, NULL, NULL));
    each_entry(cache, found, NULL);
    n_good = read_file(entry, good, sizeof good);
    int64_t hits = stats_now().disk_hits;
    CHECK(look_up("off") == KILN_OK && stats_now().disk_hits == hits + 1, "the entry is loaded: %s", kiln_error_message());
}

static int64_t miss(const char *reason)
{
    kiln_stats s = stats_now();
    for (int i = 0; kiln_miss_reason(i); i++)
        if (strcmp(kiln_miss_reason(i), reason) == 0)
            return s.miss[i];
    return -1;
}

/* With n bytes in place of the entry: refused and removed. */
static void refused(const unsigned char *bytes, size_t n, const char *what, size_t where)
{
    int64_t before = stats_now().disk_refused, reasons = miss("disk_damaged");
    write_file(entry, bytes, n);
    kiln_status status = look_up("off");
    CHECK(status == KILN_COMPILE, "%s %zu: %s: %s", what, where, kiln_status_name(status), kiln_error_message());
    CHECK(stats_now().disk_refused == before + 1 && miss("disk_damaged") == reasons + 1, "%s %zu: no reason", what, where);
    CHECK(access(entry, F_OK) != 0, "%s %zu: it is still there", what, where);
    kiln_clear_error();
}

/* The same where compiling is allowed: made anew, kept, found again. */
static void made_anew(const unsigned char *bytes, size_t n, const char *what)
{
    kiln_stats before = stats_now();
    write_file(entry, bytes, n);
    CHECK(look_up("on") == KILN_OK, "%s: %s", what, kiln_error_message());
    kiln_stats then = stats_now();
    CHECK(then.compiles == before.compiles + 1 && then.disk_stored == before.disk_stored + 1, "%s: not compiled", what);
    CHECK(look_up("off") == KILN_OK, "%s: not kept: %s", what, kiln_error_message());
    CHECK(entries(cache, NULL, NULL) == 1, "%s: %d entries", what, entries(cache, NULL, NULL));
}

static void every_length(void)
{
    begin();
    for (size_t n = 0; n < n_good; n++)
        refused(good, n, "cut to", n);
    memcpy(bad, good, n_good);
    memset(bad + n_good, 0, 64);
    for (size_t more = 1; more <= 64; more++)
        refused(bad, n_good + more, "longer by", more);
    made_anew(good, n_good / 2, "half");
    made_anew(good, 0, "nothing");
    drop_folder();
}

static void every_bit(void)
{
    begin();
    memcpy(bad, good, n_good);
    for (size_t bit = 0; bit < 8 * n_good; bit++) {
        bad[bit / 8] ^= (unsigned char)(1 << bit % 8);
        refused(bad, n_good, "bit", bit);
        bad[bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
    for (size_t at = 0; at < n_good; at += n_good / 16) {
        bad[at] ^= 0x10;
        made_anew(bad, n_good, "one bit");
        bad[at] ^= 0x10;
    }
    printf("%zu bytes, each bit flipped\n", n_good);
    drop_folder();
}

static void other_contents(void)
{
    begin();
    memset(bad, 0, n_good);
    refused(bad, n_good, "zeroes", n_good);
    for (size_t from = 0; from < n_good; from += 512) { /* a block that the disk lost */
        memcpy(bad, good, n_good);
        memset(bad + from, 0, n_good - from < 512 ? n_good - from : 512);
        if (memcmp(bad, good, n_good) != 0)
            refused(bad, n_good, "a hole at", from);
    }
    for (size_t i = 0; i < n_good; i++)
        bad[i] = (unsigned char)(i * 2654435761u >> 13);
    refused(bad, n_good, "noise", 0);
    static const char text[] = "\x7f"
                               "ELF, or so it says";
    refused((const unsigned char *)text, sizeof text, "a foreign file", 0);
    for (int format = 0; format < 4; format++) { /* checksum and all else right */
        memcpy(bad, good, n_good);
        bad[8] = (unsigned char)(good[8] - 1 + format + (format >= 1));
        mend_checksum(bad, n_good);
        refused(bad, n_good, "another format", (size_t)format);
    }
    for (size_t at = 40; at < 40 + 16 * 8; at += 8) /* offsets and lengths of sections */
        for (int shift = 0; shift < 64; shift += 9) {
            memcpy(bad, good, n_good);
            uint64_t huge = (uint64_t)1 << shift | (uint64_t)1 << 63 >> (shift % 2 ? 0 : 1);
            memcpy(bad + at, &huge, sizeof huge);
            mend_checksum(bad, n_good);
            refused(bad, n_good, "a length at", at);
        }
    memcpy(bad, good, n_good);
    memcpy(bad + n_good, good, n_good);
    refused(bad, 2 * n_good, "twice", 0);
    made_anew(bad, 2 * n_good, "twice");
    drop_folder();
}

/* Something else under the entry's name. Whatever it is, it is not followed, not waited for, and the value is right. */
static void no_file(const char *what, const char *command)
{
    char aside[3 * PATH_BYTES];
    snprintf(aside, sizeof aside, "%s/aside", cache);
    write_file(aside, good, n_good);
    unlink(entry);
    if (strstr(command, "%s/aside"))
        shell("%s '%s' '%s'", "ln -s", aside, entry);
    else
        shell("%s '%s'", command, entry);
    int64_t hits = stats_now().disk_hits;
    CHECK(look_up("off") == KILN_COMPILE && stats_now().disk_hits == hits, "%s was used", what);
    kiln_clear_error();
    CHECK(look_up("on") == KILN_OK, "%s: %s", what, kiln_error_message());
    shell("rm -rf '%s' '%s'", entry, aside);
    CHECK(look_up("on") == KILN_OK && look_up("off") == KILN_OK, "after %s: %s", what, kiln_error_message());
}

static void no_regular_file(void)
{
    begin();
    no_file("a directory", "mkdir");
    no_file("a pipe", "mkfifo");
    no_file("a symbolic link", "ln -s %s/aside");
    unlink(entry); /* a file that others may write: they could have written it */
    write_file(entry, good, n_good);
    CHECK(chmod(entry, 0666) == 0, "chmod");
    CHECK(look_up("off") == KILN_COMPILE, "a file that others may write was used");
    kiln_clear_error();
    CHECK(look_up("on") == KILN_OK && look_up("off") == KILN_OK, "%s", kiln_error_message());
    drop_folder();
}

/* A good entry under another entry's name, as after a mistaken copy. */
static void wrong_name(void)
{
    begin();
    char other[2 * PATH_BYTES];
    snprintf(other, sizeof other, "%s", entry);
    char *digit = strrchr(other, '/') + 40; /* of the hash of the guards or the maker */
    *digit = *digit == 'a' ? 'b' : 'a';
    shell("mv '%s' '%s'", entry, other);
    CHECK(look_up("off") == KILN_COMPILE, "an entry under a wrong name was used");
    kiln_clear_error();
    shell("cp '%s' '%s'.copy 2>/dev/null; true", entry, entry);
    CHECK(look_up("on") == KILN_OK && look_up("off") == KILN_OK, "%s", kiln_error_message());
    drop_folder();
}

/* KILN_CACHE=refresh replaces what is damaged without reading it; readonly removes nothing. */
static void other_modes(void)
{
    begin();
    int64_t compiles = stats_now().compiles;
    write_file(entry, good, n_good / 2);
    set_option("cache", "readonly");
    CHECK(look_up("off") == KILN_COMPILE && access(entry, F_OK) == 0, "readonly changed something");
    kiln_clear_error();
    CHECK(look_up("on") == KILN_OK && stats_now().compiles == compiles + 1, "%s", kiln_error_message());
    CHECK(read_file(entry, bad, sizeof bad) == n_good / 2, "readonly wrote");
    set_option("cache", "refresh");
    CHECK(look_up("on") == KILN_OK && stats_now().compiles == compiles + 2, "%s", kiln_error_message());
    set_option("cache", "on");
    CHECK(look_up("off") == KILN_OK, "refresh kept nothing: %s", kiln_error_message());
    set_option("check", "cache");
    CHECK(look_up("on") == KILN_OK && n_warnings <= 2, "%s; %s", kiln_error_message(), last_warning);
    write_file(entry, good, n_good / 2);
    CHECK(look_up("on") == KILN_OK, "check=cache on a damaged entry: %s", kiln_error_message());
    set_option("check", "off");
    CHECK(look_up("off") == KILN_OK, "%s", kiln_error_message());
    drop_folder();
}

/* Code that is another's, or from a library with a fault, in an entry where all else is right: it runs, but the check tells. */
static void other_code(void)
{
    begin();
    memcpy(bad, good, n_good);
    unsigned char *code = memmem(bad, n_good,
                                 "\x7f"
                                 "ELF",
                                 4);
    CHECK(code != NULL, "an entry without code");
    if (!code)
        return;
    code[15] ^= 1; /* of its header, read by nobody */
    mend_checksum(bad, n_good);
    write_file(entry, bad, n_good);
    CHECK(look_up("off") == KILN_OK, "%s", kiln_error_message());
    set_option("check", "cache");
    int before = n_warnings;
    CHECK(look_up("on") == KILN_OK, "%s", kiln_error_message());
    CHECK(n_warnings == before + 1 && strstr(last_warning, "IS NOT what compiling gives: its kernels differ"), "%d warnings: %s",
          n_warnings - before, last_warning);
    write_file(entry, good, n_good);
    CHECK(look_up("on") == KILN_OK && n_warnings == before + 1, "%s; %s", kiln_error_message(), last_warning);
    set_option("check", "off");
    drop_folder();
}

/* An entry with a body: some lengths and bits of it, and all else as of one without. */
static void body(void)
{
    with_body = true;
    begin();
    for (size_t n = 0; n < n_good; n += 11)
        refused(good, n, "cut to", n);
    memcpy(bad, good, n_good);
    for (size_t bit = 0; bit < 8 * n_good; bit += 37) {
        bad[bit / 8] ^= (unsigned char)(1 << bit % 8);
        refused(bad, n_good, "bit", bit);
        bad[bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
    made_anew(good, n_good / 2, "half");
    drop_folder();
    other_contents();
    other_modes();
    other_code();
    with_body = false;
}

int main(int argc, char **argv)
{
    static const Test tests[] = {{"every_length", every_length},     {"every_bit", every_bit},
                                 {"other_contents", other_contents}, {"no_regular_file", no_regular_file},
                                 {"wrong_name", wrong_name},         {"other_modes", other_modes},
                                 {"other_code", other_code},         {"body", body}};
    return run_some_tests("damage", tests, sizeof tests / sizeof *tests, argc, argv);
}
