/* sample/weight.h: the integer weights of cl/weight.clh, whose text host and
 * kernels share, for this room. */
#ifndef FOLIO_SAMPLE_WEIGHT_H
#define FOLIO_SAMPLE_WEIGHT_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "cl/weight.clh"

#endif
