#!/bin/sh
# readme.sh ROOT: the README's program is examples/first.c, word for word, and the commands that it names exist.
cd "$1" || exit 2
program=$(awk '/^```c$/ { on = 1; next } /^```$/ { if (on) exit } on' README.md)
example=$(sed 1d examples/first.c)
if [ "$program" != "$example" ]; then
    echo "README.md and examples/first.c differ"
    exit 1
fi
[ -x setup ] || { echo "no setup"; exit 1; }
for preset in $(grep -o 'workflow --preset [a-z-]*' README.md tests/README.md bench/README.md | awk '{ print $NF }' | sort -u); do
    cmake --list-presets=workflow | grep -q "\"$preset\"" || { echo "no workflow preset $preset"; exit 1; }
done
# every file that a README names in backticks with a path or an ending is there
missing=0
for readme in README.md */README.md; do
    folder=$(dirname "$readme")
    for name in $(grep -o '`[a-z_/]*\.\(c\|h\|def\|sh\|inc\)`' "$readme" | tr -d '`' | sort -u); do
        [ -e "$folder/$name" ] || [ -e "$name" ] || [ -e "runtime/include/$name" ] || [ -n "$(find "$folder" -name "$(basename "$name")" | head -n 1)" ] || {
            echo "$readme names $name, which is not there"
            missing=1
        }
    done
done
exit $missing
