#!/usr/bin/env bash
# Installs BUILD_FOLDER into a prefix, moves the prefix, and builds the
# programs of this folder against it: by CMake and by pkg-config, static and
# shared, in paths with a blank. Each is run from / and through a link.
set -euo pipefail
here=$(cd -- "$(dirname -- "$0")" && pwd -P)
root=$(cd -- "$here/../.." && pwd -P)
build=${1:?usage: moved-prefix.sh BUILD_FOLDER}
for tool in cmake ninja pkg-config; do
    command -v $tool >/dev/null || { echo "SKIP: no $tool"; exit 77; }
done
tmp=$(mktemp -d)
trap 'rm -rf -- "$tmp"' EXIT
work="$tmp/a place" prefix="$tmp/a place/moved here"
mkdir -p -- "$work"
passed=0 failed=0

# check NAME COMMAND...; the next check may look at $tmp/said.
check()
{
    local name=$1
    shift
    if "$@" >"$tmp/saying" 2>&1; then
        passed=$((passed + 1))
    else
        echo "failed: $name"
        sed 's/^/    /' "$tmp/saying"
        failed=$((failed + 1))
    fi
    mv -- "$tmp/saying" "$tmp/said"
}

fails()
{
    ! "$@"
}

cmake --install "$build" --prefix "$tmp/first prefix" >/dev/null
mv -- "$tmp/first prefix" "$prefix"
libdir=$(dirname -- "$(find "$prefix" -name libfolio.a)")
export PKG_CONFIG_PATH=$libdir/pkgconfig

# Nothing that a build reads may remember where it came from.
no_old_paths()
{
    ! grep -rIF -e "$root" -e "$tmp/first prefix" -e "$build" "$prefix"
}
check "no old paths in the prefix" no_old_paths

# tells STATUS WORDS COMMAND...: how it ends, and what it says on stderr.
tells()
{
    local status=$1 words=$2 rc=0
    shift 2
    "$@" 2>"$tmp/told" || rc=$?
    cat -- "$tmp/told"
    [ $rc = "$status" ] && grep -qF -- "$words" "$tmp/told"
}

links_shared()
{
    LD_LIBRARY_PATH=$libdir ldd "$1" |
        grep -F "$libdir/libfolio.so" >/dev/null
}

# run_all FOLDER LABEL: every program, from / and through a link elsewhere.
run_all()
{
    local file name program
    for file in "$here"/*.c; do
        name=$(basename -- "$file" .c) program="$1/$name"
        local args=()
        local second=()
        [ "$name" != engine ] || second=(b)
        if [ "$name" = answer ] || [ "$name" = engine ]; then
            check "$2: $name alone" tells 2 "usage: $name MODEL" "$program"
            check "$2: $name without its model" tells 1 "$tmp/none" \
                "$program" "$tmp/none" a "${second[@]}"
            [ -n "${FOLIO_TEST_MODEL-}" ] || continue
            args=("$FOLIO_TEST_MODEL" "The capital of France is")
        fi
        [ "$name" != engine ] || args+=("Gravity is")
        ln -sfn -- "$program" "$tmp/link-$name"
        check "$2: $name from /" env -C / "$program" "${args[@]}"
        check "$2: $name through a link" env -C / "$tmp/link-$name" "${args[@]}"
        if [ "$name" = answer ]; then
            check "$2: what answer prints" grep -q "^ Paris" "$tmp/said"
        fi
        if [ "$name" = engine ]; then
            # One look: each check writes what it says over the last.
            check "$2: what engine prints" awk \
                '/^The capital of France is Paris/ { a = 1 }
                 /^Gravity is a fundamental/ { b = 1 }
                 END { exit !(a && b) }' "$tmp/said"
        fi
        if [ "$name" = paging ]; then
            check "$2: what paging prints" grep -qx \
                "folio $version, copy 1 to 2, slots 0 1 2 3 8 9 10" "$tmp/said"
        fi
        case $2 in
        *static*) check "$2: $name is static" fails links_shared "$program" ;;
        *) check "$2: $name is shared" links_shared "$program" ;;
        esac
    done
}
version=$(pkg-config --modversion folio)

for kind in static shared; do
    static=OFF
    [ $kind = shared ] || static=ON
    out="$work/cmake $kind"
    check "cmake $kind: configure" cmake -S "$here" -B "$out" -G Ninja \
        -DFOLIO_USE_STATIC=$static -DCMAKE_PREFIX_PATH="$prefix"
    check "cmake $kind: build" cmake --build "$out"
    run_all "$out" "cmake $kind"

    out="$work/pkg-config $kind"
    check "pkg-config $kind: build" bash "$here/build-with-pkg-config" $kind \
        "$out"
    LD_LIBRARY_PATH=$libdir run_all "$out" "pkg-config $kind"
done

# The shared library asks nothing of whoever links it.
printf '%s\n' 'cmake_minimum_required(VERSION 3.22)' 'project(x LANGUAGES C)' \
    'find_package(folio 0.1 REQUIRED COMPONENTS ${WANT})' >"$tmp/CMakeLists.txt"
bare=(cmake -S "$tmp" -G Ninja -DCMAKE_PREFIX_PATH="$prefix"
    -DCMAKE_DISABLE_FIND_PACKAGE_OpenCL=ON)
check "shared without its dependencies" "${bare[@]}" -B "$tmp/1" -DWANT=shared
check "static without its dependencies" fails "${bare[@]}" -B "$tmp/2" \
    -DWANT=static
check "the reason names what is missing" grep -q 'this machine lacks: OpenCL' \
    "$tmp/said"
sed -i 's/folio 0.1/folio 99/' "$tmp/CMakeLists.txt"
check "a version too high" fails "${bare[@]}" -B "$tmp/3" -DWANT=shared

# Programs travel with the prefix too.
for program in "$prefix"/bin/*; do
    [ ! -e "$program" ] || check "$(basename -- "$program") --version from /" \
        env -C / "$program" --version
done

echo "$passed passed, $failed failed, 0 skipped"
[ $failed = 0 ]
