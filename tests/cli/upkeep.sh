# Directories in every state; verify, prune, clear.
. "$(dirname "$0")/lib.sh"
cache=$work/cache

# --- states of the directory
golden absent "$kiln" cache list
expect 0 "$kiln" cache list --json
says '"entries": []'
expect 0 "$kiln" cache stats
expect 0 "$kiln" cache verify
golden absent_clear "$kiln" cache clear --yes
expect 3 "$kiln" cache list --dir="$work/nowhere"
says "$work/nowhere"
expect 0 "$kiln" info
says "it is not there yet"
mkdir -m 700 "$work/empty"
golden empty "$kiln" cache list --dir="$work/empty"
echo text >"$work/file"
expect 3 "$kiln" cache list --dir="$work/file"
says "$work/file"
make_cache "$cache"
ln -s "$cache" "$work/link"
expect 3 "$kiln" cache list --dir="$work/link"
says link
mkdir -m 777 "$work/open"
chmod 777 "$work/open"
expect 3 "$kiln" cache list --dir="$work/open"
says writ
if [ "$(id -u)" = 0 ]; then
    mkdir -m 700 "$work/foreign"
    chown 65534 "$work/foreign"
    expect 3 "$kiln" cache list --dir="$work/foreign"
    says 'belongs to user 65534'
    expect 3 "$kiln" cache import --yes "$work/foreign" --dir="$cache"
    if command -v setpriv >/dev/null; then # root reads everything: as somebody else
        cp "$kiln" "$work/kiln_copy"
        mkdir -m 000 "$work/unreadable"
        chown 65534 "$work/unreadable"
        chmod 711 "$work"
        if setpriv --reuid 65534 --regid 65534 --clear-groups "$work/kiln_copy" --version >/dev/null 2>&1; then
            expect 3 setpriv --reuid 65534 --regid 65534 --clear-groups "$work/kiln_copy" cache list --dir="$work/unreadable"
            says "$work/unreadable"
            expect 3 setpriv --reuid 65534 --regid 65534 --clear-groups "$work/kiln_copy" cache list --dir="$cache"
        else
            echo "note: another user cannot reach $work: unreadable directories not tested"
        fi
    fi
fi
(unset HOME; "$kiln" cache list 2>&1) | grep -q "no cache directory" || fail "without HOME"

# --- damage
cp -a "$cache" "$work/damaged"
truncated=$(entry 6a216ed3 "$work/damaged")
head -c 812 "$truncated" >"$work/short" && cat "$work/short" >"$truncated"
flipped=$(entry 4c8481bf36c70e4e453a3e98e4e27cc0-f4 "$work/damaged")
printf 'X' | dd of="$flipped" bs=1 seek=700 conv=notrunc 2>/dev/null
misnamed=$(entry 4c8481bf36c70e4e453a3e98e4e27cc0-ecfb61e3-a "$work/damaged")
mv "$misnamed" "$(echo "$misnamed" | sed 's/-a[0-9a-f]*\.kiln/-0123456789abcdef.kiln/')"
used '' '210 minutes ago' "$work/damaged"
golden damaged_list "$kiln" cache list --dir="$work/damaged" --sort=key
golden damaged_verify "$kiln" cache verify --dir="$work/damaged"
golden damaged_show "$kiln" cache show --dir="$work/damaged" 6a216ed3
expect 1 "$kiln" cache verify --json --dir="$work/damaged"
says '"damaged": 3'
expect 1 "$kiln" cache export "$work/some.kilnpack" --dir="$work/damaged"
says "is left out: truncated"
expect 1 "$kiln" cache verify --delete --dir="$work/damaged"
says "1 good, 3 damaged and removed"
expect 0 "$kiln" cache verify --dir="$work/damaged"

# written by a later version: no damage, not touched
cp -a "$cache" "$work/later"
printf '\377' | dd of="$(entry 6a216ed3 "$work/later")" bs=1 seek=8 conv=notrunc 2>/dev/null
golden later_verify "$kiln" cache verify --delete --dir="$work/later"
golden later_show "$kiln" cache show 6a21 --dir="$work/later"
expect 0 "$kiln" cache list --dir="$work/later"
says "(another format)"

# --- temporaries: of a writer at work, and of one that was killed
cp -a "$cache" "$work/left"
mkdir -p "$work/left/6a"
echo half >"$work/left/6a/tmp.1.0123456789abcdef"
echo half >"$work/left/tmp.2.0123456789abcdef"
expect 0 "$kiln" cache verify --dir="$work/left"
says "2 temporaries (10)"
grep -q failed "$work/out" && fail "fresh temporaries are taken for stale ones"
touch -d '150 minutes ago' "$work/left/6a/tmp.1.0123456789abcdef"
expect 0 "$kiln" cache verify --dir="$work/left"
says "2 temporaries (10), 1 left by a writer that failed (--delete removes it)"
expect 0 "$kiln" cache stats --dir="$work/left"
says "temporaries    2, 10"
expect 0 "$kiln" cache stats --dir="$work/left" --json
says '"temporaries": 2'
expect 0 "$kiln" cache verify --json --dir="$work/left"
says '"temporaries_stale": 1'
expect 0 "$kiln" cache verify --delete --dir="$work/left"
says "1 left by a writer that failed, removed"
[ -e "$work/left/6a/tmp.1.0123456789abcdef" ] && fail "verify --delete left a stale temporary"
[ -e "$work/left/tmp.2.0123456789abcdef" ] || fail "verify --delete removed what may be somebody's at work"
expect 0 "$kiln" cache verify --dir="$work/left"
says "1 temporary (5)"
[ "$("$kiln" cache list --keys --dir="$work/left" | wc -l)" = 4 ] || fail "verify --delete removed entries"

# --- prune
cp -a "$cache" "$work/prune"
golden prune_dry "$kiln" cache prune --older-than=30d --dry-run --dir="$work/prune"
expect 0 "$kiln" cache list --keys --dir="$work/prune"
[ "$(wc -l <"$work/out")" = 4 ] || fail "a dry run removed something"
golden prune_age "$kiln" cache prune --older-than=30d --dir="$work/prune"
golden prune_size "$kiln" cache prune --max-size=5k --dir="$work/prune"
expect 0 "$kiln" cache list --keys --dir="$work/prune"
[ "$(wc -l <"$work/out")" = 2 ] || fail "prune --max-size kept $(wc -l <"$work/out")"

# --- clear: entries and our own files, nothing else
cp -a "$cache" "$work/clear"
echo mine >"$work/clear/letter"
echo 'time=1 compiles=1' >"$work/clear/counters"
chmod 600 "$work/clear/counters"
"$tools/cli_pty" 80 'n
' "$kiln" cache clear --dir="$work/clear" >"$work/asked"
case $? in
77) ;;
1) grep -q "remove 4 entries" "$work/asked" || fail "clear does not ask: $(cat "$work/asked")" ;;
*) fail "clear after a no: $(cat "$work/asked")" ;;
esac
[ "$("$kiln" cache list --keys --dir="$work/clear" | wc -l)" = 4 ] || fail "clear removed in spite of a no"
golden clear "$kiln" cache clear --dir="$work/clear"
[ "$("$kiln" cache list --keys --dir="$work/clear" | wc -l)" = 0 ] || fail "clear left entries"
[ -s "$work/clear/counters" ] && fail "clear left the counters"
[ -s "$work/clear/info" ] || fail "clear removed what the library knows of the machine"
[ "$(cat "$work/clear/letter")" = mine ] || fail "clear removed what is not ours"

finish
