#!/usr/bin/env bash
# The covering list of folio-check is what its script makes.
set -euo pipefail
cd -- "$(dirname -- "$0")/../check"
command -v python3 >/dev/null || { echo "SKIP: python3 is not installed"; exit 77; }
python3 make_covering.py | diff -u covering.def - >&2 || {
    echo "covering.def differs: run make_covering.py > covering.def"
    exit 1
}
