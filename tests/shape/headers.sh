#!/usr/bin/env bash
# Every public header compiles alone, as strict C11 and as C++, twice in a row,
# and without any OpenCL header; every function in it has a comment of its own.
set -euo pipefail
root=$(cd -- "$(dirname -- "$0")/../.." && pwd -P)
tmp=$(mktemp -d)
trap 'rm -rf -- "$tmp"' EXIT
passed=0 failed=0

strict=(-fsyntax-only -Wall -Wextra -Wpedantic -Wshadow -Wundef -Werror
    -I"$root/include")

# try NAME COMMAND...
try()
{
    local name=$1
    shift
    if "$@"; then
        passed=$((passed + 1))
    else
        echo "failed: $name"
        failed=$((failed + 1))
    fi
}

compilers=()
for cc in gcc clang; do
    ! command -v $cc >/dev/null || compilers+=($cc)
done
[ ${#compilers[@]} -gt 0 ] || { echo "SKIP: neither gcc nor clang"; exit 77; }

for header in "$root"/include/folio/*.h; do
    name=folio/$(basename -- "$header")
    printf '#include <%s>\n#include <%s>\n' "$name" "$name" >"$tmp/alone.c"
    cp -- "$tmp/alone.c" "$tmp/alone.cpp"
    for cc in "${compilers[@]}"; do
        try "$name as C11 ($cc)" $cc -std=c11 -Wstrict-prototypes \
            "${strict[@]}" "$tmp/alone.c"
    done
    if command -v g++ >/dev/null; then
        try "$name as C++11" g++ -std=c++11 "${strict[@]}" "$tmp/alone.cpp"
    elif [ "${CI-}" = true ]; then
        echo "failed: g++ is not installed"
        failed=$((failed + 1))
    fi
    lacking=$(awk '/^FOLIO_(API|NODISCARD)/ && before !~ /\*\/$/ { print FNR }
        { before = $0 }' "$header")
    try "$name, lines of functions without a comment: ${lacking//$'\n'/ }" \
        test -z "$lacking"
    if ${compilers[0]} -M -I"$root/include" "$tmp/alone.c" |
        grep -qE '/CL/|clblast'; then
        echo "failed: $name draws in OpenCL headers"
        failed=$((failed + 1))
    fi
done

echo "$passed passed, $failed failed, 0 skipped"
[ $failed = 0 ]
