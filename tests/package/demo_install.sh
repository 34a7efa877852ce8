#!/bin/sh
# demo_install.sh SOURCE BUILD NINJA: `cmake --install` after the demo workflow needs nothing that the preset's targets don't build. Asks Ninja,
# builds nothing: the command that makes an installed file must be among those that make the targets.
source=$1 build=$2 ninja=$3
targets=$(sed -n '/"buildPresets"/,/"testPresets"/s/.*"name": "demo".*"targets": \[\(.*\)\].*/\1/p' "$source/CMakePresets.json" | tr -d '",')
[ -n "$targets" ] || { echo "no targets of the demo preset in CMakePresets.json"; exit 1; }
# shellcheck disable=SC2086
commands=$("$ninja" -C "$build" -t commands $targets | grep -v '^ninja: ')
files=$(grep -o "\"$build/[^\"]*\"" "$build/cmake_install.cmake" | tr -d '"' | grep -v 'CMakeFiles/\|cmake_install\|MANIFEST' | sort -u)
made=0
for file in $files; do
    name=${file#"$build/"}
    if ! command=$("$ninja" -C "$build" -t commands "$name" 2>/dev/null); then # unknown to Ninja: made when the project is configured
        [ -e "$file" ] || { echo "installed, but made by nothing: $name"; exit 1; }
        continue
    fi
    made=$((made + 1))
    command=$(echo "$command" | grep -v '^ninja: ' | tail -n 1)
    echo "$commands" | grep -qF -- "$command" || { echo "installed, but not built by the demo preset's targets ($targets): $name"; exit 1; }
done
[ $made -ge 3 ] || { echo "only $made installed files are built: $files"; exit 1; }
echo "$made files"
