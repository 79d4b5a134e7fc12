#!/usr/bin/env bash
# Ctrl-C while decoding, while prefilling, around loading and while the text is
# read: the answer ends where it is, with true statistics and status 130; a
# second Ctrl-C ends the program at once. A reader that goes away ends it too.
. "$(dirname -- "${BASH_SOURCE[0]}")/lib.bash"
need_model

# interrupted NAME FILE WORDS TIMES ARGS...: sends SIGINT TIMES times once WORDS
# (a pattern) stand in FILE, and waits for the end.
interrupted()
{
    local name=$1 file=$2 words=$3 times=$4 pid i start
    shift 4
    : >"$OUT"
    : >"$ERR"
    # A background job of a script ignores SIGINT unless told otherwise.
    python3 -c 'import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])' "$BIN/cl-decode" -m "$MODEL" \
        --device host "$@" >"$OUT" 2>"$ERR" </dev/null &
    pid=$!
    for ((i = 0; i < 1200; i++)); do
        ! grep -qE -- "$words" "$file" || break
        kill -0 $pid 2>/dev/null || break
        sleep 0.05
    done
    if grep -qE -- "$words" "$file"; then pass; else
        fail "$name" "'$words' never came"
    fi
    start=$(date +%s%N)
    kill -INT $pid
    if [ "$times" = 2 ]; then
        sleep 0.3 # two at once would count as one
        kill -INT $pid
    fi
    wait $pid
    RC=$?
    MS=$((($(date +%s%N) - start) / 1000000))
    exits "$name" 130
    quick "$name" 5000
}

interrupted "while decoding" "$OUT" . 1 -p "Once upon a time" -n 4000 --ignore-eos
if [ -s "$OUT" ]; then pass; else fail "while decoding" "no text before"; fi
has "statistics" "$ERR" "new ids in"
has "statistics" "$ERR" "finish canceled"
is "text ends with a newline" "$(tail -c 1 -- "$OUT" | od -An -tx1 | tr -d ' ')" 0a

python3 -c 'print("word " * 3500, end="")' >"$T/long"
# The line about loading is the last before the prompt is computed, which takes
# minutes in steps of one id.
interrupted "while prefilling" "$ERR" 'loaded in' 1 -f "$T/long" --max-tok 1 -n 5
has "while prefilling, statistics" "$ERR" "finish canceled"
fed=$(sed -nE 's/.*prompt ([0-9]+) of ([0-9]+) ids.*/\1 < \2/p' "$ERR")
is "while prefilling, what was fed" "$((${fed:-0}))" 1
is "while prefilling, no text" "$(tr -d '\n' <"$OUT")" ""
interrupted "--json" "$ERR" ' gather_rows ' 1 -f "$T/long" --max-tok 1 -n 5 \
    --json -v
json "--json says so" "j['finish'] == 'canceled' and j['n_new'] == 0 and
    j['n_fed'] < j['n_prompt'] == len(j['prompt_ids'])"
# These words come before the model is loaded: the signal meets loading or what
# follows it.
interrupted "around loading" "$ERR" 'prompt ids: .*[0-9]$' 1 -f "$T/long" \
    --max-tok 1 -n 5 --json -v
json "around loading" "j['error']['code'] == 'CANCELED' if 'error' in j else
    j['finish'] == 'canceled'"
# One step of seconds, which only the second signal ends.
interrupted "a second Ctrl-C" "$ERR" 'loaded in' 2 -f "$T/long" --max-tok 4096 -n 5
quick "a second Ctrl-C" 1500
lacks "a second Ctrl-C" "$ERR" "finish"

# Of many requests each has its line: the one that is done, the one under way,
# those that were not submitted yet, and the bad one.
cat >"$T/r" <<'R'
{"id": 1, "prompt": "Hello", "n_predict": 2}
{"id": 2, "prompt": "Hello", "n_predict": 4000, "ignore_eos": true}
{"id": 3, "prompt": "Hello", "n_predict": 2, "n": 2, "arrive_ms": 3600000}
{"id": 4, "prompt": "Hello", "n_predict": "many"}
R
answers()
{
    is "$1" "$(python3 -c 'import json, sys
print(sorted((j["id"], j["error"]["code"] if "error" in j else j["finish"])
             for j in map(json.loads, open(sys.argv[1]))))' "$OUT")" "$2"
}
interrupted "--requests" "$OUT" '"finish": ?"length"' 1 --requests "$T/r"
answers "--requests" \
    "[(1, 'length'), (2, 'abort'), (3, 'CANCELED'), (4, 'INVAL')]"
tail -n 2 "$T/r" >"$T/r2"
interrupted "--requests, before any is submitted" "$OUT" INVAL 1 \
    --requests "$T/r2"
answers "--requests, before any is submitted" \
    "[(3, 'CANCELED'), (4, 'INVAL')]"

# Ctrl-C while the text is still being read from a terminal or a pipe.
mkfifo -- "$T/pipe"
sleep 30 >"$T/pipe" &
writer=$!
python3 -c 'import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])' "$BIN/cl-decode" -m "$MODEL" \
    --device host -n 4 <"$T/pipe" >"$OUT" 2>"$ERR" &
reader=$!
sleep 1.5
kill -INT $reader
start=$(date +%s%N)
wait $reader
RC=$?
MS=$((($(date +%s%N) - start) / 1000000))
exits "while reading" 130
has "while reading" "$ERR" "interrupted"
quick "while reading" 5000
kill $writer 2>/dev/null

# head takes what it wants; nobody waits for the rest.
start=$(date +%s%N)
timeout 60 "$BIN/cl-decode" -m "$MODEL" --device host -p "Once upon a time" \
    -n 4000 --ignore-eos 2>"$ERR" | head -c 20 >"$OUT"
RC=${PIPESTATUS[0]}
MS=$((($(date +%s%N) - start) / 1000000))
is "a reader that went away" "$([ "$RC" != 0 ] && [ "$RC" != 124 ] && echo yes)" yes
finish
