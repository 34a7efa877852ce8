# The command on entries that the library wrote: two sizes, then another KILN_MATH, of one graph.
. "$(dirname "$0")/lib.sh"
cache=$work/cache
KILN_CACHE_DIR=$cache KILN_CACHE=on
export KILN_CACHE_DIR KILN_CACHE
use=$tools/cli_use

first=$("$use" 64 48) || fail "use 64 48"
[ "$("$use" 64 48)" = "$first" ] || fail "another result from disk"
"$use" 96 48 >/dev/null || fail "use 96 48"
KILN_MATH=strict "$use" 64 48 >/dev/null || fail "use in strict mode"

expect 0 "$kiln" cache verify
says " 0 damaged"
list() { "$kiln" cache list --json --name=sin_cos "$@" >"$work/list.json"; }
list --sort=made --reverse
[ "$("$tools/cli_json" entries <"$work/list.json")" = 3 ] || fail "three programs are expected: $("$kiln" cache list)"
field() { "$tools/cli_json" entries "$1" "$2" <"$work/list.json"; }
[ "$(field 0 where)" = kiln_item ] || fail "where: $(field 0 where)"
line=$(grep -n 'kiln_item.*kiln_cos' "$(dirname "$0")/use.c" | cut -d: -f1)
[ "$(field 0 place)" = "use.c:$line" ] || fail "place: $(field 0 place), not use.c:$line"
[ "$(field 0 device)" = cpu ] || fail "device: $(field 0 device)"

# each entry can be looked at in every way, by its short key
i=0
while [ $i -lt 3 ]; do
    key=$(field $i key)
    for what in show guards 'graph --optimised' code 'code --ir' key why; do
        # shellcheck disable=SC2086
        expect 0 "$kiln" cache $what "$key"
        [ -s "$work/out" ] || fail "kiln cache $what $key says nothing"
        # shellcheck disable=SC2086
        expect 0 "$kiln" cache $what "$key" --json
        "$tools/cli_json" <"$work/out" >/dev/null || fail "kiln cache $what $key --json is no JSON"
    done
    expect 0 "$kiln" cache code --ir "$key"
    says "define"
    expect 0 "$kiln" cache graph "$key"
    says "sin %"
    expect 0 "$kiln" cache graph --dot "$key"
    says "digraph"
    i=$((i + 1))
done

# (by --sort=made they may stand in any order: it is told in seconds)
"$kiln" cache list --name=sin_cos >"$work/out"
[ "$(grep -c 'like f32\[96,48\]' "$work/out") $(grep -c 'like ' "$work/out")" = '1 1' ] || fail "not the sizes of the second program, and of no other, vary: $(cat "$work/out")"

# why these are not one: a size, and an option
key_of() { "$kiln" cache list --keys --name=sin_cos | while read -r k; do "$kiln" cache show --json "$k" >"$work/one.json"
    [ "$("$tools/cli_json" maker math <"$work/one.json") $("$tools/cli_json" facts 0 <"$work/one.json")" = "$1 $2" ] && echo "$k"; done; }
fast=$(key_of fast 64) other=$(key_of fast 96) strict=$(key_of strict 64)
expect 1 "$kiln" cache diff "$fast" "$other"
says "one key, other guards"
says "expected 64, found 96"
expect 1 "$kiln" cache diff "$fast" "$strict"
says "fast in the first, strict in the second"
expect 0 "$kiln" cache why "$other"
says "expected 64, found 96"

# the id in a line of the log is a key
id=$(KILN_LOG=recompiles KILN_CACHE=off "$use" 64 48 2>&1 | sed -n 's/.*kiln_item.* nodes (\([0-9a-f]*\)): never_seen.*/\1/p')
[ -n "$id" ] || fail "no id in the log"
for entry in "$fast" "$other" "$strict"; do
    case $entry in
    "$id"*) ;;
    *) fail "the log says $id, the cache has $entry" ;;
    esac
done
expect 0 "$kiln" cache guards "$id-${strict#*-}"

# what processes left behind: counters, misses, who they are
stat() { "$kiln" cache stats --json | "$tools/cli_json" counters "$1"; }
[ "$(stat compiles)" = "$(stat published)" ] && [ "$(stat compiles)" -ge 3 ] || fail "compiles $(stat compiles), published $(stat published)"
[ "$(stat disk_hits)" -ge 2 ] || fail "disk_hits $(stat disk_hits)"
[ "$(stat miss.size)" -ge 1 ] || fail "miss.size $(stat miss.size)"
[ "$(stat saved_us)" -gt 0 ] && [ "$(stat load_us)" -gt 0 ] || fail "compiling took $(stat saved_us) us, loading $(stat load_us)"
hits=$("$kiln" cache list --json --sort=hits | "$tools/cli_json" entries 0 hits)
[ "$hits" -ge 1 ] || fail "no entry has hits"
expect 0 "$kiln" cache why
says "never_seen  kiln_item"
says "expected 64, found 96"
"$kiln" info --json >"$work/info.json"
[ "$("$tools/cli_json" library features <"$work/info.json")" = "$("$tools/cli_json" features <"$work/info.json")" ] || fail "info: features differ"
[ "$("$tools/cli_json" library build <"$work/info.json")" = "$("$kiln" cache show --json "$fast" | "$tools/cli_json" maker build)" ] || fail "info: build"
expect 0 "$kiln" info
says "OPTION"

