#!/bin/sh
# check.sh ROOT: reads every #include under ROOT and fails when a file includes something that its layer may not.
# The rules are the table below (DESIGN: layers, strict and without cycles): a file belongs to the first row whose pattern
# matches it, and may include only what matches one of that row's patterns. Headers in <> are checked by the second table.
cd "$1" || exit 2

rules='
ir/base/        ^ir/base/
ir/             ^ir/
guards/         ^(ir|guards)/
jit/program     ^(ir|guards)/|^jit/(program|options|plan|kernel_table)\.
jit/llvm/       ^(ir|jit)/
jit/            ^(ir|guards|jit)/
cache/cli/      ^(ir|guards|cache)/|^jit/(program|options|kernel_table|host_cpu|passes)\.
cache/          ^(ir|guards|cache)/|^jit/(program|options|code|kernel_table|host_cpu|target)\.
runtime/include/ ^$
runtime/comm/mpi/ ^kiln\.h$
runtime/        ^(ir|guards|jit|cache|runtime)/|^kiln\.h$
'
# header pattern, files that may include it
system_rules='
^llvm-c/                                                          ^jit/llvm/
^llvm/                                                            ^$
^cuda                                                             ^runtime/cuda/
^xxhash\.h$                                                       ^ir/base/hash\.c$
^mpi\.h$                                                          ^runtime/comm/mpi/
^gcrypt\.h$                                                       ^cache/cli/digest\.c$
^zstd\.h$                                                         ^ir/base/pack\.c$
^minizip/                                                         ^runtime/files/npz\.c$
^jansson\.h$                                                      ^(runtime/files|cache/cli)/
^(unistd|fcntl|sched|dlfcn|dirent)\.h$|^sys/                      ^ir/base/os[a-z_]*\.c$
^criterion/                                                       ^$
'

find ir guards jit cache runtime -name '*.[ch]' -o -name '*.def' 2>/dev/null | LC_ALL=C sort |
    while read -r file; do
        sed -n 's/^[[:space:]]*#[[:space:]]*include[[:space:]]*\([<"][^>"]*[>"]\).*/\1/p' "$file" |
            sed "s|^|$file |"
    done |
    awk -v rules="$rules" -v system_rules="$system_rules" '
        BEGIN {
            n = split(rules, row, "\n")
            for (i = 1; i <= n; i++)
                if (split(row[i], col, " ") == 2) { where[++layers] = col[1]; may[layers] = col[2] }
            n = split(system_rules, row, "\n")
            for (i = 1; i <= n; i++)
                if (split(row[i], col, " ") == 2) { header[++headers] = col[1]; who[headers] = col[2] }
        }
        function complain(text) { printf "%s: %s\n", $1, text; bad++ }
        {
            includes++
            name = substr($2, 2, length($2) - 2)
            if (substr($2, 1, 1) == "<") {
                for (i = 1; i <= headers; i++)
                    if (name ~ header[i] && $1 !~ who[i])
                        complain("must not include <" name ">")
                next
            }
            for (i = 1; i <= layers; i++)
                if (index($1, where[i]) == 1)
                    break
            if (i > layers)
                complain("belongs to no layer")
            else if (name !~ may[i])
                complain("layer " where[i] " must not include \"" name "\"")
        }
        END {
            printf "%d includes, %d violations\n", includes, bad
            exit bad > 0 || includes == 0
        }'
