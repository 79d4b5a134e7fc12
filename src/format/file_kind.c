/* format/file_kind.c: recognises what users open by mistake, so that the error
 * tells the true cause. Looks at the first bytes only and never fails. */
#include "format/file_kind.h"

#include <stdbool.h>
#include <string.h>

typedef struct magic {
    const char *bytes;
    size_t n;
    const char *text;
} magic;

#define OLD_GGML                                                               \
    ", from before GGUF (2023), which is not supported: get the GGUF version " \
    "of this model, or convert it with the tools of that time"

/* The old magics were written as little-endian words, so their letters stand
 * reversed in the file; both orders are recognised. */
static const magic magics[] = {
    {"lmgg", 4, "this is an unversioned GGML file (magic ggml)" OLD_GGML},
    {"ggml", 4, "this is an unversioned GGML file (magic ggml)" OLD_GGML},
    {"fmgg", 4, "this is an old GGML file (magic ggmf)" OLD_GGML},
    {"ggmf", 4, "this is an old GGML file (magic ggmf)" OLD_GGML},
    {"tjgg", 4, "this is an old GGML file (magic ggjt)" OLD_GGML},
    {"ggjt", 4, "this is an old GGML file (magic ggjt)" OLD_GGML},
    {"algg", 4, "this is an old GGML LoRA adapter (magic ggla)" OLD_GGML},
    {"ggla", 4, "this is an old GGML LoRA adapter (magic ggla)" OLD_GGML},
    {"FUGG", 4,
     "this is a big-endian GGUF file, which is not supported: get the "
     "little-endian one"},
    {"PK\x03\x04", 4,
     "this is a ZIP archive, as PyTorch checkpoints are, not a GGUF file: "
     "convert it to GGUF"},
    {"\x1f\x8b", 2, "this is gzip-compressed data: unpack it first"},
    {"\x28\xb5\x2f\xfd", 4, "this is zstd-compressed data: unpack it first"},
    {"\xfd"
     "7zXZ",
     5, "this is xz-compressed data: unpack it first"},
    {"7z\xbc\xaf\x27\x1c", 6, "this is a 7z archive: unpack it first"},
    {"\x89HDF", 4, "this is an HDF5 file, not a GGUF file"},
};

static bool begins_with(const uint8_t *data, size_t size, const char *bytes,
                        size_t n)
{
    return size >= n && memcmp(data, bytes, n) == 0;
}

/* A little-endian header length, then JSON. */
static bool is_safetensors(const uint8_t *data, size_t size)
{
    uint64_t header = 0;
    if (size < 9 || data[8] != '{')
        return false;
    for (int i = 7; i >= 0; i--)
        header = header << 8 | data[i];
    return header >= 2 && header <= UINT64_C(100000000);
}

/* The first byte behind a byte order mark and white space, 0 if none. */
static uint8_t first_text_byte(const uint8_t *data, size_t size)
{
    size_t i = begins_with(data, size, "\xef\xbb\xbf", 3) ? 3 : 0;
    size_t end = size < 4096 ? size : 4096;
    while (i < end && data[i] && strchr(" \t\r\n\f", data[i]))
        i++;
    return i < end ? data[i] : 0;
}

const char *folio_file_kind_explain(const uint8_t *data, size_t size)
{
    static const char lfs[] = "version https://git-lfs";

    if (size == 0)
        return "the file is empty (0 bytes)";
    for (size_t i = 0; i < sizeof magics / sizeof magics[0]; i++)
        if (begins_with(data, size, magics[i].bytes, magics[i].n))
            return magics[i].text;
    if (begins_with(data, size, lfs, sizeof lfs - 1))
        return "this is a Git LFS pointer, a small text in place of the model: "
               "fetch the file itself (git lfs pull)";
    if (is_safetensors(data, size))
        return "this is a safetensors file, not a GGUF file: convert it to "
               "GGUF";
    if (size >= 2 && data[0] == 0x80 && data[1] >= 2 && data[1] <= 5)
        return "this is a Python pickle, as old PyTorch checkpoints are, not a "
               "GGUF file: convert it to GGUF";
    uint8_t first = first_text_byte(data, size);
    if (first == '<')
        return "this is a web page, not a model: the download saved a page "
               "instead of the file";
    if (first == '{')
        return "this is JSON text, not a model: an index file, or a server's "
               "answer saved in place of the model";
    for (size_t i = 0; i < size && i < 64; i++)
        if (data[i] != 0)
            return NULL;
    return "the file begins with zero bytes: a download that did not finish?";
}
