#!/usr/bin/env bash
# cl-bench: the command line, every field it promises in each format, shapes
# without a file, the same ids on host and PoCL and from a written file, what
# is refused. Needs no model.
. "$(dirname -- "${BASH_SOURCE[0]}")/lib.bash"
[ -x "$BIN/cl-bench" ] || skip_all "no cl-bench in $BIN"

bench()
{
    command_ "$BIN/cl-bench" "$@"
}

bench --help
exits "--help" 0
for option in --model --shape --type --write --prefill --n-decode --depth \
    --batch --prompt --cross --fake-depth --reps --device --threads --kv \
    --block --max-tok --exact --deterministic --fused --run-ahead --json --csv --md --out; do
    has "--help" "$OUT" "$option"
done
bench --version
exits "--version" 0
has "--version" "$OUT" "cl-bench "

# wrong WORDS ARGS...: a wrong command line, in text and in JSON.
wrong()
{
    local words=$1
    shift
    bench "$@"
    exits "$*" 2
    empty "$*" "$OUT"
    has "$*" "$ERR" "$words"
    bench --json "$@"
    exits "$*, --json" 2
    json "$*, --json" "fields(j) == {'error'} and
        j['error']['code'] == 'USAGE' and len(j['error']['message']) > 8"
}
wrong "give -m FILE or --shape"
wrong "unknown option" --bogus
wrong "unknown option" something
# What is given is not overwritten, and what is no file is not replaced.
printf 'as it was' >"$T/given"
wrong "overwrite the model" -m "$T/given" --out "$T/given"
ln "$T/given" "$T/linked"
wrong "overwrite the model" -m "$T/given" --out "$T/linked"
wrong "overwrite the model" --shape tiny --write "$T/both" --out "$T/both"
is "the given file" "$(cat "$T/given")" "as it was"
mkfifo "$T/pipe"
wrong "no file" --shape tiny --write "$T/pipe"
is "a pipe stays one" "$(stat -c %F "$T/pipe")" fifo
wrong "needs NAME" --shape
wrong "needs the name of a file" -m ''
wrong "needs the name of a file" --shape tiny --write ''
wrong "needs the name of a file" --shape tiny --out ''
wrong "exclude each other" --shape tiny -m x.gguf
wrong "are for --shape" -m x.gguf --type q4_0
wrong "are for --shape" -m x.gguf --write y.gguf
wrong "f16, q8_0 or q4_0" --shape tiny --type q5_0
wrong "a list like" --shape tiny -p 1,,2
wrong "from 1 to" --shape tiny -p 0
wrong "from 1 to" --shape tiny -b 0
wrong "whole number" --shape tiny -n -1
wrong "whole number" --shape tiny --reps 0
wrong "whole number" --shape tiny --deterministic 2
wrong "whole number" --shape tiny --run-ahead 2
wrong "f16 or f32" --shape tiny --kv f64
wrong "--cross needs" --shape tiny --cross -b 2
wrong "--prompt does nothing" --shape tiny --cross -b 2 -d 3 --prompt 4
wrong "--prompt is for -b" --shape tiny --prompt 4
wrong "given twice" --shape tiny --shape tiny
wrong "nothing is left to be measured" --shape tiny -p '' -n 0
wrong "nothing is left to be measured" --shape tiny -p '' -d ''
wrong "nothing is left to be measured" -m x.gguf -p '' -b '' -d ''
wrong "takes no argument" --shape tiny --exact=1
bench --shape tiny --csv --md
exits "--csv --md" 2

# broken NAME CODE STATUS WORDS ARGS...: what only shows later.
broken()
{
    local name=$1 code=$2 status=$3 words=$4
    shift 4
    bench "$@"
    exits "$name" "$status"
    empty "$name, stdout" "$OUT"
    has "$name" "$ERR" "$words"
    bench "$@" --json
    exits "$name, --json" "$status"
    empty "$name, --json, stderr" "$ERR"
    json "$name, --json" "fields(j) == {'error'} and
        j['error']['code'] == '$code' and '$words' in j['error']['message']"
}
broken "no such shape" NOT_FOUND 13 "smollm2-135m" --shape gpt-5
broken "no such file" IO 18 "$T/none.gguf" -m "$T/none.gguf" --device host
# A bad file is refused before any device is opened.
printf '<html>' >"$T/page.gguf"
broken "no model" FORMAT 19 "web page" -m "$T/page.gguf" \
    --device nothing-like-it
