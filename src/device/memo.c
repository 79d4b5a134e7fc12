/* device/memo.c: blobs of the disk cache remembered for the life of a device,
 * so that what is asked hundreds of times while a model opens is read once. The
 * host device has no folder and remembers only here. */
#include "device/impl.h"

#include <string.h>

struct folio_memo {
    folio_memo *next;
    folio_hash128 key;
    size_t bytes;
    uint8_t data[];
};

/* The lock is held. */
static folio_memo *find(const folio_device *dev, folio_hash128 key)
{
    for (folio_memo *m = dev->memo; m; m = m->next)
        if (m->key.lo == key.lo && m->key.hi == key.hi)
            return m;
    return NULL;
}

bool folio_memo_get(folio_device *dev, folio_hash128 key, void *data,
                    size_t bytes)
{
    pthread_mutex_lock(&dev->lock);
    const folio_memo *m = find(dev, key);
    bool found = m && m->bytes == bytes;
    if (found)
        memcpy(data, m->data, bytes);
    pthread_mutex_unlock(&dev->lock);
    return found;
}

void folio_memo_put(folio_device *dev, folio_hash128 key, const void *data,
                    size_t bytes)
{
    size_t total;
    if (!folio_add_size(sizeof(folio_memo), bytes, &total))
        return;
    folio_memo *m = folio_calloc(1, total);
    if (!m)
        return; /* only slower */
    m->key = key;
    m->bytes = bytes;
    memcpy(m->data, data, bytes);
    pthread_mutex_lock(&dev->lock);
    folio_memo *old = find(dev, key);
    if (old && old->bytes == bytes) {
        memcpy(old->data, data, bytes);
    } else {
        m->next = dev->memo;
        dev->memo = m;
        m = NULL;
    }
    pthread_mutex_unlock(&dev->lock);
    free(m);
}

void folio_memo_fini(folio_device *dev)
{
    while (dev->memo) {
        folio_memo *m = dev->memo;
        dev->memo = m->next;
        free(m);
    }
}
