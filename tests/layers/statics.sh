#!/bin/sh
# statics.sh ROOT: fails when a file under runtime/ has a variable that lives as long as the process (static, thread-local or global) and may
# change, unless it stands below with the reason. What belongs to one evaluation is a field of Evaluation (runtime/evaluation.h): evaluations
# of several threads would share a static one. A row that fits no variable fails, too.
cd "$1" || exit 2

# file, variables, reason
allowed='
runtime/api/error.c            no_memory                              what a thread tells that has no memory for its errors; never written
runtime/api/explain.c          counter                                numbers the programs of the process in KILN_DUMP
runtime/api/op.c               first                                  the ops that were registered, for ever; atomic
runtime/api/option.c           once                                   KILN_TRACE is looked at once
runtime/api/option.c           told                                   whom kiln_set_progress named; under the lock of the log
runtime/api/random.c           stream_key,stream_next                 the random stream, which is one for all threads; atomic
runtime/api/stats.c            stat_block,stat_values,stat_misses,forgotten,forgotten_misses,blocks,n_taken   the statistics, in blocks of the threads; atomic
runtime/comm/collective.c      chain                                  the order of collectives, one for the process: of the thread that records them, and under the evaluation lock
runtime/comm/group.c           all                                    backends and groups, for ever: under the evaluation lock, or atomic
runtime/comm/mpi/mpi.c         mpi                                    what MPI has once in a process: under the evaluation lock, whoever calls
runtime/comm/nccl.c            nccl,all                               the NCCL library, opened once, and its communicators, for ever: under the evaluation lock
runtime/comm/run.c             progress                               collectives in the air and the thread that asks about them, with a lock of their own
runtime/comm/tcp.c             all                                    connections to other ranks, for ever: under the evaluation lock
runtime/cuda/cuda.c            cuda,lock,forked,tried,loaded,n_devices,driver_version,why_not,devices   the driver and its devices, opened once
runtime/cuda/cuda_launch.c     loading,loading_once                   locks of kernels that are loaded
runtime/cuda/cuda_solver.c     opened                                 cuSOLVER, opened once; atomic
runtime/device/device.c        generation,known                       the option `device` of a thread, read anew when an option was set
runtime/eval/async.c           state,n_jobs,n_queued,n_ended,once     what kiln_eval_async queued, and the thread that computes it, with a lock of their own
runtime/eval/background.c      state,any_done,stopping,registered,once   the compiling thread and its queue, with a lock of their own
runtime/eval/background.c      failed,n_failed                        history of compiles: under the evaluation lock
runtime/eval/breaks.c          served,passed,told,n_told              history of sync points, for KILN_LOG=breaks: under the evaluation lock, or atomic
runtime/eval/constants.c       kept,stamps                            values made of constants, which threads share, with a lock of their own; stamps of storage: atomic
runtime/eval/evaluation.c      taken,alive                            numbers of evaluations, handed out to threads in blocks, and of threads that evaluate; atomic
runtime/eval/launch.c          lent                                   memory to which a collective that was given up may still write, for ever: under the evaluation lock
runtime/eval/lock.c            shared,lock_once,lock_made,taken,mine,held  the evaluation lock itself, who is concurrent, and how a thread holds it
runtime/eval/perf.c            limits,table                           what this machine can do, and what kernels took: under the evaluation lock
runtime/eval/pool.c            current,forgotten,wanted_threads,wanted_nodes,nodes_there,in_task,work_name,once,forking,cached   the thread pool
runtime/eval/events.c          counters                               counters of the CPU, opened once: under the evaluation lock
runtime/eval/call_site.c       sites,n_sites                          what sync points compiled last, for messages: under the evaluation lock
runtime/eval/recompile.c       sites,n_sites                          history of recompiles by place: under the evaluation lock
runtime/eval/store.c           lock,opened,last,has_turn              the open cache directories; which test hook was seen last; whether a thread has a turn to compile: atomic
runtime/eval/store_log.c       log_disk,refused,before,misses_before,registered,written,with   what was counted and written for the cache on disk; atomic
runtime/function/function.c    trace_current,trace_serial,serial      the trace of a thread, and its number
runtime/gradient/gradient.c    names                                  texts "gradient of ...", for the life of the process: under the evaluation lock
runtime/gradient/param.c       last                                   numbers of parameters; atomic
runtime/linalg/lapack.c        opened                                 the LAPACK library, opened once; atomic
runtime/record/bodies.c        last_id                                numbers of recorded bodies; atomic
runtime/record/pressure.c      pressure_mark,pressure_lent            how much memory is too much, and what is lent; atomic
runtime/record/scope.c         rt_tls,thread_key,have_key,serials     what a thread has, and its number
runtime/record/scope.c         spare_handles                          handles of threads that ended; atomic
runtime/record/tensor.c        spare_nodes,pool,in_use,most_in_use    nodes and memory of threads that ended, and how much is in use; atomic
'

