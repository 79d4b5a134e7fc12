#!/usr/bin/env bash
# Ctrl-C: the answer ends where it is, with statistics and status 130; while
# prefilling and loading too. A reader that goes away ends the program.
. "$(dirname -- "${BASH_SOURCE[0]}")/lib.bash"
need_model

# interrupted NAME SECONDS ARGS...: interrupts once text has come, or after
# SECONDS, and waits for the end.
interrupted()
{
    local name=$1 wait=$2 pid i start
    shift 2
    : >"$OUT"
    # A background job of a script ignores SIGINT unless told otherwise.
    python3 -c 'import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])' "$BIN/cl-decode" -m "$MODEL" \
        --device host "$@" >"$OUT" 2>"$ERR" </dev/null &
    pid=$!
    for ((i = 0; i < wait * 20; i++)); do
        [ ! -s "$OUT" ] || break
        sleep 0.05
    done
    start=$(date +%s%N)
    kill -INT $pid
    wait $pid
    RC=$?
    MS=$((($(date +%s%N) - start) / 1000000))
    exits "$name" 130
    quick "$name" 5000
}

interrupted "while decoding" 20 -p "Once upon a time" -n 4000 --ignore-eos
if [ -s "$OUT" ]; then pass; else fail "while decoding" "no text before"; fi
has "statistics" "$ERR" "new ids in"
has "statistics" "$ERR" "finish canceled"
is "text ends with a newline" "$(tail -c 1 -- "$OUT" | od -An -tx1 | tr -d ' ')" 0a

python3 -c 'print("word " * 3500, end="")' >"$T/long"
interrupted "while prefilling" 1 -f "$T/long" -n 5
has "while prefilling, statistics" "$ERR" "finish canceled"
interrupted "--json" 1 -f "$T/long" -n 5 --json
json "--json says so" "j['finish'] == 'canceled' and j['n_new'] == len(j['ids'])"

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
