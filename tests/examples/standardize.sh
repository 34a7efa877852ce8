#!/bin/sh
# standardize.sh PROGRAM TOOL WORK: real files in and out, checked by a tool without kiln; then every kind of bad input.
program=$1 tool=$2 work=$3
LC_ALL=C
export LC_ALL
rm -rf "$work"
mkdir -p "$work"
cd "$work" || exit 1
failures=0
complain()
{
    echo "$*"
    failures=$((failures + 1))
}
good() # DTYPE-IN DTYPE-OUT ROWS COLUMNS
{
    "$tool" make in.npy "$1" "$3" "$4" || complain "cannot make $*"
    "$program" in.npy out.npy >out.txt 2>&1 || complain "failed on $*: $(cat out.txt)"
    "$tool" check out.npy "$2" "$3" "$4" || complain "wrong result for $*"
}
good f4 f4 1000 17
good f8 f8 1000 17
good i4 f4 333 5
good f4 f4 1 1
good f8 f8 7 1
good f4 f4 20000 64
good f4 f4 10 0
"$tool" make same.npy f8 100 3
"$program" same.npy same.npy >/dev/null && "$tool" check same.npy f8 100 3 || complain "output over the input"

bad() # TEXT ARGUMENTS...: must fail with status 1 and one line that has TEXT
{
    text=$1
    shift
    rm -f none.npy
    "$program" "$@" >bad.out 2>bad.err
    status=$?
    [ $status -eq 1 ] || complain "status $status for $*"
    [ "$(wc -l <bad.err)" -eq 1 ] || complain "not one line for $*: $(cat bad.err)"
    grep -qi -- "$text" bad.err || complain "no '$text' for $*: $(cat bad.err)"
    [ ! -e none.npy ] || complain "wrote output for $*"
}
KILN_DEVICE=gpu bad 'cuda:0 (or another number), meta and auto are valid' in.npy none.npy
grep -q 'numpy.save' bad.err && complain "advice about files for a device: $(cat bad.err)"
"$tool" make in.npy f4 100 10
bad "missing.npy" missing.npy none.npy
bad "\." . none.npy
for bytes in 0 1 5 9 11 60 127 128 129 4000 4127; do
    head -c $bytes in.npy >cut.npy
    bad "cut.npy" cut.npy none.npy
done
echo "this is text, not an array, and long enough to hold a header" >text.npy
bad "text.npy.*give a .npy file" text.npy none.npy
sed "s/(100, 10)/(1000,  )/" in.npy >rank.npy
bad "rank 1; reshape" rank.npy none.npy
sed "s/(100, 10)/(-10, 10)/" in.npy >negative.npy
bad "negative.npy" negative.npy none.npy
sed "s/<f4/<c8/" in.npy >complex.npy
bad "complex.npy" complex.npy none.npy
sed "s/<f4/|b1/; s/(100, 10)/(400, 10)/" in.npy >bool.npy
bad "bool; save it as ints" bool.npy none.npy
sed "s/(100, 10)/(99999999999999, 99999999999999)/" in.npy >huge.npy
bad "huge.npy" huge.npy none.npy
bad "no/such/folder" in.npy no/such/folder/out.npy
"$program" in.npy >/dev/null 2>&1
[ $? -eq 2 ] || complain "one argument: no usage error"
cd .. && [ $failures -eq 0 ] && rm -rf "$work"
echo "$failures failures"
[ $failures -eq 0 ]
