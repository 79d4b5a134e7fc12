#!/usr/bin/env bash
# Programs with inline PTX assemble for sm_90a, with every matrix sum in
# registers: BUILD_FOLDER's folio-check writes the programs, clang makes PTX of
# them, CUDA's ptxas assembles it. A spill of more than a register or two, or
# products that the assembler puts one behind the other, are a failure. Run by
# hand where CUDA is installed: tests/check/ptx.sh build/release
set -euo pipefail
build=${1:?usage: ptx.sh BUILD_FOLDER}
libclc=/usr/lib/clc/nvptx64--nvidiacl.bc
ptxas=$(command -v ptxas || true)
[ -n "$ptxas" ] || ptxas=/usr/local/cuda/bin/ptxas
for need in "$(command -v clang-15 || true)" "$ptxas" "$libclc"; do
    [ -n "$need" ] && [ -e "$need" ] || {
        echo "SKIP: needs clang-15, libclc-15 and CUDA's ptxas"
        exit 77
    }
done
[ -x "$build/tests/folio-check" ] || {
    echo "SKIP: no folio-check in $build/tests"
    exit 77
}
tmp=$(mktemp -d)
trap 'rm -rf -- "$tmp"' EXIT
"$build/tests/folio-check" --dump-sources "$tmp" >"$tmp/list"

clang=(clang-15 -x cl -Dasm=__asm__ -target nvptx64-nvidia-nvcl -Xclang
    -finclude-default-header -Xclang -mlink-builtin-bitcode -Xclang "$libclc"
    -Xclang -target-feature -Xclang +ptx75
    -w)
passed=0 failed=0
for file in "$tmp"/*.cl; do
    base=${file%.cl} more=()
    read -r -a more <"$base.options" || true
    "${clang[@]}" -cl-std=CL1.2 "${more[@]}" -E -P "$file" -o "$base.i"
    grep -q __asm__ "$base.i" || continue
    # The work-group decides how many registers an item may have.
    entry=$(basename -- "$base")
    entry=${entry#*-}
    items=$(perl -0ne 'print $1 if /reqd_work_group_size\(([^{};]*?),\s*1,\s*1\)
        [^{};]*?void\s+'"$entry"'\s*\(/x' "$base.i")
    items=$((${items:-0}))
    log=$base.log
    if "${clang[@]}" -cl-std=CL1.2 "${more[@]}" -O3 -S "$file" -o "$base.ptx" \
        2>"$log" &&
        perl -pi -e 's/^\.version.*/.version 8.3/; s/^\.target.*/.target sm_90a/;
            $entry = 1 if /^\.entry|\.visible \.entry/;
            if ($entry && /^\)/ && '"$items"') {
                $_ .= ".reqntid '"$items"', 1, 1\n"; $entry = 0 }' \
            "$base.ptx" &&
        "$ptxas" -arch=sm_90a -v "$base.ptx" -o /dev/null >"$log" 2>&1 &&
        ! grep -q '[1-9][0-9][0-9]* bytes spill\|C7510\|Potential Performance' "$log"
    then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "failed: $(basename -- "$file") with ${more[*]}"
        head -n 20 -- "$log"
    fi
    printf '%s: %s\n' "$(basename -- "$base")" \
        "$(sed -n 's/.*Used \(.*\)/\1/p' "$log" | head -n 1)"
done
echo "$passed passed, $failed failed, 0 skipped"
[ $failed = 0 ] && [ $passed -gt 0 ]
