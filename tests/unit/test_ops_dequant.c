/* The bits of every quantised type against tests/golden/data/quants.json, which
 * independent programs computed, and the block sizes against format/. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <string.h>

#include "base/half.h"
#include "ops/ops.h"

static void read_hex(const char *hex, uint8_t *out, size_t bytes)
{
    cr_assert_eq(strlen(hex), 2 * bytes, "%zu digits for %zu bytes",
                 strlen(hex), bytes);
    for (size_t i = 0; i < bytes; i++) {
        unsigned v;
        cr_assert_eq(sscanf(hex + 2 * i, "%2x", &v), 1);
        out[i] = (uint8_t)v;
    }
}

static void check_block(const char *name, folio_type type, size_t values,
                        size_t bytes, json_t *block)
{
    uint8_t in[256], want[4 * 256];
    float out[256];
    cr_assert(values <= 256 && bytes <= sizeof in);
    read_hex(json_string_value(json_object_get(block, "bytes")), in, bytes);
    read_hex(json_string_value(json_object_get(block, "float32_le")), want,
             4 * values);
    memset(out, 0xff, sizeof out);
    folio_dequant(type, in, (int64_t)values, out);
    for (size_t i = 0; i < values; i++) {
        const uint8_t *w = want + 4 * i;
        uint32_t bits = (uint32_t)w[0] | (uint32_t)w[1] << 8 |
                        (uint32_t)w[2] << 16 | (uint32_t)w[3] << 24;
        cr_expect_eq(folio_f32_bits(out[i]), bits, "%s value %zu: %g for %g",
                     name, i, (double)out[i], (double)folio_bits_f32(bits));
    }
}

Test(ops_dequant, golden_bits)
{
    json_error_t err;
    json_t *root = json_load_file(
        FOLIO_SOURCE_DIR "/tests/golden/data/quants.json", 0, &err);
    cr_assert_not_null(root, "%s", err.text);
    json_t *types = json_object_get(root, "types"), *t, *block;
    cr_assert_eq(json_array_size(types), 15);
    size_t i, j;
    json_array_foreach(types, i, t)
    {
        const char *name = json_string_value(json_object_get(t, "type"));
        folio_type type =
            (folio_type)json_integer_value(json_object_get(t, "type_id"));
        size_t values =
            (size_t)json_integer_value(json_object_get(t, "block_values"));
        size_t bytes =
            (size_t)json_integer_value(json_object_get(t, "block_bytes"));
        cr_assert(folio_dequant_knows(type), "%s is not known", name);
        const folio_type_info *info = folio_type_find((uint32_t)type);
        cr_assert_not_null(info, "%s has no sizes", name);
        cr_assert_str_eq(info->name, name);
        cr_assert_eq(values * info->block_bytes, bytes * info->block_values);
        json_array_foreach(json_object_get(t, "blocks"), j, block)
        {
            check_block(name, type, values, bytes, block);
        }
    }
    json_decref(root);
}

Test(ops_dequant, f32_is_the_identity)
{
    const float in[3] = {-0.0f, 1e-42f, 3.25f};
    float out[3] = {7, 7, 7};
    folio_dequant(FOLIO_TYPE_F32, in, 3, out);
    cr_assert_eq(memcmp(in, out, sizeof in), 0);
}

/* Blocks follow each other, and a last incomplete block is not touched. */
Test(ops_dequant, whole_blocks_only)
{
    uint8_t in[2 * 34] = {0};
    float out[64];
    in[1] = 0x3c;      /* scale 1 */
    in[34 + 1] = 0x40; /* scale 2 */
    in[2] = 5;
    in[34 + 2 + 31] = 0xff;
    for (int i = 0; i < 64; i++)
        out[i] = 99;
    folio_dequant(FOLIO_TYPE_Q8_0, in, 63, out);
    cr_assert_eq(out[0], 5.0f);
    cr_assert_eq(out[31], 0.0f);
    cr_assert_eq(out[32], 99.0f);
    folio_dequant(FOLIO_TYPE_Q8_0, in, 64, out);
    cr_assert_eq(out[63], -2.0f);
}

Test(ops_dequant, plain_integers_are_not_weights)
{
    cr_assert_not(folio_dequant_knows(FOLIO_TYPE_I8));
    cr_assert_not(folio_dequant_knows(FOLIO_TYPE_I32));
    cr_assert_not(folio_dequant_knows(FOLIO_TYPE_F64));
    cr_assert_not(folio_dequant_knows((folio_type)1000));
}
