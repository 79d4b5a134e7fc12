/* engine MODEL TEXT TEXT: continues two texts side by side, up to 16 ids each,
 * and prints both answers. */
#include <folio/folio.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    folio_device *dev = NULL;
    folio_model *model = NULL;
    folio_tokenizer *tok = NULL;
    folio_engine *engine = NULL;
    folio_event events[16];
    uint64_t id[2] = {0, 0};
    char answer[2][1024] = {"", ""};
    size_t n = 0, length[2] = {0, 0};
    folio_status st;
    int failed = 1, ended = 0;
    if (argc != 4) {
        fprintf(stderr, "usage: engine MODEL TEXT TEXT\n");
        return 2;
    }
    if ((st = folio_device_open(NULL, &dev)) ||
        (st = folio_model_open(dev, argv[1], NULL, &model)) ||
        (st = folio_tokenizer_open_file(argv[1], NULL, &tok)) ||
        (st = folio_engine_open(model, tok, NULL, &engine)))
        goto out;
    for (int i = 0; i < 2; i++) {
        int32_t prompt[256];
        folio_engine_request r;
        folio_engine_request_default(&r); /* greedy, 16 ids */
        if ((st =
                 folio_tokenizer_encode(tok, argv[2 + i], strlen(argv[2 + i]),
                                        FOLIO_ENCODE_ADD_BOS, prompt, 256, &n)))
            goto out;
        r.prompt = prompt; /* copied by submit */
        r.n_prompt = (int32_t)n;
        if ((st = folio_engine_submit(engine, &r, &id[i])))
            goto out;
    }
    while (!folio_engine_is_idle(engine)) {
        if ((st = folio_engine_step(engine, events, 16, &n)))
            goto out;
        for (size_t k = 0; k < n; k++) {
            const folio_event *ev = &events[k];
            const int i = ev->request == id[1];
            if (ev->n_text && ev->n_text < sizeof answer[i] - length[i]) {
                memcpy(answer[i] + length[i], ev->text, ev->n_text);
                length[i] += ev->n_text;
            }
            if (ev->kind == FOLIO_EVENT_FINISHED && ev->status)
                st = ev->status;
            else if (ev->kind == FOLIO_EVENT_FINISHED)
                ended++;
        }
    }
    for (int i = 0; i < 2; i++)
        printf("%s%s\n", argv[2 + i], answer[i]);
    failed = ended != 2;
out:
    if (failed)
        fprintf(stderr, "engine: %s: %s\n", argv[1], folio_status_text(st));
    folio_engine_close(&engine);
    folio_tokenizer_close(&tok);
    folio_model_close(&model);
    folio_device_close(&dev);
    return failed;
}
