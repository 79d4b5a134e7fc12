/* base/rng.h: counter-based random numbers (Philox4x32-10, Salmon et al.,
 * "Parallel random numbers: as easy as 1, 2, 3", SC 2011). Stateless: the same
 * key and counter give the same bits on host and device. */
#ifndef FOLIO_BASE_RNG_H
#define FOLIO_BASE_RNG_H

#include <stdint.h>

/* Four 32-bit words for (key, counter). */
void folio_philox4x32(uint64_t key, uint64_t counter_lo, uint64_t counter_hi,
                      uint32_t out[4]);

#endif
