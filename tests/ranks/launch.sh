# launch.sh: what run.sh and nccl.sh do with programs of several processes. $mpi, $mpirun: which MPI, and its launcher; $program: what is started; $work: a
# folder; $bad becomes 1.
export KILN_THREADS=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0" # MPI's own, and what a failed collective may still write to

hangs=900 # seconds: what takes longer waits for ever

# launch RANKS OPTION... -- ARGUMENT...: the program's output is in $work/out.
launch()
{
    n=$1
    shift
    rm -f "$work"/said.*
    options=
    while [ "$1" != -- ]; do
        options="$options $1"
        shift
    done
    shift
    [ "$mpi" != openmpi ] || options="$options --oversubscribe"
    # shellcheck disable=SC2086
    began=$(date +%s.%N)
    RANKS=$n RANKS_SAID=$work/said timeout -k 5 $hangs "$mpirun" $options -n "$n" "$program" "$@" >"$work/out" 2>&1 </dev/null
    status=$?
    echo "$n ranks, $*: $(echo "$(date +%s.%N) $began" | awk '{ printf "%.1f", $1 - $2 }') s"
    return $status
}

complain()
{
    echo "FAILED: $1"
    cat "$work/out"
    bad=1
}

# said TEXT: $work/out has it.
said() { grep -q "$1" "$work/out" || complain "it does not say: $1"; }

# same_losses LOSSES SQUARE TEXT: so many losses that $work/out tells are those of $work/alone, but for the order of sums; else TEXT. SQUARE: of what they may differ by.
same_losses()
{
    paste "$work/alone" "$work/out" | awk -v wanted="$1" -v most="$2" '/^step/ {
            line = $0
            gsub(/[,:;]/, "", line)
            split(line, w, /[ \t]+/)
            for (k in w) if (w[k] == "loss") losses[++n] = w[k + 1]
        }
        END { for (k = 1; k < n; k += 2) { d = losses[k] - losses[k + 1]; if (d * d > most) bad = 1 }
              exit bad || n != 2 * wanted }' || { complain "$3"; cat "$work/alone"; }
}

# What keeps a launcher from killing the others when one ends without MPI's finalize: each shall say what it sees.
apart=-enable-recovery
[ "$mpi" != mpich ] || apart=-disable-auto-cleanup

# late SECONDS: what ranks say that waited for rank 1 as long. Another one may be late, too: a busy machine stops processes for a while.
late() { echo "rank \([02], \)\{0,1\}1\(, 2\)\{0,1\} did not come within $1 s"; }

# fails NAME RANKS-THAT-SAY TEXT ARGUMENT...: so many ranks say that the sync point failed, with this text.
fails()
{
    name=$1 ranks=$2 text=$3
    shift 3
    launch 3 $apart -- "$@"
    [ $? -ne 124 ] || complain "$name: it hangs"
    for rank in $ranks; do
        grep -q "^rank $rank: kiln_[a-z_]*: .*$text" "$work/out" || complain "$name: rank $rank does not say: $text"
    done
    ! grep -q '^rank [0-9]*: ok' "$work/out" || complain "$name: a rank has a value"
}
