#!/usr/bin/env bash
# tests/golden/gemma3.sh BUILD_FOLDER DEVICE [--smoke]: Gemma 3's goldens on a
# device: the cases whose logits show whether the window is right, with the
# tight limits of --exact --kv f32 and, the last of them, in the default
# arithmetic. --smoke: that one only. The rest is run by hand (run_goldens.py).
. "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/lib.bash"
use_model FOLIO_TEST_GEMMA3 gemma-3-270m-q4_k_m.gguf

rc=0
[ "$smoke" = --smoke ] || goldens --exact --kv f32 --only short-english \
    --only exact-512 --only exact-513 || rc=1
goldens --only exact-513 || rc=1
exit $rc
