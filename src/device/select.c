/* device/select.c: see select.h. */
#include "device/select.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

folio_device_kind folio_select_classify(folio_select_facts f)
{
    if (f.gpu && !f.cpu && !f.accelerator)
        return f.unified ? FOLIO_DEVICE_GPU_INTEGRATED
                         : FOLIO_DEVICE_GPU_DISCRETE;
    if (f.cpu && !f.gpu && !f.accelerator)
        return FOLIO_DEVICE_CPU;
    return FOLIO_DEVICE_OTHER;
}

const char *folio_device_kind_name(folio_device_kind kind)
{
    switch (kind) {
    case FOLIO_DEVICE_HOST:
        return "host";
    case FOLIO_DEVICE_CPU:
        return "CPU driver";
    case FOLIO_DEVICE_GPU_INTEGRATED:
        return "integrated GPU";
    case FOLIO_DEVICE_GPU_DISCRETE:
        return "discrete GPU";
    case FOLIO_DEVICE_OTHER:
        break;
    }
    return "other";
}

uint64_t folio_select_sane_bytes(uint64_t reported)
{
    return reported > (uint64_t)64 << 40 ? 0 : reported;
}

uint64_t folio_select_max_alloc(uint64_t global_bytes, uint64_t reported,
                                uint64_t pretended)
{
    uint64_t limit = folio_select_sane_bytes(reported);
    if (limit == 0) {
        /* What OpenCL demands at least: a quarter of the memory. */
        limit = folio_select_sane_bytes(global_bytes) / 4;
        limit = FOLIO_MAX(limit, (uint64_t)128 << 20);
    }
    if (pretended != 0)
        limit = FOLIO_MIN(limit, pretended);
    return limit;
}

uint32_t folio_select_align_bytes(uint32_t bits)
{
    uint32_t bytes = bits / 8;
    return bytes != 0 && (bytes & (bytes - 1)) == 0 ? bytes : 128;
}

static bool equal_nocase(const char *a, const char *b)
{
    while (*a && *b && tolower((unsigned char)*a) == tolower((unsigned char)*b))
        a++, b++;
    return *a == *b;
}

static bool contains_nocase(const char *text, const char *part)
{
    size_t n = strlen(part);
    for (; *text; text++) {
        size_t i = 0;
        while (i < n && text[i] &&
               tolower((unsigned char)text[i]) ==
                   tolower((unsigned char)part[i]))
            i++;
        if (i == n)
            return true;
    }
    return n == 0;
}

folio_select_kind folio_select_parse(const char *text)
{
    if (!text || equal_nocase(text, "auto"))
        return FOLIO_SELECT_AUTO;
    if (equal_nocase(text, "host"))
        return FOLIO_SELECT_HOST;
    return FOLIO_SELECT_DEVICE;
}

size_t folio_select_rank(const folio_device_info *table, size_t n,
                         size_t *order)
{
    static const folio_device_kind ranks[] = {FOLIO_DEVICE_GPU_DISCRETE,
                                              FOLIO_DEVICE_GPU_INTEGRATED};
    size_t m = 0;
    for (size_t r = 0; r < FOLIO_COUNT(ranks); r++)
        for (size_t i = 0; i < n; i++)
            if (table[i].kind == ranks[r])
                order[m++] = i;
    return m;
}

/* How well a device answers to a name; the best level with any match counts,
 * so that a device's own name goes before words in its version string. */
enum { NO_MATCH, IN_VERSION, IN_NAME, EXACT };

static int match_level(const folio_device_info *d, const char *text)
{
    /* PoCL's platform does not carry the name that everybody calls it by. */
    const char *alias =
        equal_nocase(d->platform, "Portable Computing Language") ? "pocl" : "";
    if (equal_nocase(d->name, text) || equal_nocase(d->platform, text) ||
        (*alias && equal_nocase(alias, text)))
        return EXACT;
    if (contains_nocase(d->name, text) || contains_nocase(d->platform, text))
        return IN_NAME;
    if (contains_nocase(d->vendor, text) || contains_nocase(d->version, text))
        return IN_VERSION;
    return NO_MATCH;
}

static folio_status match_index(size_t n, const char *text, size_t *index,
                                char *why, size_t why_bytes)
{
    size_t value = 0;
    for (const char *p = text; *p; p++)
        value = value > SIZE_MAX / 16 ? value : value * 10 + (size_t)(*p - '0');
    if (value < n) {
        *index = value;
        return FOLIO_OK;
    }
    if (n == 0)
        snprintf(why, why_bytes, "there is no device %.20s", text);
    else
        snprintf(why, why_bytes, "there is no device %.20s, only 0 to %zu",
                 text, n - 1);
    return FOLIO_E_NO_DEVICE;
}

folio_status folio_select_match(const folio_device_info *table, size_t n,
                                const char *text, size_t *index, char *why,
                                size_t why_bytes)
{
    if (*text == '\0') {
        snprintf(why, why_bytes, "the name of the device is empty");
        return FOLIO_E_NO_DEVICE;
    }
    if (strspn(text, "0123456789") == strlen(text))
        return match_index(n, text, index, why, why_bytes);

    int best = NO_MATCH;
    size_t found = 0, count = 0;
    for (size_t i = 0; i < n; i++) {
        int level = match_level(&table[i], text);
        if (level > best) {
            best = level;
            found = i;
            count = 1;
        } else if (level == best && level != NO_MATCH) {
            count++;
        }
    }
    if (count == 1) {
        *index = found;
        return FOLIO_OK;
    }
    if (count == 0)
        snprintf(why, why_bytes, "no device is called \"%.80s\"", text);
    else
        snprintf(why, why_bytes,
                 "\"%.80s\" fits %zu devices; name one by its index", text,
                 count);
    return FOLIO_E_NO_DEVICE;
}

char *folio_select_table(const folio_device_info *table, size_t n)
{
    const size_t line = 3 * FOLIO_DEVICE_NAME_MAX + 160;
    char *text = folio_calloc(n + 1, line);
    if (!text)
        return NULL;
    size_t at = (size_t)snprintf(text, line, "devices: host (C, no OpenCL)");
    for (size_t i = 0; i < n; i++)
        at += (size_t)snprintf(
            text + at, line, "\n  %zu: %s (%s, %s, driver %s, %.1f GiB)", i,
            table[i].name, folio_device_kind_name(table[i].kind),
            table[i].platform, table[i].driver,
            (double)table[i].global_bytes / 0x1p30);
    return text;
}
