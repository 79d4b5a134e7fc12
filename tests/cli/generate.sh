#!/usr/bin/env bash
# Generating: what ends it, what stdout holds, seeds, a full context.
. "$(dirname -- "${BASH_SOURCE[0]}")/lib.bash"
need_model

host -p "Gravity is" -n 12 --json
exits "twelve ids" 0
value "j['text']" >"$T/text"
host -p "Gravity is" -n 12
exits "as text" 0
if cmp -s "$OUT" "$T/text"; then
    pass
else
    fail "stdout" "is not the text and a newline"
fi
has "speed and device are on stderr" "$ERR" "/s)"
has "speed and device are on stderr" "$ERR" host
has "finish is on stderr" "$ERR" "finish length"
host -p "Gravity is" -n 12 --verbose
if cmp -s "$OUT" "$T/text"; then pass; else fail "--verbose" "changes stdout"; fi
printf 'Gravity is' | "$BIN/cl-decode" -m "$MODEL" --device host -n 12 \
    >"$OUT" 2>"$ERR"
RC=$?
exits "text from stdin" 0
if cmp -s "$OUT" "$T/text"; then pass; else fail "stdin" "another answer"; fi

host -p "Gravity is" -n 0 --json
exits "-n 0" 0
json "-n 0" "j['ids'] == [] and j['n_new'] == 0 and j['text'] == '' and
    j['text_hex'] == '' and j['finish'] == 'length'"
host -p "Gravity is" -n 0
exits "-n 0 as text" 0
is "-n 0 as text" "$(tr -d '\n' <"$OUT" | wc -c)" 0

# The context: 16 places, 5 of them for the prompt; the last id needs none.
host --ids 504,3575,282,4649,314 --ctx 16 --json -n 100 --ignore-eos
exits "full context" 0
json "full context" "j['finish'] == 'length' and j['n_new'] == 12"
full=$(value "j['ids']")
host --ids 504,3575,282,4649,314 --json -n 12 --ignore-eos
is "full context, same ids" "$(value "j['ids']")" "$full"
host --ids 504,3575,282,4649,314 --ctx 5 --json -n 3 --ignore-eos
exits "prompt as long as the context" 0
json "prompt as long as the context" "j['n_new'] == 1 and j['finish'] == 'length'"
fails "prompt longer than the context" TOO_LARGE -m "$MODEL" --device host \
    --ids 504,3575,282,4649,314 --ctx 4 -n 1
json "prompt longer than the context" "__import__('re').search(r'\b5\b',
    j['error']['message']) and __import__('re').search(r'\b4\b',
    j['error']['message'])"

# Until the end token: it is counted, but no part of the text.
host -p $'<|im_start|>user\nSay hi.<|im_end|>\n<|im_start|>assistant\n' \
    --ctx 256 --json
exits "until the end token" 0
json "until the end token" "j['finish'] == 'stop' and j['ids'][-1] in (0, 2) and
    '<|im_end|>' not in j['text'] and '<|endoftext|>' not in j['text']"

# Seeds.
sampled()
{
    host -p "Once upon a time" -n 24 --ignore-eos --temp 2 --seed "$1" --json
    exits "seed $1" 0
    IDS=$(value "j['ids']")
}
sampled 1
first=$IDS
sampled 1
is "same seed, same ids" "$IDS" "$first"
other=0
for seed in 2 3 4; do
    sampled $seed
    [ "$IDS" = "$first" ] || other=$((other + 1))
done
if [ $other -ge 2 ]; then pass; else fail seeds "$other of 3 differ"; fi
greedy=$(
    host -p "Once upon a time" -n 24 --ignore-eos --json
    value "j['ids']"
)
host -p "Once upon a time" -n 24 --ignore-eos --temp 1 --top-k 1 --seed 5 --json
is "top-k 1 is greedy" "$(value "j['ids']")" "$greedy"
host -p "Once upon a time" -n 24 --ignore-eos --temp 1 --top-p 0 --seed 5 --json
is "top-p 0 is greedy" "$(value "j['ids']")" "$greedy"

# Paging does not show.
for options in "--block 1" "--block 32" "--shuffle-blocks 5" "--max-tok 1" \
    "--threads 1"; do
    # shellcheck disable=SC2086 # words are meant
    host -p "Once upon a time" -n 24 --ignore-eos --json $options
    is "$options" "$(value "j['ids']")" "$greedy"
done

# No scratch for more ids than the context holds; no block for many contexts.
host -p "Once upon a time" -n 2 --ctx 64 --max-tok 1000000
exits "--max-tok far above --ctx" 0
has "--max-tok far above --ctx" "$ERR" " 64 tokens a pass"
printf '{"prompt": "Once upon", "n_predict": 2}\n' >"$T/one"
host --requests "$T/one" --ctx 64 --budget 1000000 --max-seqs 65536
exits "--budget and --max-seqs far above the pool" 0
has "--budget and --max-seqs far above the pool" "$ERR" " 64 tokens a pass"
fails "--block far above --ctx" INVAL -m "$MODEL" --device host -p Hi -n 1 \
    --ctx 64 --block 65536
json "--block far above --ctx" "'65536' in j['error']['message'] and
    ', 64 (max_ctx)' in j['error']['message']"
# What cannot be had is said, and only where it was asked for.
for device in host "portable computing"; do
    run -m "$MODEL" --device "$device" -p Hi -n 1 --fused 2
    [ "$RC" != 15 ] || continue # no PoCL
    exits "--fused 2 on $device" 0
    is "--fused 2 on $device, notes" "$(grep -c "fused 2 was asked" "$ERR")" 1
done
host -p Hi -n 1
lacks "no --fused" "$ERR" fused

# Output that cannot be written is a failure.
if [ -w /dev/full ]; then
    "$BIN/cl-decode" -m "$MODEL" --device host -p "Gravity is" -n 4 \
        >/dev/full 2>"$ERR"
    RC=$?
    : >"$OUT"
    exits "full disk" 18
    "$BIN/cl-decode" -m "$MODEL" --device host -p "Gravity is" -n 4 --json \
        >/dev/full 2>"$ERR"
    RC=$?
    exits "full disk, --json" 18
else
    skip "full disk" "no /dev/full here"
fi
finish
