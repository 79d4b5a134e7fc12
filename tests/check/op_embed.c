/* op_embed.c: problems of embed and gather_rows. Both are exact. */
#include "check/check.h"

#include <stdio.h>

#include "ops/pack.h"

typedef struct embed_case {
    ck_set set;
    folio_type type;
    int rows, cols, tok, views;
    ck_fill_kind fill;
    folio_packing packing;
} embed_case;

static const embed_case embed_cases[] = {
#define CHECK_EMBED(set, type, rows, cols, tok, views, fill)                   \
    {CK_SET_##set, FOLIO_TYPE_##type, rows, cols, tok,                         \
     views,        CK_FILL_##fill,    0},
#define CHECK_PACKED_EMBED(set, type, packing, rows, cols, tok, views, fill)   \
    {CK_SET_##set,   FOLIO_TYPE_##type,   rows, cols, tok, views,              \
     CK_FILL_##fill, FOLIO_PACK_##packing},
#include "check/covering.def"
};

static void embed_one(ck_ctx *c, const embed_case *e)
{
    char name[120];
    snprintf(name, sizeof name, "embed %s%s%s %dx%d tok %d views %d %s",
             folio_type_find((uint32_t)e->type)->name, e->packing ? " " : "",
             e->packing ? folio_pack_name(e->packing) : "", e->rows, e->cols,
             e->tok, e->views, ck_fill_name(e->fill));
    if (!ck_wanted(c, FOLIO_OP_EMBED, name))
        return;
    ck_rng r = ck_rng_make(c->seed, name);
    ck_problem *p = ck_problem_new(FOLIO_OP_EMBED);
    folio_embed_args *a = &p->args.embed;
    snprintf(p->name, sizeof p->name, "%s", name);
    p->deterministic = true;
    *a = (folio_embed_args){
        .w = &p->w, .scale = e->tok % 2 ? 1.0f : 11.3137085f, .n_tok = e->tok};
    ck_slot *ids = ck_slot_add_rows(p, "ids", CK_IN, CK_I32, (size_t)e->tok, 1,
                                    1, &a->ids);
    for (int t = 0; t < e->tok; t++)
        ck_i32(ids)[t] = ck_below(&r, e->rows);
    /* The first and the last row, and one twice. */
    ck_i32(ids)[0] = e->rows - 1;
    if (e->tok > 2)
        ck_i32(ids)[1] = ck_i32(ids)[2] = 0;
    ck_add_weight(p, &r, e->type, e->packing, e->rows, e->cols, e->views,
                  e->fill == CK_FILL_tiny);
    ck_pack_weight(p);
    ck_slot_add_rows(p, "out", CK_OUT, CK_F32, (size_t)e->tok, (size_t)e->cols,
                     (size_t)e->cols, &a->out);
    ck_judge(c, p);
}

void ck_embed(ck_ctx *c)
{
    for (size_t i = 0; i < FOLIO_COUNT(embed_cases); i++)
        if (ck_in_size(c, embed_cases[i].set))
            embed_one(c, &embed_cases[i]);
}

typedef struct gather_case {
    ck_set set;
    int x_rows, rows, dim;
} gather_case;

static const gather_case gather_cases[] = {
#define CHECK_GATHER(set, x_rows, rows, dim) {CK_SET_##set, x_rows, rows, dim},
#include "check/covering.def"
};

static void gather_one(ck_ctx *c, const gather_case *g)
{
    char name[120];
    snprintf(name, sizeof name, "gather_rows %d of %d dim %d", g->rows,
             g->x_rows, g->dim);
    if (!ck_wanted(c, FOLIO_OP_GATHER_ROWS, name))
        return;
    ck_rng r = ck_rng_make(c->seed, name);
    ck_problem *p = ck_problem_new(FOLIO_OP_GATHER_ROWS);
    folio_gather_rows_args *a = &p->args.gather;
    snprintf(p->name, sizeof p->name, "%s", name);
    p->deterministic = true;
    *a = (folio_gather_rows_args){.n_rows = g->rows, .dim = g->dim};
    ck_slot *x = ck_slot_add(p, "x", CK_IN, CK_F32,
                             (size_t)g->x_rows * (size_t)g->dim, &a->x);
    ck_fill(&r, ck_f32(x), ck_slot_count(x), -1e30f, 1e30f);
    ck_slot *idx = ck_slot_add_rows(p, "idx", CK_IN, CK_I32, (size_t)g->rows, 1,
                                    1, &a->idx);
    for (int i = 0; i < g->rows; i++)
        ck_i32(idx)[i] = ck_below(&r, g->x_rows);
    ck_i32(idx)[0] = g->x_rows - 1;
    ck_slot_add_rows(p, "out", CK_OUT, CK_F32, (size_t)g->rows, (size_t)g->dim,
                     (size_t)g->dim, &a->out);
    ck_judge(c, p);
}

void ck_gather(ck_ctx *c)
{
    for (size_t i = 0; i < FOLIO_COUNT(gather_cases); i++)
        if (ck_in_size(c, gather_cases[i].set))
            gather_one(c, &gather_cases[i]);
}
