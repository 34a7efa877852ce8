#!/bin/sh
# licenses.sh SOURCE LIBRARY [COMMAND]: NOTICE names all that libkiln.so and the command are linked with, and the libraries that come as headers; the
# command prints LICENSE and NOTICE.
source=$1 library=$2 command=${3-}
bad=0
named() # LIBRARY WHAT
{
    grep -qw "$1" "$source/NOTICE" || { echo "$2 $1, of which NOTICE says nothing"; bad=1; }
}
for binary in "$library" $command; do
    for name in $(readelf -d "$binary" | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p' | sed 's/[-.].*//'); do
        case $name in
        libc | libm | ld | libasan | libubsan | libtsan) ;; # of the system, or of a build for tests
        libLLVM) named LLVM "$binary is linked with" ;;
        *) named "$name" "$binary is linked with" ;;
        esac
    done
done
for library in uthash.h:uthash xxhash.h:xxHash; do
    grep -rqF "#include <${library%:*}>" "$source/ir" "$source/jit" "$source/cache" && named "${library#*:}" "the sources include"
done
if [ -n "$command" ]; then
    { cat "$source/LICENSE"; echo; cat "$source/NOTICE"; echo; } >licenses.wanted
    "$command" info --licenses | cmp - licenses.wanted || { echo "kiln info --licenses prints something else"; bad=1; }
    rm -f licenses.wanted
fi
exit $bad