quick "no model" 1000
# A file of many small tensors is looked through once.
python3 - "$T/many.gguf" <<'END'
import struct, sys
n = 60000
with open(sys.argv[1], "wb") as f:
    f.write(b"GGUF" + struct.pack("<IQQ", 3, n, 0))
    for i in range(n):
        name = b"t%d" % i
        f.write(struct.pack("<Q", len(name)) + name +
                struct.pack("<IQIQ", 1, 8, 0, i * 32))
    f.write(bytes(-f.tell() % 32 + n * 32))
END
bench -m "$T/many.gguf" --device host -n 1
[ "$RC" -ge 10 ] || fail "many tensors" "exit status $RC"
quick "many tensors" 5000
# So is a plan that cannot be, before gigabytes of weights are made or written.
broken "too many sequences" TOO_LARGE 22 "16777216 sequences" \
    --shape llama-3.1-8b --device host -b 16777216 --write "$T/8b.gguf"
quick "too many sequences" 5000
is "too many sequences, no file" "$(ls "$T"/8b* 2>/dev/null)" ""
broken "a block for many cases" INVAL 11 "1048576" --shape llama-3.1-8b \
    --device host -p 4 -n 1 --block 1048576
quick "a block for many cases" 5000
broken "no such device" NO_DEVICE 15 "nothing-like-it" --shape tiny \
    --device nothing-like-it
broken "a depth it was not trained for" TOO_LARGE 22 "1024" --shape tiny \
    --device host -p '' -d 2000 -n 8
has "both numbers" "$OUT" "2008"
broken "a pool that does not fit" TOO_LARGE 22 "bytes of KV" --shape tiny \
    --device host -p '' -b 1048576 --prompt 900 -n 8
broken "no place for the file" IO 18 "$T/none/x.gguf" --shape tiny \
    --write "$T/none/x.gguf" -p '' -n 0
broken "no place for the report" IO 18 "$T/none/out" --shape tiny \
    --device host -p 4 -n 0 --out "$T/none/out"
broken "no place for the report of much" IO 18 "$T/none/out" \
    --shape llama-3.1-8b --device host --out "$T/none/out"
quick "no place for the report of much" 5000

row="fields(c) == {'kind', 'batch', 'depth', 'n_new', 'fake_depth', 'tokens_s',
    'first_s', 'p50_s', 'p99_s', 'step_s', 'weight_bytes', 'kv_bytes', 'flop',
    'read_share', 'flop_share', 'launches', 'writes', 'reads', 'waits',
    'pool_bytes', 'deterministic', 'fused', 'arithmetic', 'hash', 'same', 'variants'}"
bare=(-p 5,40 -d 0,20 -b 3 --prompt 20 -n 6 --reps 2)
cases=("${bare[@]}" --max-tok 16)
exact=(--kv f32 --exact)

bench --shape tiny --device host "${cases[@]}" "${exact[@]}" --json
exits host 0
empty "host, stderr" "$ERR"
json "host, report" "fields(j) == {'version', 'commit', 'date', 'device',
    'model', 'settings', 'rows'} and len(j['rows']) == 5 and
    j['device']['kind'] == 'host' and j['device']['rates']['read_bytes_s'] > 1e8
    and j['device']['rates']['fma_flop_s'] > 1e8 and j['model']['random'] and
    j['model']['name'] == 'tiny' and j['model']['type'] == 'f16' and
    j['settings']['kv'] == 'f32' and j['settings']['exact']"
json "host, rows" "all($row for c in j['rows']) and
    [(c['kind'], c['batch'], c['depth']) for c in j['rows']] ==
    [('prefill', 1, 5), ('prefill', 1, 40), ('decode', 1, 0),
     ('decode', 1, 20), ('decode', 3, 20)]"
json "host, figures" "all(c['tokens_s'] > 0 and c['same'] and
    0 < c['read_share'] and 0 < c['flop_share'] and c['launches'] > 10 and
    len(c['hash']) == 16 and len(c['variants']) > 5 for c in j['rows'])"
