#!/bin/sh
# ctypes.sh SOURCE LIBRARY WORK: the binding of docs/bindings.md, run as it stands.
source=$1 library=$2 work=$3
command -v python3 >/dev/null || { echo "skipped: no python3 here"; exit 77; }
mkdir -p "$work"
awk '/^```python$/ { on = 1; next } /^```/ { on = 0 } on' "$source/docs/bindings.md" >"$work/binding.py"
awk '/^```text$/ { on = 1; next } /^```/ { on = 0 } on' "$source/docs/bindings.md" >"$work/wanted"
python3 "$work/binding.py" "$library" >"$work/out" 2>&1 || { cat "$work/out"; exit 1; }
sed 's/^\(kiln_matmul: \).*/\1.../' "$work/out" | diff - "$work/wanted" || exit 1
[ "$(wc -l <"$work/binding.py")" -le 70 ] || { echo "longer than a page"; exit 1; }
rm -rf "$work"
echo "the binding ran"
