/* format/gguf.c: the directory over one file or the shards of a split one, and
 * the typed look-ups. What the bytes of a shard mean is in gguf_shard.c; what
 * the keys and tensors mean is the model's business. */
#include "format/gguf.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/file_map.h"
#include "format/gguf_shard.h"

/* What five digits in a shard's name can count. */
#define MAX_SHARDS 99999
/* Bytes of "-00001-of-00003.gguf". */
#define SUFFIX_LEN 20

typedef struct split_info {
    int64_t no, count; /* shard no (from 0) of count; count 1: not split */
    int64_t n_tensors; /* of all shards; -1 where the file does not say */
} split_info;

struct folio_gguf {
    folio_log log;
    size_t n_shards;
    folio_file_map *maps; /* [n_shards] */
    folio_gguf_shard *shards;
    size_t n_tensors;
    const folio_tensor_info *tensors; /* all shards', in shard order */
    folio_tensor_info *merged;        /* where tensors is owned here */
    folio_name_table tensor_table;
};

/* ---- split files ------------------------------------------------------- */

static folio_status split_number(const folio_gguf_shard *s, const char *path,
                                 const char *key, int64_t absent, int64_t max,
                                 const folio_log *log, int64_t *out)
{
    const folio_gguf_kv *kv = folio_gguf_shard_find(s, key);
    int64_t v = absent;
    char type[40];
    if (kv && !folio_gguf_kv_i64(kv, &v))
        return folio_fail(log, FOLIO_E_FORMAT,
                          "%s: %s is of type %s or too large, it must be an "
                          "integer up to %" PRId64,
                          path, key, folio_gguf_kv_type_text(kv, type), max);
    if (kv && (v < 0 || v > max))
        return folio_fail(log, FOLIO_E_FORMAT,
                          "%s: %s is %" PRId64 ", it must be 0 to %" PRId64,
                          path, key, v, max);
    *out = v;
    return FOLIO_OK;
}

static folio_status read_split(const folio_gguf_shard *s, const char *path,
                               const folio_log *log, split_info *out)
{
    split_info r = {0};
    FOLIO_RETURN_IF(
        split_number(s, path, "split.count", 1, MAX_SHARDS, log, &r.count));
    r.count = FOLIO_MAX(r.count, 1);
    FOLIO_RETURN_IF(
        split_number(s, path, "split.no", 0, r.count - 1, log, &r.no));
    FOLIO_RETURN_IF(split_number(s, path, "split.tensors.count", -1, INT64_MAX,
                                 log, &r.n_tensors));
    *out = r;
    return FOLIO_OK;
}

/* `suffix` needs SUFFIX_LEN + 1 bytes; no counts from 0, as in the file. */
static void write_suffix(char *suffix, int64_t no, int64_t count)
{
    snprintf(suffix, SUFFIX_LEN + 1, "-%05u-of-%05u.gguf",
             (unsigned)(no + 1) % 100000u, (unsigned)count % 100000u);
}

/* An owned copy of `path` with its shard suffix replaced. */
static char *shard_path(const char *path, int64_t no, int64_t count)
{
    size_t len = strlen(path);
    char *p = folio_strndup(path, len);
    if (p)
        write_suffix(p + len - SUFFIX_LEN, no, count);
    return p;
}

static bool has_suffix(const char *path, int64_t no, int64_t count)
{
    char want[SUFFIX_LEN + 1];
    size_t len = strlen(path);
    write_suffix(want, no, count);
    return len >= SUFFIX_LEN && strcmp(path + len - SUFFIX_LEN, want) == 0;
}

static bool can_open(const char *path)
{
    folio_file_map m = {0};
    bool ok = folio_file_map_open(path, NULL, &m) == FOLIO_OK;
    folio_file_map_close(&m);
    return ok;
}

/* The opened file says it is shard `no` of `count`: its name must say the same,
 * it must be the first, and the others must be there. */
