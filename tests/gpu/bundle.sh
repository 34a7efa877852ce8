#!/bin/sh
# bundle.sh CMAKE BUILD JSON WORK LLVM: makes the bundle of bench/gpu, moves it to a folder with a space in its name,
# and runs it there on the software device, with an empty HOME and hardly an environment, as on a machine that has
# never seen kiln. LLVM: inside | shared.
cmake=$1 build=$2 json=$3 work=$4 llvm=$5
fail() { echo "wrong: $*"; exit 1; }

rm -rf "$work"
mkdir -p "$work/home" "$work/elsewhere" || exit 1
"$cmake" --install "$build" --component gpu --prefix "$work/made" --strip >"$work/install.log" || fail "install"
mv "$work/made" "$work/elsewhere/the bundle"
cd "$work/elsewhere" || exit 1
gpu="$work/elsewhere/the bundle/gpu"

# What it is made of.
[ -z "$(find . -type l)" ] || fail "links in the bundle"
foreign=$(find . -type f \( -perm -100 -o -name '*.so*' \) -exec env -u LD_LIBRARY_PATH ldd {} + 2>/dev/null |
    grep -E "not found|$build/" | grep -v "the bundle/")
[ -z "$foreign" ] || fail "libraries: $foreign"
for program in "the bundle"/tests/*; do # nor do they, where libkiln.so does
    readelf -d "$program" | grep "NEEDED.*LLVM" && fail "$program needs libLLVM"
done
if [ "$llvm" = inside ]; then
    kib=$(du -sk . | cut -f 1)
    [ "$kib" -lt 60000 ] || fail "the bundle takes $kib KiB"
    ldd "the bundle/bin/device" | grep -i llvm && fail "it needs libLLVM"
fi

# run NAME STATUS ARGS...: in the clean environment, with results in a folder NAME of their own.
run()
{
    name=$1 want=$2
    shift 2
    env -i PATH=/usr/bin:/bin HOME="$work/home" KILN_TEST_CUDA="$settings" KILN_TEST_EVERY=97 KILN_LIBCUDA="$driver" \
        sh "$gpu" --out "$work/$name" "$@" >"$work/$name.out" 2>&1
    status=$?
    [ $status -eq "$want" ] || { cat "$work/$name.out"; fail "$name: status $status, not $want"; }
}
settings=log=none driver=

# Without a device, and with words that mean nothing.
run list 0 --list
for word in softmax c_bf16 host api diff_mixed mutate_reuse threads_eval; do
    grep -qw "$word" "$work/list.out" || fail "--list leaves out $word"
done
[ ! -e "$work/list" ] || fail "--list wrote something"
run unknown 2 --no-such-option
run nothing 2 --only no_such_workload
driver=/nonexistent/libcuda.so.1
run no_driver 2 --tiny
grep -q 'libcuda.so.1' "$work/no_driver.out" || fail "without a driver: $(cat "$work/no_driver.out")"
driver=

# Everything but the tests, whose programs run elsewhere too; then some of them.
run all 0 --tiny --software --workloads --yardsticks --sanitizer
cat "$work/all.out"
for file in results.txt results.json results.tsv log.txt; do
    [ -s "$work/all/$file" ] || fail "no $file"
done
[ "$(find "$work/all" -type f | wc -l)" -eq 4 ] || fail "more files: $(find "$work/all")"
[ -z "$(find "$work/home" -mindepth 1)" ] || fail "written to HOME: $(find "$work/home")"
[ "$(ls)" = "the bundle" ] || fail "written beside the bundle: $(ls)"

n=$("$json" results <"$work/all/results.json") || fail "no JSON"
rows=$(sed -n 's/^ *{"name": "\([^"]*\)".*/\1/p' "$work/all/results.json")
[ "$(echo "$rows" | wc -l)" -eq "$n" ] || fail "$n results, but $(echo "$rows" | wc -l) names"
for workload in copy a b e softmax layer_norm c_f32 c_tf32 c_bf16 c_f16 g_f32 g_tf32 g_bf16 g_f16; do
    for what in time "time through kiln_function" bandwidth "of copy" kernels error; do
        echo "$rows" | grep -qxF "$workload: $what" || fail "no row for $workload: $what"
    done
    awk -v w="$workload" '$1 == w && $2 >= 1 && $3 > 0 && $4 > 0 && $8 < 0.02 { found = 1 } END { exit !found }' "$work/all/results.txt" ||
        fail "no line for $workload in the table"
done
for name in "device: name" "host: recording an op" "host: queueing a bare launch" "a: first call, compiled" "c_bf16: first call, from disk" \
    "g_bf16: rate" "torch: version" "jax: version" "sanitizer: memcheck"; do
    echo "$rows" | grep -qxF "$name" || fail "no row for $name"
done
grep -q '"outcome": "failed"' "$work/all/results.json" && fail "something failed"

run test 0 --tiny --software --tests --only diff_mixed,mutate_guards,threads_uploads
grep -q '^test: diff_mixed .* 0 failures' "$work/test/results.txt" || fail "the test: $(cat "$work/test/results.txt")"

# A device that breaks: the parts fail, each says why, the rest goes on.
settings=log=none,fail=cuLaunchKernel:3:700:sticky
run broken 1 --tiny --software --workloads --only a,softmax
[ "$(grep -c 'run .*FAILED.*700' "$work/broken/results.txt")" -ge 2 ] || fail "broken device: $(cat "$work/broken/results.txt")"
"$json" results <"$work/broken/results.json" >/dev/null || fail "no JSON of a broken device"

cd / && rm -rf "$work"
echo "the bundle runs anywhere"
