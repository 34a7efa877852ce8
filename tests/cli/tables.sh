# What needs no cache: help, errors of the command line, the library's tables, completion, man pages.
. "$(dirname "$0")/lib.sh"

golden help "$kiln" help
golden help_cache "$kiln" help cache
golden help_list "$kiln" cache list --help
golden ops "$kiln" ops reduce
golden passes "$kiln" passes
golden rules "$kiln" rules add_
golden options_math "$kiln" options math
golden usage_verb "$kiln" cache lits
golden usage_option "$kiln" cache list --sort=colour
golden usage_foreign_option "$kiln" cache path --sort=size
golden usage_value "$kiln" cache prune --max-size=many
golden usage_prune "$kiln" cache prune
golden usage_missing "$kiln" cache show
golden usage_too_many "$kiln" cache diff a b c
golden usage_code "$kiln" cache code --ir --ptx aaaa

expect 2 "$kiln"
expect 2 "$kiln" cache
expect 2 "$kiln" --sort=size
expect 0 "$kiln" --help
expect 0 "$kiln" cache --help
expect 0 "$kiln" --version
says "kiln "
version=$(sed 's/kiln //' "$work/out")
[ "$("$kiln" --json --version | "$tools/cli_json" version)" = "$version" ] || fail "--json --version"
[ "$("$kiln" --version --json | "$tools/cli_json" version)" = "$version" ] || fail "--version --json"
expect 2 "$kiln" --json
expect 2 "$kiln" --version ops
expect 1 "$kiln" ops nothing_of_this_name
expect 2 "$kiln" completion tcsh

# every command has help, and each takes --json
verbs=$("$kiln" help --json | grep '"command"' | sed 's/.*: "\(.*\)",*/\1/')
[ "$(echo "$verbs" | wc -l)" -ge 20 ] || fail "help --json lists too few commands"
echo "$verbs" | while read -r verb; do
    # shellcheck disable=SC2086
    "$kiln" $verb --help | grep -q -- --json || echo "no --json in the help of $verb"
done >"$work/missing"
[ -s "$work/missing" ] && fail "$(cat "$work/missing")"
for verb in ops passes rules options info help 'help cache' 'help cache import' 'cache import --help' 'cache --help' --help --version \
    'completion bash' 'completion zsh' 'completion fish'; do
    # shellcheck disable=SC2086
    "$kiln" $verb --json | "$tools/cli_json" >/dev/null || fail "kiln $verb --json is no JSON"
done
[ "$("$kiln" options --json | "$tools/cli_json" options 1 variable)" = KILN_MATH ] || fail "options --json"

# where a value came from
KILN_MATH=strict KILN_LLVM_OPT=9 KILN_MATHS=1 "$kiln" info --json >"$work/info.json" 2>"$work/err"
value() { "$tools/cli_json" options "$1" "$2" <"$work/info.json"; }
[ "$(value KILN_MATH value) $(value KILN_MATH from)" = "strict environment" ] || fail "info: KILN_MATH"
[ "$(value KILN_LLVM_OPT value) $(value KILN_LLVM_OPT from)" = "1 invalid" ] || fail "info: KILN_LLVM_OPT"
[ "$(value KILN_FUSE from)" = default ] || fail "info: KILN_FUSE"
"$tools/cli_json" warnings 0 <"$work/info.json" | grep -q llvm_opt || fail "info: no warning of the invalid value"
"$tools/cli_json" warnings 1 <"$work/info.json" | grep -q KILN_MATHS || fail "info: no warning of the unknown variable"
[ -s "$work/err" ] && fail "info --json says something on stderr: $(cat "$work/err")"

# completion: the shells that are here accept it, and every command is in it
for shell in bash zsh fish; do
    "$kiln" completion $shell >"$work/completion.$shell" || fail "completion $shell"
    grep -q older-than "$work/completion.$shell" || fail "completion $shell lacks an option"
    [ "$("$kiln" completion $shell --json | "$tools/cli_json" script)" = "$(cat "$work/completion.$shell")" ] || fail "completion $shell as JSON is another"
    if command -v $shell >/dev/null; then
        $shell -n "$work/completion.$shell" || fail "$shell does not accept its completion"
    fi
done
if command -v bash >/dev/null; then
    complete()
    {
        bash -c 'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); compopt() { :; }; _kiln; echo "${COMPREPLY[*]}"' _ \
            "$work/completion.bash" "$@"
    }
    [ "$(complete kiln cache ve)" = verify ] || fail "completion of kiln cache ve: $(complete kiln cache ve)"
    [ "$(complete kiln ru)" = rules ] || fail "completion of kiln ru: $(complete kiln ru)"
    [ "$(complete kiln cache list --sort = na)" = name ] || fail "completion of --sort=na: $(complete kiln cache list --sort = na)"
    [ "$(complete kiln cache prune --max)" = --max-size= ] || fail "completion of --max: $(complete kiln cache prune --max)"
fi

# the man pages, as the build made them: every variable is in kiln-env(7), every command in kiln(1), and no formatter complains
texts=$(dirname "$kiln")/command
"$kiln" options --json | grep '"variable"' | sed 's/.*"\(KILN_[A-Z0-9_]*\)".*/\1/' >"$work/variables"
[ "$(wc -l <"$work/variables")" -ge 20 ] || fail "too few variables"
while read -r variable; do
    grep -q "^.It Ev $variable\$" "$texts/kiln-env.7" || fail "kiln-env(7) lacks $variable"
done <"$work/variables"
echo "$verbs" | while read -r verb; do
    grep -q "^.It Cm $verb\( Ar .*\| Oo .*\)*\$" "$texts/kiln.1" || echo "kiln(1) lacks $verb"
done >"$work/missing"
[ -s "$work/missing" ] && fail "$(cat "$work/missing")"
for page in kiln.1 kiln.3 kiln-env.7; do
    grep -q '@' "$texts/$page" && fail "$page has a gap that was not filled"
    if command -v mandoc >/dev/null; then
        mandoc -T lint -W warning "$texts/$page" || fail "mandoc does not accept $page"
    fi
    if command -v man >/dev/null; then
        complaints=$(MANROFFSEQ='' MANWIDTH=80 man --warnings -l "$texts/$page" 2>&1 >/dev/null)
        [ -z "$complaints" ] || fail "man complains of $page: $complaints"
    fi
done

# output that does not arrive is an error; a closed pipe ends it quietly with SIGPIPE
if [ -w /dev/full ]; then
    "$kiln" ops >/dev/full 2>"$work/err"
    [ $? = 3 ] || fail "writing to a full device: status"
    grep -q "cannot write the output: No space left on device" "$work/err" || fail "writing to a full device: $(cat "$work/err")"
fi
status=$({ { "$kiln" rules --json 2>"$work/err"; echo $? >&3; } | { read -r _; exec 0<&-; sleep 0.2; }; } 3>&1)
[ "$status" = 141 ] || [ "$status" = 0 ] || fail "closed pipe: status $status"
[ -s "$work/err" ] && fail "closed pipe: it says $(cat "$work/err")"
finish
