/*
 * replay FOLDER...: the target gets every file of the folders, then each of its beginnings, and it with one byte changed (of long files
 * some of them). What libFuzzer once found stays found without libFuzzer.
 */
#include "target.h"

#include <dirent.h>
#include <string.h>
#include <sys/stat.h>

enum { LARGEST = 1 << 20, MOST = 1000 };

static void shorter_and_changed(uint8_t *bytes, size_t n)
{
    size_t step = n / MOST + 1;
    for (size_t cut = 0; cut < n; cut += step)
        LLVMFuzzerTestOneInput(bytes, cut);
    for (size_t at = 0; at < n; at += step) {
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

static int replay_folder(const char *path, int *files)
{
    DIR *folder = opendir(path);
    int failed = 0;
    if (!folder)
        return fprintf(stderr, "%s: no such folder\n", path), 1;
    for (struct dirent *entry; (entry = readdir(folder));) {
        char file[4096];
        if (entry->d_name[0] == '.')
            continue;
        snprintf(file, sizeof file, "%s/%s", path, entry->d_name);
        failed |= replay(file);
        ++*files;
    }
    closedir(folder);
    return failed;
}

int main(int argc, char **argv)
{
    int files = 0, failed = argc < 2;
    for (int i = 1; i < argc; i++)
        failed |= replay_folder(argv[i], &files);
    printf("%d files\n", files);
    return failed || files == 0;
}
