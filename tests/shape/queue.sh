#!/usr/bin/env bash
# How tools/test runs its stages, with stages that do nothing but pass, fail,
# hang, die or skip, and with stand-ins for the builds: what runs side by side
# and what never does, the counts, Ctrl-C.
set -euo pipefail
root=$(cd -- "$(dirname -- "$0")/../.." && pwd -P)
ls /etc/OpenCL/vendors/*.icd >/dev/null 2>&1 || {
    echo "SKIP: tools/test asks for a driver of OpenCL, and none is here"
    exit 77
}
tmp=$(mktemp -d)
trap 'rm -rf -- "$tmp"' EXIT
passed=0 failed=0
tree="$tmp/a tree" stubs=$tmp/stubs
mkdir -p -- "$tree"/{tools,tests/shape,tests/cli} "$stubs"
export SAW=$tmp/saw

expect()
{
    local name=$1
    shift
    if "$@"; then
        passed=$((passed + 1))
    else
        echo "failed: $name"
        sed 's/^/    /' "$tmp/said"
        failed=$((failed + 1))
    fi
}

fails()
{
    ! "$@"
}

cp -- "$root/tools/lib.sh" "$tree/tools/lib.sh"
sed 's/limit 900 bash/limit 2 bash/' "$root/tools/test" >"$tree/tools/test"
: >"$tmp/said"
expect "the limit of scripts is shorter here" fails cmp -s \
    "$root/tools/test" "$tree/tools/test"

cat >"$stubs/dpkg-query" <<'END'
#!/usr/bin/env bash
while [ "$1" != -- ]; do shift; done
shift
printf 'installed %s\n' "$@"
END
printf '#!/bin/sh\n' >"$stubs/cmake"
# Two builds in one folder would meet in here.
cat >"$stubs/ninja" <<'END'
#!/usr/bin/env bash
name=$(basename -- "$2")
mkdir "$SAW/$name" || { echo "two builds at once" >>"$SAW/wrong"; exit 1; }
sleep 0.1
echo "built $name" >>"$SAW/events"
rmdir "$SAW/$name"
END

# stage NAME: its script, from the input; the events tell when it ran.
stage()
{
    {
        printf '%s\n' '#!/usr/bin/env bash' 'name=$(basename -- "$0" .sh)' \
            'echo "+$name" >>"$SAW/events"' \
            "trap 'echo \"-\$name\" >>\"\$SAW/events\"' EXIT"
        cat
    } >"$tree/tests/$1.sh"
}
# meet OTHER: waits until the other is running too.
meet='for ((i = 0; i < 100; i++)); do
    ! grep -qx -- "+$other" "$SAW/events" || { echo "3 passed, 0 failed"; exit 0; }
    sleep 0.1
done
exit 1'
stage shape/left <<<"other=right
$meet"
stage shape/right <<<"other=left
$meet"
stage shape/good <<<'echo "5 passed, 0 failed, 2 skipped"'
stage shape/bad <<<'echo "broken on purpose"; echo "1 passed, 2 failed"; exit 1'
stage shape/liar <<<'echo "1 passed, 1 failed, 0 skipped"'
stage shape/lacking <<<'echo "SKIP: nothing of the kind"; exit 77'
stage shape/hangs <<<'sleep 1000'
stage shape/stuck <<<'trap "" TERM INT; echo $$ >"$SAW/stuck"
while :; do sleep 1000 & echo $! >"$SAW/sleep"; wait $!; done'
stage cli/interrupt <<<'sleep 0.2'
stage cli/other <<<'sleep 0.2'
# Kills what would have told of its end: the leader of the stage's group, which
# is not that of timeout, its parent.
stage shape/dies <<'END'
field() { cut -d' ' -f"$1" <<<"$(sed 's/.*) //' /proc/$2/stat)"; }
kill -KILL "$(field 3 "$(field 2 "$PPID")")"
sleep 0.1
END
chmod +x "$stubs"/* "$tree/tools/test"

# runs STATUS ARGS...: tools/test there, which must end so.
runs()
{
    local want=$1 rc=0
    shift
    rm -rf -- "$SAW"
    mkdir -- "$SAW"
    PATH=$stubs:$PATH CI=${FAKE_CI:-false} timeout 120 "$tree/tools/test" "$@" \
        >"$tmp/said" 2>&1 || rc=$?
    [ $rc = "$want" ]
}

said()
{
    grep -qE -- "$1" "$tmp/said"
}

last()
{
    [ "$(tail -n 1 -- "$tmp/said")" = "$1" ]
}

events()
{
    [ "$(grep '^[-+]' "$SAW/events" | tr '\n' ' ')" = "$1" ]
}

for jobs in 0 -1 x 1.5 ''; do
    expect "--jobs '$jobs' is refused" runs 2 --jobs "$jobs"
done
expect "--list" runs 0 --list
expect "names stages" said '^shape/dies$'
expect "a pattern without a stage" runs 1 --stage 'no-*'

for jobs in 1 4; do
    s="--jobs $jobs"
    expect "$s" runs 1 --jobs $jobs --stage 'shape/[bglhd]*d' \
        --stage shape/liar --stage shape/lacking --stage shape/hangs \
        --stage shape/dies
    expect "$s, good" said '^ok    shape/good .* 5 passed, 0 failed, 2 skipped$'
    expect "$s, bad" said '^FAIL  shape/bad .* 1 passed, 2 failed, 0 skipped$'
    expect "$s, its words" said '^      \| broken on purpose$'
    expect "$s, liar" said '^FAIL  shape/liar .* 1 passed, 1 failed'
    expect "$s, lacking" said '^skip  shape/lacking .* 0 failed, 1 skipped$'
    expect "$s, its reason" said '^      nothing of the kind$'
    expect "$s, hangs" said '^FAIL  shape/hangs .* 0 passed, 1 failed'
    expect "$s, its limit" said 'stopped after 2 s'
    expect "$s, dies" said '^FAIL  shape/dies .* 1 failed'
    expect "$s, who failed" said '^failed stages: .*shape/dies'
    expect "$s, each once" test "$(grep -cE '^(ok|FAIL|skip) +shape/' \
        "$tmp/said")" = 6
    expect "$s, the sum" last "7 passed, 5 failed, 3 skipped"
    expect "$s, builds in turn" test ! -e "$SAW/wrong"
done
FAKE_CI=true expect "lacking in CI" runs 1 --stage shape/lacking
expect "is a failure" last "0 passed, 1 failed, 0 skipped"

expect "two meet" runs 0 --jobs 2 --stage shape/left --stage shape/right
expect "and both count" last "6 passed, 0 failed, 0 skipped"
expect "one after the other" runs 0 --jobs 1 --stage shape/good --stage cli/other
expect "do not overlap" events "+good -good +other -other "
expect "a stage named twice" runs 0 --stage shape/good --stage 'shape/goo*'
expect "runs once" events "+good -good "
expect "one that measures time" runs 0 --jobs 4 --stage cli/interrupt \
    --stage cli/other --stage shape/good
expect "runs last" test "$(tail -n 2 -- "$SAW/events" | tr '\n' ' ')" = \
    "+interrupt -interrupt "
expect "users of a build" runs 0 --jobs 4 --stage shape/good \
    --stage build-release --stage build-dev
expect "wait for it" grep -qx 'built release' <(sed '/^+good/,$d' "$SAW/events")

# Signals: a background job of a script ignores SIGINT unless told otherwise.
alive()
{
    local pid
    for pid in $(cat -- "$SAW/stuck" "$SAW/sleep"); do
        # One that nobody has waited for yet is dead all the same.
        ! grep -qs '^State:[[:space:]]*[^ZX[:space:]]' /proc/$pid/status ||
            return 0
    done
    return 1
}
for signal in INT TERM; do
    rm -rf -- "$SAW"
    mkdir -- "$SAW"
    PATH=$stubs:$PATH CI=false python3 -c 'import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])' "$tree/tools/test" --jobs 2 \
        --stage shape/stuck --stage shape/hangs >"$tmp/said" 2>&1 </dev/null &
    pid=$!
    for ((i = 0; i < 100; i++)); do
        [ ! -s "$SAW/sleep" ] || break
        sleep 0.1
    done
    kill -$signal $pid 2>/dev/null || true
    rc=0
    start=$SECONDS
    wait $pid 2>/dev/null || rc=$?
    expect "$signal ends it" test "$rc" = $((128 + $(kill -l $signal)))
    expect "$signal: soon" test $((SECONDS - start)) -lt 10
    expect "$signal: and what runs" fails alive
    expect "$signal: it says what" said '^stopped: .*shape/stuck'
done

# The end of a stage in two pieces, with a pause between them that is longer
# than a wait.
mkfifo "$tmp/ends"
(
    eval "$(sed -n '/^report_next()/,/^}/p' "$root/tools/test")"
    declare -A PIDS=()
    report() { echo "$1 ended with $2"; }
    exec 3<>"$tmp/ends"
    (
        printf '0 cli/so' >&3
        sleep 1.5
        printf 'me\n77 other\n' >&3
    ) &
    report_next
    report_next
) >"$tmp/said" 2>&1
expect "an end in two pieces" said '^cli/some ended with 0$'
expect "and the one behind it" said '^other ended with 77$'

echo "$passed passed, $failed failed, 0 skipped"
[ $failed = 0 ]
