#!/usr/bin/env bash
# The machine interface: every field that it promises, and its type.
. "$(dirname -- "${BASH_SOURCE[0]}")/lib.bash"
need_model

model="fields(j['model']) >= {'file', 'name', 'arch'} and
    j['model']['arch'] == 'llama' and type(j['model']['name']) is str and
    type(j['model']['file']) is str"
common="type(j['device']) is str and len(j['device']) > 0 and
    j['arithmetic'] in ('f32', 'f16', 'q8') and ints(j['prompt_ids'])"

host -p "Gravity is" -n 5 --json
exits generate 0
json "generate, fields" "fields(j) == {'device', 'model', 'prompt_ids', 'ids',
    'text', 'text_hex', 'finish', 'n_prompt', 'n_fed', 'n_new', 'load_s', 'prefill_s',
    'decode_s', 'arithmetic'}"
json "generate, model" "$model"
json "generate, types" "$common and ints(j['ids']) and type(j['text']) is str
    and type(j['finish']) is str and type(j['n_prompt']) is int and
    type(j['n_new']) is int and all(num(j[k]) and j[k] >= 0 for k in
    ('load_s', 'prefill_s', 'decode_s'))"
json "generate, counts" "j['n_prompt'] == len(j['prompt_ids']) and
    j['n_fed'] == j['n_prompt'] and j['n_new'] == len(j['ids']) == 5 and j['finish'] == 'length'"
json "generate, text" "bytes.fromhex(j['text_hex']).decode() == j['text'] and
    len(j['text']) > 0"
json "generate, times" "0 < j['prefill_s'] < 60 and 0 < j['load_s'] < 60 and
    0 < j['decode_s'] < 60"
empty "generate, stderr" "$ERR"
json "a plain run on the host is q8" "j['arithmetic'] == 'q8'"
host -p "Gravity is" -n 2 --json --exact
json "an exact f16 run is f16" "j['arithmetic'] == 'f16'"
host -p "Gravity is" -n 2 --json --exact --kv f32
json "an exact f32 run is f32" "j['arithmetic'] == 'f32'"

# Text that is not UTF-8 shows U+FFFD, text_hex is exact: the prompt ends inside
# a character, so the answer begins there.
printf '\360\237\230\200\360\237\230\200\360\237\230\200\360\237' >"$T/half"
host -f "$T/half" -n 6 --ignore-eos --json
exits "text that is not UTF-8" 0
json "text that is not UTF-8" "j['text'][0] == '\ufffd' and j['text'] ==
    bytes.fromhex(j['text_hex']).decode('utf-8', 'replace')"

host --ids 504,3575,282 --top-logits 7 --json
exits top-logits 0
json top-logits "$common and $model and len(j['top']) == 7 and
    all(len(t) == 2 and type(t[0]) is int and type(t[1]) is float
        for t in j['top']) and
    [t[1] for t in j['top']] == sorted((t[1] for t in j['top']), reverse=True)"
host --ids 504,3575,282 --top-logits 60000 --json
json "top-logits above the vocabulary" "len(j['top']) == 49152"
# Floats carry 9 significant digits, no fewer than a float needs.
json "9 digits" "max(len(repr(abs(t[1])).replace('.', '').lstrip('0'))
    for t in j['top']) >= 8"

host --ids 504,3575 --force 282,4649,314 --json
exits force 0
json force "$common and len(j['steps']) == 3 and all(len(s) == 4 and
    type(s[0]) is int and type(s[2]) is int and num(s[1]) and num(s[3]) and
    s[1] >= s[3] and s[0] != s[2] for s in j['steps'])"

host --ids 504,3575,282 --trace --json
exits trace 0
json trace "$common and [p['at'] for p in j['points']] == ['embedding'] +
    ['block %d' % i for i in range(30)] + ['output_norm'] and
    all(fields(p) == {'at', 'l2', 'mean', 'first8'} and num(p['l2']) and
        num(p['mean']) and len(p['first8']) == 8 and all(map(num, p['first8']))
        for p in j['points'])"

printf 'The hacker ethic is a text of some words.' >"$T/text"
host --perplexity "$T/text" --ctx 8 --json
exits perplexity 0
json perplexity "num(j['nll_sum']) and type(j['n']) is int and num(j['ppl']) and
    j['n'] > 2 and j['nll_sum'] > 0 and
    abs(j['ppl'] - __import__('math').exp(j['nll_sum'] / j['n'])) < 1e-5 * j['ppl']
    and sum(w['n'] for w in j['windows']) == j['n']"
# Steps of the length given, above the default too.
python3 -c 'print("word " * 300, end="")' >"$T/words"
host --perplexity "$T/words" --ctx 256 --json
nll=$(value "j['nll_sum']")
host --perplexity "$T/words" --ctx 256 --max-tok 200 --json -v
exits "perplexity, --max-tok" 0
has "perplexity, --max-tok" "$ERR" "200 tokens a pass"
json "perplexity, --max-tok" "abs(j['nll_sum'] - $nll) < 0.01 * $nll"

run -m "$MODEL" --tokenize -p "Gravity is" --json
json tokenize "fields(j) == {'ids'} and ints(j['ids']) and len(j['ids']) > 1"
run -m "$MODEL" --detokenize --ids 504,3575 --json
json detokenize "fields(j) == {'text', 'bytes_hex'} and
    bytes.fromhex(j['bytes_hex']).decode() == j['text']"
finish
