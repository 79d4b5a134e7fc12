/* sample.cl: one id per row, one work-group a row, with exactly the numbers of
 * ref_sample.c: weights are integers, so their sums have no order. All that
 * branches does so alike in a whole group; what a row does not need is done
 * over no elements, so that barriers are the same for every row. */

/* What a group knows of its row. Survivors: order above, or equal and an id of
 * at most last; and of at least `least`. */
typedef struct sample_cut {
    __global const float *x;
    int n, last;
    uint order;
    float top, scale;
    ulong least;
} sample_cut;

/* What is summed. */
#define COUNT  0 /* ids that survive */
#define WEIGHT 1 /* their weights, without `least` */
#define TIE    2 /* the weights of those of order `order` */
#define FINAL  3 /* their weights */

static inline ulong measure(const sample_cut *c, int i, int what)
{
    const float v = c->x[i];
    const uint o = sample_order(v);
    if (o <= SAMPLE_ORDER_OUT || o < c->order ||
        (what == TIE ? o != c->order : o == c->order && i > c->last))
        return 0;
    if (what == COUNT)
        return 1;
    const ulong w = folio_sample_weight(v, c->top, c->scale);
    return what == FINAL && w < c->least ? 0 : w;
}

static inline ulong best_of(float v, int i)
{
    return (ulong)sample_order(v) << 32 | (ulong)(~(uint)i);
}

static inline ulong wg_sum_ulong(ulong v, __local ulong *tmp)
{
    const uint lid = (uint)get_local_id(0);
    tmp[lid] = v;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint half_n = WG / 2; half_n > 0; half_n /= 2) {
        if (lid < half_n)
            tmp[lid] += tmp[lid + half_n];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    const ulong sum = tmp[0];
    barrier(CLK_LOCAL_MEM_FENCE);
    return sum;
}

static inline ulong sum_all(const sample_cut *c, int n, int what,
                            __local ulong *tmp)
{
    ulong sum = 0;
    for (int i = (int)get_local_id(0); i < n; i += WG)
        sum += measure(c, i, what);
    return wg_sum_ulong(sum, tmp);
}

#ifdef SAMPLE_SCAN
#define SAMPLE_ENTRY sample_scan
/* ---- one work-item a row, for CPUs ------------------------------------------
 */

/* The largest order from which on the survivors hold at least `need`, 0 if
 * they hold less; *above = what they hold above it. n: c->n, or 0: nothing is
 * asked. */
static inline uint find_order(const sample_cut *c, int n, ulong need, int what,
                              __local ulong *bins, ulong *above)
{
    ulong sum = 0;
    uint order = 0, known = 0; /* the bits of order that are known */
    for (int s = 0; s < 3 && n > 0; s++) {
        const int shift = s == 0 ? 21 : s == 1 ? 10 : 0;
        const uint mask = s == 2 ? 1023u : 2047u;
        for (uint b = 0; b <= mask; b++)
            bins[b] = 0;
        for (int i = 0; i < n; i++) {
            const uint o = sample_order(c->x[i]);
            if (((o ^ order) & known) == 0 && o > SAMPLE_ORDER_OUT)
                bins[o >> shift & mask] += measure(c, i, what);
        }
        uint b = mask;
        for (; b > 0 && sum + bins[b] < need; b--)
            sum += bins[b];
        if (b == 0 && sum + bins[0] < need)
            n = 0; /* in the first round only: order stays 0 */
        order |= b << shift;
        known |= mask << shift;
    }
    *above = sum;
    return order;
}

/* The first id up to which there is more than `u`, which is less than all. */
static inline int walk(const sample_cut *c, int n, ulong u, int what,
                       __local ulong *bins)
{
    int i = 0;
    (void)bins;
    for (; i < n - 1; i++) {
        const ulong w = measure(c, i, what);
        if (u < w)
            break;
        u -= w;
    }
    return i;
}

#else
#define SAMPLE_ENTRY sample_wg
/* ---- one work-group a row ---------------------------------------------------
 */

/* part[0] .. part[7] of each work-item, of all of them; bins[j * WG] then holds
 * the sum of part j until the caller's next barrier. */
static inline void sum_parts(const ulong *part, __local ulong *bins)
{
    const uint lid = (uint)get_local_id(0);
    for (uint j = 0; j < 8; j++)
        bins[j * WG + lid] = part[j];
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint half_n = WG / 2; half_n > 0; half_n /= 2) {
        if (lid < half_n)
            for (uint j = 0; j < 8; j++)
                bins[j * WG + lid] += bins[j * WG + lid + half_n];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
}

