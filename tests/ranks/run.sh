#!/bin/sh
# run.sh openmpi|mpich MPIRUN BACKEND PROGRAM GPT PARALLEL SIZE...: tests/ranks/ranks.c under one MPI: everything with each number of ranks, then failures with three.
# GPT, PARALLEL: examples/gpt and examples/parallel, which learn with several ranks what they learn with one; "": there are none.
mpi=$1 mpirun=$2 backend=$3 ranks=$4 gpt=$5 parallel=$6
shift 6
program=$ranks
model=$(dirname "$0")/../../bench/ranks_model.py
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
seed=${KILN_TEST_SEED:-1}
bad=0
export KILN_COMM="$backend"
. "$(dirname "$0")/launch.sh"
. "$(dirname "$0")/../support/turn.sh"

# Three parts: values, the examples, failures. Each commit has one of one MPI.
[ "$mpi" = mpich ] && first=3 || first=0
part() { turn $((first + $1)); }

if part 0; then
    for n in "$@"; do
        launch "$n" -- all "$seed" || complain "all with $n ranks, seed $seed (status $?)"
    done
    [ "$mpi" != mpich ] || launch 2 -- large || complain "64 MB (status $?)"
    # More than there are cores.
    [ "$mpi" != mpich ] || launch 8 -- random "$seed" || complain "random programs with 8 ranks, seed $seed (status $?)"
    KILN_CACHE=on KILN_CACHE_DIR="$work/cache" launch 3 -- compiling || complain "compiling (status $?)"
    ls "$work/cache"/??/*.kiln >/dev/null || complain "compiling: nothing is on disk"
    # Ranks of other options, so of other programs.
    printf '#!/bin/sh\n[ "${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-0}}" = 0 ] || export KILN_VECTOR_BITS=128 KILN_DYNAMIC=always KILN_MATH=strict\nexec "%s" "$@"\n' "$ranks" >"$work/mixed"
    chmod +x "$work/mixed"
    program=$work/mixed
    launch 2 -- random "$seed" || complain "random programs with ranks of other options, seed $seed (status $?)"
    program=$ranks
    # Buckets: compiled, and from disk; why an operand is copied is said.
    for when in compiled "from disk"; do
        KILN_CACHE=on KILN_CACHE_DIR="$work/cache" KILN_LOG=+fusion,cache launch 2 -- buckets "$seed" || complain "buckets, $when, seed $seed (status $?)"
        [ "$when" != compiled ] || grep -q "its kernel stores it where a collective's bucket has it" "$work/out" || complain "buckets: nothing is stored in its place"
        [ "$when" != compiled ] || grep -q 'copied: %[0-9]* [a-z_]* into the bucket %[0-9]*: ' "$work/out" || complain "buckets: nothing says why it is copied"
        [ "$when" = compiled ] || ! grep -q "collective's bucket" "$work/out" || complain "buckets: compiled again"
    done
fi

if part 1 && [ "$mpi" = mpich ] && [ -n "$gpt" ]; then
    i=0
    while [ $i -lt 60 ]; do
        echo "line $((i * 7919 % 97)): the quick brown fox jumps over the lazy dog"
        i=$((i + 1))
    done >"$work/text"
    program=$gpt
    set -- train "$work/text" --depth 1 --width 32 --heads 2 --context 24 --batch 8 --warmup 2 --rate 0.01 --steps 12 --every 3
    KILN_COMM=self "$gpt" "$@" >"$work/alone" 2>&1 || complain "gpt alone (status $?)"
    launch 2 -- "$@" || complain "gpt with 2 ranks (status $?)"
    same_losses 5 1e-6 "gpt: losses of 2 ranks are not those of one"
    # One is killed once there is a checkpoint: the run ends, and what goes on from there is as if nothing had been.
    set -- train "$work/text" --depth 1 --width 32 --heads 2 --context 24 --batch 8 --warmup 2 --rate 0.01 --steps 1000000 --every 3
    printf 'echo $$ >>"%s/pids"\nexec "$@"\n' "$work" >"$work/noted"
    timeout $hangs "$mpirun" -n 2 sh "$work/noted" "$gpt" "$@" --save "$work/model" >"$work/out" 2>&1 </dev/null &
    i=0
    while [ ! -s "$work/model" ] && [ $i -lt 6000 ]; do
        sleep 0.1
        i=$((i + 1))
    done
    kill -9 "$(tail -n 1 "$work/pids")"
    ! wait $! || complain "gpt with a rank that was killed: it ends well"
    last=$(head -c 300 "$work/model" | LC_ALL=C sed -n 's/.*"step":"\([0-9]*\)".*/\1/p' | tr -cd 0-9)
    launch 2 -- "$@" --stop $((last + 9)) || complain "gpt that is not killed (status $?)"
    sed -n '/^step/s/;.*//p' "$work/out" | tail -n 3 >"$work/whole"
    launch 2 -- "$@" --stop $((last + 9)) --resume "$work/model" || complain "gpt that goes on (status $?)"
    sed -n '/^step/s/;.*//p' "$work/out" | tail -n 3 | cmp - "$work/whole" || { complain "gpt that goes on after step $last has other losses"; cat "$work/whole"; }
fi

