#!/bin/sh
# nccl.sh openmpi|mpich MPIRUN BACKEND PROGRAM LIBCUDA LIBNCCL LIBNCCL-THAT-LACKS-A-FUNCTION AWARE PARALLEL SIZE...: tests/ranks/ranks.c with what is computed on
# the CUDA device made of software and carried by NCCL made of software (nccl.c), beside MPI and without; then what goes wrong there. AWARE: what makes an
# MPI CUDA-aware (aware.c); "": nothing is preloaded into this build.
mpi=$1 mpirun=$2 backend=$3 program=$4 libcuda=$5 libnccl=$6 old=$7 aware=$8 parallel=$9
shift 9
ranks=$program
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
seed=${KILN_TEST_SEED:-1}
bad=0
export KILN_COMM="nccl:$backend" KILN_DEVICE=cuda KILN_LIBCUDA="$libcuda" KILN_LIBNCCL="$libnccl" KILN_TEST_MEMORY=exact TMPDIR="$work"
. "$(dirname "$0")/launch.sh"
. "$(dirname "$0")/../support/turn.sh"

# refused NAME TEXT: no world.
refused()
{
    ! launch 2 -- matrix 1 || complain "$1: it works"
    said "kiln_group_world: nccl: $2"
}

# Slices: values with one of the sizes (2), copies (3), losses (4), without a launcher (5), what goes wrong (6). With 2 ranks alone, what is not of that
# size is another MPI's.
rest=yes
[ "$*" != 2 ] || rest=
[ -z "${KILN_TEST_SEED-}" ] || [ "${KILN_TEST_SLICES:-1}" = 1 ] || { shift $((seed / KILN_TEST_SLICES % $#)); set -- "$1"; }
for n in "$@"; do # 4 has all; what 3 and 8 cannot cut is left out
    turn 2 || continue
    verb=matrix
    [ "$n" != 4 ] || verb=all
    KILN_TEST_NCCL=log=$work/log KILN_LOG=comm launch "$n" -- $verb "$seed" || complain "$verb with $n ranks, seed $seed (status $?)"
    said 'NCCL 22304, over mpi: '
    said 'world of nccl: buffers on CUDA devices stay there'
    for op in all_reduce reduce_scatter all_gather broadcast points; do # it was NCCL that carried them
        grep -q "^rank $((n - 1)): $op of" "$work/log" || complain "no $op by NCCL with $n ranks"
    done
done

# The same without NCCL, through memory of the host.
if [ -n "$rest" ] && turn 3; then
    KILN_COMM="$backend" KILN_LOG=comm launch 2 -- all "$seed" || complain "copies, seed $seed (status $?)"
    said 'buffers on CUDA devices are copied to memory of the host, and back'
fi

# And with an MPI that takes buffers on devices: messages by messages, what is combined through the host.
if [ -n "$aware" ] && turn 3; then
    program=env
    KILN_COMM="$backend" KILN_LOG=comm launch 2 -- LD_PRELOAD="$aware" "$ranks" matrix "$seed" ||
        complain "an MPI that takes buffers on devices, seed $seed (status $?)"
    said 'buffers on CUDA devices go as they are; what is combined is copied to memory of the host, and back'
    program=$ranks
fi

# Parameters large enough for collectives that run beside kernels: losses are those of one rank, on the CPU and without NCCL.
set -- --blocks 2 --width 128 --hidden 128 --batch 4 --steps 3 --every 1
alone() { KILN_DEVICE=cpu KILN_COMM=self "$parallel" data "$@" >"$work/alone" 2>&1 || complain "parallel alone (status $?)"; }
if [ -n "$parallel" ] && [ -n "$rest" ] && turn 4; then
    program=$parallel
    alone "$@"
    for way in data shard tensor; do
        launch 2 -- $way "$@" || complain "parallel $way (status $?)"
        same_losses 3 1e-10 "parallel $way: losses of 2 ranks are not those of one"
    done
    # Can these tests fail? Where no stream waits for another one, and where NCCL does not wait for its stream, they do.
    KILN_TEST_CUDA=waits=ignored,log=none launch 2 -- data "$@"
    if grep -q '^step 3' "$work/out"; then
        complaints=$bad
        same_losses 3 1e-10 "as expected" >/dev/null
        [ "$bad" != "$complaints" ] || complain "nobody notices that streams do not wait"
        bad=$complaints
    fi
fi
program=$ranks

# by_tcp ADDRESS RANKS ARGUMENT...: without a launcher. Fails where a rank does.
by_tcp()
{
    address=$1 n=$2
    shift 2
    : >"$work/out"
    i=0 pids=
    while [ $i -lt "$n" ]; do
        RANKS=$n KILN_COMM=nccl KILN_COMM_ADDRESS=$address KILN_COMM_RANK=$i/$n timeout -k 5 $hangs "$program" "$@" >>"$work/out" 2>&1 </dev/null &
        pids="$pids $!"
        i=$((i + 1))
    done
    status=0
    for pid in $pids; do
        wait "$pid" || status=$?
    done
    echo "$n ranks, $* without MPI, at $address"
    return $status
}
if [ -n "$rest" ] && turn 5; then
    by_tcp "$work/meet" 3 matrix "$seed" || complain "matrix without MPI (status $?)"
    [ ! -e "$work/meet" ] || complain "the file is left"
    ! KILN_DEVICE=cpu by_tcp "$work/meet" 2 matrix 1 || complain "values on the CPU travel without MPI"
    said 'values on the CPU need MPI'
    by_tcp "$work/meet" 3 differ op || complain "ranks that differ without MPI (status $?)"
    said '^rank 2: kiln_eval: .*has all_gather of f32\[4\] on CUDA'
    by_tcp "$work/meet" 3 differ sent || complain "messages that differ without MPI (status $?)"
    said '^rank 1: kiln_eval: .*has recv of f32\[5\] on CUDA from rank 1 (ranks.c:[0-9]*), rank 1 has send of f64'
    by_tcp "$work/meet" 3 die # rank 1 was killed
    said '^rank 0: kiln_[a-z]*: .*rank 1 died: its connection ended'
    said '^rank 2: kiln_[a-z]*: .*rank 1 died: its connection ended'
    KILN_COMM_TIMEOUT=1 KILN_COMM=nccl KILN_COMM_ADDRESS=$work/meet KILN_COMM_RANK=1/2 "$ranks" matrix >"$work/out" 2>&1 && complain "a rank by itself"
    said 'kiln_group_world: nccl: rank 0 was not found.*within 1 s (KILN_COMM_TIMEOUT)'
    KILN_COMM_TIMEOUT=1 KILN_COMM=nccl KILN_COMM_ADDRESS=$work/meet KILN_COMM_RANK=0/2 "$ranks" matrix >"$work/out" 2>&1 && complain "a rank by itself"
    said 'kiln_group_world: nccl: not all ranks came within 1 s (KILN_COMM_TIMEOUT)'
    KILN_COMM=nccl KILN_COMM_ADDRESS=$work/meet KILN_COMM_RANK=2/2 "$ranks" matrix >"$work/out" 2>&1 && complain "rank 2 of 2"
    said 'which rank is this? KILN_COMM_RANK=0/4.*; it is 2/2'
    KILN_COMM=nccl KILN_COMM_RANK=0/2 "$ranks" matrix >"$work/out" 2>&1 && complain "no address"
    said 'KILN_COMM_ADDRESS=HOST:PORT of rank 0, or the name of a file'
    if [ -n "$parallel" ]; then
        program=$parallel
        alone "$@"
        port=$((20000 + $$ % 10000)) # none that the system gives away, and nobody's
        while cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | grep -qi ":$(printf %04X $port) "; do port=$((port + 1)); done
        by_tcp "127.0.0.1:$port" 2 data "$@" || complain "parallel without MPI (status $?)"
        same_losses 3 1e-10 "parallel without MPI: losses of 2 ranks are not those of one"
        program=$ranks
    fi
fi
turn 6 || exit $bad

! KILN_TEST_CUDA=log=none KILN_TEST_NCCL=order=ignored launch 2 -- matrix 1 || complain "nobody notices that NCCL does not wait for its stream"
said 'some were never written'

KILN_LIBNCCL=libnosuch.so refused "no library" 'no NCCL: libnosuch.so: .*KILN_LIBNCCL'
KILN_LIBNCCL=$old refused "old library" 'the NCCL library lacks ncclSend: 2.7 or newer is needed'
KILN_TEST_NCCL=version=2604 refused "old version" 'NCCL is of version 2.6, 2.7 or newer is needed'

# What one rank's NCCL says, all say.
broken()
{
    KILN_TEST_NCCL=$1 launch 2 $apart -- matrix 1
    said "ranks.c:[0-9]*: rank 0 of 2: .*NCCL: $2"
    said "ranks.c:[0-9]*: rank 1 of 2: .*NCCL: $2"
}
broken fail=ncclCommInitRank:1:5 'ncclCommInitRank (has each rank a CUDA device of its own?): invalid usage'
broken fail=ncclAllReduce:2:3 'ncclAllReduce: internal error'
broken async=5 'while it ran: remote process exited or there was a network error'

KILN_TEST_CUDA=log=none,fail=cuEventCreate:5:999 launch 2 $apart -- half || complain "half way (status $?)" # the second lane's
said 'making an event: CUDA_ERROR_UNKNOWN'
said 'comes after collectives of an evaluation that failed: ranks are out of step'

fails how '0 1 2' 'has all_reduce max of f32\[4\] on CUDA' differ how
fails leave '0 2' 'rank 1 ended after 5 collectives of group world' leave
for how in $([ "$mpi" = mpich ] || echo die) stop; do # (MPICH's launcher kills all)
    : >"$work/log"
    KILN_TEST_NCCL=log=$work/log fails $how '0 2' "$(late 2)" $how 2
    grep -q '^rank 0: abort' "$work/log" || complain "$how: rank 0 left its device waiting"
done
exit $bad
