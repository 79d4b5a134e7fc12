/* format/gguf_write.h: builds a GGUF v3 file: typed metadata, then tensors
 * whose data the caller fills in. The whole file is one block of memory, which
 * folio_gguf_open_memory reads and folio_gguf_save stores. Knows no model and
 * touches no device. Source: the GGUF specification in ggml's docs/gguf.md. */
#ifndef FOLIO_FORMAT_GGUF_WRITE_H
#define FOLIO_FORMAT_GGUF_WRITE_H

#include "format/gguf.h"

typedef struct folio_gguf_writer folio_gguf_writer;

/* `log` is copied, NULL allowed. */
folio_status folio_gguf_writer_open(const folio_log *log,
                                    folio_gguf_writer **out) FOLIO_NODISCARD;
void folio_gguf_writer_close(folio_gguf_writer **w);

/* Adds one entry of metadata or one tensor, in the order of the calls; what is
 * passed is copied. A failure is kept and told by folio_gguf_writer_image;
 * further calls then do nothing. */
void folio_gguf_put_u32(folio_gguf_writer *w, const char *key, uint32_t v);
void folio_gguf_put_f32(folio_gguf_writer *w, const char *key, float v);
void folio_gguf_put_bool(folio_gguf_writer *w, const char *key, bool v);
void folio_gguf_put_str(folio_gguf_writer *w, const char *key, const char *s);
void folio_gguf_put_strs(folio_gguf_writer *w, const char *key, uint64_t n,
                         const folio_gguf_str *strs);
void folio_gguf_put_i32s(folio_gguf_writer *w, const char *key, uint64_t n,
                         const int32_t *v);
/* dims[0] is the row length; n_dims 1..4. */
void folio_gguf_put_tensor(folio_gguf_writer *w, const char *name,
                           folio_type type, uint32_t n_dims,
                           const uint64_t *dims);

/* The file: head and padding are written, the tensors' data is left as the
 * allocator gave it. *image is the caller's, to be released with
 * folio_aligned_free. Returns OK; what an earlier call met: INVAL (a type this
 * build does not know, a row that is not whole blocks, dims of 0), TOO_LARGE
 * (more bytes than an address can name); NOMEM. */
folio_status folio_gguf_writer_image(folio_gguf_writer *w, uint8_t **image,
                                     size_t *size) FOLIO_NODISCARD;
/* Where the data of tensor i begins in the image and how long it is; after
 * folio_gguf_writer_image, i below the number of tensors put. */
size_t folio_gguf_writer_offset(const folio_gguf_writer *w, size_t i);
size_t folio_gguf_writer_bytes(const folio_gguf_writer *w, size_t i);

/* Stores an image at `path` under another name first, so that a file there is
 * replaced as a whole or not at all; a link stays, and the file it leads to is
 * replaced. IO with the path and the system's reason. */
folio_status folio_gguf_save(const char *path, const uint8_t *image,
                             size_t size, const folio_log *log) FOLIO_NODISCARD;

#endif
