/* folio/folio.h: everything. Tiers: 0 paging, tokenizer, sampler; 1 devices
 * and attention; 2 models; 3 engines. Arguments are in the order handle,
 * inputs, parameters, outputs; a count stands beside its array. */
#ifndef FOLIO_FOLIO_H
#define FOLIO_FOLIO_H

#include <folio/attention.h>
#include <folio/device.h>
#include <folio/engine.h>
#include <folio/kv.h>
#include <folio/log.h>
#include <folio/model.h>
#include <folio/sampler.h>
#include <folio/status.h>
#include <folio/tokenizer.h>
#include <folio/version.h>

#endif
