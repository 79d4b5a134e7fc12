#!/usr/bin/env bash
# cl-decode --requests: many requests at once, one line of JSON an answer; what
# is wrong with a line stays with that line; the answers are those of the
# program alone, whatever runs beside them.
. "$(dirname -- "${BASH_SOURCE[0]}")/lib.bash"
refused "engine option alone" "--requests" --n-blocks 4 -p a
refused "two modes" "--requests" --requests x --trace
refused "prompt as well" "--requests" --requests x -p a
refused "pace" "--pace" --requests x --pace 1
refused "max-tok" "--budget" --requests x --max-tok 4
refused "budget below max-seqs" "--budget" --requests x --budget 4 --max-seqs 5
# Every field that is taken is told to the user, in both places.
run --help
names=$(sed -n '/^} fields\[\] = {/,/^};/p; /^static const struct {/,/^};/p' \
    "$HERE/../../tools/cl-decode-line.c" |
    sed -n 's/^    {"\([a-z_]*\)", F_.*/\1/p' | sort -u)
is "fields known" "$([ "$(wc -w <<<"$names")" -gt 30 ] && echo many)" many
for name in $names; do
    grep -qw -- "$name" "$OUT" || fail "help" "lacks $name"
    grep -q -- "\`$name\`" "$HERE/../../README.md" ||
        fail "README" "lacks $name"
done
need_model
fails "no such folder of the trace" IO -m "$MODEL" --device host \
    --requests "$T/none" --trace-file "$T/nonexist/x"
json "no such folder of the trace" "'nonexist' in j['error']['message']"
fails "no such file" IO -m "$MODEL" --device host --requests "$T/none"
printf '{}\n' >"$T/kept"
run -m "$MODEL" --device host --requests "$T/kept" --trace-file "$T/kept"
exits "a trace over the requests" 2
[ "$(cat "$T/kept")" = '{}' ] || fail "a trace over the requests" "gone"
cp "$MODEL" "$T/precious.gguf"
run -m "$T/precious.gguf" --device host --requests "$T/kept" \
    --trace-file "$T/./precious.gguf"
exits "a trace over the model" 2
cmp -s "$MODEL" "$T/precious.gguf" || fail "a trace over the model" "gone"
rm "$T/precious.gguf"

# lines NAME EXPRESSION: Python over o, the objects on stdout, and by, those of
# them that answer by (id, completion).
lines()
{
    local said
    if said=$(python3 - "$OUT" "$2" 2>&1 <<'PY'
import json, sys
o = [json.loads(l) for l in open(sys.argv[1], encoding="utf-8")]
by = {(x["id"], x["completion"]): x for x in o if "completion" in x}
bad = {x["id"]: x["error"]["code"] for x in o if "completion" not in x}
if not eval("(%s)" % sys.argv[2]):
    raise SystemExit("does not hold: " + sys.argv[2])
PY
    ); then
        pass
    else
        fail "$1" "$(tail -n 1 <<<"$said")"
    fi
}

host -p "Gravity is" -n 12 --json
alone=$(value "j['ids']")
text=$(value "repr(j['text'])")
host --ids 504,3575,282,4649,314 --temp 0.9 --seed 3 -n 8 --json
sampled=$(value "j['ids']")
host --ids 504,3575,282,4649,314 --temp 0.9 --seed 18446744073709551615 -n 8 \
    --json
sampled64=$(value "j['ids']")

cat >"$T/r" <<'R'
{"id": "g", "prompt": "Gravity is", "n_predict": 12}
{"id": 1, "prompt_ids": [504,3575,282,4649,314], "n_predict": 8, "temperature": 0.9, "seed": 3, "n": 2}

