/* device/caps_ptx.c: the capabilities of NVIDIA's compiler, which takes PTX
 * inside OpenCL C, and the way to instructions that it assembles for sm_90a
 * only. As in caps.c, any failure means "absent". */
#include "device/probe.h"
#include "base/half.h"

#include <stdio.h>
#include <string.h>

/* cl_nv_device_attribute_query; other drivers do not know the question. */
#define COMPUTE_CAPABILITY_MAJOR_NV 0x4000

#define PROBE_PTX "common.clh probe_ptx.cl"

static bool ptx_works(folio_probe *p)
{
    enum { N = 128 };
    if (folio_probe_do(p, &(folio_probe_run){.entry = "probe_ptx",
                                             .fragments = PROBE_PTX,
                                             .options = "-D PROBE_PTX=1",
                                             .groups = 1,
                                             .items = N,
                                             .n_out = 2 * N,
                                             .level = FOLIO_LOG_DEBUG}) !=
        FOLIO_OK)
        return false;
    for (uint32_t l = 0; l < N; l++)
        if (p->results[2 * l] != l % 32 ||
            p->results[2 * l + 1] != (l ^ 5u) * 3u)
            return false;
    return true;
}

static bool mma_works(folio_probe *p)
{
    /* A [16][8] pairs by rows, B [8][8] pairs by columns; small integers, so
     * that the sums are exact in any order. */
    int32_t a[16][16], b[8][16];
    for (uint32_t i = 0; i < 16; i++)
        for (uint32_t k = 0; k < 16; k++)
            a[i][k] = (int32_t)(folio_probe_word(i * 16 + k) % 17u) - 8;
    for (uint32_t j = 0; j < 8; j++)
        for (uint32_t k = 0; k < 16; k++)
            b[j][k] = (int32_t)(folio_probe_word(1000 + j * 16 + k) % 17u) - 8;
    for (uint32_t r = 0; r < 24; r++)
        for (uint32_t c = 0; c < 8; c++) {
            const int32_t *row = r < 16 ? a[r] : b[r - 16];
            p->words[r * 8 + c] =
                folio_f32_to_f16((float)row[2 * c]) |
                (uint32_t)folio_f32_to_f16((float)row[2 * c + 1]) << 16;
        }
    if (folio_probe_do(p, &(folio_probe_run){.entry = "probe_ptx_mma",
                                             .fragments = PROBE_PTX,
                                             .options = "-D PROBE_PTX_MMA=1",
                                             .groups = 1,
                                             .items = 32,
                                             .n_in = 24 * 8,
                                             .n_out = 16 * 8,
                                             .level = FOLIO_LOG_DEBUG}) !=
        FOLIO_OK)
        return false;
    for (uint32_t i = 0; i < 16; i++)
        for (uint32_t j = 0; j < 8; j++) {
            int32_t sum = 0;
            for (uint32_t k = 0; k < 16; k++)
                sum += a[i][k] * b[j][k];
            if (p->results[i * 8 + j] != folio_f32_bits((float)sum))
                return false;
        }
    return true;
}

static bool retarget_works(folio_probe *p)
{
    enum { N = 128 };
    for (uint32_t l = 0; l < N; l++)
        p->words[l] = folio_probe_word(l);
    if (folio_probe_do(
            p, &(folio_probe_run){
                   .entry = "probe_ptx_retarget",
                   .fragments = PROBE_PTX,
                   .options = "-D PROBE_PTX_RETARGET=1 -D FOLIO_PTX_RETARGET=1",
                   .groups = 1,
                   .items = N,
                   .n_in = N,
                   .n_out = N,
                   .level = FOLIO_LOG_DEBUG}) != FOLIO_OK)
        return false;
    for (uint32_t l = 0; l < N; l++)
        if (p->results[l] != p->words[l] * 3u + l)
            return false;
    return true;
}

static bool big_local_works(folio_probe *p)
{
    enum { WORDS = 200 * 1024 / 4, WG = 256 };
    const uint32_t seed = 77;
    char options[80];
    snprintf(options, sizeof options, "-D PROBE_BIG_LOCAL=%d -D WG=%d", WORDS,
             WG);
    if (folio_probe_do(p, &(folio_probe_run){.entry = "probe_big_local",
                                             .fragments = PROBE_PTX,
                                             .options = options,
                                             .groups = 4,
                                             .items = WG,
                                             .n_out = WG,
                                             .n = (int32_t)seed,
                                             .level = FOLIO_LOG_DEBUG}) !=
        FOLIO_OK)
        return false;
    for (uint32_t l = 0; l < WG; l++) {
        uint32_t sum = 0;
        for (uint32_t i = l; i < WORDS; i += WG) {
            uint32_t k = WORDS - 1 - i;
            sum += (k * 2654435761u + seed) ^ k;
        }
        if (p->results[l] != sum)
            return false;
    }
    return true;
}