# a pack goes to another directory and is served from there; an entry of another CPU is refused
expect 0 "$kiln" cache export "$work/all.kilnpack"
says " to "
expect 0 "$kiln" cache import --yes "$work/all.kilnpack" --dir="$work/second"
says "refused 0"
out=$(KILN_CACHE_DIR=$work/second KILN_COMPILE=off "$use" 64 48) || fail "a program does not find what was imported"
[ "$out" = "$first" ] || fail "another result from the pack"
"$kiln" cache list --json --name=sin_cos --sort=made --reverse --dir="$work/second" >"$work/list.json"
[ "$(field 0 place) $(field 0 where)" = "use.c:$line kiln_item" ] || fail "after an import the place is $(field 0 place), in $(field 0 where)"
list --sort=made --reverse
KILN_CACHE_DIR=$work/narrow KILN_TEST_FAIL=cpu:-sse2 "$use" 64 48 >/dev/null || fail "use without sse2"
expect 0 "$kiln" cache export "$work/narrow.kilnpack" --dir="$work/narrow"
mkdir -m 700 "$work/third"
expect 1 "$kiln" cache import --yes "$work/narrow.kilnpack" --dir="$work/third"
says "features: only here: sse2"
says "taken 0"

# entries for a GPU, here the software device: served, shown; imported where there is such a GPU or nobody knows of one, and nowhere else
gpu()
{
    KILN_DEVICE=cuda KILN_LIBCUDA=$KILN_TEST_LIBCUDA KILN_CACHE_DIR=$1 KILN_TEST_CUDA=$2 "$use" "$3" 48
}
if [ -n "${KILN_TEST_LIBCUDA:-}" ]; then
    out=$(gpu "$work/gpu" sms=8 64) || fail "use on a GPU: $out"
    expect 0 "$kiln" cache verify --dir="$work/gpu"
    says " 0 damaged"
    expect 0 "$kiln" info --dir="$work/gpu"
    says "compute capability 8.0, 8 multiprocessors"
    key=$("$kiln" cache list --keys --dir="$work/gpu" --device=sm_80 --name=sin_cos)
    expect 0 "$kiln" cache code --ptx "$key" --dir="$work/gpu"
    says ".visible .entry"
    for what in show guards graph code 'code --ir' key; do
        # shellcheck disable=SC2086
        expect 0 "$kiln" cache $what "$key" --dir="$work/gpu"
    done
    expect 0 "$kiln" cache export "$work/gpu.kilnpack" --dir="$work/gpu"
    expect 0 "$kiln" cache import --yes "$work/gpu.kilnpack" --dir="$work/gpu_new"
    says "refused 0"
    says "no program has used a GPU"
    [ "$(KILN_COMPILE=off; export KILN_COMPILE; gpu "$work/gpu_new" sms=8 64)" = "$out" ] || fail "a program does not find what was imported for its GPU"
    gpu "$work/gpu_same" sms=8 96 >/dev/null || fail "use on a GPU of the same kind"
    expect 0 "$kiln" cache import --yes "$work/gpu.kilnpack" --dir="$work/gpu_same"
    says "refused 0"
    grep -q "no program" "$work/err" && fail "it is known which GPU is here: $(cat "$work/err")"
    for other in sms=9 sms=8,driver=12040 sms=8,cc=9.0; do
        gpu "$work/gpu_$other" $other 96 >/dev/null || fail "use on another GPU, $other"
        expect 1 "$kiln" cache import --yes "$work/gpu.kilnpack" --dir="$work/gpu_$other"
        says "taken 0"
        says "GPU: sm sm_80"
    done
    expect 0 "$kiln" cache import --yes "$work/gpu.kilnpack" --dir="$work/gpu_sms=9" --foreign
    says "refused 0"
fi

# an entry with a gradient tells what that reads and computes again; others say nothing of it
KILN_CACHE_DIR=$work/gradient "$use" 64 48 gradient >/dev/null || fail "use 64 48 gradient"
expect 0 "$kiln" cache list --json --name=matmul --dir="$work/gradient"
key=$("$tools/cli_json" entries 0 key <"$work/out")
expect 0 "$kiln" cache show "$key" --dir="$work/gradient"
says "  gradient       read of the forward pass: "
says "; computed again: "
says "; peak "
expect 0 "$kiln" cache show "$key" --dir="$work/gradient" --json
says '"gradient": "read of the forward pass: '
expect 0 "$kiln" cache show "$(field 0 key)"
grep -q "read of the forward pass" "$work/out" && fail "a gradient where there is none"

# an entry with bodies: another process finds it, drawings have them as frames, and one of an older format is refused with that reason
loop() { KILN_CACHE_DIR=$work/loop "$use" 4 4 loop; }
out=$(loop) || fail "use 4 4 loop"
[ "$(KILN_COMPILE=off loop)" = "$out" ] || fail "another process does not find a program with loops"
key=$(for k in $("$kiln" cache list --keys --dir="$work/loop"); do
    "$kiln" cache graph --dot "$k" --dir="$work/loop" | grep -q subgraph && echo "$k"; done)
expect 0 "$kiln" cache graph --dot "$key" --dir="$work/loop"
says "subgraph cluster_n4_0_4_1_ {"
says 'label="condition of %4"'
[ "$(grep -c subgraph "$work/out")" = 3 ] || fail "a loop in a loop has three bodies: $(cat "$work/out")"
for entry in "$work"/loop/*/*.kiln; do # the format is the first number behind the magic
    printf '\001' | dd of="$entry" bs=1 seek=8 conv=notrunc 2>/dev/null
done
"$kiln" cache verify --dir="$work/loop" >"$work/out"
says "0 good, 0 damaged, 2 of another format"
[ "$(KILN_LOG=cache loop 2>"$work/err")" = "$out" ] || fail "an older entry is used"
[ "$(grep -c "refused .*: format 1, this library reads " "$work/err")" = 2 ] || fail "no reason: $(cat "$work/err")"
finish