# All ways with one MPI, with ranks of which the parts are as large, and (shard) are not.
if part 1 && [ "$mpi" = openmpi ] && [ -n "$parallel" ]; then
    program=$parallel
    set -- --blocks 2 --width 10 --hidden 30 --batch 12 --steps 20 --every 5
    KILN_COMM=self "$parallel" data "$@" >"$work/alone" 2>&1 || complain "parallel alone (status $?)"
    for way in data shard tensor; do
        launch 3 -- $way "$@" || complain "parallel $way (status $?)"
        same_losses 5 1e-10 "parallel $way: losses of 3 ranks are not those of one"
    done
    # Kernels run while gradients are summed up: a launch begins in the span of a collective.
    KILN_TRACE=$work/trace.%p.json launch 2 -- data --blocks 4 --width 256 --hidden 1024 --batch 64 --steps 4 || complain "parallel with a trace (status $?)"
    cat "$work"/trace.*.json | awk '/"cat":"(ranks|launch)","ph":"X"|"ph":"X".*"cat":"(ranks|launch)"/ {
            at = $0; sub(/.*"ts":/, "", at); long = $0; sub(/.*"dur":/, "", long)
            if (/"cat":"ranks"/) { n++; from[n] = at + 0; to[n] = from[n] + long }
            else if (!/"name":"call /) { m++; begins[m] = at + 0 } }
        END { for (k = 1; k <= n; k++) for (j = 1; j <= m; j++) inside += begins[j] > from[k] && begins[j] < to[k]
              print n " collectives, " m " launches, " inside " beside"; exit !(n >= 32 && inside >= 8) }' || complain "nothing runs beside collectives"
    # A chain of collectives that is longer than a kernel may look back: it was said to depend on itself. And memory: updates are in place, so
    # there is hardly more than what is kept; whole parameters are there one at a time, and of all gradients the parts.
    set -- --blocks 10 --width 256 --hidden 1024 --batch 16 --steps 2
    for way in tensor shard; do
        KILN_LOG=+comm KILN_STRICT=1 launch 2 -- $way "$@" || complain "parallel $way, 10 blocks (status $?)"
        awk -v most=$([ $way = tensor ] && echo 1.1 || echo 1.5) '/^(tensor|shard), / { seen = 1; if ($12 > most * $4) exit 1 } END { exit !seen }' "$work/out" ||
            complain "parallel $way: too much memory"
        if command -v python3 >/dev/null; then # bytes of two steps are those of the model on paper
            awk '/rank 0, group world, number .* of f32\[/ {
                    op = $9; n = $0; sub(/.* of f32\[/, "", n); sub(/\].*/, "", n)
                    elements = 1; rank = split(n, dim, ","); for (d = 1; d <= rank; d++) elements *= dim[d]
                    bytes[op] += 4 * elements / 2 }
                END { for (op in bytes) printf "%s %.0f\n", op, bytes[op] }' "$work/out" | sort >"$work/sent"
            python3 -B "$model" --sent $way 10 256 1024 16 2 >"$work/wanted"
            [ -s "$work/sent" ] && cmp "$work/sent" "$work/wanted" || { complain "parallel $way sends other bytes than on paper"; cat "$work/sent" "$work/wanted"; }
        fi
    done
fi
part 2 || exit $bad
program=$ranks

# (AddressSanitizer reports whoever asks for that much memory.)
no_memory() { grep -q __asan_init "$program" || fails memory "$@"; }

shape='rank . has all_reduce sum of f32\[.\] (ranks.c:[0-9]*), rank . has all_reduce sum of f32\[.\]'
if [ "$mpi" = mpich ]; then
    fails shape '0 1 2' "$shape" differ shape
    fails dtype '0 1 2' 'has all_reduce sum of i32' differ dtype
    fails known '0 1 2' 'has all_reduce sum of f64\[65536\]' differ known
    fails root '0 1 2' 'has broadcast of f32\[4\] from rank 1' differ root
    no_memory '0 2' 'rank 1 ended after 1 collectives of group world; it said: .*memory' memory ends
    fails leave '0 2' 'rank 1 ended after 5 collectives of group world' leave
    fails sent '0 1 2' 'has recv of f32\[5\] from rank 1 (ranks.c:[0-9]*), rank 1 has send of f64\[65536\] to rank 0' differ sent
    KILN_COMM_TIMEOUT=2 fails ring '0 1 2' 'rank . did not come within 2 s (KILN_COMM_TIMEOUT): send of f32\[4\] to rank' differ ring
else
    no_memory '0 2' "$(late 6) (KILN_COMM_TIMEOUT); .*memory" memory waits 6
    fails shape '0 1 2' "$shape" differ shape
    fails how '0 1 2' 'has all_reduce max of f32\[4\]' differ how
    fails op '0 1 2' 'has all_gather of f32\[4\]' differ op
    fails both '0 1 2' 'has send of f32\[4\] to rank 1.*has send of f32\[4\] to rank 0.*kiln_send_recv' differ both
    fails wait '0 1 2' 'has send of f32\[4\] to rank 1 (ranks.c:[0-9]*), rank 1 has barrier' differ wait
    fails order '0 1 2' 'has all_reduce sum of f64\[65536\]' differ order
    # (MPICH's launcher kills all)
    fails die '0 2' "$(late 2)" die 2
fi
fails stop '0 2' "$(late 2)" stop 2
exit $bad
