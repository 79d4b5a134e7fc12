# tests/golden/lib.bash: what the goldens of each model share. Sourced by each
# tests/golden/*.sh with the script's own arguments, BUILD_FOLDER DEVICE
# [--smoke]; leaves `smoke` and goldens() behind. Knows no model.
set -u
here=$(cd -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")" && pwd -P)
build=${1:?build folder} device=${2:?device} smoke=${3-}
[ ! -d "$build/tools" ] || build=$build/tools
unset FOLIO_DEVICE FOLIO_CAPS_MASK FOLIO_MAX_ALLOC FOLIO_DISABLE

# use_model VARIABLE FILE: the file that VARIABLE names, or FILE of the cache
# folder. Where there is none the script ends as skipped; in CI that is a failure.
use_model()
{
    model=${!1:-${XDG_CACHE_HOME:-${HOME-}/.cache}/folio/models/$2}
    [ ! -f "$model" ] || return 0
    echo "SKIP: no model: neither $1 nor the cache folder has one"
    [ "${CI-}" != true ] || exit 1
    exit 77
}

# goldens [options of run_goldens.py]
goldens()
{
    python3 "$here/run_goldens.py" --bin "$build" --model "$model" \
        --device "$device" "$@"
}