# One upload, one read, one wait a step.
json "host, steps" "all(c['writes'] == c['reads'] == 1 and c['waits'] <= 1 and
    0 < c['p50_s'] <= c['p99_s'] and abs(c['tokens_s'] * c['step_s'] -
    c['batch']) < 1e-6 for c in j['rows'] if c['kind'] == 'decode')"
# 2 layers, K and V, 2 heads of 32, floats, 20 and (6 - 1) / 2 + 1 behind.
json "host, bytes" "j['rows'][4]['kv_bytes'] == 3 * 2 * 2 * 2 * 32 * 4 * 23.5
    and j['rows'][4]['weight_bytes'] == j['model']['step_bytes'] and
    j['rows'][1]['weight_bytes'] == 3 * j['model']['step_bytes']"
json "host, first ids" "[c['first_s'] is None for c in j['rows']] ==
    [False, False, True, False, False]"
hashes=$(value "[c['hash'] for c in j['rows']]")

# Other chunks, blocks, threads: the same ids.
bench --shape tiny --device host "${bare[@]}" "${exact[@]}" --json -t 1 \
    --block 7 --max-tok 64
is "in other pieces" "$(value "[c['hash'] for c in j['rows']]")" "$hashes"
# A step ahead: the same ids, and one launch more, which moves them.
launches=$(value "j['rows'][2]['launches']")
bench --shape tiny --device host "${cases[@]}" "${exact[@]}" --json \
    --run-ahead 1
is "a step ahead" "$(value "[c['hash'] for c in j['rows']]")" "$hashes"
json "a step ahead, steps" "j['settings']['run_ahead'] == 1 and
    all(c['writes'] == c['reads'] == c['waits'] == 1 for c in j['rows'] if
        c['kind'] == 'decode') and j['rows'][2]['launches'] > $launches"
# Other weights: other ids.
bench --shape tiny --device host "${cases[@]}" "${exact[@]}" --json \
    --type q4_0
exits q4_0 0
is "other weights" "$(value "[c['hash'] for c in j['rows']]" |
    grep -cF -- "$hashes")" 0

# What was asked of --fused and what ran is told by each report.
json "no --fused" "j['settings']['fused'] == -1 and
    all(c['fused'] == 0 for c in j['rows'])"
few=(--shape tiny --device host --deterministic 0 -p '' -d 0 -n 2 --reps 1)
bench "${few[@]}" --fused 2 --json
json "--fused 2" "j['settings']['fused'] == 2 and j['rows'][0]['fused'] == 1"
bench "${few[@]}" --fused 2
has "--fused 2, text" "$OUT" "fused 1 (asked for: 2)"
has "--fused 2, warning" "$ERR" "fused 2 was asked for, fused 1 runs"
bench "${few[@]}" --fused 1 --md
has "--fused 1, Markdown" "$OUT" "fused 1,"
bench "${few[@]}" --fused 1 --csv
is "--fused 1, CSV" "$(python3 -c 'import csv, sys
print([r["fused"] for r in csv.DictReader(open(sys.argv[1]))])' "$OUT")" "['1']"

# From a file: written first, then by itself.
bench --shape tiny --device host "${cases[@]}" "${exact[@]}" --json \
    --write "$T/tiny.gguf"
exits "--write" 0
is "--write" "$(value "[c['hash'] for c in j['rows']]")" "$hashes"
is "--write, bytes" "$(value "j['written']['bytes']")" \
    "$(stat -c %s "$T/tiny.gguf")"
bench -m "$T/tiny.gguf" --device host "${cases[@]}" "${exact[@]}" --json
exits "a file" 0
is "a file" "$(value "[c['hash'] for c in j['rows']]")" "$hashes"
json "a file, model" "not j['model']['random'] and j['model']['type'] == 'F16'
    and j['model']['name'] == 'tiny.gguf'"
