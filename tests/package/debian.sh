#!/bin/sh
# debian.sh CMAKE CPACK BUILD SOURCE CONSUMER WORK CC: the Debian packages of a build with the command, looked at by lintian where there is one, unpacked
# into an empty tree and used from there; and the source archive.
cmake=$1 cpack=$2 build=$3 source=$4 consumer=$5 work=$6 cc=$7
fail()
{
    echo "$*"
    exit 1
}
# To compress LLVM takes 17 s of a core: of six commits one does.
. "$(dirname "$0")/../support/turn.sh"
turn 0 || { echo "skipped: another commit's turn"; exit 77; }
command -v dpkg-deb >/dev/null && command -v dpkg-shlibdeps >/dev/null || { echo "skipped: no dpkg-deb and dpkg-shlibdeps here"; exit 77; }
rm -rf "$work"
mkdir -p "$work"
cd "$work" || exit 1
# gzip: xz takes a minute of a core for LLVM. Nothing is built: the preset's build did.
package() # MAINTAINER
{
    "$cpack" --config "$build/CPackConfig.cmake" -B "$work" -D CPACK_DEBIAN_COMPRESSION_TYPE=gzip -D CPACK_PACKAGE_CONTACT="$1" >cpack.log 2>&1
}
package "nobody" && fail "packages without a maintainer's address were made"
grep -q -- "-DKILN_MAINTAINER='Name <address>'" cpack.log || fail "what to do is not said: $(cat cpack.log)"
grep -q '@' "$source/cmake/KilnPackage.cmake" && fail "cmake/KilnPackage.cmake names an address"
rm -f ./*.deb
package 'A Tester <tester@kiln.example.org>' || fail "$(cat cpack.log)"
for name in libkiln1 libkiln-dev kiln; do
    set -- "$name"_*.deb
    [ -e "$1" ] || fail "no package $name: $(ls)"
    dpkg-deb -x "$1" tree || fail "cannot unpack $1"
    [ -s "tree/usr/share/doc/$name/copyright" ] || fail "$name has no copyright"
    gzip -dc "tree/usr/share/doc/$name/changelog.gz" | grep -q "^kiln (" || fail "$name has no changelog"
done
if command -v lintian >/dev/null; then
    lintian --no-cfg --allow-root --fail-on error ./*.deb >lintian.log 2>&1 || fail "lintian: $(cat lintian.log)"
    echo "lintian: no errors, $(grep -c '^W:' lintian.log) warnings"
else
    echo "lintian is not here: left out"
fi
[ "$(dpkg-deb -f libkiln1_*.deb Maintainer)" = 'A Tester <tester@kiln.example.org>' ] || fail "another maintainer: $(dpkg-deb -f libkiln1_*.deb Maintainer)"
dpkg-deb -f libkiln1_*.deb Depends | grep -q libzstd1 || fail "libkiln1 does not depend on what it is linked with"
dpkg-deb -f libkiln1_*.deb Suggests | grep -q liblapack3 || fail "libkiln1 does not suggest what kiln_solve opens"
dpkg-deb -f libkiln-dev_*.deb Depends | grep -q 'libkiln1 (= ' || fail "libkiln-dev does not depend on its library"

"$cmake" -S "$consumer" -B consumer -DCMAKE_PREFIX_PATH="$work/tree/usr" -DCMAKE_C_COMPILER="$cc" >configure.log 2>&1 || fail "$(cat configure.log)"
"$cmake" --build consumer >build.log 2>&1 || fail "$(cat build.log)"
got=$(consumer/consumer)
[ "$got" = '3 5 7' ] || fail "the consumer printed '$got'"
ldd consumer/consumer | grep -q "$work/tree/usr" || fail "the consumer runs with another library"
[ "$(tree/usr/bin/kiln --version)" = "kiln $(consumer/consumer version)" ] || fail "the command is of another version"
gzip -dc tree/usr/share/man/man1/kiln.1.gz | grep -q 'compiled array programs' || fail "no man page"
[ -z "$(find tree -perm /022 ! -type l)" ] || fail "writable by others: $(find tree -perm /022 ! -type l)"

"$cpack" --config "$build/CPackSourceConfig.cmake" -B "$work/source" >source.log 2>&1 || fail "$(cat source.log)"
tar -C source -xf source/kiln-*.tar.xz
if git -C "$source" rev-parse >/dev/null 2>&1; then
    git -C "$source" ls-files -co --exclude-standard | sort >wanted
    (cd source/kiln-*/ && find . -type f | sed 's,^\./,,' | sort) >there
    diff wanted there >diff || fail "the source archive has other files than the tree: $(cat diff)"
fi
cd / && rm -rf "$work"
echo "packages built, unpacked and used"
