#!/usr/bin/env bash
# Where it runs from and where its files lie: any folder, links, blanks, names
# that are not ASCII, no HOME, a cache that cannot be written.
. "$(dirname -- "${BASH_SOURCE[0]}")/lib.bash"
need_model
host -p "Gravity is" -n 6
exits "at home" 0
cp -- "$OUT" "$T/answer"

# same NAME: the run before gave the same answer.
same()
{
    exits "$1" 0
    if cmp -s "$OUT" "$T/answer"; then pass; else fail "$1" "another answer"; fi
}
ask=(--device host -p "Gravity is" -n 6)

cd /
host -p "Gravity is" -n 6
same "from /"
mkdir -- "$T/a folder"
cp -- "$BIN/cl-decode" "$T/a folder/cl decode"
command_ "$T/a folder/cl decode" -m "$MODEL" "${ask[@]}"
same "program in a path with a blank"
ln -s -- "$BIN/cl-decode" "$T/link"
command_ "$T/link" -m "$MODEL" "${ask[@]}"
same "program through a link"
cd -- "$T/a folder" || exit 1
PATH=$BIN:$PATH command_ cl-decode -m "$MODEL" "${ask[@]}"
same "program from PATH"

for name in "a folder/a model.gguf" "modèle – 模型 🙂.gguf" $'raw \377\376.gguf' \
    "'quoted' \$name;x.gguf" "-m.gguf"; do
    ln -sf -- "$(readlink -f -- "$MODEL")" "$T/$name"
    run -m "$T/$name" "${ask[@]}"
    same "model called '$name'"
done
run -m "$T/modèle – 模型 🙂.gguf" "${ask[@]}" --json
json "its name in JSON" "j['model']['file'].endswith('模型 🙂.gguf')"
run -m "$T"/raw*.gguf "${ask[@]}" --json
exits "a name that is not UTF-8 in JSON" 0
json "a name that is not UTF-8 in JSON" "'\ufffd' in j['model']['file']"
run -m "$T/no"$'\377'"ne.gguf" -p Hi --json
json "a name that is not UTF-8 in an error" "j['error']['code'] == 'IO'"

# A relative name, and the current folder gone.
ln -sf -- "$(readlink -f -- "$MODEL")" "$T/here.gguf"
cd -- "$T" || exit 1
run -m here.gguf "${ask[@]}"
same "relative model"
mkdir -- "$T/gone"
cd -- "$T/gone" || exit 1
rmdir -- "$T/gone"
host -p "Gravity is" -n 6
same "the current folder gone"
cd /

# The default model, by either variable.
mkdir -p -- "$T/xdg/folio/models" "$T/home/.cache/folio/models"
ln -s -- "$(readlink -f -- "$MODEL")" "$T/xdg/folio/models/$MODEL_FILE"
ln -s -- "$(readlink -f -- "$MODEL")" "$T/home/.cache/folio/models/$MODEL_FILE"
XDG_CACHE_HOME=$T/xdg HOME=/nonexistent run "${ask[@]}"
same "model in XDG_CACHE_HOME"
command_ env -u XDG_CACHE_HOME HOME="$T/home" "$BIN/cl-decode" "${ask[@]}"
same "model in HOME/.cache"
command_ env -u XDG_CACHE_HOME -u HOME "$BIN/cl-decode" -m "$MODEL" "${ask[@]}"
same "no HOME"
command_ env -u XDG_CACHE_HOME -u HOME "$BIN/cl-decode" "${ask[@]}"
exits "no HOME and no model" 13
command_ env -i "$BIN/cl-decode" -m "$MODEL" "${ask[@]}"
same "empty environment"

# Caches for kernels: only a device that compiles has one.
OCL=(env -u XDG_CACHE_HOME -u FOLIO_CACHE_DIR HOME="$T/home")
run -m "$MODEL" --device none-of-them -p Hi -n 1
if ! grep -q 'Portable Computing Language' "$ERR"; then
    lacking "kernel cache" "no PoCL among the devices here"
    finish
fi
LIMIT=300
pocl=(-m "$MODEL" --device pocl -p "Gravity is" -n 6 --json)
command_ "${OCL[@]}" "$BIN/cl-decode" "${pocl[@]}"
exits "PoCL" 0
ids=$(value "j['ids']")
is "PoCL leaves a cache" "$([ -n "$(find "$T/home/.cache/folio" -type f \
    -not -path '*/models/*' | head -n 1)" ] && echo yes)" yes

# pocl_same NAME
pocl_same()
{
    exits "$1" 0
    is "$1" "$(value "j['ids']")" "$ids"
}
command_ "${OCL[@]}" "$BIN/cl-decode" "${pocl[@]}"
pocl_same "with the cache"
# Every entry damaged: rebuilt, not believed.
find "$T/home/.cache/folio" -type f -not -path '*/models/*' \
    -exec sh -c 'for f; do printf damaged | dd of="$f" bs=1 seek=40 conv=notrunc 2>/dev/null; done' sh {} +
command_ "${OCL[@]}" "$BIN/cl-decode" "${pocl[@]}"
pocl_same "damaged cache"
find "$T/home/.cache/folio" -type f -not -path '*/models/*' \
    -exec sh -c 'for f; do : >"$f"; done' sh {} +
command_ "${OCL[@]}" "$BIN/cl-decode" "${pocl[@]}"
pocl_same "emptied cache"

# Places that cannot be written; root writes everywhere but on these.
: >"$T/file"
FOLIO_CACHE_DIR=$T/file/below run "${pocl[@]}"
pocl_same "cache below a file"
FOLIO_CACHE_DIR=/proc/folio run "${pocl[@]}"
pocl_same "cache in /proc"
command_ env -u XDG_CACHE_HOME -u FOLIO_CACHE_DIR -u HOME "$BIN/cl-decode" \
    "${pocl[@]}"
pocl_same "no HOME for the cache"
if [ "$(id -u)" != 0 ]; then
    mkdir -- "$T/closed"
    chmod 555 "$T/closed"
    FOLIO_CACHE_DIR=$T/closed/x run "${pocl[@]}"
    pocl_same "read-only cache"
else
    skip "read-only cache" "root writes there all the same"
fi
mkdir -- "$T/small"
if [ "$(id -u)" = 0 ] &&
    mount -t tmpfs -o size=1m tmpfs "$T/small" 2>/dev/null; then
    head -c 1000000 /dev/zero >"$T/small/fill"
    FOLIO_CACHE_DIR=$T/small/cache run "${pocl[@]}"
    pocl_same "full cache"
    FOLIO_CACHE_DIR=$T/small/cache run "${pocl[@]}"
    pocl_same "full cache, again"
    umount -- "$T/small"
else
    skip "full cache" "no tmpfs can be mounted here"
fi
finish
