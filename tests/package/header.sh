#!/bin/sh
# header.sh INCLUDE CC CXX: kiln.h alone, in each language that it promises, without a warning; with and without locations.
include=$1 cc=$2 cxx=$3
text='#include <kiln.h>
static int rank(void) { return KILN_SHAPE(1, 2, 3).rank + KILN_SHAPE().rank + KILN_AXES(0).n + KILN_AXES().n + KILN_ALL_AXES.n; }
int main(void) { (void)rank; return 0; }'
failed=0
try()
{
    echo "$text" | "$@" -Wall -Wextra -Wshadow -Wconversion -pedantic -Werror -fsyntax-only -I"$include" - || { echo "failed: $*"; failed=1; }
}
for define in -DPLAIN -DKILN_NO_LOCATIONS; do
    for std in c99 c11 c17; do
        try "$cc" -x c -std=$std $define
    done
    for std in c++17 c++20; do
        try "$cxx" -x c++ -std=$std $define
    done
done
exit $failed
