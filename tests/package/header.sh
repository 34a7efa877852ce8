#!/bin/sh
# header.sh INCLUDE CC CXX: kiln.h alone, in each language that it promises, without a warning; with and without locations.
include=$1 cc=$2 cxx=$3
text='#include <kiln.h>
static int rank(void) { return KILN_SHAPE(1, 2, 3).rank + KILN_SHAPE().rank + KILN_AXES(0).n + KILN_AXES().n + KILN_ALL_AXES.n; }
#if defined(PLAIN) && (defined(__cplusplus) || __STDC_VERSION__ >= 201112L) /* numbers as operands, nested: no name shadows another */
kiln_tensor *numbers(kiln_tensor *x, size_t n, float h);
kiln_tensor *numbers(kiln_tensor *x, size_t n, float h)
{
    return kiln_add(kiln_mul(kiln_sub(kiln_div(x, 2.0), kiln_mul(x, n)), h), kiln_where(kiln_lt(x, 3), 1, kiln_clamp(x, -1L, 1U)));
}
#endif
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
# What is wrong with an operand is said of the caller's line, not of each macro on the way (clang has no such way); an ignored status is told.
if ! "$cc" --version | grep -qi clang; then
    said=$(echo '#include <kiln.h>
kiln_tensor *f(kiln_tensor *x) { return kiln_where(kiln_gt(x, 0), x, -INFINITY); }' | "$cc" -x c -std=c11 -I"$include" -fsyntax-only - 2>&1)
    echo "$said" | grep -q 'INFINITY.* undeclared' && ! echo "$said" | grep -q 'kiln\.h:' || { echo "an operand that is not declared: $said"; failed=1; }
    # Arguments are counted as the user counts them.
    counted() # CALL TEXT OPTIONS...
    {
        call=$1 text=$2
        shift 2
        said=$(printf '#include <kiln.h>\nkiln_tensor *f(kiln_tensor *x) { return %s; }\n' "$call" | LC_ALL=C "$cc" -x c -std=c11 "$@" -I"$include" -fsyntax-only - 2>&1)
        echo "$said" | grep -q "$text" || { echo "$call: not \"$text\": $said"; failed=1; }
    }
    counted 'kiln_add(x)' 'macro "KILN_TWO_OPERANDS" requires 2 arguments, but only 1 given'
    counted 'kiln_mul(x, x, x)' 'macro "KILN_TWO_OPERANDS" passed 3 arguments, but takes just 2'
    counted 'kiln_where(x, 1)' 'macro "KILN_THREE_OPERANDS" requires 3 arguments, but only 2 given'
    counted 'kiln_matmul(x, 1.0)' "incompatible type for argument 2 of 'kiln_matmul_at'"
    counted 'kiln_transpose(1.0)' "incompatible type for argument 1 of 'kiln_transpose_at'"
    counted 'kiln_slice_axis(x, x, 0, 1)' "argument 2 of 'kiln_slice_axis_at'"
    counted 'kiln_matmul(x)' "too few arguments to function 'kiln_matmul_at'"
    counted 'kiln_matmul(x, 1.0)' "incompatible type for argument 2 of 'kiln_matmul'" -DKILN_NO_LOCATIONS
fi
echo '#include <kiln.h>
void f(kiln_tensor *x) { kiln_eval(x); }' | "$cc" -x c -std=c11 -I"$include" -c -o /dev/null - 2>&1 | grep -q 'Wunused-result' || { echo "kiln_eval without a look at its status: no warning"; failed=1; }
# The program in the header's first comment is one.
sed -n '1,/\*\//p' "$include/kiln.h" | sed -n '/#include <kiln.h>/,/^ \*     }$/p' | sed 's/^ \* \{0,5\}//' | awk '{ print } /^}/ { exit }' >"${TMPDIR:-/tmp}/kiln_header_$$.c"
"$cc" -std=c99 -Wall -Wextra -Werror -fsyntax-only -I"$include" "${TMPDIR:-/tmp}/kiln_header_$$.c" || { echo "the program in the first comment does not compile"; failed=1; }
grep -q 'int main' "${TMPDIR:-/tmp}/kiln_header_$$.c" || { echo "no program in the first comment"; failed=1; }
rm -f "${TMPDIR:-/tmp}/kiln_header_$$.c"
exit $failed