static bool bulk_works(folio_probe *p)
{
    enum { N = 256 };
    for (uint32_t i = 0; i < 2 * N; i++)
        p->words[i] = folio_probe_word(i);
    if (folio_probe_do(p, &(folio_probe_run){.entry = "probe_ptx_bulk",
                                             .fragments = PROBE_PTX,
                                             .options = "-D PROBE_PTX_BULK=1",
                                             .groups = 1,
                                             .items = 32,
                                             .n_in = 2 * N,
                                             .n_out = 2 * N,
                                             .level = FOLIO_LOG_DEBUG}) !=
        FOLIO_OK)
        return false;
    for (uint32_t i = 0; i < 2 * N; i++)
        if (p->results[i] != (p->words[i] ^ i))
            return false;
    return true;
}

uint64_t folio_caps_ptx(folio_probe *p)
{
    cl_uint major = 0;
    if (clGetDeviceInfo(p->found->id, COMPUTE_CAPABILITY_MAJOR_NV, sizeof major,
                        &major, NULL) != CL_SUCCESS ||
        major == 0 || p->found->info.max_work_group < 256 || !ptx_works(p))
        return 0;
    uint64_t caps = FOLIO_CAP_PTX;
    if (folio_probe_dot4(p, "probe_ptx_dp4a", PROBE_PTX, "-D PROBE_PTX_DP4A=1"))
        caps |= FOLIO_CAP_PTX_DP4A;
    if (mma_works(p))
        caps |= FOLIO_CAP_PTX_MMA;
    if (folio_probe_fence(p, "-cl-std=CL1.2", 1))
        caps |= FOLIO_CAP_FENCE_DEVICE;
    if (big_local_works(p))
        caps |= FOLIO_CAP_BIG_LOCAL;
    if (major >= 9 && bulk_works(p))
        caps |= FOLIO_CAP_PTX_BULK;
    if (major == 9 && retarget_works(p))
        caps |= FOLIO_CAP_PTX_RETARGET;
    return caps;
}

/* ---- retargeting
 * -------------------------------------------------------------- */

/* The PTX of `program` with its target's letter added; caller frees. */
static char *retargeted_text(cl_program program, size_t *bytes)
{
    static const char target[] = ".target sm_90";
    cl_uint devices = 0;
    size_t n = 0;
    /* One device only: in a context of several it is not known whose text
     * comes first, and all of it may be large. */
    if (clGetProgramInfo(program, CL_PROGRAM_NUM_DEVICES, sizeof devices,
                         &devices, NULL) != CL_SUCCESS ||
        devices != 1 ||
        clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, sizeof n, &n,
                         NULL) != CL_SUCCESS ||
        n == 0)
        return NULL;
    char *text = folio_calloc(n + 2, 1);
    unsigned char *out[1] = {(unsigned char *)text};
    char *at = NULL;
    if (text && clGetProgramInfo(program, CL_PROGRAM_BINARIES, sizeof out, out,
                                 NULL) == CL_SUCCESS)
        at = strstr(text, target);
    if (!at || at[sizeof target - 1] == 'a') {
        free(text);
        return NULL;
    }
    at += sizeof target - 1;
    memmove(at + 1, at, strlen(at) + 1);
    *at = 'a';
    *bytes = strlen(text) + 1;
    return text;
}

cl_program folio_ptx_build(folio_device *dev, const char *source,
                           const char *options, cl_int *code)
{
    cl_int status = CL_SUCCESS;
    size_t bytes = 0;
    cl_program first =
        clCreateProgramWithSource(dev->context, 1, &source, NULL, code);
    if (*code != CL_SUCCESS || !first)
        return NULL;
    /* Fails in the assembler where the text needs sm_90a; the compiler's own
     * result is there all the same. */
    cl_int built = clBuildProgram(first, 1, &dev->id, options, NULL, NULL);
    char *text = retargeted_text(first, &bytes);
    if (!text) {
        /* No text: the compiler itself failed. Its program carries its log. */
        *code = built != CL_SUCCESS ? built : CL_BUILD_PROGRAM_FAILURE;
        return first;
    }
    clReleaseProgram(first);
    cl_program program = clCreateProgramWithBinary(
        dev->context, 1, &dev->id, &bytes,
        (const unsigned char *[]){(const unsigned char *)text}, &status, code);
    free(text);
    if (*code == CL_SUCCESS && program)
        *code = clBuildProgram(program, 1, &dev->id, options, NULL, NULL);
    return program;
}
