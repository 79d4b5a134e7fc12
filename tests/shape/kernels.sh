#!/usr/bin/env bash
# Every program that a row of kernels.def builds is valid OpenCL C 1.2 with
# clang's warnings as errors, on exactly the text and options given to drivers:
# BUILD_FOLDER's folio-check --dump-sources DIR writes them, NAME.cl beside
# NAME.options (one line).
set -euo pipefail
build=${1:?usage: kernels.sh BUILD_FOLDER}
command -v clang >/dev/null || { echo "SKIP: clang is not installed"; exit 77; }
[ -x "$build/tests/folio-check" ] || {
    echo "SKIP: no folio-check in $build/tests"
    exit 77
}
tmp=$(mktemp -d)
trap 'rm -rf -- "$tmp"' EXIT
"$build/tests/folio-check" --dump-sources "$tmp"

passed=0 failed=0
for file in "$tmp"/*.cl; do
    [ -e "$file" ] || { echo "failed: no program was written"; exit 1; }
    options=(-cl-std=CL1.2)
    if [ -s "${file%.cl}.options" ]; then
        read -r -a more <"${file%.cl}.options" || true
        options+=("${more[@]}")
    fi
    # Inline PTX is GNU syntax, and only its own target knows its registers;
    # 64-bit device pointers as on every GPU.
    target=spir64-unknown-unknown
    if clang -x cl -E -Dasm=__asm__ "${options[@]}" "$file" |
        grep '__asm__ volatile' >/dev/null; then
        target=nvptx64-nvidia-nvcl
        # What loads and stores halves is core, but clang's header knows it for
        # this target only with their arithmetic.
        options+=(-Xclang -cl-ext=+cl_khr_fp16)
    fi
    if clang -x cl -target $target -Xclang \
        -finclude-default-header -Dasm=__asm__ -fsyntax-only -Wall -Wextra \
        -Wno-unused-parameter -Wno-unused-function -Werror \
        "${options[@]}" "$file"; then
        passed=$((passed + 1))
    else
        echo "failed: $(basename -- "$file") with ${options[*]}"
        failed=$((failed + 1))
    fi
done
echo "$passed passed, $failed failed, 0 skipped"
[ $failed = 0 ]
