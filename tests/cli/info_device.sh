#!/usr/bin/env bash
# cl-info's device half: the list, one device, JSON, wrong command lines, a
# machine without drivers. Needs no model.
. "$(dirname -- "${BASH_SOURCE[0]}")/lib.bash"
[ -x "$BIN/cl-info" ] || skip_all "no cl-info in $BIN"

info()
{
    command_ "$BIN/cl-info" "$@"
}

info --help
exits "--help" 0
for option in --device --model --tensors --tensor --row --json --version; do
    has "--help" "$OUT" "$option"
done
info --version
exits "--version" 0
has "--version" "$OUT" "cl-info "

wrong()
{
    info "$@"
    exits "$*" 2
    case " $* " in
    *" --json "*) json "$*" "j['error']['code'] == 'USAGE'" ;;
    *) empty "$*" "$OUT" ;;
    esac
    is "$* is explained" "$([ -s "$ERR" ] && echo yes)" yes
}
wrong --bogus
wrong something
wrong --device
wrong --json=yes
wrong --json --json
wrong --tensors
wrong --row 1
wrong --tensor x
wrong --device host -m x.gguf
wrong -m x.gguf --row 1
wrong -m x.gguf --tensor t --row -1
wrong -m x.gguf --tensor t --row 1x

info
exits "list" 0
has "list" "$OUT" "folio "
has "list" "$OUT" "OpenCL loader: /"
has "list" "$OUT" "GPU nodes:"
has "list" "$OUT" "host: C"
info --json
exits "list --json" 0
json "list --json" "fields(j) >= {'version', 'commit', 'loader', 'gpu_nodes',
    'environment', 'devices', 'note'} and
    [d['index'] for d in j['devices']] == list(range(len(j['devices'])))"

info --device host
exits "host" 0
has "host" "$OUT" "OpenCL loader: not used"
has "host names variants" "$OUT" "linear"
info --device host --json
exits "host --json" 0
json "host --json" "j['loader'] is None and j['device']['index'] is None and
    j['device']['kind'] == 'host' and j['device']['capabilities'] == [] and
    len(j['device']['variants']) > 10 and
    all(set(v) == {'op', 'case', 'variant', 'reason'} for v in
        j['device']['variants'])"

for d in 99 -1 nothing-like-it ''; do
    info --device "$d"
    exits "device '$d'" 15
    has "device '$d' shows the table" "$ERR" "devices: host"
    info --device "$d" --json
    exits "device '$d' --json" 15
    json "device '$d' --json" "j['error']['code'] == 'NO_DEVICE'"
    empty "device '$d' --json" "$ERR"
done

OCL_ICD_VENDORS=/nonexistent info
exits "no drivers" 0
has "no drivers" "$OUT" "/nonexistent cannot be read"
OCL_ICD_VENDORS=/nonexistent info --json
json "no drivers --json" "j['devices'] == [] and 'install' in j['note'] and
    j['environment']['OCL_ICD_VENDORS'] == '/nonexistent'"
OCL_ICD_VENDORS=/nonexistent info --device auto --json
exits "no drivers, auto" 0
json "no drivers, auto" "j['device']['kind'] == 'host'"
FOLIO_CAPS_MASK=nonsense info --device host
exits "FOLIO_CAPS_MASK" 11
has "FOLIO_CAPS_MASK" "$ERR" nonsense
for switch in FOLIO_TUNE FOLIO_PACKING FOLIO_ADDRESSES; do
    command_ env "$switch=nonsense" "$BIN/cl-info" --device host
    exits "$switch" 11
    has "$switch" "$ERR" "$switch=nonsense is not"
    # Every switch is named to the user.
    has "$switch in README" "$HERE/../../README.md" "\`$switch="
done

# PoCL, where it is.
info --json
if ! grep -q "Portable Computing Language" "$OUT"; then
    skip "PoCL" "no PoCL among the devices here"
    [ "${CI-}" != true ] || FAILED=$((FAILED + 1))
else
    info --device pocl --json
    exits "pocl" 0
    json "pocl" "j['device']['kind'] == 'CPU driver' and
        'cpu' in j['device']['capabilities'] and
        'gpu' not in j['device']['capabilities'] and
        all(v['variant'] for v in j['device']['variants'])"
    FOLIO_CAPS_MASK=fma info --device pocl --json
    json "pocl without fma" "'fma' not in j['device']['capabilities']"
    FOLIO_MAX_ALLOC=65536 info --device pocl --json
    json "pocl, small buffers" "j['device']['max_alloc_bytes'] == 65536"
    info --device pocl
    exits "pocl, text" 0
    has "pocl, text" "$OUT" "capabilities, proven by running: cpu"
fi
finish
