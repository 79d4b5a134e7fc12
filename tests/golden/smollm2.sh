#!/usr/bin/env bash
# tests/golden/smollm2.sh BUILD_FOLDER DEVICE [--smoke]: SmolLM2's goldens on a
# device. With the default arithmetic and K and V in float16 all of them. Then
# the far tighter limits of --exact --kv f32, all on the host and a part
# elsewhere, and on the host, whose default has 8-bit activations, a part with
# --exact alone. --smoke: a part, in the default arithmetic only. Counts are
# those of run_goldens.py.
. "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/lib.bash"
use_model FOLIO_TEST_MODEL SmolLM2-135M-Instruct.Q4_1.gguf

rc=0
if [ "$smoke" = --smoke ]; then
    goldens --quick || rc=1
else
    goldens || rc=1
    if [ "$device" = host ]; then
        goldens --exact --kv f32 || rc=1
        goldens --exact --quick --nll || rc=1
    else
        goldens --exact --kv f32 --quick --nll || rc=1
    fi
fi
exit $rc