{"id": "late", "prompt": "Gravity is", "n_predict": 12, "arrive_ms": 200}
{"id": "stopped", "prompt": "Gravity is", "n_predict": 400, "ignore_eos": true, "cancel_ms": 300}
{"id": "slow", "prompt": "Gravity is", "n_predict": 400, "ignore_eos": true, "deadline_ms": 200}
{"id": "salted", "prompt": "Gravity is", "n_predict": 12, "salt": "mine", "priority": 7}
no JSON
[1]
{"id": "e1", "prompt": "x", "tempreture": 1}
{"id": "e2", "prompt": "x", "temperature": -1}
{"id": "e3", "prompt": "x", "prompt_ids": [1]}
{"id": "e4"}
{"id": "e5", "prompt_ids": [1, 4000000]}
{"id": "e6", "prompt": "x", "n_predict": 100000}
{"id": "e7", "prompt": "x", "n_predict": "many"}
{"id": "e8", "prompt_ids": []}
{"id": "e9", "prompt": "hi", "n": 2147483647, "n_predict": 1}
{"id": "e10", "prompt": "hi", "n": 0, "n_predict": 1}
{"id": "e11", "prompt": "hi", "seed": "18446744073709551616"}
{"id": "e12", "prompt": "hi", "seed": "1x"}
{"id": "e13", "prompt": "hi", "seed": -1}
{"id": "s", "prompt_ids": [504,3575,282,4649,314], "n_predict": 8, "temperature": 0.9, "seed": "3"}
{"id": "e14", "prompt": "hi", "n_predict": 0}
{"id": "s64", "prompt_ids": [504,3575,282,4649,314], "n_predict": 8, "temperature": 0.9, "seed": "18446744073709551615"}
R
host --requests "$T/r" --audit --trace-file "$T/trace"
exits "requests, some in error" 1
lines "every line has its answer" "len(o) == 25 and len(by) == 9"
lines "greedy as alone" "all(by[k, 0]['ids'] == $alone and
    by[k, 0]['text'] == $text and by[k, 0]['finish'] == 'length'
    for k in ('g', 'late', 'salted'))"
lines "sampled as alone" "by[1, 0]['ids'] == by['s', 0]['ids'] == $sampled and
    by[1, 1]['ids'] != $sampled and by['s64', 0]['ids'] != $sampled and
    by['s64', 0]['ids'] == $sampled64"
lines "a cancelled one" "by['stopped', 0]['finish'] == 'abort' and
    by['stopped', 0]['ids'][:12] == ${alone}[:len(by['stopped', 0]['ids'])]"
lines "one past its deadline" "by['slow', 0]['finish'] == 'deadline'"
lines "figures" "all(x['queue_s'] >= 0 and x['prefill_s'] > 0 and
    x['decode_s'] >= 0 and x['preemptions'] == 0 and x['cached_tokens'] >= 0
    for x in by.values() if x['ids'])"
lines "bad lines" "bad == {None: 'FORMAT', 'e1': 'INVAL', 'e2': 'INVAL',
    'e3': 'INVAL', 'e4': 'INVAL', 'e5': 'RANGE', 'e6': 'TOO_LARGE',
    'e7': 'INVAL', 'e8': 'INVAL', 'e9': 'INVAL', 'e10': 'INVAL',
    'e11': 'INVAL', 'e12': 'INVAL', 'e13': 'INVAL', 'e14': 'INVAL'}"
lines "a field by the name that it has in the file" "all('n_predict is 0' in
    x['error']['message'] for x in o if x['id'] == 'e14') and
    not any('max_new' in x['error']['message'] for x in o if 'error' in x)"
lines "the unknown field is named" "any('tempreture' in x['error']['message']
    for x in o if 'error' in x)"
has "summary" "$ERR" "24 requests in"
if python3 -c 'import json, sys
names = {e["name"] for e in json.load(open(sys.argv[1]))["traceEvents"]}
assert names >= {"plan", "upload", "kernels", "wait", "sample", "commit"}' \
    "$T/trace"; then pass; else fail "trace" "is not as it should be"; fi

# A link to the trace stays one, whether its file is there or not.
ln -s "$T/trace-itself" "$T/trace-link"
for _ in absent there; do
    host --requests "$T/r" --trace-file "$T/trace-link"
    is "a trace through a link" "$(stat -c %F "$T/trace-link")" "symbolic link"
    has "a trace through a link" "$T/trace-itself" '"traceEvents"'
done

# A bad line is answered at once, whatever it says of its arrival.
cat >"$T/late" <<'R'
{"id": 1, "prompt": "Hello", "arrive_ms": 1e300}
{"id": 2, "prompt": "Hello", "tempreture": 1, "arrive_ms": 3600000}
{"id": 3, "prompt": "Hello", "n_predict": 1, "arrive_ms": 20}
{"id": 4, "prompt": "Hello", "n_predict": 1, "arrive_ms": 20}
{"id": 5, "prompt": "Hello", "n_predict": 1, "arrive_ms": 10}
R
LIMIT=60 host --requests "$T/late" --max-seqs 1
exits "bad lines do not wait" 1
lines "bad lines do not wait" "bad == {1: 'INVAL', 2: 'INVAL'}"
lines "the others come by their time" "[x['id'] for x in o] == [1, 2, 5, 3, 4]"

# What ends the run before a request is submitted is that request's answer.
run -m "$MODEL" --device host --requests "$T/late" --ctx 1000000
exits "no engine" 22
lines "no engine" "bad == {1: 'INVAL', 2: 'INVAL', 3: 'TOO_LARGE',
    4: 'TOO_LARGE', 5: 'TOO_LARGE'} and len(o) == 5"

