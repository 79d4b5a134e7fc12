#!/usr/bin/env bash
# The command line of cl-decode: help, version, and what it refuses. Needs no
# model: a wrong command line is refused before any file is opened.
. "$(dirname -- "${BASH_SOURCE[0]}")/lib.bash"

run --help
exits help 0
empty "help, stderr" "$ERR"
cp -- "$OUT" "$T/help"
for option in --model --prompt --file --n-predict --device --ctx --temp --seed \
    --json --ids --ignore-eos --exact --kv --block --tokenize --no-special \
    --detokenize --top-logits --force --perplexity --trace --help --version \
    --requests --n-blocks --max-seqs --budget --pace --deterministic --watermark --no-prefix-cache \
    --no-chunking --run-ahead --audit; do
    if grep -qE -- "^ +(-[a-z], )?$option( |\$)" "$T/help"; then
        pass
    else
        fail help "$option is not shown"
    fi
done
# Each option has a default and an example, in lines that fit a terminal.
if said=$(python3 - "$T/help" <<'PY'
import re, sys
text = open(sys.argv[1]).read()
body = re.split(r"\n\n", text)[2]
options = re.split(r"\n(?=  -)", body)
if len(options) < 35:
    raise SystemExit("only %d options" % len(options))
for o in options:
    name = re.search(r"--[a-z-]+", o).group()
    if "default" not in o:
        raise SystemExit(name + " has no default")
    if not re.search(r"Example: .*" + name + "|Example: -[a-z] ", o, re.S) and \
            not o.rstrip().endswith("Example: -v"):
        raise SystemExit(name + " has no example")
long = [l for l in text.split("\n") if len(l) > 100]
if long:
    raise SystemExit("longer than 100 columns: " + long[0])
PY
); then pass; else fail "help, each option" "$said"; fi
if tr -s ' \n' '  ' <"$T/help" | grep -qF "X above 1, or 0: no limit;"; then
    pass
else
    fail "help, --pace" "does not say which X may be"
fi
has help "$T/help" "-p 'Once upon a time'"
run -h
exits "-h" 0
if cmp -s "$OUT" "$T/help"; then pass; else fail "-h" "differs from --help"; fi

run --version
exits version 0
if grep -qE '^cl-decode [0-9]+\.[0-9]+\.[0-9]+.* \(commit [0-9a-z+-]+\)' "$OUT"
then pass; else fail version "is $(cat -- "$OUT")"; fi
is "version, lines" "$(wc -l <"$OUT")" 1

refused "unknown option" "'--frobnicate'" --frobnicate
refused "unknown short option" "'-z'" -z
refused "a bare word" "'hello'" hello
refused "prefix of an option" "'--mod'" --mod x
refused "no argument" "--model" -m
refused "flag with argument" "--json" --json=1
refused twice "--n-predict" -n 3 -n 4
refused "twice, long and short" "--prompt" -p a --prompt b
refused "twice, with =" "--device" --device=host --device=host
refused "flag twice" "--json" --json --json

for n in -1 x 1x '' 99999999999999999999 1.5; do
    refused "-n '$n'" "'$n'" -n "$n"
done
refused "--ctx 0" "'0'" --ctx 0
refused "--block 0" "'0'" --block 0
refused "--kv int8" "'int8'" --kv int8
for t in nan inf -0.1 x ''; do
    refused "--temp '$t'" "'$t'" --temp "$t"
done
refused "--top-p 1.1" "'1.1'" --temp 1 --top-p 1.1
for s in -1 18446744073709551616 '' 1x +1; do
    refused "--seed '$s'" "'$s'" --temp 1 --seed "$s"
done
for o in --model --file --perplexity --requests --trace-file; do
    refused "$o ''" "$o needs the name of a file" $o ''
done
refused "--top-logits 0" "'0'" --top-logits 0

refused "prompt and file" "--file" -p a -f b
refused "prompt and ids" "--ids" -p a --ids 1
refused "two modes" "--trace" --trace --perplexity x
refused "tokenize and detokenize" "--detokenize" --tokenize --detokenize --ids 1
refused "tokenize ids" "--tokenize" --tokenize --ids 1
refused "detokenize text" "--detokenize" --detokenize -p a
refused "perplexity and text" "--perplexity" --perplexity x -p a
refused "ignore-eos without -n" "--ignore-eos" --ignore-eos -p a
refused "seed without temperature" "--seed" --seed 1 -p a
refused "top-k without temperature" "--top-k" --top-k 5 -p a
refused "force and top-logits" "--top-logits" --force 1,2 --top-logits 2 -p a
refused "perplexity and no-special" "--no-special" --perplexity x --no-special
for o in "--device host" "--ctx 9" "--kv f32" "--block 8" --exact "--threads 1" \
    "--max-tok 4" "--shuffle-blocks 1" "--deterministic 1" "--fused 1"; do
    # shellcheck disable=SC2086 # words are meant
    refused "tokenize and $o" "${o%% *}" --tokenize -p a $o
    # shellcheck disable=SC2086
    refused "detokenize and $o" "${o%% *}" --detokenize --ids 1 $o
done
run -p --json --frobnicate
exits "--json as a prompt" 2
empty "--json as a prompt, stdout" "$OUT"

# A disk that is full is said.
if [ -c /dev/full ]; then
    for program in cl-decode cl-info; do
        for option in --help --version; do
            "$BIN/$program" $option >/dev/full 2>"$ERR"
            is "$program $option to a full disk" $? 18
            has "$program $option to a full disk" "$ERR" stdout
        done
    done
    if [ -f "$MODEL" ]; then
        for option in --tensors --json; do
            "$BIN/cl-info" -m "$MODEL" $option >/dev/full 2>"$ERR"
            is "cl-info -m $option to a full disk" $? 18
            has "cl-info -m $option to a full disk" "$ERR" stdout
        done
    fi
else
    skip "full disk" "no /dev/full"
fi
refused "force and -n" "-n" --force 1,2 -n 3 -p a
refused "no-special and ids" "--no-special" --ids 1 --no-special
finish
