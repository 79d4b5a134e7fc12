#!/usr/bin/env bash
# --tokenize and --detokenize through files: text, zero bytes, special tokens,
# and every kind of bytes that are not UTF-8.
. "$(dirname -- "${BASH_SOURCE[0]}")/lib.bash"
need_model

# The goldens' strings; where a string is not UTF-8 they do not bind, and the
# rule of folio/tokenizer.h does: the same bytes come back, but for bytes that
# the vocabulary has no token for, which become U+FFFD.
python3 - "$BIN/cl-decode" "$MODEL" "$DATA/tokenizer.json" "$T" >"$T/lines" <<'PY'
import json, os, subprocess, sys
program, model, goldens, tmp = sys.argv[1:]
path = os.path.join(tmp, "text.bin")

def call(*args):
    done = subprocess.run([program, "-m", model, "--json", *args],
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, timeout=60)
    if done.returncode:
        raise AssertionError("exit %d: %s%s" % (
            done.returncode, done.stdout[:200], done.stderr[-200:]))
    return json.loads(done.stdout)

def tokenize(data, *options):
    with open(path, "wb") as f:
        f.write(data)
    return call("--tokenize", "-f", path, *options)["ids"]

def detokenize(ids):
    out = call("--detokenize", "--ids", ",".join(map(str, ids)))
    data = bytes.fromhex(out["bytes_hex"])
    assert out["text"] == data.decode("utf-8", "replace"), "text is not bytes_hex"
    return data

def check(name, fn):
    try:
        fn()
        print("ok", name)
    except (AssertionError, subprocess.TimeoutExpired, ValueError) as e:
        print("FAIL", name + ":", str(e).replace("\n", " "))

def same(got, want):
    assert got == want, "is %s, expected %s" % (got, want)

def golden(c):
    data = c["text"].encode()
    same(tokenize(data, "--no-special"), c["plain"])
    same(tokenize(data), c.get("special", c["plain"]))
    same(detokenize(c["plain"]), data)

doc = next(m for m in json.load(open(goldens, encoding="utf-8"))["models"]
           if m["model"].startswith("SmolLM2"))
for c in doc["cases"]:
    if "text" in c:
        check("string " + c["name"], lambda: golden(c))

# Bytes that no UTF-8 text holds may lack a token.
lacking = set()
def one_byte(b):
    got = detokenize(tokenize(bytes([b]), "--no-special"))
    if got == b"\xef\xbf\xbd":
        lacking.add(b)
        assert b >= 0x80, "an ASCII byte is lost"
    else:
        same(got, bytes([b]))
for b in (0, 9, 10, 13, 0x20, 0x7f, 0x80, 0xa0, 0xbf, 0xc0, 0xc1, 0xc2, 0xdf,
          0xe0, 0xed, 0xef, 0xf0, 0xf4, 0xf5, 0xf8, 0xfe, 0xff):
    check("byte %02x" % b, lambda: one_byte(b))

invalid = {
    "above U+10FFFF": "f4908080", "above U+10FFFF, F5": "f5808080",
    "lone continuation": "418042", "all continuations": "80818283bf",
    "cut after 1 of 2": "c3", "cut after 1 of 3": "e4", "cut after 2 of 3": "61e4bd",
    "cut after 3 of 4": "f09fa6", "cut in the middle": "f09fa678",
    "cut before a character": "e4bde4bda0", "overlong 2": "c0af",
    "overlong 3": "e080af", "overlong 4": "f08080af", "overlong zero": "c080",
    "surrogate": "eda080", "surrogate pair": "eda0bdedb880",
    "5 bytes": "f888808080", "6 bytes": "fc8480808080", "fe": "fe", "ff": "ff",
    "fe ff between letters": "68690afffe21", "BOM of UTF-16": "fffe4100",
    "valid, invalid, valid": "c3a9f4908080c3a9", "after a digit": "31f4908080",
    "after a blank": "20f4908080", "before a special token": "f49080803c7c696d5f656e647c3e",
    "many": "f4908080" * 500,
}
def bytes_back(data):
    ids = tokenize(data, "--no-special")
    got = detokenize(ids)
    want = b"".join(b"\xef\xbf\xbd" if b in lacking else bytes([b]) for b in data)
    if got != want:
        # The bytes not tried above may lack a token too; nothing else changes.
        at = 0
        for b in data:
            if got[at:at + 1] == bytes([b]):
                at += 1
            elif b >= 0x80 and got[at:at + 3] == b"\xef\xbf\xbd":
                at += 3
            else:
                raise AssertionError("%s came back as %s" % (data.hex(), got.hex()))
        same(got[at:], b"")
    # The same with special tokens looked for.
    tokenize(data)
for name, hexes in invalid.items():
    check("invalid UTF-8, " + name, lambda: bytes_back(bytes.fromhex(hexes)))

check("all bytes but those of the text", lambda: same(
    detokenize(tokenize("a\0b".encode(), "--no-special")), b"a\0b"))
check("empty text", lambda: same(tokenize(b""), []))
check("no ids", lambda: same(detokenize([]), b""))
end = next(i for i in tokenize(b"<|im_end|>"))
check("special token", lambda: same(tokenize(b"<|im_end|>"), [end]))
check("special token off", lambda: same(
    len(tokenize(b"<|im_end|>", "--no-special")) > 1, True))
check("special token back", lambda: same(detokenize([end]), b"<|im_end|>"))
# More text than a command line holds ids.
long = ("ab " * 40000).encode()
def much():
    ids = tokenize(long)
    same(b"".join(detokenize(ids[i:i + 20000]) for i in range(0, len(ids), 20000)), long)
check("120 kB", much)
PY
rc=$?
: >"$OUT"
: >"$ERR"
[ $rc = 0 ] || fail "the strings" "stopped after $(tail -n 1 "$T/lines")"
while IFS= read -r line; do
    case $line in
    'ok '*) pass ;;
    *) FAILED=$((FAILED + 1)) && printf '%s\n' "$line" ;;
    esac
done <"$T/lines"

# A model continues bytes that are not UTF-8.
printf '\364\220\200\200' >"$T/f4"
host -f "$T/f4" -n 4 --json
exits "answer to F4 90 80 80" 0
json "answer to F4 90 80 80" "j['n_new'] >= 1 and j['n_prompt'] >= 1"
host -f "$T/f4" -n 4
exits "answer to F4 90 80 80, as text" 0

# The same text by every way in.
run -m "$MODEL" --tokenize -p $'Gravity is\na  1   22' --json
cp -- "$OUT" "$T/by-p"
printf 'Gravity is\na  1   22' >"$T/text"
run -m "$MODEL" --tokenize -f "$T/text" --json
if cmp -s "$OUT" "$T/by-p"; then pass; else fail "-f" "differs from -p"; fi
for way in stdin '-f -'; do
    # shellcheck disable=SC2046,SC2086 # words are meant
    "$BIN/cl-decode" -m "$MODEL" --tokenize --json \
        $([ "$way" = stdin ] || echo $way) <"$T/text" >"$OUT" 2>"$ERR"
    RC=$?
    exits "$way" 0
    if cmp -s "$OUT" "$T/by-p"; then pass; else fail "$way" "differs"; fi
done
finish
