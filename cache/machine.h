/*
 * What this machine can do at most: rates of memory and arithmetic by all threads, and what it takes to wake one. Measured once in half a
 * second, by the first process that needs it, and kept in the cache directory: the file `machine` has a line for each CPU and number of
 * threads, of which the last one counts. `kiln info --measure` measures anew.
 */
#ifndef CACHE_MACHINE_H
#define CACHE_MACHINE_H

#include "cache/disk.h"

typedef enum MachineId {
#define MACHINE(id, name, scale, unit, help) MACHINE_##id,
#include "cache/machine.def"
#undef MACHINE
    MACHINE_COUNT
} MachineId;

typedef struct MachineInfo {
    const char *name, *unit, *help;
    double scale;
} MachineInfo;
extern const MachineInfo machine_info[MACHINE_COUNT];

typedef struct Machine Machine;
struct Machine {
    int threads;
    int64_t value[MACHINE_COUNT]; /* per second, or nanoseconds; 0: it could not be measured */
};

/* With so many threads. */
void machine_measure(int threads, Machine *out);
/* What is kept for that number of threads of this CPU; false: nothing. */
bool machine_read(Disk *disk, int threads, Machine *out);
Status machine_write(Disk *disk, const Machine *machine);

#endif
