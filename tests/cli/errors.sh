#!/usr/bin/env bash
# Files that are no model, in less than a second, with an error that tells the
# true cause; on stderr, or as the one JSON object.
. "$(dirname -- "${BASH_SOURCE[0]}")/lib.bash"

# bad NAME CODE WORDS FILE: WORDS must stand in the message.
bad()
{
    fails "$1" "$2" -m "$4" --device host -p Hi -n 1
    quick "$1" 1000
    json "$1 tells the cause" "'''$3''' in j['error']['message']"
}

printf '<!DOCTYPE html>\n<html><body>Not found</body></html>\n' >"$T/page.gguf"
: >"$T/empty.gguf"
mkdir -- "$T/folder"
printf 'tjgg\1\0\0\0\0\0\0\0' >"$T/ggjt.gguf"
printf 'GGUF' >"$T/four.gguf"
printf 'GG' >"$T/two.gguf"
printf 'GGUF\1\0\0\0\0\0\0\0\0\0\0\0' >"$T/v1.gguf"
printf 'GGUF\143\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0' >"$T/v99.gguf"
printf 'FUGG\0\0\0\3\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0' >"$T/big.gguf"
printf 'PK\3\4' >"$T/zip.gguf"
printf '{"error": "not found"}' >"$T/json.gguf"
printf 'version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n' \
    >"$T/lfs.gguf"
head -c 4096 /dev/zero >"$T/zeros.gguf"
# 2^60 tensors in a file of 24 bytes.
printf 'GGUF\3\0\0\0\0\0\0\0\0\0\0\20\0\0\0\0\0\0\0\0' >"$T/many.gguf"
# Metadata of a length that the file does not have.
printf 'GGUF\3\0\0\0\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\377\377\377\377\377\377\377\177' \
    >"$T/key.gguf"
mkfifo -- "$T/pipe.gguf"

bad "missing file" IO "$T/none.gguf" "$T/none.gguf"
bad "web page" FORMAT "web page" "$T/page.gguf"
bad "empty file" FORMAT "empty" "$T/empty.gguf"
bad "folder" IO "folder" "$T/folder"
bad "GGML of 2023" FORMAT "ggjt" "$T/ggjt.gguf"
bad "four bytes" FORMAT "four.gguf" "$T/four.gguf"
bad "two bytes" FORMAT "two.gguf" "$T/two.gguf"
bad "GGUF version 1" UNSUPPORTED "version 1" "$T/v1.gguf"
bad "GGUF version 99" UNSUPPORTED "version 99" "$T/v99.gguf"
bad "big-endian" FORMAT "big-endian" "$T/big.gguf"
bad "ZIP archive" FORMAT "ZIP" "$T/zip.gguf"
bad "JSON" FORMAT "JSON" "$T/json.gguf"
bad "Git LFS pointer" FORMAT "LFS" "$T/lfs.gguf"
bad "zero bytes" FORMAT "zero" "$T/zeros.gguf"
bad "absurd tensor count" FORMAT "tensor" "$T/many.gguf"
bad "absurd key length" FORMAT "key.gguf" "$T/key.gguf"
bad "named pipe" IO "pipe.gguf" "$T/pipe.gguf"
bad "device file" IO "/dev/zero" /dev/zero
bad "a name below a file" IO "page.gguf/x" "$T/page.gguf/x"
if [ "$(id -u)" != 0 ]; then
    : >"$T/secret.gguf"
    chmod 000 "$T/secret.gguf"
    bad "unreadable file" IO "secret.gguf" "$T/secret.gguf"
else
    skip "unreadable file" "root reads every file"
fi

if [ -f "$MODEL" ]; then
    # Cut anywhere: in the header, in the vocabulary, in the tensors.
    size=$(stat -Lc %s -- "$MODEL")
    for at in 20 1000 100000 1500000 3000000 $((size / 2)) $((size - 1)); do
        head -c "$at" -- "$MODEL" >"$T/cut.gguf"
        bad "cut after $at bytes" FORMAT "cut.gguf" "$T/cut.gguf"
    done
    rm -f -- "$T/cut.gguf"
else
    lacking "truncated model" "no model here"
fi

# No -m and no default: says where one comes from.
XDG_CACHE_HOME=$T/nothing run -p Hi
exits "no default model" 13
has "no default model" "$ERR" quickstart
has "no default model" "$ERR" -m
empty "no default model, stdout" "$OUT"

# What belongs to the text and the ids.
if [ -f "$MODEL" ]; then
    fails "prompt file missing" IO -m "$MODEL" --device host -f "$T/none.txt"
    fails "prompt file is a device" IO -m "$MODEL" --tokenize -f /dev/zero
    json "prompt file is a device" "'device' in j['error']['message']"
    fails "prompt file is a folder" IO -m "$MODEL" --tokenize -f "$T/folder"
    json "prompt file is a folder" "'folder' in j['error']['message']"
    truncate -s 1073741825 -- "$T/huge"
    fails "prompt file above 1 GiB" IO -m "$MODEL" --tokenize -f "$T/huge"
    json "prompt file above 1 GiB" "'1 GiB' in j['error']['message']"
    rm -f -- "$T/huge"
    fails "--force without ids" INVAL -m "$MODEL" --device host -p a --force ''
    fails "--force outside the vocabulary" RANGE -m "$MODEL" --device host \
        -p a --force 1,49152
    json "--force outside the vocabulary" "j['error']['message'].count('49152') == 2"
    printf 'some words of text' >"$T/few"
    fails "windows of one id" INVAL -m "$MODEL" --device host \
        --perplexity "$T/few" --ctx 1
    json "windows of one id" "'--perplexity' in j['error']['message'] and
        '--ctx' in j['error']['message']"
    : >"$T/none"
    fails "perplexity of nothing" INVAL -m "$MODEL" --device host \
        --perplexity "$T/none" --ctx 8
    fails "empty prompt" INVAL -m "$MODEL" --device host -p '' -n 1
    for ids in x 1, ,1 1,,2 -1 1.5 '1 2' 99999999999; do
        fails "--ids '$ids'" INVAL -m "$MODEL" --device host --ids "$ids" -n 1
    done
    fails "id outside the vocabulary" INVAL -m "$MODEL" --device host \
        --ids 1,49152 -n 1
    json "id outside the vocabulary" "'49152' in j['error']['message']"
    fails "context above the trained one" TOO_LARGE -m "$MODEL" --device host \
        -p Hi --ctx 8193 -n 1
    json "context above the trained one" "'8193' in j['error']['message'] and
        '8192' in j['error']['message']"
    fails "detokenize a foreign id" INVAL -m "$MODEL" --detokenize --ids 49152
else
    lacking "prompts and ids" "no model here"
fi
finish
