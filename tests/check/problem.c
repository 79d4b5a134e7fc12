/* problem.c: problems and their slots, part of a problem as a problem of its
 * own, and the random numbers that fill them. Knows no device. */
#include "check/check.h"

#include <stdio.h>
#include <string.h>

#include "base/hash.h"

/* ---- random numbers: SplitMix64 (Steele, Lea, Flood, OOPSLA 2014) ---------
 */

ck_rng ck_rng_make(uint64_t seed, const char *name)
{
    folio_hash128 h = folio_hash_bytes(name, strlen(name), seed);
    ck_rng r = {h.lo};
    return r;
}

uint32_t ck_next(ck_rng *r)
{
    uint64_t z = r->state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ (z >> 31)) >> 32);
}

int32_t ck_below(ck_rng *r, int32_t n)
{
    return (int32_t)(((uint64_t)ck_next(r) * (uint64_t)n) >> 32);
}

float ck_uniform(ck_rng *r, float lo, float hi)
{
    return lo + (hi - lo) * ((float)(ck_next(r) >> 8) * 0x1p-24f);
}

void ck_fill(ck_rng *r, float *x, size_t n, float lo, float hi)
{
    for (size_t i = 0; i < n; i++)
        x[i] = ck_uniform(r, lo, hi);
}

void ck_shuffle(ck_rng *r, int32_t *x, int32_t n)
{
    for (int32_t i = n - 1; i > 0; i--) {
        int32_t j = ck_below(r, i + 1), t = x[i];
        x[i] = x[j];
        x[j] = t;
    }
}

/* ---- problems --------------------------------------------------------------
 */

static void *must(void *p)
{
    if (!p) {
        fprintf(stderr, "folio-check: out of memory\n");
        exit(2);
    }
    return p;
}

ck_problem *ck_problem_new(folio_op_id op)
{
    ck_problem *p = must(folio_calloc(1, sizeof *p));
    p->op = op;
    p->pick = "all";
    return p;
}

void ck_problem_free(ck_problem *p)
{
    if (!p)
        return;
    ck_unplace(p);
    for (int i = 0; i < p->n_slots; i++) {
        free(p->slot[i].init);
        free(p->slot[i].want);
        free(p->slot[i].scale);
    }
    free(p->batch.q_start);
    free(p->batch.kv_len);
    free(p->batch.table_start);
    free(p->batch.tables);
    free(p);
}

size_t ck_kind_bytes(ck_kind kind)
{
    switch (kind) {
    case CK_F16:
        return 2;
    case CK_BYTES:
        return 1;
    default:
        return 4;
    }
}

size_t ck_slot_count(const ck_slot *s)
{
    return s->bytes / ck_kind_bytes(s->kind);
}

void ck_poison(void *p, size_t bytes)
{
    const uint32_t word = CK_POISON;
    uint8_t *at = p;
    for (size_t i = 0; i < bytes; i++)
        at[i] = (uint8_t)(word >> (i % 4 * 8));
}

ck_slot *ck_slot_add(ck_problem *p, const char *name, ck_role role,
                     ck_kind kind, size_t count, folio_view *into)
{
    if (p->n_slots == CK_MAX_SLOTS) {
        fprintf(stderr, "folio-check: %s has too many slots\n", p->name);
        exit(2);
    }
    ck_slot *s = &p->slot[p->n_slots++];
    s->name = name;
    s->role = role;
    s->kind = kind;
    s->bytes = count * ck_kind_bytes(kind);
    s->align = ck_kind_bytes(kind);
    s->into = into;
    s->with = -1;
    s->init = must(folio_calloc(s->bytes + 1, 1));
    if (role == CK_OUT || role == CK_SCRATCH)
        ck_poison(s->init, s->bytes);
    if (role == CK_OUT || role == CK_INOUT)
        s->want = must(folio_calloc(s->bytes + 1, 1));
    return s;
}

ck_slot *ck_slot_add_rows(ck_problem *p, const char *name, ck_role role,
                          ck_kind kind, size_t rows, size_t width,
                          size_t stride, folio_view *into)
{
    size_t count = rows ? (rows - 1) * stride + width : 0;
    ck_slot *s = ck_slot_add(p, name, role, kind, count, into);
    s->row_bytes = stride * ck_kind_bytes(kind);
    for (size_t r = 0; r + 1 < rows; r++)
        ck_poison(s->init + r * s->row_bytes + width * ck_kind_bytes(kind),
                  (stride - width) * ck_kind_bytes(kind));
    return s;
}

/* The same place inside another copy of the struct. */
static void *moved(const void *at, const ck_problem *from, ck_problem *to)
{
    if (!at)
        return NULL;
    return (uint8_t *)to + ((const uint8_t *)at - (const uint8_t *)from);
}

