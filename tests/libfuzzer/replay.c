/*
 * replay FOLDER: the target gets every file of the folder, then each of its beginnings, and (small files) each with one byte
 * changed. What libFuzzer once found stays found without libFuzzer.
 */
#include "target.h"

#include <dirent.h>
#include <string.h>
#include <sys/stat.h>

enum { LARGEST = 1 << 20, SMALL = 600 };

static void shorter_and_changed(uint8_t *bytes, size_t n)
{
    size_t step = n / SMALL + 1;
    for (size_t cut = 0; cut < n; cut += step)
        LLVMFuzzerTestOneInput(bytes, cut);
    for (size_t at = 0; n <= SMALL && at < n; at++) {
        uint8_t kept = bytes[at];
        bytes[at] = (uint8_t)(kept ^ (1 << at % 8));
        LLVMFuzzerTestOneInput(bytes, n);
        bytes[at] = 0xff;
        LLVMFuzzerTestOneInput(bytes, n);
        bytes[at] = kept;
    }
}

static int replay(const char *path)
{
    struct stat info;
    FILE *f = fopen(path, "rb");
    uint8_t *bytes = malloc(LARGEST);
    if (!f || !bytes || fstat(fileno(f), &info) != 0)
        return fprintf(stderr, "%s: cannot be read\n", path), 1;
    size_t n = S_ISREG(info.st_mode) ? fread(bytes, 1, LARGEST, f) : 0;
    fclose(f);
    uint8_t *exact = malloc(n ? n : 1); /* so that a sanitizer sees its end */
    if (!exact)
        return 1;
    memcpy(exact, bytes, n);
    free(bytes);
    fprintf(stderr, "%s\n", path); /* the last one named is the one that failed */
    LLVMFuzzerTestOneInput(exact, n);
    shorter_and_changed(exact, n);
    free(exact);
    return 0;
}

int main(int argc, char **argv)
{
    DIR *folder = argc == 2 ? opendir(argv[1]) : NULL;
    int files = 0, failed = 0;
    if (!folder)
        return fprintf(stderr, "usage: replay FOLDER\n"), 2;
    for (struct dirent *entry; (entry = readdir(folder));) {
        char path[4096];
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", argv[1], entry->d_name);
        failed |= replay(path);
        files++;
    }
    closedir(folder);
    printf("%d files\n", files);
    return failed || files == 0;
}
