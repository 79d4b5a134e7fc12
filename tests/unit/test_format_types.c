/* Tensor types: block sizes against the golden quantised blocks, row sizes. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <string.h>

#include "format/tensor_type.h"

Test(format_types, block_sizes_match_the_goldens)
{
    json_error_t err;
    json_t *root = json_load_file(
        FOLIO_SOURCE_DIR "/tests/golden/data/quants.json", 0, &err);
    cr_assert_not_null(root, "%s", err.text);
    json_t *types = json_object_get(root, "types"), *t;
    size_t i, n = 0;
    json_array_foreach(types, i, t)
    {
        const char *name = json_string_value(json_object_get(t, "type"));
        uint32_t id =
            (uint32_t)json_integer_value(json_object_get(t, "type_id"));
        int64_t values = json_integer_value(json_object_get(t, "block_values"));
        int64_t bytes = json_integer_value(json_object_get(t, "block_bytes"));
        const folio_type_info *info = folio_type_find(id);
        cr_assert_not_null(info, "%s", name);
        cr_assert_str_eq(info->name, name);
        /* The goldens hold plain types in groups of several values. */
        cr_assert_eq(values % info->block_values, 0, "%s", name);
        cr_assert_eq(folio_type_row_bytes(info->type, (uint64_t)values),
                     (size_t)bytes, "%s", name);
        if (info->block_values > 1)
            cr_assert_eq(values, info->block_values, "%s", name);
        n++;
    }
    cr_assert_geq(n, 15);
    json_decref(root);
}

Test(format_types, names_and_unknown_numbers)
{
    int n_known = 0;
    for (uint32_t id = 0; id < 1000; id++) {
        const folio_type_info *info = folio_type_find(id);
        if (!info)
            continue;
        n_known++;
        cr_assert_eq((uint32_t)info->type, id);
        cr_assert_str_eq(folio_type_any_name(id), info->name);
        /* As a whole word in the list for messages. */
        const char *at = folio_type_names();
        size_t len = strlen(info->name);
        bool found = false;
        for (; at && !found;
             at = strstr(at, ", ") ? strstr(at, ", ") + 2 : NULL)
            found = strncmp(at, info->name, len) == 0 &&
                    (at[len] == ',' || at[len] == '\0');
        cr_assert(found, "%s is not listed", info->name);
    }
    cr_assert_eq(n_known, 21);
    cr_assert_null(folio_type_find(UINT32_MAX));
    cr_assert_str_eq(folio_type_any_name(16), "IQ2_XXS");
    cr_assert_str_eq(folio_type_any_name(UINT32_MAX), "an unknown type");
}

Test(format_types, row_bytes)
{
    cr_assert_eq(folio_type_row_bytes(FOLIO_TYPE_Q4_1, 576), 360);
    cr_assert_eq(folio_type_row_bytes(FOLIO_TYPE_Q4_1, 577), 0);
    cr_assert_eq(folio_type_row_bytes(FOLIO_TYPE_Q6_K, 128), 0);
    cr_assert_eq(folio_type_row_bytes(FOLIO_TYPE_F32, 3), 12);
    cr_assert_eq(folio_type_row_bytes(FOLIO_TYPE_F32, UINT64_MAX / 4 + 1), 0);
    cr_assert_eq(folio_type_row_bytes(FOLIO_TYPE_F32, UINT64_MAX / 4),
                 UINT64_MAX / 4 * 4);
    cr_assert_eq(folio_type_row_bytes((folio_type)99, 32), 0);
}