/* As above, three bits of the order a round (two in the first). */
static inline uint find_order(const sample_cut *c, int n, ulong need, int what,
                              __local ulong *bins, ulong *above)
{
    ulong sum = 0;
    uint order = 0, known = 0;
    const int rounds = n > 0 ? 11 : 0;
    for (int s = 0; s < rounds; s++) {
        const int shift = 30 - 3 * s;
        ulong part[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        for (int i = (int)get_local_id(0); i < n; i += WG) {
            const uint o = sample_order(c->x[i]);
            if (((o ^ order) & known) != 0)
                continue;
            const uint digit = o >> shift & 7u;
            const ulong w = measure(c, i, what);
            for (uint j = 0; j < 8; j++)
                part[j] += j == digit ? w : 0;
        }
        sum_parts(part, bins);
        uint digit = 7;
        for (; digit > 0 && sum + bins[digit * WG] < need; digit--)
            sum += bins[digit * WG];
        if (digit == 0 && sum + bins[0] < need)
            n = 0; /* in the first round only: order stays 0 */
        barrier(CLK_LOCAL_MEM_FENCE);
        order |= digit << shift;
        known |= 7u << shift;
    }
    *above = sum;
    return order;
}

/* Eighths of what is left, until one id is. */
static inline int walk(const sample_cut *c, int n, ulong u, int what,
                       __local ulong *bins)
{
    int first = 0;
    for (int left = n; left > 1;) {
        const int each = (left + 7) / 8;
        ulong part[8];
        for (int j = 0; j < 8; j++) {
            const int begin = first + j * each;
            const int end = min(min(begin + each, first + left), n);
            part[j] = 0;
            for (int i = begin + (int)get_local_id(0); i < end; i += WG)
                part[j] += measure(c, i, what);
        }
        sum_parts(part, bins);
        int j = 0;
        for (; j < 7 && u >= bins[j * WG]; j++)
            u -= bins[j * WG];
        barrier(CLK_LOCAL_MEM_FENCE);
        first += j * each;
        left = each;
    }
    return first;
}
#endif

/* Group (row). has: 1 edits, 2 counts, 4 ids; without, an argument stands for
 * something else. bins has 2048 elements in sample_scan, 8 * WG in sample_wg.
 * It is an argument because PoCL 3.1 shares a local array of the kernel's own
 * among groups that run at once, where compilers put its name into the
 * functions that it is passed to. */
__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void SAMPLE_ENTRY(
    CVIEW(float, logits), const int stride, const int n_vocab, CVIEW(int, rows),
    CVIEW(int, edits), AVIEW(int, counts), AVIEW(int, ids), AVIEW(int, out),
    AVIEW(float, scratch), const int has, __local ulong *bins)
{
    CUSE(float, logits);
    CUSE(int, rows);
    CUSE(int, edits);
    USE(int, counts);
    USE(int, ids);
    USE(int, out);
    USE(float, scratch);
    const ulong row = get_group_id(0);
    const int lid = (int)get_local_id(0);
    __global const float *x = logits + row * (ulong)stride;
    __global const int *w = rows + row * SAMPLE_IN;

    /* The raw row. */
    ulong best = 0, sum = 0;
    for (int i = lid; i < n_vocab; i += WG)
        best = max(best, best_of(x[i], i));
    best = wg_max_ulong(best, bins);
    const uint raw_order = (uint)(best >> 32);
    const bool raw_bad = raw_order >= SAMPLE_ORDER_BAD;
    const float raw_max = x[~(uint)best];
    const int n_raw =
        raw_bad || raw_order <= SAMPLE_ORDER_OUT || w[SAMPLE_NO_SUM] ? 0
                                                                     : n_vocab;
    for (int i = lid; i < n_raw; i += WG)
        sum += folio_weight_fixed(x[i], raw_max, SAMPLE_LOG2E, SAMPLE_SUM_ONE);
    sum = wg_sum_ulong(sum, bins);

    /* The row that is drawn from. */
    const int slot = (has & 2) ? w[SAMPLE_SLOT] : -1;
    const int first = w[SAMPLE_EDIT_FIRST];
    const int end = (has & 1) ? w[SAMPLE_EDIT_END] : first;
    const bool changed = !raw_bad && (slot >= 0 || first < end);
    const int n_changed = changed ? n_vocab : 0;
    const int last_edit = changed ? end : first;
    __global float *y = scratch + (changed ? row * (ulong)n_vocab : 0);
    __global int *count = counts + (slot >= 0 ? (ulong)slot : 0) * n_vocab;
    for (int i = lid; i < n_changed; i += WG)
        y[i] = x[i];
    barrier(CLK_GLOBAL_MEM_FENCE);
    /* All pairs of an id are one work-item's: that of the first of them. */
    for (int e = first + lid; e < last_edit; e += WG) {
        const int id = edits[2 * e];
        if (e > first && edits[2 * e - 2] == id)
            continue;
        float v = y[id];
        for (int f = e; f < last_edit && edits[2 * f] == id; f++)
            v = v + as_float(edits[2 * f + 1]);
        y[id] = v;
    }
    barrier(CLK_GLOBAL_MEM_FENCE);
    ulong shaped = 0;
    for (int i = lid; i < n_changed; i += WG) {
        float v = y[i];
        const int k = slot >= 0 ? count[i] : 0;
        if (k != 0) {
            v = sample_penalise(v, k, as_float(w[SAMPLE_REPEAT_MUL]),
                                as_float(w[SAMPLE_REPEAT_DIV]),
                                as_float(w[SAMPLE_PRESENCE]),
                                as_float(w[SAMPLE_FREQUENCY]));
            y[i] = v;
        }
        shaped = max(shaped, best_of(v, i));
    }
    barrier(CLK_GLOBAL_MEM_FENCE);
    shaped = wg_max_ulong(shaped, bins);
    best = changed ? shaped : best;

    const uint order = (uint)(best >> 32);
    const int flags = order >= SAMPLE_ORDER_BAD   ? SAMPLE_BAD
                      : order <= SAMPLE_ORDER_OUT ? SAMPLE_EMPTY
                                                  : 0;
    const int mode = flags ? SAMPLE_SKIP : w[SAMPLE_MODE];
    const int n = mode == SAMPLE_DRAW ? n_vocab : 0;
    sample_cut c;
    c.x = changed ? y : x;
    c.n = n;
    c.last = 0x7fffffff;
    c.order = 0;
    c.top = c.x[~(uint)best];
    c.scale = as_float(w[SAMPLE_SCALE]);
    c.least = sample_u64(w[SAMPLE_MIN_LO], w[SAMPLE_MIN_HI]);

    /* Top-k keeps ties. */
    const int k = w[SAMPLE_TOP_K];
    ulong above;
    c.order = find_order(&c, k > 0 && k < n ? n : 0, (ulong)max(k, 0), COUNT,
                         bins, &above);
    /* Top-p cuts them by id; one id is always kept. */
    const ulong tail = sample_u64(w[SAMPLE_TAIL_LO], w[SAMPLE_TAIL_HI]);
    const int n_p = tail != 0 ? n : 0;
    const ulong kept = sum_all(&c, n_p, WEIGHT, bins);
    const ulong drop = tail >> 48 ? kept : folio_weight_share(tail, kept);
    const ulong need = kept - drop > 0 ? kept - drop : 1;
    const uint cut_at = find_order(&c, n_p, need, WEIGHT, bins, &above);
    c.order = n_p ? cut_at : c.order;
    const int tie = walk(&c, n_p, need - above - 1, TIE, bins);
    c.last = n_p ? tie : c.last;

    const ulong total = sum_all(&c, n, FINAL, bins);
    const ulong u = folio_weight_high(
        sample_u64(w[SAMPLE_RANDOM_LO], w[SAMPLE_RANDOM_HI]), total);
    const int drawn = walk(&c, n, u, FINAL, bins);

    if (lid == 0) {
        const int id = mode == SAMPLE_DRAW     ? drawn
                       : mode == SAMPLE_GREEDY ? (int)~(uint)best
                                               : -1;
        const int target = raw_bad ? -1 : w[SAMPLE_TARGET];
        __global int *o = out + row * SAMPLE_OUT;
        o[SAMPLE_ID] = id;
        o[SAMPLE_FLAGS] = flags;
        o[SAMPLE_LOGIT] = id < 0 ? 0 : as_int(x[id]);
        o[SAMPLE_MAX] = raw_bad ? 0 : as_int(raw_max);
        o[SAMPLE_ASKED] = target < 0 ? 0 : as_int(x[target]);
        o[SAMPLE_SUM_LO] = (int)(uint)sum;
        o[SAMPLE_SUM_HI] = (int)(sum >> 32);
        if (has & 4)
            ids[row] = max(id, 0);
        if (slot >= 0 && id >= 0)
            count[id]++;
    }
}