# A pool that holds one of them at a time, and everything switched off.
for i in 1 2 3 4 5 6; do
    printf '{"id": %s, "prompt": "Gravity is", "n_predict": 12}\n' $i
done >"$T/six"
for how in "--n-blocks 5 --block 4" "--no-prefix-cache" "--no-chunking" \
    "--run-ahead 1" "--run-ahead 1 --n-blocks 5 --block 4" "--budget 8" "--max-seqs 1" "--watermark 2 --n-blocks 12 --block 4"; do
    # shellcheck disable=SC2086
    host --requests "$T/six" --audit $how
    exits "$how" 0
    lines "$how" "len(by) == 6 and all(x['ids'] == $alone for x in by.values())"
done
host --requests "$T/six" --audit --n-blocks 5 --block 4 --no-prefix-cache
lines "a cramped pool preempts" "sum(x['preemptions'] for x in by.values()) > 0"
"$BIN/cl-decode" -m "$MODEL" --device host --requests - <"$T/six" >"$OUT" \
    2>"$ERR"
RC=$?
exits "from stdin" 0
lines "from stdin" "len(by) == 6"

# The sampling fields, against the program alone and against each other.
cat >"$T/s" <<'R'
{"id": "lp", "prompt": "Gravity is", "n_predict": 6, "logprobs": 3, "prompt_logprobs": true, "echo": true}
{"id": "stop", "prompt": "Gravity is", "n_predict": 12, "stop": ["nowhere", "concept in"]}
{"id": "one", "prompt": "Gravity is", "n_predict": 12, "stop": "fundamental"}
{"id": "id", "prompt": "Gravity is", "n_predict": 12, "stop_ids": [1909]}
{"id": "ban", "prompt": "Gravity is", "n_predict": 6, "banned": [253]}
{"id": "bias", "prompt": "Gravity is", "n_predict": 3, "logit_bias": {"42": 1000}}
{"id": "pen", "prompt": "Gravity is", "n_predict": 12, "repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.5, "penalty_last_n": 64, "typical_p": 0.9, "dry_multiplier": 0.8, "dry_breakers": [198], "min_new_tokens": 2}
{"id": "e1", "prompt": "x", "logit_bias": {"a": 1}}
{"id": "e2", "prompt": "x", "banned": [-1]}
{"id": "e3", "prompt": "x", "banned": [99999999]}
{"id": "e4", "prompt": "x", "stop": 7}
{"id": "e5", "prompt": "x", "stop": ""}
{"id": "e6", "prompt": "x", "logprobs": 21}
{"id": "e7", "prompt": "x", "repetition_penalty": 0}
{"id": "e8", "prompt": "x", "ignore_eos": 1}
{"id": "e9", "prompt": "x", "echo": "yes"}
{"id": "e10", "prompt": "x", "banned": [ALL]}
R
python3 -c 'import sys
text = open(sys.argv[1]).read()
open(sys.argv[1], "w").write(text.replace("ALL", str(list(range(49152)))[1:-1]))
' "$T/s"
host --requests "$T/s" --audit
lines "every field is honoured or refused" "set(bad) == {'e%d' % i for i in
    range(1, 11)} and set(bad.values()) == {'INVAL'} and len(by) == 7"
lines "all ids banned" "any('banned' in x['error']['message'] for x in o
    if x['id'] == 'e10')"
lines "logprobs" "[x['id'] for x in by['lp', 0]['logprobs']] == ${alone}[:6] and
    all(x['top'][0] == [x['id'], x['logprob']] and len(x['top']) == 3 and
        x['logprob'] < 0 for x in by['lp', 0]['logprobs'])"
lines "a prompt's logprobs" "by['lp', 0]['prompt_logprobs'][0] is None and
    [x['id'] for x in by['lp', 0]['prompt_logprobs'][1:]] ==
    by['lp', 0]['prompt_ids'][1:]"
lines "stop strings" "by['stop', 0]['finish'] == 'stop' and
    by['stop', 0]['stop'] == 1 and
    ${text}.startswith(by['stop', 0]['text'] + 'concept in') and
    by['one', 0]['text'] == ${text}.split('fundamental')[0]"
lines "stop ids" "by['id', 0]['ids'] == ${alone}[:${alone}.index(1909) + 1]"
lines "bans and bias" "253 not in by['ban', 0]['ids'] and
    by['bias', 0]['ids'] == [42] * 3"
finish