static folio_status check_set(const char *path, const split_info *split,
                              const folio_log *log)
{
    char suffix[SUFFIX_LEN + 1];
    char missing[1024] = "";
    size_t used = 0, n_missing = 0, n_named = 0;

    write_suffix(suffix, split->no, split->count);
    if (!has_suffix(path, split->no, split->count))
        return folio_fail(log, FOLIO_E_FORMAT,
                          "%s: this is shard %" PRId64 " of %" PRId64
                          " of a split model, but its name does not end in "
                          "%s, so the other shards cannot be found: give the "
                          "files their original names",
                          path, split->no + 1, split->count, suffix);
    for (int64_t i = 0; i < split->count; i++) {
        char *other = shard_path(path, i, split->count);
        if (!other)
            return folio_fail(log, FOLIO_E_NOMEM, "%s: no memory for its name",
                              path);
        if (i != split->no && !can_open(other)) {
            const char *slash = strrchr(other, '/');
            const char *name = slash ? slash + 1 : other;
            n_missing++;
            /* Whole names only. */
            if (used + strlen(name) + 3 < sizeof missing) {
                used += (size_t)snprintf(missing + used, sizeof missing - used,
                                         "%s%s", used ? ", " : "", name);
                n_named++;
            }
        }
        free(other);
    }
    if (split->no != 0) {
        char *first = shard_path(path, 0, split->count);
        folio_status st =
            first ? folio_fail(log, FOLIO_E_INVAL,
                               "%s: this is shard %" PRId64 " of %" PRId64
                               ": open the first one, %s%s%s%s",
                               path, split->no + 1, split->count, first,
                               n_missing ? " (missing or unreadable: " : "",
                               missing, n_missing ? ")" : "")
                  : folio_fail(log, FOLIO_E_NOMEM, "%s: no memory for its name",
                               path);
        free(first);
        return st;
    }
    if (n_missing)
        return folio_fail(log, FOLIO_E_IO,
                          "%s: %zu of the %" PRId64
                          " shards are missing or unreadable: %s%s",
                          path, n_missing, split->count, missing,
                          n_named < n_missing ? " ..." : "");
    return FOLIO_OK;
}

static folio_status open_shard(folio_gguf *g, size_t i, const char *path)
{
    FOLIO_RETURN_IF(folio_file_map_open(path, &g->log, &g->maps[i]));
    return folio_gguf_shard_init(&g->shards[i], path, g->maps[i].data,
                                 g->maps[i].size, &g->log);
}

/* Shard i of the set that the first one announced. */
static folio_status open_later_shard(folio_gguf *g, size_t i, const char *first,
                                     const split_info *split)
{
    folio_status st = FOLIO_OK;
    split_info own;
    char *path = shard_path(first, (int64_t)i, split->count);
    if (!path)
        return folio_fail(&g->log, FOLIO_E_NOMEM, "%s: no memory for its name",
                          first);
    FOLIO_TRY(open_shard(g, i, path));
    FOLIO_TRY(read_split(&g->shards[i], path, &g->log, &own));
    if (own.no != (int64_t)i || own.count != split->count)
        st = folio_fail(&g->log, FOLIO_E_FORMAT,
                        "%s: its name says shard %zu of %" PRId64
                        ", its keys split.no and split.count say %" PRId64
                        " of %" PRId64,
                        path, i + 1, split->count, own.no + 1, own.count);
fail:
    free(path);
    return st;
}

static folio_status open_rest(folio_gguf *g, const char *path,
                              const split_info *split)
{
    size_t n = (size_t)split->count;
    folio_file_map *maps = folio_realloc(g->maps, n, sizeof *maps);
    if (maps)
        g->maps = maps;
    folio_gguf_shard *shards = folio_realloc(g->shards, n, sizeof *shards);
    if (shards)
        g->shards = shards;
    if (!maps || !shards)
        return folio_fail(&g->log, FOLIO_E_NOMEM,
                          "%s: no memory for %zu shards", path, n);
    for (size_t i = 1; i < n; i++) {
        g->maps[i] = (folio_file_map){0};
        g->shards[i] = (folio_gguf_shard){0};
        g->n_shards = i + 1;
        FOLIO_RETURN_IF(open_later_shard(g, i, path, split));
    }
    return FOLIO_OK;
}

/* ---- the directory ----------------------------------------------------- */

