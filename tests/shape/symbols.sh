#!/usr/bin/env bash
# What the two libraries give to the linker. BUILD_FOLDER holds them. The
# shared one exports exactly what the public headers declare, both define
# global names with the prefix only, and neither has data that changes.
set -euo pipefail
root=$(cd -- "$(dirname -- "$0")/../.." && pwd -P)
build=${1:?usage: symbols.sh BUILD_FOLDER}
tmp=$(mktemp -d)
trap 'rm -rf -- "$tmp"' EXIT
failed=0

fail()
{
    echo "failed: $1"
    sed 's/^/    /' "$2"
    failed=$((failed + 1))
}

# nothing FILE WHAT
nothing()
{
    [ ! -s "$1" ] || fail "$2" "$1"
}

nm -D --defined-only --format=posix "$build/libfolio.so" | awk '{print $1}' |
    LC_ALL=C sort >"$tmp/exported"
[ -s "$tmp/exported" ] || {
    echo "failed: libfolio.so exports nothing"
    exit 1
}
nm --extern-only --defined-only --format=posix "$build/libfolio.a" |
    awk 'NF > 2 {print $1}' >"$tmp/global"
grep -v '^folio_' "$tmp/exported" >"$tmp/out" || true
nothing "$tmp/out" "libfolio.so exports without the prefix"
grep -v '^folio_' "$tmp/global" >"$tmp/out" || true
nothing "$tmp/out" "libfolio.a defines global names without the prefix"
sort "$tmp/global" | uniq -d >"$tmp/out"
nothing "$tmp/out" "libfolio.a defines twice"

# The functions that the headers mark with FOLIO_API, against the exported
# names: a declaration without a definition is as wrong as an export that no
# header declares. In preprocessed text the mark is its expansion.
for header in "$root"/include/folio/*.h; do
    printf '#include <folio/%s>\n' "$(basename -- "$header")"
done >"$tmp/all.c"
mark='__attribute__((visibility("default")))'
${CC:-cc} -E -P -I"$root/include" "$tmp/all.c" | tr '\n' ' ' | sed "
    s/__attribute__((warn_unused_result))//g
    s/__attribute__((format([^()]*)))//g
    s/$mark/\n&/g" >"$tmp/all.i"
sed -n "s/^$mark[^(;]*[^A-Za-z0-9_(;]\(folio_[A-Za-z0-9_]*\) *(.*/\1/p" \
    "$tmp/all.i" | LC_ALL=C sort -u >"$tmp/declared"
if [ "$(grep -cF "$mark" "$tmp/all.i")" != "$(wc -l <"$tmp/declared")" ]; then
    grep -F "$mark" "$tmp/all.i" | cut -c1-200 >"$tmp/out"
    fail "FOLIO_API is used in a way that this script does not read" "$tmp/out"
fi
LC_ALL=C comm -23 "$tmp/exported" "$tmp/declared" >"$tmp/out"
nothing "$tmp/out" "exported, declared in no public header"
LC_ALL=C comm -13 "$tmp/exported" "$tmp/declared" >"$tmp/out"
nothing "$tmp/out" "declared with FOLIO_API, defined nowhere"

nm -D --undefined-only --format=posix "$build/libfolio.so" |
    awk '/^folio_/ {print $1}' >"$tmp/out"
nothing "$tmp/out" "libfolio.so needs and nobody defines"

# Global mutable state: anything in a writable section but constants that the
# loader relocates.
objdump -t "$build/libfolio.a" |
    awk 'NF < 4 { next }
        { section = $(NF - 1) ~ /^\./ ? $(NF - 3) : $(NF - 2) }
        $NF ~ /^[A-Za-z_]/ && section ~ /^\.t?(data|bss)/ &&
        section !~ /^\.data\.rel\.ro/ {print $NF}' >"$tmp/out"
nothing "$tmp/out" "data that changes"

objdump -h "$build/libfolio.a" | awk '$2 ~ /^\.(init_array|ctors)/' >"$tmp/out"
nothing "$tmp/out" "code that runs when the library is loaded"

soname=$(objdump -p "$build/libfolio.so" | awk '$1 == "SONAME" {print $2}')
version=$(sed -n 's/^#define FOLIO_VERSION_MAJOR *//p' \
    "$root/include/folio/version.h")
[ "$soname" = "libfolio.so.$version" ] || {
    echo "failed: soname is $soname, version.h says major version $version"
    failed=$((failed + 1))
}
echo "libfolio.so exports $(wc -l <"$tmp/exported") functions"
[ $failed = 0 ]
