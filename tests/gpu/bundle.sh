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

# run NAME STATUS ARGS...: in the clean environment, with results in a folder NAME of their own. Programs in $work/tools stand for others of
# the machine.
mkdir "$work/tools"
tool() { cat >"$work/tools/$1" && chmod +x "$work/tools/$1"; }
slices=97
run()
{
    name=$1 want=$2
    shift 2
    env -i PATH="$work/tools:/usr/bin:/bin" HOME="$work/home" KILN_TEST_CUDA="$settings" KILN_TEST_SLICES="$slices" KILN_LIBCUDA="$driver" \
        ${KILN_TEST_CUDA_PTX:+KILN_TEST_CUDA_PTX="$KILN_TEST_CUDA_PTX"} \
        sh "$gpu" --out "$work/$name" "$@" >"$work/$name.out" 2>&1
    status=$?
    [ $status -eq "$want" ] || { cat "$work/$name.out"; fail "$name: status $status, not $want"; }
}
settings=log=none,rough=on driver=
# has NAME ROW...: a row of the results begins so, tabs written as |; the rest is a pattern of grep.
has()
{
    in=$1
    shift
    for wanted in "$@"; do
        tr '\t' '|' <"$work/$in/results.tsv" | grep -q "^$wanted" || fail "$in: no row $wanted: $(cat "$work/$in/results.tsv")"
    done
}

# Without a device, and with words that mean nothing.
run list 0 --list
for word in softmax c_bf16 host api_1 diff_mixed mutate_reuse threads_eval; do
    grep -qw "$word" "$work/list.out" || fail "--list leaves out $word"
done
[ ! -e "$work/list" ] || fail "--list wrote something"
run unknown 2 --no-such-option
run nothing 2 --only no_such_workload
run nothing 2 --only 'softmax,no_such_*'
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

# The lines of api together run each of its tests, once. A filter that nothing passes is an error.
api="$work/elsewhere/the bundle/tests/gpu_api"
"$api" --list | sort >"$work/tests_of_api"
sed -n 's/^api_[0-9]* gpu_api //p' "the bundle/tests.list" | while read -r arguments; do "$api" --list $arguments || exit 1; done |
    sort | cmp - "$work/tests_of_api" || fail "the lines of api are not all of its tests"
[ "$(wc -l <"$work/tests_of_api")" -ge 100 ] || fail "few tests: $(cat "$work/tests_of_api")"
for arguments in no_such_test "create no_such_test" "--part 0/8" "--part 9/8" "--part 8" "--part 1000/1000" --no_such_option; do
    "$api" --list $arguments >/dev/null 2>&1 && fail "api $arguments is no error"
done

# No time: all that was to run is left out.
run no_time 0 --tiny --software --minutes 0
has no_time "test: api_1||0|s|0|less|skipped|out of time" "test: fuzz||0|s|0|less|skipped|out of time" \
    "a: run||0|s|0|less|skipped|out of time" "first calls of a: run||0|s|0|less|skipped|out of time" \
    "jax: run||0|s|0|less|skipped|out of time" "torch: run||0|s|0|less|skipped|out of time"

# From here on a clock that stands still: what is left of a run's time does not depend on the machine.
tool date <<'TEXT'
#!/bin/sh
echo 1000000000
TEXT

# Little time: none for jax, its share would be too short for its import. Python is told of the user's own packages.
tool python_of_test <<'TEXT'
#!/bin/sh
echo "$@" >>"${0%/*}/python.told"
echo "$PYTHONUSERBASE" >>"${0%/*}/python.told"
exit 77
TEXT
run little_time 0 --tiny --software --minutes 1 --yardsticks --python python_of_test
has little_time "jax: run||0|s|0|less|skipped|out of time"
grep -q 'torch .*--seconds 40 ' "$work/tools/python.told" || fail "python's arguments: $(cat "$work/tools/python.told")"
[ "$(grep -c . "$work/tools/python.told")" -eq 2 ] || fail "python ran for jax: $(cat "$work/tools/python.told")"
grep -qxF "$work/home/.local" "$work/tools/python.told" || fail "python's packages: $(cat "$work/tools/python.told")"

# A test that is stopped has failed, unless the run's time was shorter than its own. What it said till then is told. gpu_api is stopped when it has
# begun a test, in a process of its own.
tool timeout <<'TEXT'
#!/bin/sh
case "$*" in
*bundle/tests/*) ;;
*) exec /usr/bin/timeout "$@" ;;
esac
shift 3
"$@" &
case "$*" in
*/gpu_api*) while kill -0 $! && ! grep -qs "^PPid:.$!\$" /proc/[0-9]*/status; do sleep 0.05; done ;;
esac
kill $!
wait $!
exit 124
TEXT
driver="$work/elsewhere/the bundle/lib/libkiln_test_cuda.so"
slices=1 # whole, or they would be done in time
run stopped 1 --tiny --minutes 1 --tests --only 'api_3,fuz*'
has stopped "test: fuzz||0|s|0|less|failed|stopped after" \
    "test: api_3||0|s|0|less|failed|stopped after .* tests, 0 failures.*; stopped \(in\|after\) [a-z_]*/"
driver=
run no_time_left 0 --tiny --software --minutes 1 --tests --only fuzz
slices=97
has no_time_left "test: fuzz||0|s|0|less|skipped|out of time: stopped after"
rm "$work/tools/timeout" "$work/tools/date"

# What compute-sanitizer says, here a program in its place.
tool compute-sanitizer <<'TEXT'
#!/bin/sh
echo "========= COMPUTE-SANITIZER"
. "${0%/*}/says"
TEXT
driver="$work/elsewhere/the bundle/lib/libkiln_test_cuda.so"
echo 'case $2 in
memcheck) echo "========= ERROR SUMMARY: 0 errors" ;;
*) echo "========= Warning: Race reported between Read access at k+0x60"
   echo "========= RACECHECK SUMMARY: 1 hazard displayed (0 errors, 1 warning)"; exit 99 ;;
esac' >"$work/tools/says"
run sanitizer 0 --sanitizer
has sanitizer "sanitizer: memcheck||[0-9]*|s|0|less|ok|ERROR SUMMARY: 0 errors$" \
    "sanitizer: racecheck||[0-9]*|s|0|less|ok|RACECHECK SUMMARY: 1 hazard displayed (0 errors, 1 warning); first: Warning: Race reported"
echo 'case $2 in
memcheck) echo "cannot attach" ;;
*) echo "========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)"; exit 99 ;;
esac' >"$work/tools/says"
run sanitizer_fails 1 --sanitizer
has sanitizer_fails "sanitizer: memcheck||[0-9]*|s|0|less|failed|status 0, no summary: cannot attach" \
    "sanitizer: racecheck||[0-9]*|s|0|less|failed|status 99, RACECHECK SUMMARY: 2 hazards displayed (1 error"
rm "$work/tools/compute-sanitizer"
driver=

# A device that breaks: the parts fail, each says why, the rest goes on.
settings=log=none,fail=cuLaunchKernel:3:700:sticky
run broken 1 --tiny --software --workloads --only a,softmax
[ "$(grep -c 'run .*FAILED.*700' "$work/broken/results.txt")" -ge 2 ] || fail "broken device: $(cat "$work/broken/results.txt")"
"$json" results <"$work/broken/results.json" >/dev/null || fail "no JSON of a broken device"

cd / && rm -rf "$work"
echo "the bundle runs anywhere"
