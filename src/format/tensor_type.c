/* format/tensor_type.c: names and block sizes of the element types. What the
 * bytes of a block mean is the business of ops/. */
#include "format/tensor_type.h"

/* Block sizes: GGML's documentation of its quantised types. */
static const folio_type_info types[] = {
    {FOLIO_TYPE_F32, "F32", 1, 4},
    {FOLIO_TYPE_F16, "F16", 1, 2},
    {FOLIO_TYPE_Q4_0, "Q4_0", 32, 18},
    {FOLIO_TYPE_Q4_1, "Q4_1", 32, 20},
    {FOLIO_TYPE_Q5_0, "Q5_0", 32, 22},
    {FOLIO_TYPE_Q5_1, "Q5_1", 32, 24},
    {FOLIO_TYPE_Q8_0, "Q8_0", 32, 34},
    {FOLIO_TYPE_Q2_K, "Q2_K", 256, 84},
    {FOLIO_TYPE_Q3_K, "Q3_K", 256, 110},
    {FOLIO_TYPE_Q4_K, "Q4_K", 256, 144},
    {FOLIO_TYPE_Q5_K, "Q5_K", 256, 176},
    {FOLIO_TYPE_Q6_K, "Q6_K", 256, 210},
    {FOLIO_TYPE_IQ4_NL, "IQ4_NL", 32, 18},
    {FOLIO_TYPE_IQ4_XS, "IQ4_XS", 256, 136},
    {FOLIO_TYPE_I8, "I8", 1, 1},
    {FOLIO_TYPE_I16, "I16", 1, 2},
    {FOLIO_TYPE_I32, "I32", 1, 4},
    {FOLIO_TYPE_I64, "I64", 1, 8},
    {FOLIO_TYPE_F64, "F64", 1, 8},
    {FOLIO_TYPE_BF16, "BF16", 1, 2},
    {FOLIO_TYPE_MXFP4, "MXFP4", 32, 17},
};

/* Types of GGML that this build does not read: named, so that the message
 * tells the user what to ask for. */
static const struct {
    uint32_t type;
    const char *name;
} foreign[] = {
    {4, "Q4_2, long removed"},
    {5, "Q4_3, long removed"},
    {9, "Q8_1"},
    {15, "Q8_K"},
    {16, "IQ2_XXS"},
    {17, "IQ2_XS"},
    {18, "IQ3_XXS"},
    {19, "IQ1_S"},
    {21, "IQ3_S"},
    {22, "IQ2_S"},
    {29, "IQ1_M"},
    {31, "Q4_0_4_4, removed"},
    {32, "Q4_0_4_8, removed"},
    {33, "Q4_0_8_8, removed"},
    {34, "TQ1_0"},
    {35, "TQ2_0"},
};

const folio_type_info *folio_type_find(uint32_t type)
{
    for (size_t i = 0; i < FOLIO_COUNT(types); i++)
        if ((uint32_t)types[i].type == type)
            return &types[i];
    return NULL;
}

const char *folio_type_names(void)
{
    return "F32, F16, BF16, F64, I8, I16, I32, I64, Q4_0, Q4_1, Q5_0, Q5_1, "
           "Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, MXFP4";
}

const char *folio_type_any_name(uint32_t type)
{
    const folio_type_info *info = folio_type_find(type);
    if (info)
        return info->name;
    for (size_t i = 0; i < FOLIO_COUNT(foreign); i++)
        if (foreign[i].type == type)
            return foreign[i].name;
    return "an unknown type";
}

size_t folio_type_row_bytes(folio_type type, uint64_t cols)
{
    const folio_type_info *info = folio_type_find((uint32_t)type);
    if (!info || cols % info->block_values != 0)
        return 0;
    uint64_t blocks = cols / info->block_values;
    size_t bytes;
    if (blocks > SIZE_MAX ||
        !folio_mul_size((size_t)blocks, info->block_bytes, &bytes))
        return 0;
    return bytes;
}