find runtime -name '*.c' | LC_ALL=C sort | xargs awk -v allowed="$allowed" '
    # Names of the variables that `text` declares; "": it declares no variable that may change.
    function variables(text,    list, n, i, part, names) {
        gsub(/BUF\([^)]*\)/, "BUF", text)
        if (text ~ /\(/ || text ~ /^[ ]*(static )?_Static_assert/ || text ~ /^(typedef|extern|enum|return|goto|struct [A-Za-z_0-9]+$)/)
            return ""
        if (text ~ /\*/ ? text ~ /\* *const/ : text ~ /(^|[ ])const /)
            return ""
        gsub(/\[[^]]*\]/, "", text)
        n = split(text, list, ",")
        for (i = 1; i <= n; i++) {
            part = list[i]
            sub(/ +$/, "", part)
            sub(/.*[^A-Za-z_0-9]/, "", part)
            names = names " " part
        }
        return names
    }
    function found(names,    list, n, i) {
        n = split(names, list, " ")
        for (i = 1; i <= n; i++) {
            variables_found++
            key = FILENAME " " list[i]
            if (key in reason)
                used[key] = 1
            else {
                printf "%s:%d: %s may change and lives as long as the process: make it a field of Evaluation, or say here why not\n",
                    FILENAME, FNR, list[i]
                bad++
            }
        }
    }
    BEGIN {
        n = split(allowed, row, "\n")
        for (i = 1; i <= n; i++)
            if (split(row[i], col, " ") > 2)
                for (k = split(col[2], name, ","); k > 0; k--)
                    reason[col[1] " " name[k]] = 1
    }
    FNR == 1 { open = "" }
    {
        line = $0
        gsub(/"([^"\\]|\\.)*"/, "\"\"", line)
        gsub(/\/\*.*\*\//, "", line)
        sub(/\/\*.*/, "", line)
        gsub(/ *__attribute__ *\(\([^()]*(\([^()]*\))?[^()]*\)\)/, "", line)
        sub(/ +$/, "", line)
    }
    # static struct {...} name: the name stands at its end
    open != "" && line ~ /^}/ {
        sub(/^} */, "", line)
        sub(/ *[=;].*/, "", line)
        gsub(/\[[^]]*\]/, "", line)
        if (named)
            found(line)
        open = ""
        next
    }
    line ~ /^(static |_Thread_local )*(struct|union)( [A-Za-z_0-9]+)? \{$/ { open = "struct"; named = line ~ /^(static|_Thread)/; next }
    open == "" && (line ~ /^ *(static|_Thread_local) / || line ~ /^[A-Za-z_][A-Za-z_0-9 *]* \**[A-Za-z_0-9]+(\[[^]]*\])*( =.*)?;$/) {
        sub(/ *[=;{].*/, "", line)
        found(variables(line))
    }
    END {
        for (key in reason)
            if (!(key in used)) {
                printf "%s: a row for a variable that is not there\n", key
                bad++
            }
        printf "%d variables that live as long as the process\n", variables_found
        exit bad > 0 || variables_found == 0
    }'
