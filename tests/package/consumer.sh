#!/bin/sh
# consumer.sh CMAKE BUILD CONSUMER WORK CC COMMAND: installs the library to WORK, builds the consumer project against it, once with
# the CMake package and once with pkg-config, and runs it.
set -e
cmake=$1 build=$2 consumer=$3 work=$4 cc=$5 with_command=$6
rm -rf "$work"
mkdir -p "$work"
"$cmake" --install "$build" --prefix "$work/prefix" >"$work/install.log"
mv "$work/prefix" "$work/moved" # both packages must find their way from wherever they lie
prefix=$work/moved

"$cmake" -S "$consumer" -B "$work/build" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_COMPILER="$cc" >"$work/configure.log"
"$cmake" --build "$work/build" >"$work/build.log"
if grep -r --include=flags.make --include=build.ninja -- -isystem "$work/build"; then
    echo "kiln.h is a system header to who uses the CMake package: gcc says nothing of ignored statuses"
    exit 1
fi
expected='3 5 7'
got=$("$work/build/consumer")
[ "$got" = "$expected" ] || { echo "CMake consumer printed '$got'"; exit 1; }

pc=$(find "$prefix" -name kiln.pc)
PKG_CONFIG_PATH=$(dirname "$pc")
export PKG_CONFIG_PATH
# shellcheck disable=SC2046
"$cc" -std=c99 -Wall -Wextra -pedantic -Werror "$consumer/main.c" $(pkg-config --cflags kiln) \
    -o "$work/plain" $(pkg-config --libs kiln)
LD_LIBRARY_PATH=$(pkg-config --variable=libdir kiln)
export LD_LIBRARY_PATH
got=$("$work/plain")
[ "$got" = "$expected" ] || { echo "pkg-config consumer printed '$got'"; exit 1; }
[ "$(pkg-config --modversion kiln)" = "$("$work/plain" version)" ] || { echo "versions differ"; exit 1; }

if [ "$with_command" != 1 ]; then
    rm -rf "$work"
    echo "both consumers ran"
    exit 0
fi
# The command: of the same version, without LLVM, with its man pages and completions.
command=$prefix/bin/kiln
[ "$("$command" --version)" = "kiln $("$work/plain" version)" ] || { echo "the command is of another version"; exit 1; }
if ldd "$command" | grep -iE 'llvm|cuda|stdc\+\+'; then
    echo "the command needs what it must not"
    exit 1
fi
if nm -D "$command" | grep -wE 'mmap|mmap64|mprotect|dlopen'; then
    echo "the command could map code: it must not be able to"
    exit 1
fi
for file in man/man1/kiln.1 man/man3/kiln.3 man/man7/kiln-env.7 bash-completion/completions/kiln zsh/site-functions/_kiln \
    fish/vendor_completions.d/kiln.fish doc/kiln/LICENSE doc/kiln/NOTICE doc/kiln/CHANGELOG.md; do
    [ -s "$prefix/share/$file" ] || { echo "not installed: share/$file"; exit 1; }
done
rm -rf "$work"
echo "both consumers ran, and so did the command"
