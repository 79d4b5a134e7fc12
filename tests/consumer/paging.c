/* A program of somebody else's: tier 0 of the installed library, no device.
 * Two sequences share a prefix; the second one to write gets its own copy of
 * the block. Prints where each token of the second sequence lies. */
#include <stdio.h>

#include <folio/kv.h>
#include <folio/version.h>

int main(void)
{
    folio_block_pool_params params;
    folio_block_pool *pool = NULL;
    folio_block_table *a = NULL, *b = NULL;
    folio_block_copy copy;
    int32_t slots[7];
    int failed = 1;

    folio_block_pool_params_default(&params);
    params.n_blocks = 8;
    params.block_tok = 4;
    if (folio_block_pool_open(&params, &pool) == FOLIO_OK &&
        folio_block_table_open(pool, 0, &a) == FOLIO_OK &&
        folio_block_table_open(pool, 0, &b) == FOLIO_OK &&
        folio_block_table_append(a, 6, &copy) == FOLIO_OK &&
        folio_block_table_fork(a, b) == FOLIO_OK &&
        folio_block_table_append(b, 1, &copy) == FOLIO_OK &&
        folio_block_table_slots(b, 0, 7, slots) == FOLIO_OK) {
        printf("folio %s, copy %d to %d, slots", folio_version(), copy.src,
               copy.dst);
        for (int i = 0; i < 7; i++)
            printf(" %d", slots[i]);
        printf("\n");
        failed = 0;
    }
    folio_block_table_close(&b);
    folio_block_table_close(&a);
    folio_block_pool_close(&pool);
    return failed;
}
