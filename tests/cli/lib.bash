# tests/cli/lib.bash: what the tests of the programs share. Sourced by each
# tests/cli/*.sh, which gets the build folder (or the folder of the programs) as
# its first argument. Counts by itself; knows nothing of what is tested.
#
#   run ARGS...    cl-decode; leaves OUT and ERR (files), RC and MS behind
#   is / has / ... one check each: a line only where it fails
#   finish         "N passed, N failed, N skipped", exit 1 if one failed
set -u
export LC_ALL=C.UTF-8

HERE=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
DATA=$HERE/../golden/data
BIN=$(cd -- "${1:?the build folder}" && pwd -P) || exit 1
[ ! -x "$BIN/tools/cl-decode" ] || BIN=$BIN/tools
if [ ! -x "$BIN/cl-decode" ]; then
    echo "no cl-decode in $BIN" >&2
    exit 1
fi
MODEL_FILE=SmolLM2-135M-Instruct.Q4_1.gguf
MODEL=${FOLIO_TEST_MODEL:-${XDG_CACHE_HOME:-${HOME-}/.cache}/folio/models/$MODEL_FILE}

T=$(mktemp -d) || exit 1
SELF=$BASHPID
trap '[ $BASHPID != $SELF ] || { chmod -R u+rwX "$T"; rm -rf -- "$T"; }' EXIT
OUT=$T/out ERR=$T/err RC=0 MS=0
PASSED=0 FAILED=0 SKIPPED=0

# What the surroundings say must not reach the tests.
unset FOLIO_DEVICE FOLIO_CAPS_MASK FOLIO_MAX_ALLOC FOLIO_DISABLE FOLIO_TUNE
unset FOLIO_PACKING FOLIO_ADDRESSES
export FOLIO_CACHE_DIR=$T/cache

skip_all()
{
    echo "SKIP: $*"
    [ "${CI-}" != true ] || exit 1
    exit 77
}

need_model()
{
    [ -f "$MODEL" ] || skip_all "no model: neither FOLIO_TEST_MODEL nor" \
        "the cache folder has $MODEL_FILE"
}

pass()
{
    PASSED=$((PASSED + 1))
}

# fail NAME WHY...: with the end of what the program said.
fail()
{
    FAILED=$((FAILED + 1))
    printf 'FAIL %s: %s\n' "$1" "${*:2}"
    printf '     exit %s after %s ms\n' "$RC" "$MS"
    tail -c 600 -- "$OUT" 2>/dev/null | sed 's/^/     out: /' | head -n 8
    tail -c 900 -- "$ERR" 2>/dev/null | sed 's/^/     err: /' | head -n 12
}

skip()
{
    SKIPPED=$((SKIPPED + 1))
    printf 'skip %s: %s\n' "$1" "${*:2}"
}

# lacking NAME WHY...: a skip, but a failure in CI, which has all there is.
lacking()
{
    skip "$@"
    [ "${CI-}" != true ] || fail "$1" "in CI nothing may be lacking"
}

finish()
{
    echo "$PASSED passed, $FAILED failed, $SKIPPED skipped"
    [ "$FAILED" = 0 ]
    exit
}

# Any command, with its output, status and time kept. No input.
command_()
{
    local start
    start=$(date +%s%N)
    timeout --kill-after=5 "${LIMIT:-120}" "$@" >"$OUT" 2>"$ERR" </dev/null
    RC=$?
    MS=$((($(date +%s%N) - start) / 1000000))
}

run()
{
    command_ "$BIN/cl-decode" "$@"
}

# With the model, on the host device.
host()
{
    run -m "$MODEL" --device host "$@"
}

# is NAME GOT WANT
is()
{
    if [ "$2" = "$3" ]; then pass; else fail "$1" "is '$2', expected '$3'"; fi
}

# exits NAME STATUS
exits()
{
    if [ "$RC" = "$2" ]; then pass; else fail "$1" "exit $RC, expected $2"; fi
}

