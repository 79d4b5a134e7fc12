/* answer MODEL TEXT: prints how the model goes on, up to 64 ids in all. */
#include <folio/folio.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    folio_device *dev;
    folio_model *model;
    folio_runner *run;
    folio_tokenizer *tok;
    folio_runner_params p;
    int32_t ids[65], pos[64], block = 0, have = 0;
    size_t n = 0;
    const char *piece;
    folio_status st;
    if (argc != 3) {
        fprintf(stderr, "usage: answer MODEL TEXT\n");
        return 2;
    }
    folio_runner_params_default(&p);
    p.max_ctx = p.block_size = 64; /* one block holds it all: slot = position */
    if ((st = folio_device_open(NULL, &dev)) ||
        (st = folio_model_open(dev, argv[1], NULL, &model)) ||
        (st = folio_runner_open(model, &p, &run)) ||
        (st = folio_tokenizer_open_file(argv[1], NULL, &tok)) ||
        (st = folio_tokenizer_encode(tok, argv[2], strlen(argv[2]),
                                     FOLIO_ENCODE_ADD_BOS, ids, 64, &n))) {
        fprintf(stderr, "answer: %s: %s\n", argv[1], folio_status_text(st));
        return 1;
    }
    for (int32_t i = 0; i < 64; i++)
        pos[i] = i;
    for (int32_t len = (int32_t)n, id, nan; len <= 64; have = len++) {
        int32_t q[2] = {0, len - have}, t[2] = {0, 1}, row = q[1] - 1;
        folio_batch b = {.n_tok = q[1],
                         .n_seq = 1,
                         .tok = ids + have,
                         .pos = pos + have,
                         .slot = pos + have,
                         .q_start = q,
                         .kv_len = &len,
                         .table_start = t,
                         .tables = &block,
                         .n_rows = 1,
                         .rows = &row};
        float logit;
        if ((st = folio_runner_forward(run, &b, -1)) ||
            (st = folio_runner_read_top(run, 1, &id, &logit, &nan)) ||
            folio_tokenizer_is_eog(tok, id) ||
            (st = folio_tokenizer_piece(tok, id, &piece, &n)))
            break;
        fwrite(piece, 1, n, stdout);
        ids[len] = id;
    }
    folio_tokenizer_close(&tok);
    folio_runner_close(&run);
    folio_model_close(&model);
    folio_device_close(&dev);
    if (st)
        fprintf(stderr, "answer: %s\n", folio_status_text(st));
    return st != FOLIO_OK;
}
