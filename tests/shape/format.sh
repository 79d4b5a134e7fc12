#!/usr/bin/env bash
# Every C and OpenCL file is as clang-format leaves it. Version 14 decides,
# since versions differ.
set -euo pipefail
cd -- "$(dirname -- "$0")/../.."
tool=
for name in clang-format-14 clang-format; do
    if command -v $name >/dev/null &&
        $name --version | grep 'version 14\.' >/dev/null; then
        tool=$name
        break
    fi
done
[ -n "$tool" ] || { echo "SKIP: clang-format 14 is not installed"; exit 77; }

find src include cl tools tests -type f \( -name '*.c' -o -name '*.h' \
    -o -name '*.cl' -o -name '*.clh' \) -print0 |
    xargs -0 -r $tool --style=file --dry-run -Werror
