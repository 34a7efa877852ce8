/* What the process holds of the system. */
#ifndef TESTS_STRESS_USAGE_H
#define TESTS_STRESS_USAGE_H

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct Use {
    long maps, resident_kib, descriptors, threads;
} Use;

static inline long entries_of(const char *folder)
{
    long n = 0;
    DIR *dir = opendir(folder);
    while (dir && readdir(dir))
        n++;
    if (dir)
        closedir(dir);
    return n - 2;
}

static inline Use use_now(void)
{
    Use use = {0};
    char line[512];
    FILE *f = fopen("/proc/self/maps", "r");
    while (f && fgets(line, sizeof line, f))
        use.maps += strchr(line, '\n') != NULL;
    if (f)
        fclose(f);
    long pages = 0;
    f = fopen("/proc/self/statm", "r");
    if (f && fscanf(f, "%*d %ld", &pages) == 1)
        use.resident_kib = pages * (sysconf(_SC_PAGESIZE) / 1024);
    if (f)
        fclose(f);
    use.descriptors = entries_of("/proc/self/fd") - 1; /* the one that looks */
    use.threads = entries_of("/proc/self/task");
    return use;
}

#endif
