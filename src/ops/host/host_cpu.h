/* ops/host/host_cpu.h: which of the instruction sets that the host's kernels
 * are compiled for this processor runs. Nothing else. */
#ifndef FOLIO_OPS_HOST_CPU_H
#define FOLIO_OPS_HOST_CPU_H

#include <stdbool.h>

/* F16C came before AVX2 and FMA in every processor that has them; not all
 * compilers know its name. */
#ifdef FOLIO_HAVE_AVX2
static inline bool folio_host_has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
#endif

#if defined(FOLIO_HAVE_AVX512) || defined(FOLIO_HAVE_VNNI)
static inline bool folio_host_has_avx512(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq");
}
#endif

#ifdef FOLIO_HAVE_VNNI
static inline bool folio_host_has_vnni(void)
{
    return folio_host_has_avx512() && __builtin_cpu_supports("avx512vnni");
}
#endif

#endif
