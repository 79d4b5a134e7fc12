#!/usr/bin/env bash
# tests/golden/gemma3.sh BUILD_FOLDER DEVICE [--smoke]: Gemma 3's goldens on a
# device: the cases whose logits show whether the window is right, with the
# tight limits of --exact --kv f32 and, the last of them, in the default
# arithmetic. --smoke: that one only. The rest is run by hand (run_goldens.py).
set -u
here=$(cd -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")" && pwd -P)
build=${1:?build folder} device=${2:?device} smoke=${3-}
model=${FOLIO_TEST_GEMMA3:-${XDG_CACHE_HOME:-${HOME-}/.cache}/folio/models/gemma-3-270m-q4_k_m.gguf}
if [ ! -f "$model" ]; then
    echo "SKIP: no model: neither FOLIO_TEST_GEMMA3 nor the cache folder has one"
    [ "${CI-}" != true ] || exit 1
    exit 77
fi
[ ! -d "$build/tools" ] || build=$build/tools
unset FOLIO_DEVICE FOLIO_CAPS_MASK FOLIO_MAX_ALLOC FOLIO_DISABLE

goldens()
{
    python3 "$here/run_goldens.py" --bin "$build" --model "$model" \
        --device "$device" "$@"
}

rc=0
[ "$smoke" = --smoke ] || goldens --exact --kv f32 --only short-english \
    --only exact-512 --only exact-513 || rc=1
goldens --only exact-513 || rc=1
exit $rc
