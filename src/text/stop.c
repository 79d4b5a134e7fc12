/* text/stop.c: stop strings as one tree of bytes with fail links. What is held
 * back is the path to the state's node, so that nothing is stored but its
 * number. Must not know tokens or why a text is made. */
#include "text/stop.h"

#include <string.h>

#include "base/base.h"

#define MAX_BYTES ((size_t)1 << 20)
#define ROOT      0u /* never anybody's child: also "none" */

typedef struct node {
    uint32_t child, sibling; /* first child; next child of the same parent */
    uint32_t fail;  /* the longest proper end of the path that is a path */
    uint32_t depth; /* bytes of the path */
    uint32_t text;  /* the path is at this offset in set->bytes */
    int32_t hit;    /* the longest string the path ends with, or -1 */
    uint32_t n_hit; /* its bytes */
    uint8_t byte;   /* the last of the path */
} node;

struct folio_stop_set {
    uint8_t *bytes; /* the strings, one after the other */
    node *nodes;
    uint32_t n_nodes;
    size_t max_held;
};

static uint32_t find_child(const node *nodes, uint32_t at, uint8_t byte)
{
    uint32_t c = nodes[at].child;
    while (c != ROOT && nodes[c].byte != byte)
        c = nodes[c].sibling;
    return c;
}

/* The node of the longest end of (path of `at`, byte) that is a path. */
static uint32_t follow(const node *nodes, uint32_t at, uint8_t byte)
{
    uint32_t c = find_child(nodes, at, byte);
    while (c == ROOT && at != ROOT) {
        at = nodes[at].fail;
        c = find_child(nodes, at, byte);
    }
    return c;
}

static void add_string(folio_stop_set *set, uint32_t text, uint32_t len,
                       int32_t index)
{
    node *nodes = set->nodes;
    uint32_t at = ROOT;
    for (uint32_t i = 0; i < len; i++) {
        const uint8_t byte = set->bytes[text + i];
        uint32_t c = find_child(nodes, at, byte);
        if (c == ROOT) {
            c = set->n_nodes++;
            nodes[c] = (node){.sibling = nodes[at].child,
                              .depth = i + 1,
                              .text = text,
                              .hit = -1,
                              .byte = byte};
            nodes[at].child = c;
        }
        at = c;
    }
    if (nodes[at].hit < 0) { /* else an equal string came before */
        nodes[at].hit = index;
        nodes[at].n_hit = len;
    }
}

/* Fail links, each from those of shorter paths: level by level, `queue` has
 * room for all nodes. */
static void link_nodes(folio_stop_set *set, uint32_t *queue)
{
    node *nodes = set->nodes;
    uint32_t n = 0;
    queue[n++] = ROOT;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t at = queue[i];
        for (uint32_t c = nodes[at].child; c != ROOT; c = nodes[c].sibling) {
            nodes[c].fail = at == ROOT
                                ? ROOT
                                : follow(nodes, nodes[at].fail, nodes[c].byte);
            const node *f = &nodes[nodes[c].fail];
            if (nodes[c].hit < 0) {
                nodes[c].hit = f->hit;
                nodes[c].n_hit = f->n_hit;
            }
            queue[n++] = c;
        }
    }
}

static folio_status check_strings(const char *const *strings,
                                  const size_t *lens, int32_t n,
                                  const folio_log *log, size_t *total)
{
    size_t sum = 0;
    if (!strings || !lens || n < 1)
        return folio_fail(log, FOLIO_E_INVAL,
                          "stop: %d strings, expected 1 or more", n);
    for (int32_t i = 0; i < n; i++) {
        if (!strings[i] || !lens[i])
            return folio_fail(log, FOLIO_E_INVAL, "stop: string %d is empty",
                              i);
        if (((uint8_t)strings[i][0] & 0xc0) == 0x80)
            return folio_fail(log, FOLIO_E_INVAL,
                              "stop: string %d begins with the byte %02x, "
                              "which is inside a character",
                              i, (unsigned)(uint8_t)strings[i][0]);
        if (lens[i] > MAX_BYTES - sum)
            return folio_fail(log, FOLIO_E_INVAL,
                              "stop: string %d of %zu bytes after %zu bytes of "
                              "others, expected %zu at most together",
                              i, lens[i], sum, MAX_BYTES);
        sum += lens[i];
    }
    *total = sum;
    return FOLIO_OK;
}

