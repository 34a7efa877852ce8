/*
 * Streams of a CUDA device that threads use one storage on, as a model for spin (run.sh): what cuda_before_read, cuda_before_write, cuda_uses
 * (runtime/cuda/cuda.c) and the pool of blocks (cuda_memory.c) promise, for all orders in which threads queue and streams run.
 *
 *     a read that is queued sees what was written last before it was queued
 *     memory that is given up is written by its next owner only when nothing that is queued still uses it
 *
 * Each thread has a stream, which runs what is queued on it in order, some time. A storage has the stream that wrote it and the set of those
 * that read it since. Thread 0 made a value, and each thread may read it up to READS times. Then whoever is last to hold it overwrites it, and others
 * may read it again, or gives it up, and another thread writes to its memory. Who holds a storage is for references to say, which are counted
 * (runtime/record/tensor.h): `holds` stands for them. Each macro BREAK_... takes out one thing that the code does, and spin must find what goes wrong.
 *
 * An event is what a stream has queued so far: who waits for it goes on when so much has run.
 */
#define STREAMS 3
#define READS 2
#define NONE 0
#define READ 1
#define WRITE 2
#define OPS 6

/* What is queued on a stream: the kind, the value that a read is to see or a write leaves, and how much of each stream has to have run. */
typedef Queue {
    byte kind[OPS];
    byte value[OPS];
    byte after[18]; /* OPS * STREAMS */
    byte n, ran
}
Queue queue[STREAMS];

byte memory;          /* its value */
byte version;         /* of the storage: what a read that is queued now has to see */
byte writer;          /* Storage.stream */
byte readers;         /* Storage.readers, a bit each */
byte holds = STREAMS; /* references */
bool freed;           /* the memory is in the pool ... */
byte block;           /* ... with the streams that used it */
bool again;           /* a thread may read what was overwritten */

/* cuda_stream_after: `which` are bits */
inline wait_for(t, which)
{
    s = 0;
    do
    :: s < STREAMS ->
#ifndef BREAK_WAIT
        if
        :: s != t && (which & (1 << s)) -> queue[t].after[queue[t].n * STREAMS + s] = queue[s].n
        :: else
        fi;
#endif
        s++
    :: else -> break
    od
}

inline push(t, what, v)
{
    queue[t].kind[queue[t].n] = what;
    queue[t].value[queue[t].n] = v;
    queue[t].n++
}

inline uses(out)
{
#ifndef BREAK_READERS
    out = (readers -> readers : 1 << writer)
#else
    out = 1 << writer /* only who wrote it is known */
#endif
}

/* What waits is all that comes after it on its stream, too: that runs in order. */
proctype stream(byte t)
{
    byte at;
end:
    do
    :: queue[t].ran < queue[t].n &&
       queue[0].ran >= queue[t].after[queue[t].ran * STREAMS] && queue[1].ran >= queue[t].after[queue[t].ran * STREAMS + 1] &&
       queue[2].ran >= queue[t].after[queue[t].ran * STREAMS + 2] ->
        atomic {
            at = queue[t].ran;
            if
            :: queue[t].kind[at] == READ -> assert(memory == queue[t].value[at])
            :: else -> memory = queue[t].value[at]
            fi;
            queue[t].ran++
        }
    od
}

/* cuda_before_read: a stream that read the storage since it was written has waited for the writer. The bit is set after the wait is queued. */
inline read(t)
{
    if
#ifndef BREAK_ONCE
    :: readers & (1 << t) -> skip
    :: else ->
#else
    :: readers -> skip /* as if one stream's wait were another's */
    :: else ->
#endif
        atomic { wait_for(t, 1 << writer) }
#ifndef BREAK_NOTED
        readers = readers | (1 << t)
#endif
    fi;
    atomic { push(t, READ, version) }
}

/* cuda_before_write, where nobody else holds it */
inline write(t)
{
    uses(set);
    atomic { wait_for(t, set) }
    writer = t;
#ifndef BREAK_CLEARED
    readers = 0;
#endif
    version++;
    atomic { push(t, WRITE, version) }
}

proctype thread(byte t)
{
    byte set, n, s;
    bool last;
    do
    :: n < READS -> read(t); n++
    :: true -> break
    od;
    /* Who lets go last has it for himself. */
    atomic { holds--; last = holds == 0 }
    if
    :: !last ->
        if
        :: freed -> /* it takes the block: cuda_alloc */
            atomic {
                freed = false;
                wait_for(t, block);
                version++;
                push(t, WRITE, version);
                writer = t;
                readers = 0
            }
        :: again -> read(t)
        :: true
        fi
    :: else ->
        if
        :: write(t); again = true; read(t) /* in place, and shared again */
        :: atomic { uses(set); block = set; freed = true } /* cuda_storage_free */
        fi
    fi
}

init
{
    atomic {
        version = 1;
        writer = 0;
        push(0, WRITE, 1);
        run stream(0);
        run stream(1);
        run stream(2);
        run thread(0);
        run thread(1);
        run thread(2)
    }
}
