#!/usr/bin/env bash
# cl-info --device host opens nothing of OpenCL: no ICD file is read, no driver
# is loaded, no GPU is touched. The loader itself is linked in. Needs no model.
. "$(dirname -- "${BASH_SOURCE[0]}")/lib.bash"
[ -x "$BIN/cl-info" ] || skip_all "no cl-info in $BIN"
command -v strace >/dev/null || skip_all "strace is not installed"
strace -o /dev/null true 2>/dev/null ||
    { echo "SKIP: this machine does not let strace work"; exit 77; }

trace()
{
    command_ strace -f -o "$T/trace" -e trace=file "$@"
}

for choice in "--device host" "FOLIO_DEVICE=host --device host"; do
    if [ "${choice%%=*}" = FOLIO_DEVICE ]; then
        FOLIO_DEVICE=host trace "$BIN/cl-info" --device HOST --json
    else
        trace "$BIN/cl-info" --device host
    fi
    exits "$choice" 0
    # The trace is of this program, and from its very start.
    has "$choice is traced" "$T/trace" "$BIN/cl-info"
    for word in OpenCL/vendors .icd libpocl libnvidia libintelocl \
        RusticlOpenCL MesaOpenCL libLLVM /dev/dri/render /dev/nvidia; do
        # cl-info itself asks which GPU nodes are there; it opens none.
        if grep -F -- "$word" "$T/trace" | grep -E 'open(at)?\(' >/dev/null; then
            fail "$choice" "opens $word"
        else
            pass
        fi
    done
done

# The same trace does show a driver where one may be looked for.
trace "$BIN/cl-info"
exits "the list" 0
has "the trace would show it" "$T/trace" "vendors"
finish