static folio_status merge_tensors(folio_gguf *g, const char *path,
                                  const split_info *split)
{
    size_t n = 0, dup = 0;
    for (size_t i = 0; i < g->n_shards; i++)
        n += g->shards[i].n_tensors;
    if (split->n_tensors >= 0 && split->n_tensors != (int64_t)n)
        return folio_fail(&g->log, FOLIO_E_FORMAT,
                          "%s: split.tensors.count says %" PRId64
                          " tensors, the %zu shard(s) hold %zu",
                          path, split->n_tensors, g->n_shards, n);
    g->n_tensors = n;
    g->tensors = g->shards[0].tensors;
    if (g->n_shards > 1) {
        g->merged = folio_calloc(n, sizeof *g->merged);
        if (!g->merged)
            return folio_fail(&g->log, FOLIO_E_NOMEM,
                              "%s: no memory for %zu tensors", path, n);
        size_t at = 0;
        for (size_t i = 0; i < g->n_shards; i++) {
            const folio_gguf_shard *s = &g->shards[i];
            for (size_t j = 0; j < s->n_tensors; j++)
                g->merged[at++] = s->tensors[j];
        }
        g->tensors = g->merged;
    }
    folio_status st = folio_name_table_init(&g->tensor_table, g->tensors, n,
                                            sizeof *g->tensors, &dup);
    /* Within one shard its own parser has found it already. */
    if (st == FOLIO_E_INVAL)
        return folio_fail(&g->log, FOLIO_E_FORMAT,
                          "%s: tensor '%.160s' is in two shards", path,
                          g->tensors[dup].name);
    if (st != FOLIO_OK)
        return folio_fail(&g->log, st, "%s: no memory for the table of tensors",
                          path);
    return FOLIO_OK;
}

/* An empty directory with room for one shard. */
static folio_gguf *new_directory(const folio_log *log)
{
    folio_gguf *g = folio_calloc(1, sizeof *g);
    if (!g)
        return NULL;
    if (log)
        g->log = *log;
    g->maps = folio_calloc(1, sizeof *g->maps);
    g->shards = folio_calloc(1, sizeof *g->shards);
    g->n_shards = 1;
    if (!g->maps || !g->shards)
        folio_gguf_close(&g);
    return g;
}

folio_status folio_gguf_open(const char *path, const folio_log *log,
                             folio_gguf **out)
{
    folio_status st = FOLIO_OK;
    split_info split;
    folio_gguf *g = new_directory(log);
    if (!g)
        return folio_fail(log, FOLIO_E_NOMEM, "%s: no memory to open it", path);
    FOLIO_TRY(open_shard(g, 0, path));
    FOLIO_TRY(read_split(&g->shards[0], path, &g->log, &split));
    if (split.count > 1) {
        FOLIO_TRY(check_set(path, &split, &g->log));
        FOLIO_TRY(open_rest(g, path, &split));
    }
    FOLIO_TRY(merge_tensors(g, path, &split));
    *out = g;
    return FOLIO_OK;
fail:
    folio_gguf_close(&g);
    return st;
}

folio_status folio_gguf_open_memory(const void *data, size_t size,
                                    const folio_log *log, folio_gguf **out)
{
    static const char name[] = "(memory)";
    folio_status st = FOLIO_OK;
    split_info split;
    folio_gguf *g = new_directory(log);
    if (!g)
        return folio_fail(log, FOLIO_E_NOMEM, "%s: no memory to open it", name);
    FOLIO_TRY(folio_gguf_shard_init(&g->shards[0], name, data, size, &g->log));
    FOLIO_TRY(read_split(&g->shards[0], name, &g->log, &split));
    if (split.count > 1) {
        st = folio_fail(&g->log, FOLIO_E_UNSUPPORTED,
                        "%s: this is shard %" PRId64 " of %" PRId64
                        ": a split model cannot be opened from memory",
                        name, split.no + 1, split.count);
        goto fail;
    }
    FOLIO_TRY(merge_tensors(g, name, &split));
    *out = g;
    return FOLIO_OK;
fail:
    folio_gguf_close(&g);
    return st;
}

void folio_gguf_close(folio_gguf **gp)
{
    folio_gguf *g = *gp;
    if (!g)
        return;
    folio_name_table_fini(&g->tensor_table);
    free(g->merged);
    for (size_t i = 0; i < g->n_shards; i++) {
        if (g->shards)
            folio_gguf_shard_fini(&g->shards[i]);
        if (g->maps)
            folio_file_map_close(&g->maps[i]);
    }
    free(g->shards);
    free(g->maps);
    free(g);
    *gp = NULL;
}

uint32_t folio_gguf_version(const folio_gguf *g)
{
    return g->shards[0].version;
}

size_t folio_gguf_n_kv(const folio_gguf *g)
{
    return g->shards[0].n_kv;
}

