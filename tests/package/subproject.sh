#!/bin/sh
# subproject.sh CMAKE CPACK BUILD SOURCE PROJECT WORK CC CXX: kiln by FetchContent from its source archive, built and run; by add_subdirectory, configured.
# Without optimisation and with the shared LLVM, where there is one: this is about CMake.
cmake=$1 cpack=$2 build=$3 source=$4 project=$5 work=$6 cc=$7 cxx=$8
fail()
{
    echo "$*"
    exit 1
}
# To build kiln once more takes half a minute of a core: of six commits one does, another than has Debian packages.
. "$(dirname "$0")/../support/turn.sh"
turn 3 || { echo "skipped: another commit's turn"; exit 77; }
rm -rf "$work"
mkdir -p "$work"
"$cpack" --config "$build/CPackSourceConfig.cmake" -B "$work" -D CPACK_ARCHIVE_THREADS=1 >"$work/source.log" 2>&1 || fail "$(cat "$work/source.log")"
archive=$(echo "$work"/kiln-*.tar.xz)
set -- -G Ninja -S "$project" -DCMAKE_C_COMPILER="$cc" -DCMAKE_CXX_COMPILER="$cxx" -DKILN_LLVM_SHARED=ON
"$cmake" "$@" -B "$work/folder" -DKILN_FOLDER="$source" >"$work/log" 2>&1 || fail "add_subdirectory: $(cat "$work/log")"
"$cmake" --build "$work/folder" --target consumer -- -n >"$work/log" 2>&1 || fail "add_subdirectory: $(cat "$work/log")"
"$cmake" "$@" -B "$work/fetch" -DKILN_ARCHIVE="$archive" >"$work/log" 2>&1 || fail "FetchContent: $(cat "$work/log")"
"$cmake" --build "$work/fetch" --target consumer -j 2 >"$work/log" 2>&1 || fail "FetchContent: $(tail -n 40 "$work/log")"
got=$("$work/fetch/consumer")
[ "$got" = '3 5 7' ] || fail "the consumer printed '$got'"
rm -rf "$work"
echo "add_subdirectory configured, FetchContent built and ran"
