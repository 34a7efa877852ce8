#!/bin/sh
# graphs.sh openmpi|mpich MPIRUN BACKEND PROGRAM LIBCUDA LIBNCCL PARALLEL: collectives in CUDA graphs (runtime/comm/on_device.c), by tests/ranks/ranks.c and
# examples/parallel ("": it is not there) on the CUDA device and the NCCL made of software (nccl.c). Memory comes again from step to step, so it is pooled.
mpi=$1 mpirun=$2 backend=$3 program=$4 libcuda=$5 libnccl=$6 parallel=$7
ranks=$program
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
bad=0
export KILN_COMM="nccl:$backend" KILN_DEVICE=cuda KILN_LIBCUDA="$libcuda" KILN_LIBNCCL="$libnccl" TMPDIR="$work"
. "$(dirname "$0")/launch.sh"
. "$(dirname "$0")/../support/turn.sh"

# steps NAME SETTINGS-OF-NCCL RANKS HOW: of that many ranks, with values that are right. What NCCL was called for is in $work/log.
steps()
{
    name=$1 settings=$2 count=$3 how=$4
    : >"$work/log"
    KILN_LOG=+comm KILN_TEST_NCCL="log=$work/log,$settings" launch "$count" -- graphs $how || complain "$name (status $?)"
    ! grep -q FAILED "$work/log" || complain "$name: $(grep FAILED "$work/log")"
}

# captured NAME LEAST RANK...: on these ranks so many collectives ran in graphs, or more.
captured()
{
    name=$1 least=$2
    shift 2
    for rank in "$@"; do
        [ "$(grep -c "^rank $rank: .* in a graph" "$work/log")" -ge "$least" ] || complain "$name: rank $rank has too few collectives in graphs"
    done
}

# none NAME TEXT: no collective ran in a graph, and why not.
none()
{
    ! grep -q "in a graph" "$work/log" || complain "$1: there are collectives in graphs"
    said "$2"
}

if turn 0; then
    : >"$work/graphs"
    KILN_TEST_CUDA=graphs=$work/graphs steps "graphs" "" 2 ""
    captured "graphs" 15 0 1
    said 'rank 1, group world: 3 collectives, from kiln.all_reduce, number [0-9]* of the process, on, are in a CUDA graph from now on'
    said 'rank 0, group world: 3 collectives from kiln.all_reduce on are not in a CUDA graph: NCCL has to make connections first'
    # In each graph with collectives: these one after the other; a kernel that is neither before the first one nor after it; kernels before it and after it.
    awk '{ graph = $2 " " $4; node = $6; is[graph, node] = $7; graphs[graph] = node + 1
           for (k = 9; k <= NF; k++) {
               after[graph, node, $k] = 1
               for (m = 0; m < $k; m++) if (after[graph, $k, m]) after[graph, node, m] = 1
           } }
         END { for (g in graphs) {
                   first = -1; beside = before = behind = 0
                   for (n = 0; n < graphs[g]; n++) if (is[g, n] == "FOREIGN") {
                       if (first < 0) first = n; else if (!after[g, n, last]) bad = 1
                       last = n
                   }
                   if (first < 0) continue
                   found++
                   for (n = 0; n < graphs[g]; n++) if (is[g, n] != "FOREIGN") {
                       if (after[g, n, first]) behind++; else if (after[g, first, n]) before++; else beside++
                   }
                   if (!before || !beside || !behind) bad = 1
               }
               exit bad || found != 2 }' "$work/graphs" || { complain "how graphs depend"; cat "$work/graphs"; }
    steps "sizes" "" 3 sizes
    captured "sizes" 45 0 1 2
    steps "mixed" "" 2 mixed
    captured "mixed" 30 0 1
    said 'are not in a CUDA graph: another rank has none, or another one, or could not capture it'
    # Can these tests fail? Where no stream waits for another one, and where NCCL does not wait for what comes before it, they do.
    ! KILN_TEST_CUDA=waits=ignored,log=none launch 2 -- graphs || complain "nobody notices that streams do not wait"
    ! KILN_TEST_CUDA=log=none KILN_TEST_NCCL=order=ignored launch 2 -- graphs || complain "nobody notices that NCCL does not wait"
fi
turn 1 || exit $bad

# None, on all ranks: an old NCCL, a rank that wants none, one that cannot capture, a driver that cannot.
steps "old NCCL" version=2804 2 ""
none "old NCCL" 'no collective is in a CUDA graph: NCCL 2.9 or newer is needed for that'
steps "off" "" 2 off
none "off" 'no collective is in a CUDA graph: there are no CUDA graphs (KILN_CUDA_GRAPHS=off'
steps "refused" refuse=1 2 ""
none "refused" 'warning: NCCL: ncclAllReduce: invalid usage: told to .*its collectives run one after the other (KILN_CUDA_GRAPHS=off'
for call in cuStreamBeginCapture_v2:1 cuStreamGetCaptureInfo_v3:3 cuGraphInstantiateWithFlags:2; do # (the first one has kernels alone)
    KILN_TEST_CUDA=fail=$call:801 steps "$call" "" 2 ""
    none "$call" 'warning: .*a graph with collectives: CUDA_ERROR_NOT_SUPPORTED'
done

# Failures inside: nobody waits for ever, and graphs are gone before their communicators are.
: >"$work/log"
KILN_TEST_NCCL=log=$work/log,async=14 launch 2 $apart -- graphs
for rank in 0 1; do
    said "rank $rank of 2: .*NCCL: while it ran: remote process exited.*in a CUDA graph with 2 more, number [0-9]* of group world"
    grep -q "^rank $rank: abort" "$work/log" || complain "rank $rank left its device waiting"
done
! grep -q FAILED "$work/log" || complain "$(grep FAILED "$work/log")"
fails differ '0 1 2' 'ranks differ in collective number [0-9]* of group world: .*rank 1 has all_reduce max of f32\[128,128\] on CUDA' graphs differ
fails leave '0 2' 'rank 1 ended after [0-9]* collectives of group world' graphs leave
KILN_TEST_CUDA=log=none,fail=cuGraphLaunch:4:999 launch 2 $apart -- graphs
said 'a graph with collectives: CUDA_ERROR_UNKNOWN'
for how in $([ "$mpi" = mpich ] || echo die) stop; do # (MPICH's launcher kills all)
    fails $how '0 2' "$(late 2)" graphs $how 2
done

# Parameters, and their gradients: losses are those of one rank, on the CPU and without NCCL.
if [ -n "$parallel" ]; then
    program=$parallel
    set -- --blocks 2 --width 128 --hidden 128 --batch 4 --steps 6 --every 1
    KILN_DEVICE=cpu KILN_COMM=self "$parallel" data "$@" >"$work/alone" 2>&1 || complain "parallel alone (status $?)"
    for way in data tensor; do
        : >"$work/log"
        KILN_TEST_NCCL=log=$work/log launch 2 -- $way "$@" || complain "parallel $way (status $?)"
        captured "parallel $way" 2 0 1
        same_losses 6 1e-10 "parallel $way: losses of 2 ranks are not those of one"
    done
fi
exit $bad