# has NAME FILE TEXT / lacks NAME FILE TEXT
has()
{
    if grep -qF -- "$3" "$2"; then
        pass
    else
        fail "$1" "'$3' is not in $(basename -- "$2")"
    fi
}

lacks()
{
    if grep -qF -- "$3" "$2"; then
        fail "$1" "'$3' is in $(basename -- "$2")"
    else
        pass
    fi
}

empty()
{
    if [ -s "$2" ]; then
        fail "$1" "$(basename -- "$2") is not empty"
    else
        pass
    fi
}

# quick NAME MS
quick()
{
    if [ "$MS" -lt "$2" ]; then pass; else fail "$1" "took $MS ms, not $2"; fi
}

# json NAME EXPRESSION: Python over j, the one object on stdout, and over
# fields(j), which is its keys in order.
json()
{
    local said
    if said=$(python3 - "$OUT" "$2" 2>&1 <<'PY'
import json, sys
text = open(sys.argv[1], encoding="utf-8").read()
def unique(pairs):
    keys = [k for k, _ in pairs]
    if len(keys) != len(set(keys)):
        raise SystemExit("a key stands twice: %s" % keys)
    return dict(pairs)
def no(name):
    raise SystemExit("%s is no JSON" % name)
j = json.loads(text, object_pairs_hook=unique, parse_constant=no)
if text.count("\n") != 1 or not text.endswith("\n"):
    raise SystemExit("not one line: %r" % text[:80])
fields = lambda o: set(o)
ints = lambda v: isinstance(v, list) and all(type(i) is int for i in v)
num = lambda v: type(v) in (int, float)
if not eval("(%s)" % sys.argv[2]):
    raise SystemExit("does not hold: " + sys.argv[2])
PY
    ); then
        pass
    else
        fail "$1" "$(tail -n 1 <<<"$said")"
    fi
}

# value EXPRESSION: prints it, "" where it cannot be had.
value()
{
    python3 -c 'import json, sys
j = json.load(open(sys.argv[1], encoding="utf-8"))
print(eval(sys.argv[2]))' "$OUT" "$1" 2>/dev/null
}

# fails NAME CODE ARGS...: once with --json, whose object must say CODE and
# nothing else, once without, which must say it on stderr only; both in the
# status that belongs to CODE.
fails()
{
    local name=$1 code=$2 status
    shift 2
    case $code in
    INVAL) status=11 ;; RANGE) status=12 ;; NOT_FOUND) status=13 ;;
    NOMEM) status=14 ;; NO_DEVICE) status=15 ;; DEVICE) status=16 ;;
    BUILD) status=17 ;; IO) status=18 ;; FORMAT) status=19 ;;
    UNSUPPORTED) status=20 ;; FULL) status=21 ;; TOO_LARGE) status=22 ;;
    *) status=27 ;;
    esac
    run "$@"
    exits "$name" $status
    empty "$name, stdout" "$OUT"
    if [ -s "$ERR" ]; then pass; else fail "$name" "says nothing"; fi
    run "$@" --json
    exits "$name --json" $status
    json "$name --json" "fields(j) == {'error'} and
        fields(j['error']) == {'code', 'message'} and
        j['error']['code'] == '$code' and len(j['error']['message']) > 8"
}

# refused NAME WORDS ARGS...: a wrong command line, with both words said; with
# --json on stdout too.
refused()
{
    local name=$1 words=$2
    shift 2
    run "$@"
    exits "$name" 2
    has "$name" "$ERR" "$words"
    if [[ " $* " != *" --json "* ]]; then
        empty "$name, stdout" "$OUT"
        run --json "$@"
        exits "$name, --json" 2
    fi
    json "$name, --json" "fields(j) == {'error'} and
        fields(j['error']) == {'code', 'message'} and
        j['error']['code'] == 'USAGE' and len(j['error']['message']) > 8"
}
