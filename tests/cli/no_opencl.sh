#!/usr/bin/env bash
# Machines without OpenCL: one clear line, and the host answers.
. "$(dirname -- "${BASH_SOURCE[0]}")/lib.bash"
need_model

mkdir -- "$T/none" "$T/broken"
printf 'libnowhere-to-be-found.so\n' >"$T/broken/x.icd"
printf '/nonexistent/libgone.so.1\n' >"$T/broken/y.icd"
for place in /nonexistent "$T/none" "$T/broken"; do
    name="OCL_ICD_VENDORS=${place#"$T/"}" advice=install
    # A driver is named but not there: that is what must be said.
    [ "$place" != "$T/broken" ] || advice="library is missing"
    OCL_ICD_VENDORS=$place OCL_ICD_FILENAMES='' \
        run -m "$MODEL" -p "Gravity is" -n 4
    exits "$name" 0
    is "$name answers" "$([ -s "$OUT" ] && echo yes)" yes
    has "$name says what computes" "$ERR" "host"
    has "$name says what to install" "$ERR" "$advice"
    is "$name, in one line" "$(grep -c "$advice" "$ERR")" 1
    lacks "$name is no error" "$ERR" "error:"
    OCL_ICD_VENDORS=$place run -m "$MODEL" -p "Gravity is" -n 4 --json
    exits "$name --json" 0
    json "$name --json" "'host' in j['device'] and j['n_new'] == 4"
    OCL_ICD_VENDORS=$place run -m "$MODEL" -p Hi -n 1 --device 0
    exits "$name, a device asked for" 15
    has "$name, a device asked for" "$ERR" "$advice"
done

# --device host opens nothing of OpenCL. The loader itself is linked in.
if ! command -v strace >/dev/null; then
    lacking "strace" "strace is not installed"
elif ! strace -o /dev/null true 2>/dev/null; then
    skip "strace" "this machine does not let strace work"
else
    calls=open,openat,access,faccessat,faccessat2,stat,newfstatat,statx,readlink
    command_ strace -f -o "$T/trace" -e trace=$calls \
        "$BIN/cl-decode" -m "$MODEL" --device host -p "Gravity is" -n 2
    # Kernels older than faccessat2 know fewer names.
    if grep -q 'invalid system call' "$ERR"; then
        command_ strace -f -o "$T/trace" -e trace=file \
            "$BIN/cl-decode" -m "$MODEL" --device host -p "Gravity is" -n 2
    fi
    exits "under strace" 0
    has "strace sees files" "$T/trace" "$(basename -- "$MODEL")"
    for word in OpenCL/vendors .icd libpocl libnvidia libintelocl rusticl \
        /dev/dri /dev/nvidia; do
        lacks "--device host" "$T/trace" "$word"
    done
    # The same trace does show a driver where one is asked for.
    command_ strace -f -o "$T/trace" -e trace=$calls \
        "$BIN/cl-decode" -m "$MODEL" --device no-such-device -p Hi -n 1
    has "the trace would show it" "$T/trace" "vendors"
fi
finish