const folio_gguf_kv *folio_gguf_kv_at(const folio_gguf *g, size_t i)
{
    return &g->shards[0].kvs[i];
}

const folio_gguf_kv *folio_gguf_find(const folio_gguf *g, const char *key)
{
    return folio_gguf_shard_find(&g->shards[0], key);
}

size_t folio_gguf_n_tensors(const folio_gguf *g)
{
    return g->n_tensors;
}

const folio_tensor_info *folio_gguf_tensor_at(const folio_gguf *g, size_t i)
{
    return &g->tensors[i];
}

const folio_tensor_info *folio_gguf_tensor(const folio_gguf *g,
                                           const char *name)
{
    size_t i = folio_name_table_find(&g->tensor_table, g->tensors, name);
    return i == FOLIO_NAME_NONE ? NULL : &g->tensors[i];
}

const folio_log *folio_gguf_log(const folio_gguf *g)
{
    return &g->log;
}

/* ---- typed look-ups ---------------------------------------------------- */

static folio_status look_up(const folio_gguf *g, const char *key,
                            const folio_gguf_kv **out)
{
    *out = folio_gguf_find(g, key);
    if (*out)
        return FOLIO_OK;
    return folio_fail(&g->log, FOLIO_E_NOT_FOUND, "the file has no key '%s'",
                      key);
}

static folio_status wrong_type(const folio_gguf *g, const folio_gguf_kv *kv,
                               const char *wanted)
{
    char type[40];
    return folio_fail(&g->log, FOLIO_E_FORMAT,
                      "key '%s' is of type %s, wanted is %s", kv->key,
                      folio_gguf_kv_type_text(kv, type), wanted);
}

folio_status folio_gguf_get_i64(const folio_gguf *g, const char *key,
                                int64_t *out)
{
    const folio_gguf_kv *kv;
    FOLIO_RETURN_IF(look_up(g, key, &kv));
    if (folio_gguf_kv_i64(kv, out))
        return FOLIO_OK;
    if (kv->type == FOLIO_GGUF_U64)
        return folio_fail(&g->log, FOLIO_E_FORMAT,
                          "key '%s' is %" PRIu64 ", at most 2^63 - 1 fits", key,
                          (uint64_t)folio_gguf_elem_i64(kv, 0));
    return wrong_type(g, kv, "an integer");
}

folio_status folio_gguf_get_f64(const folio_gguf *g, const char *key,
                                double *out)
{
    const folio_gguf_kv *kv;
    FOLIO_RETURN_IF(look_up(g, key, &kv));
    if (kv->type != FOLIO_GGUF_F32 && kv->type != FOLIO_GGUF_F64)
        return wrong_type(g, kv, "f32 or f64");
    *out = folio_gguf_elem_f64(kv, 0);
    return FOLIO_OK;
}

folio_status folio_gguf_get_bool(const folio_gguf *g, const char *key,
                                 bool *out)
{
    const folio_gguf_kv *kv;
    FOLIO_RETURN_IF(look_up(g, key, &kv));
    if (kv->type != FOLIO_GGUF_BOOL)
        return wrong_type(g, kv, "bool");
    *out = kv->data[0] != 0;
    return FOLIO_OK;
}

folio_status folio_gguf_get_str(const folio_gguf *g, const char *key,
                                folio_gguf_str *out)
{
    const folio_gguf_kv *kv;
    FOLIO_RETURN_IF(look_up(g, key, &kv));
    if (kv->type != FOLIO_GGUF_STRING)
        return wrong_type(g, kv, "string");
    *out = kv->strs[0];
    return FOLIO_OK;
}

folio_status folio_gguf_get_array(const folio_gguf *g, const char *key,
                                  folio_gguf_type elem,
                                  const folio_gguf_kv **out)
{
    const folio_gguf_kv *kv;
    char wanted[60];
    FOLIO_RETURN_IF(look_up(g, key, &kv));
    bool ints = folio_gguf_type_is_int(elem);
    if (kv->type == FOLIO_GGUF_ARRAY &&
        (ints ? folio_gguf_type_is_int(kv->elem) : kv->elem == elem)) {
        *out = kv;
        return FOLIO_OK;
    }
    snprintf(wanted, sizeof wanted, "array of %s",
             ints ? "integers" : folio_gguf_type_name(elem));
    return wrong_type(g, kv, wanted);
}