static void copy_slot(const ck_problem *p, const ck_slot *s, ck_problem *to,
                      size_t first, size_t bytes)
{
    ck_slot *d = &to->slot[s - p->slot];
    *d = *s;
    d->bytes = bytes;
    d->init = must(folio_calloc(bytes + 1, 1));
    memcpy(d->init, s->init + first, bytes);
    d->want = NULL;
    d->scale = NULL;
    if (s->want) {
        d->want = must(folio_calloc(bytes + 1, 1));
        memcpy(d->want, s->want + first, bytes);
    }
    if (s->scale) {
        size_t each = ck_kind_bytes(s->kind);
        d->scale = must(folio_calloc(bytes / each + 1, sizeof *d->scale));
        memcpy(d->scale, s->scale + first / each,
               bytes / each * sizeof *d->scale);
    }
    d->into = moved(s->into, p, to);
    d->also = moved(s->also, p, to);
    d->into_buf = moved(s->into_buf, p, to);
    d->into_offset = moved(s->into_offset, p, to);
    d->buf = NULL;
    d->image = NULL;
}

/* The weights of a fused op are those of this copy. */
static void bind_products(ck_problem *p)
{
    for (int i = 0; i < FOLIO_MAX_PRODUCTS; i++) {
        p->fwv[i].view = (folio_view){0};
        p->fw[i].views = &p->fwv[i];
        if (p->op == FOLIO_OP_NORM_LINEAR)
            p->args.norm_linear.part[i].w = &p->fw[i];
    }
    if (p->op == FOLIO_OP_QKV) {
        p->args.qkv.wq = &p->fw[0];
        p->args.qkv.wk = &p->fw[1];
        p->args.qkv.wv = &p->fw[2];
    } else if (p->op == FOLIO_OP_GATE_UP) {
        p->args.gate_up.gate = &p->fw[0];
        p->args.gate_up.up = &p->fw[1];
    }
}

ck_problem *ck_problem_rows(const ck_problem *p, int first, int n)
{
    ck_problem *to = must(folio_calloc(1, sizeof *to));
    *to = *p;
    to->batch = (ck_batch){0};
    for (int i = 0; i < p->n_slots; i++) {
        const ck_slot *s = &p->slot[i];
        size_t at = 0, bytes = s->bytes;
        if (s->row_bytes) {
            at = (size_t)first * s->row_bytes;
            bytes = FOLIO_MIN(s->bytes - at, (size_t)n * s->row_bytes);
        }
        copy_slot(p, s, to, at, bytes);
    }
    for (int i = 0; i < 4; i++)
        to->wv[i].view = (folio_view){0};
    to->w.views = to->wv;
    if (p->op == FOLIO_OP_EMBED)
        to->args.embed.w = &to->w;
    if (p->op == FOLIO_OP_LINEAR)
        to->args.linear.w = &to->w;
    bind_products(to);
    ck_set_count(to, n);
    return to;
}

void ck_set_count(ck_problem *p, int64_t n)
{
    switch (p->op) {
    case FOLIO_OP_EMBED:
        p->args.embed.n_tok = (int32_t)n;
        break;
    case FOLIO_OP_GATHER_ROWS:
        p->args.gather.n_rows = (int32_t)n;
        break;
    case FOLIO_OP_RMSNORM:
        p->args.rmsnorm.n_rows = (int32_t)n;
        break;
    case FOLIO_OP_LINEAR:
        p->args.linear.n_tok = (int32_t)n;
        break;
    case FOLIO_OP_ROPE_APPEND:
        p->args.rope.n_tok = (int32_t)n;
        break;
    case FOLIO_OP_ATTN:
        p->args.attn.n_tok = (int32_t)n;
        break;
    case FOLIO_OP_ACT_MUL:
        p->args.act.n_tok = (int32_t)n;
        break;
    case FOLIO_OP_ADD:
        p->args.add.n = n;
        break;
    case FOLIO_OP_TOPK:
        p->args.topk.n_rows = (int32_t)n;
        break;
    case FOLIO_OP_COPY_BLOCKS:
        p->args.copy.n_pairs = (int32_t)n;
        break;
    case FOLIO_OP_SAMPLE:
        p->args.sample.n_rows = (int32_t)n;
        break;
    case FOLIO_OP_NORM_LINEAR:
        p->args.norm_linear.n_tok = (int32_t)n;
        break;
    case FOLIO_OP_QKV:
        p->args.qkv.n_tok = (int32_t)n;
        break;
    case FOLIO_OP_GATE_UP:
        p->args.gate_up.n_tok = (int32_t)n;
        break;
    case FOLIO_OP_STEP:
        p->args.step.n_tok = (int32_t)n;
        break;
    case FOLIO_OP_COUNT:
        break;
    }
}