run -m "$T/tiny.gguf" --device host --ids 1,2,3 -n 4 --json
exits "cl-decode reads it" 0
json "cl-decode reads it" "len(j['ids']) >= 1"
bench --shape tiny --type q8_0 --write "$T/only.gguf" -p '' -n 0
exits "--write alone" 0
has "--write alone" "$OUT" "$T/only.gguf"
# Through a link: the file is written, the link stays.
mkdir "$T/far"
printf old >"$T/far/model.gguf"
printf old >"$T/far/report"
ln -s far/model.gguf "$T/link.gguf"
ln -s far/report "$T/link"
ln -s far/fresh "$T/to-fresh"
bench "${few[@]}" --write "$T/link.gguf" --out "$T/link"
exits "through links" 0
for file in model.gguf report; do
    is "through links, $file" "$(stat -c %F "$T/far/$file")" "regular file"
    [ "$(head -c 3 -- "$T/far/$file")" != old ] ||
        fail "through links" "$file was not written"
done
for link in link.gguf link; do
    is "through links, $link" "$(stat -c %F "$T/$link")" "symbolic link"
done
bench "${few[@]}" --out "$T/to-fresh"
exits "a link to nothing yet" 0
is "a link to nothing yet" "$(stat -c %F "$T/to-fresh")" "symbolic link"
has "a link to nothing yet" "$T/far/fresh" "decode b1 d0"
# Two names of a file that is only made by the run.
bench "${few[@]}" --write "$T/new.gguf" --out "$T/./new.gguf"
exits "a report over its new model" 11
is "a report over its new model" "$(head -c 4 -- "$T/new.gguf")" GGUF
ln -s far/none.gguf "$T/to-none.gguf"
broken "a model through a link to nothing" IO 18 "not there" \
    --shape tiny --write "$T/to-none.gguf" -p '' -n 0
is "a model through a link to nothing" "$(stat -c %F "$T/to-none.gguf")" \
    "symbolic link"
is "no parts left" "$(find "$T" -name '*.part-*')" ""

# All shapes of batch and depth; keys that nobody computed.
bench --shape tiny --device host -p '' -d 0,9 -b 1,2 --cross -n 2 --json
json "--cross" "[(c['batch'], c['depth']) for c in j['rows']] ==
    [(1, 0), (2, 0), (1, 9), (2, 9)]"
bench --shape tiny --device host -p '' -d 600 -n 4 --fake-depth --json
exits "--fake-depth" 0
json "--fake-depth" "j['rows'][0]['fake_depth'] and j['rows'][0]['same'] and
    j['rows'][0]['first_s'] is None"

# Text, CSV, Markdown, and into a file.
bench --shape tiny --device host "${cases[@]}"
exits text 0
for words in "GB/s read" "decode b3 d20" "prefill 40" "launches"; do
    has text "$OUT" "$words"
done
bench --shape tiny --device host "${cases[@]}" --md
has --md "$OUT" "| decode b3 d20 |"
bench --shape tiny --device host "${cases[@]}" --csv --out "$T/out.csv" -v
exits --csv 0
empty "--out" "$OUT"
has "-v" "$ERR" "decode b3 d20"
is "--csv" "$(python3 -c 'import csv, sys
rows = list(csv.DictReader(open(sys.argv[1], newline="")))
print(len(rows), all(None not in r and None not in r.values() for r in rows),
      float(rows[4]["tokens_s"]) > 0, rows[4]["batch"])' "$T/out.csv")" \
    "5 True True 3"
PLOT=$HERE/../../tools/plot
command_ "$PLOT" --out "$T/plots" "$T/out.csv"
exits plot 0
is "plot draws" "$(find "$T/plots" -name '*.svg' | wc -l)" 3
command_ "$PLOT" --out "$T/plots" "$T/none.csv"
exits "plot without a file" 1

# The same ids through PoCL.
command_ "$BIN/cl-info" --json
if ! grep -q "Portable Computing Language" "$OUT"; then
    lacking PoCL "no PoCL among the devices here"
else
    bench --shape tiny --device "portable computing" "${cases[@]}" \
        "${exact[@]}" --json
    exits PoCL 0
    is "PoCL gives the host's ids" "$(value "[c['hash'] for c in j['rows']]")" \
        "$hashes"
    json "PoCL, report" "j['device']['kind'] == 'CPU driver' and
        j['settings']['run_ahead'] == 1 and
        all($row for c in j['rows'])"
fi
finish
