# What is printed of a good cache: by hand-made entries, as golden text; widths, colours, JSON.
. "$(dirname "$0")/lib.sh"
cache=$work/cache
make_cache "$cache"
KILN_CACHE_DIR=$cache
export KILN_CACHE_DIR

golden path "$kiln" cache path
golden list "$kiln" cache list
make_cache "$work/long" --long
golden list_place "$kiln" cache list --dir="$work/long" --sort=key
golden list_place_name "$kiln" cache list --dir="$work/long" --name=train.c
golden list_sort "$kiln" cache list --sort=compile --reverse
golden list_keys "$kiln" cache list --keys --sort=key
golden list_name "$kiln" cache list --name=kiln_read
golden list_name_kernel "$kiln" cache list --name exp_sum
golden list_old "$kiln" cache list --older-than=30d
golden list_json "$kiln" cache list --json --sort=key
golden show "$kiln" cache show 6a216ed3
golden show_json "$kiln" cache show --json 4c8481bf-ec-65
golden guards "$kiln" cache guards 4c8481bf-ec-65
golden guards_none "$kiln" cache guards 6a21
golden guards_json "$kiln" cache guards 4c8481bf-f4 --json
golden graph "$kiln" cache graph 4c8481bf-f4
golden graph_dot "$kiln" cache graph --dot --optimised 4c8481bf-f4
golden code "$kiln" cache code 6a21
golden code_ir "$kiln" cache code 6a21 --ir --kernel=div
golden code_ptx "$kiln" cache code 6a21 --ptx
golden code_kernel "$kiln" cache code 6a21 --kernel=5
golden key "$kiln" cache key 4c8481bf-f4
golden key_graph "$kiln" cache key 4c8481bf-f4 --part=graph
golden key_hashes "$kiln" cache key 4c8481bf-f4 --part=hashes
golden diff_guards "$kiln" cache diff 4c8481bf-ec-65 4c8481bf-ec-ae
golden diff_maker "$kiln" cache diff 4c8481bf-ec-65 4c8481bf-f4
golden diff_graph "$kiln" cache diff 4c8481bf-ec-65 6a21
golden diff_same "$kiln" cache diff 6a21 6a216ed3
golden diff_json "$kiln" cache diff --json 4c8481bf-ec-65 4c8481bf-ec-ae
golden why_entry "$kiln" cache why 4c8481bf-ec-ae
golden why_other_maker "$kiln" cache why 4c8481bf-f4
golden why_alone "$kiln" cache why 6a21
golden verify "$kiln" cache verify
golden ambiguous "$kiln" cache show 4c84
golden no_such "$kiln" cache show feed
golden no_key "$kiln" cache show ''
expect 1 "$kiln" cache show 4c8481bf-ec-65-7 # more parts than a name has
expect 0 "$kiln" cache show "$("$kiln" cache list --keys --name=max_exp)" # a whole name

# the key is what was hashed, to the byte: its parts make the name
"$kiln" cache key 6a21 --part=graph >"$work/graph"
[ "$(tail -c 1 "$work/graph" | od -An -c | tr -d ' ')" = '\n' ] || fail "the key's last byte"
[ "$("$kiln" cache key 6a21 --json | "$tools/cli_json" graph_hash)" = "$("$kiln" cache list --keys --name=max_exp | cut -d- -f1)" ] || fail "hash of the graph part"

# misses and counters, as the library leaves them
printf '%s\n' 'time=1769860800 memory_hits=120 disk_hits=2 compiles=3 published=3 compile_us=32100 saved_us=20000 miss.size=1 miss.never_seen=2' \
    "entry=$("$kiln" cache list --keys --name=max_exp) hits=7" "entry=$("$kiln" cache list --keys --name=max_exp) hits=5" \
    'time=1769864400 memory_hits=1 refused.damaged=1 later=4 words' >"$cache/counters"
key=4c8481bf36c70e4e453a3e98e4e27cc0-ecfb61e3
printf '%s\n' "time=1769877000 where=kiln_item reason=size key=$key ints=256,1024 scalars=" \
    "time=1769877100 where=kiln_item reason=size key=$key ints=128,512 scalars=" \
    "time=1769860700 where=kiln_read reason=never_seen key=$key ints=4096,1024 scalars=" \
    "time=1769877200 where=kiln_eval reason=never_seen key=0000000000000000-00 ints= scalars=" 'not a miss' >"$cache/misses"
chmod 600 "$cache/counters" "$cache/misses"
golden stats "$kiln" cache stats
golden stats_json "$kiln" cache stats --json
golden list_hits "$kiln" cache list --sort=hits
golden why "$kiln" cache why
golden why_json "$kiln" cache why --json
cp "$cache/misses" "$work/misses"
expect 0 "$kiln" cache why "$work/misses"
says "expected 4096, found 256"
expect 3 "$kiln" cache why "$work/no_such_file"

# terminals: what is too wide is cut, colours appear and can be switched off
for columns in 80 200; do
    "$tools/cli_pty" $columns '' "$kiln" cache list --color=never >"$work/wide"
    [ $? = 77 ] && break
    over=$(awk -v n=$columns 'length($0) > n' "$work/wide" | wc -l)
    [ "$over" = 0 ] || fail "$over lines are wider than $columns columns: $(cat "$work/wide")"
    golden terminal_$columns sed 's/ [0-9.]*k/ SIZE/' "$work/wide"
    "$tools/cli_pty" $columns '' "$kiln" cache list | grep -q "$(printf '\033')" || fail "no colour on a terminal"
    NO_COLOR=1 "$tools/cli_pty" $columns '' "$kiln" cache list | grep -q "$(printf '\033')" && fail "colour under NO_COLOR"
    TERM=dumb "$tools/cli_pty" $columns '' "$kiln" cache list | grep -q "$(printf '\033')" && fail "colour on a dumb terminal"
done
if "$tools/cli_pty" 80 '' "$kiln" path >/dev/null; [ $? != 77 ]; then
    COLUMNS=75 "$tools/cli_pty" 200 '' "$kiln" cache list --color=never >"$work/wide"
    [ "$(awk 'length($0) > 75' "$work/wide" | wc -l)" = 0 ] || fail "COLUMNS=75 has no effect"
fi
"$kiln" cache list | grep -q "$(printf '\033')" && fail "colour without a terminal"
"$kiln" cache list --color=always | grep -q "$(printf '\033')" || fail "no colour though asked for"

# JSON everywhere
for what in list stats verify path 'why' 'why 6a21' 'show 6a21' 'guards 6a21' 'graph 6a21' 'graph --dot 6a21' 'code 6a21' 'key 6a21' \
    'diff 6a21 4c8481bf-f4' 'prune --max-size=1G' 'clear --dry-run'; do
    # shellcheck disable=SC2086
    "$kiln" cache $what --json 2>"$work/err" | "$tools/cli_json" >/dev/null || fail "kiln cache $what --json: $(cat "$work/err")"
done
bytes=$("$kiln" cache list --json --sort=key | "$tools/cli_json" entries 0 bytes)
[ "$bytes" = "$(wc -c <"$(entry 4c8481bf36c70e4e453a3e98e4e27cc0-ecfb61e3-65 "$cache")")" ] || fail "bytes in JSON are not exact: $bytes"
finish