folio_status folio_stop_set_open(const char *const *strings, const size_t *lens,
                                 int32_t n, const folio_log *log,
                                 folio_stop_set **out)
{
    folio_stop_set *set = NULL;
    uint32_t *queue = NULL;
    size_t total = 0, at = 0;
    if (!out)
        return folio_fail(log, FOLIO_E_INVAL, "stop: out is NULL");
    FOLIO_RETURN_IF(check_strings(strings, lens, n, log, &total));
    set = folio_calloc(1, sizeof *set);
    if (set) {
        set->bytes = folio_calloc(total, 1);
        set->nodes = folio_calloc(total + 1, sizeof *set->nodes);
        queue = folio_calloc(total + 1, sizeof *queue);
    }
    if (!set || !set->bytes || !set->nodes || !queue)
        goto fail;
    set->n_nodes = 1;
    set->nodes[ROOT].hit = -1;
    for (int32_t i = 0; i < n; i++) {
        memcpy(set->bytes + at, strings[i], lens[i]);
        add_string(set, (uint32_t)at, (uint32_t)lens[i], i);
        set->max_held = FOLIO_MAX(set->max_held, lens[i] - 1);
        at += lens[i];
    }
    link_nodes(set, queue);
    free(queue);
    *out = set;
    return FOLIO_OK;
fail:
    free(queue);
    folio_stop_set_close(&set);
    return folio_fail(log, FOLIO_E_NOMEM, "stop: no memory for %zu bytes",
                      total);
}

void folio_stop_set_close(folio_stop_set **set)
{
    if (!set || !*set)
        return;
    free((*set)->bytes);
    free((*set)->nodes);
    FOLIO_FREE(*set);
}

size_t folio_stop_set_max_held(const folio_stop_set *set)
{
    return set->max_held;
}

folio_stop_state folio_stop_begin(void)
{
    return (folio_stop_state){.node = ROOT, .hit = -1};
}

/* Writes the first n bytes of (path of `at`, byte). */
static size_t put(const folio_stop_set *set, uint32_t at, uint8_t byte,
                  size_t n, char *out)
{
    const node *from = &set->nodes[at];
    const size_t n_path = FOLIO_MIN(n, from->depth);
    if (n_path)
        memcpy(out, set->bytes + from->text, n_path);
    if (n > n_path)
        out[n_path] = (char)byte;
    return n;
}

int32_t folio_stop_push(const folio_stop_set *set, folio_stop_state *state,
                        const char *text, size_t n, char *out, size_t *n_out)
{
    size_t n_put = 0;
    for (size_t i = 0; i < n && state->hit < 0; i++) {
        const uint8_t byte = (uint8_t)text[i];
        const uint32_t at = state->node;
        const uint32_t next = follow(set->nodes, at, byte);
        const node *to = &set->nodes[next];
        const size_t n_held = to->hit < 0 ? to->depth : to->n_hit;
        n_put +=
            put(set, at, byte, set->nodes[at].depth + 1 - n_held, out + n_put);
        state->hit = to->hit;
        state->node = to->hit < 0 ? next : ROOT;
    }
    *n_out = n_put;
    return state->hit;
}

size_t folio_stop_flush(const folio_stop_set *set, folio_stop_state *state,
                        char *out)
{
    const node *at = &set->nodes[state->node];
    const size_t n = at->depth;
    if (n)
        memcpy(out, set->bytes + at->text, n);
    *state = folio_stop_begin();
    return n;
}

size_t folio_stop_n_held(const folio_stop_set *set,
                         const folio_stop_state *state)
{
    return set->nodes[state->node].depth;
}
