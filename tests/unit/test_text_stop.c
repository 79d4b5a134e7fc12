/* Stop strings over the borders of pieces: what comes out, when, and what
 * never does; against a search through the whole text. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "text/stop.h"
#include "text/utf8.h"
#include "unit/fail_alloc.h"

static folio_stop_set *open_set(const char *const *strings, int32_t n)
{
    size_t lens[64];
    folio_stop_set *set = NULL;
    for (int32_t i = 0; i < n; i++)
        lens[i] = strlen(strings[i]);
    cr_assert_eq(folio_stop_set_open(strings, lens, n, NULL, &set), FOLIO_OK);
    return set;
}

/* Pushes pieces until one is NULL and writes all that comes out, a '|' after
 * each piece, then what the flush gives unless a stop string was complete. */
static int32_t feed(const folio_stop_set *set, const char *const *pieces,
                    char *all)
{
    folio_stop_state state = folio_stop_begin();
    int32_t hit = -1;
    size_t n, at = 0;
    for (; *pieces; pieces++) {
        hit = folio_stop_push(set, &state, *pieces, strlen(*pieces), all + at,
                              &n);
        at += n;
        all[at++] = '|';
    }
    at += folio_stop_flush(set, &state, all + at);
    all[at] = '\0';
    return hit;
}

Test(stop, over_borders)
{
    static const char *const stops[] = {"beta gamma", "STOP", "\n\n"};
    static const struct {
        const char *piece[6], *out;
        int32_t hit;
    } in[] = {
        {{"alpha ", "beta", " gam", "ma delta"}, "alpha ||||", 0},
        {{"alpha beta gamma"}, "alpha |", 0},
        {{"alpha beta", " gamut"}, "alpha |beta gamut|", -1},
        {{"be", "be", "beta gamma!"}, "|be|be|", 0},
        /* It ends in the middle of a piece; nothing follows, ever. */
        {{"one ST", "OPPED two", "three"}, "one |||", 1},
        {{"a\n", "b\n", "\nc"}, "a|\nb||", 2},
        {{"the end: be", "ta ga"}, "the end: ||beta ga", -1},
        {{"S", "T", "O", "P"}, "||||", 1},
        {{"", "x", ""}, "|x||", -1},
        {{"beta STOP gamma"}, "beta |", 1},
    };
    char all[256];
    folio_stop_set *set = open_set(stops, 3);
    cr_assert_eq(folio_stop_set_max_held(set), 9);
    for (size_t i = 0; i < sizeof in / sizeof in[0]; i++) {
        const int32_t hit = feed(set, in[i].piece, all);
        cr_expect_eq(hit, in[i].hit, "case %zu: %d", i, hit);
        cr_expect_str_eq(all, in[i].out, "case %zu", i);
    }
    folio_stop_set_close(&set);
    cr_assert_null(set);
    folio_stop_set_close(&set);
    folio_stop_set_close(NULL);
}

/* The string that is complete first wins, the longest one at the same byte. */
Test(stop, overlapping)
{
    static const char *const stops[] = {"abcd", "bc", "xyz", "yz",
                                        "aab",  "bc", "he",  "she"};
    static const struct {
        const char *piece[6], *out;
        int32_t hit;
    } in[] = {
        {{"abcd"}, "a|", 1},
        {{"a", "b", "c", "d"}, "||a||", 1},
        {{"wxyz"}, "w|", 2},
        {{"w", "y", "z"}, "w|||", 3},
        {{"aaaab"}, "aa|", 4},
        {{"a", "a", "a", "b"}, "||a||", 4},
        {{"us", "he", "rs"}, "u|||", 7},
        {{"abx", "yy", "z"}, "ab|xy||", 3},
    };
    char all[256];
    folio_stop_set *set = open_set(stops, 8);
    for (size_t i = 0; i < sizeof in / sizeof in[0]; i++) {
        const int32_t hit = feed(set, in[i].piece, all);
        cr_expect_eq(hit, in[i].hit, "case %zu: %d", i, hit);
        cr_expect_str_eq(all, in[i].out, "case %zu: %s", i, all);
    }
    folio_stop_set_close(&set);
}

Test(stop, held_and_flushed)
{
    static const char *const stops[] = {"abc"};
    folio_stop_set *set = open_set(stops, 1);
    folio_stop_state state = folio_stop_begin();
    char out[16];
    size_t n = 9;
    cr_assert_eq(folio_stop_push(set, &state, "xab", 3, out, &n), -1);
    cr_assert_eq(n, 1);
    cr_assert_eq(folio_stop_n_held(set, &state), 2);
    /* A copy goes its own way. */
    folio_stop_state copy = state;
    cr_assert_eq(folio_stop_push(set, &copy, "c", 1, out, &n), 0);
    cr_assert_eq(n, 0);
    cr_assert_eq(folio_stop_n_held(set, &copy), 0);
    cr_assert_eq(folio_stop_push(set, &copy, "more", 4, out, &n), 0);
    cr_assert_eq(n, 0);
    cr_assert_eq(folio_stop_flush(set, &copy, out), 0);
    cr_assert_eq(folio_stop_flush(set, &state, out), 2);
    cr_assert_arr_eq(out, "ab", 2);
    cr_assert_eq(folio_stop_flush(set, &state, out), 0);
    /* As at the beginning: the "ab" from before is gone. */
    cr_assert_eq(folio_stop_push(set, &state, "c", 1, out, &n), -1);
    cr_assert_eq(n, 1);
    folio_stop_set_close(&set);
}

/* The text with a stop string's end inside a character, and one whose
 * beginning looks like another character's. */
Test(stop, characters)
{
    static const char *const stops[] = {"\xe6\xad\xaa", "x\xd1",
                                        "\xf0\x9f\xa6\x99!"};
    static const struct {
        const char *piece[6], *out;
        int32_t hit;
    } in[] = {
        {{"a", "\xe6\xad\xaa", "b"}, "a|||", 0},
        {{"\xe6\xad\xab", "b"}, "\xe6\xad\xab|b|", -1},
        {{"yx", "\xd1\x89"}, "y||", 1},
        {{"\xf0\x9f\xa6\x99", "?"}, "|\xf0\x9f\xa6\x99?|", -1},
        {{"\xf0\x9f\xa6\x99", "!"}, "||", 2},
        {{"\xf0\x9f\xa6\x98!"}, "\xf0\x9f\xa6\x98!|", -1},
    };
    char all[256];
    folio_stop_set *set = open_set(stops, 3);
    for (size_t i = 0; i < sizeof in / sizeof in[0]; i++) {
        cr_expect_eq(feed(set, in[i].piece, all), in[i].hit, "case %zu", i);
        cr_expect_str_eq(all, in[i].out, "case %zu: %s", i, all);
    }
    folio_stop_set_close(&set);
}

/* The first byte at which a string is complete, the longest there. */
static int32_t search(const char *const *stops, int32_t n_stops,
                      const char *text, size_t n, size_t *begin)
{
    for (size_t end = 1; end <= n; end++) {
        int32_t best = -1;
        for (int32_t i = 0; i < n_stops; i++) {
            const size_t len = strlen(stops[i]);
            if (len <= end && !memcmp(text + end - len, stops[i], len) &&
                (best < 0 || len > strlen(stops[best])))
                best = i;
        }
        if (best >= 0) {
            *begin = end - strlen(stops[best]);
            return best;
        }
    }
    *begin = n;
    return -1;
}

/* Most bytes at the end of text that begin a stop string. */
static size_t most_held(const char *const *stops, int32_t n_stops,
                        const char *text, size_t n)
{
    size_t most = 0;
    for (int32_t i = 0; i < n_stops; i++)
        for (size_t k = most + 1; k <= n && k < strlen(stops[i]); k++)
            if (!memcmp(text + n - k, stops[i], k))
                most = k;
    return most;
}

static uint64_t state_of_rng = 24681357;

static uint32_t below(uint32_t n)
{
    state_of_rng = state_of_rng * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((state_of_rng >> 33) % n);
}

/* Small alphabets of whole characters, random cuts between them: what has come
 * out is right after each piece, and always whole characters. */
Test(stop, equals_a_search)
{
    static const char *const letters[] = {"a", "b", "\xd1\x89", "\xd1\x8a"};
    int n_hit = 0, n_none = 0, n_held_back = 0;
    cr_log_info("seed %llu", (unsigned long long)state_of_rng);
    for (int round = 0; round < 4000; round++) {
        char stop[4][32] = {{0}}, text[256] = "", out[256] = "";
        const char *stops[4];
        const int32_t n_stops = 1 + (int32_t)below(4);
        const uint32_t n_letters = 2 + below(3);
        for (int32_t i = 0; i < n_stops; i++) {
            for (uint32_t k = 2 + below(5); k--;)
                strcat(stop[i], letters[below(n_letters)]);
            stops[i] = stop[i];
        }
        folio_stop_set *set = open_set(stops, n_stops);
        folio_stop_state state = folio_stop_begin();
        size_t n_text = 0, n_out = 0, begin, n;
        int32_t hit = -1;
        for (uint32_t k = below(12); k-- && hit < 0;) {
            char piece[64] = "";
            for (uint32_t j = below(6); j--;)
                strcat(piece, letters[below(n_letters)]);
            memcpy(text + n_text, piece, strlen(piece));
            n_text += strlen(piece);
            hit = folio_stop_push(set, &state, piece, strlen(piece),
                                  out + n_out, &n);
            n_out += n;
            const int32_t want = search(stops, n_stops, text, n_text, &begin);
            if (want < 0)
                begin -= most_held(stops, n_stops, text, n_text);
            n_held_back += want < 0 && begin < n_text;
            cr_assert((hit < 0) == (want < 0) &&
                          (hit < 0 || !strcmp(stops[hit], stops[want])),
                      "round %d: %d, expected %d", round, hit, want);
            cr_assert_eq(n_out, begin,
                         "round %d: %zu bytes of %zu out, "
                         "expected %zu",
                         round, n_out, n_text, begin);
            cr_assert(!memcmp(out, text, n_out));
            for (size_t at = 0, len; at < n_out; at += len)
                cr_assert_eq(folio_utf8_step((const uint8_t *)out + at,
                                             n_out - at, &len),
                             FOLIO_UTF8_VALID);
        }
        n_out += folio_stop_flush(set, &state, out + n_out);
        if (hit < 0)
            cr_assert_eq(n_out, n_text);
        cr_assert(!memcmp(out, text, n_out));
        n_hit += hit >= 0;
        n_none += hit < 0;
        folio_stop_set_close(&set);
    }
    cr_assert_gt(n_hit, 1000);
    cr_assert_gt(n_none, 300);
    cr_assert_gt(n_held_back, 1000);
}

/* A long string that nearly fits everywhere: each byte is looked at a bounded
 * number of times, and held text comes out in full. */
Test(stop, long_near_misses)
{
    enum { LEN = 2000, TIMES = 200 };
    char stop[LEN + 1], *out = malloc(LEN * 3), *run = malloc(LEN);
    memset(stop, 'a', LEN);
    memset(run, 'a', LEN);
    stop[LEN - 1] = 'b';
    stop[LEN] = '\0';
    const char *const stops[] = {stop};
    folio_stop_set *set = open_set(stops, 1);
    folio_stop_state state = folio_stop_begin();
    size_t total = 0, n;
    for (int i = 0; i < TIMES; i++) {
        cr_assert_eq(folio_stop_push(set, &state, run, LEN, out, &n), -1);
        total += n;
    }
    cr_assert_eq(folio_stop_n_held(set, &state), LEN - 1);
    cr_assert_eq(total, (size_t)LEN * TIMES - (LEN - 1));
    cr_assert_eq(folio_stop_push(set, &state, "c", 1, out, &n), -1);
    cr_assert_eq(n, LEN);
    cr_assert_eq(out[0], 'a');
    cr_assert_eq(out[LEN - 1], 'c');
    folio_stop_set_close(&set);
    free(out);
    free(run);
}

static void keep_message(void *user, folio_log_level level, const char *message)
{
    (void)level;
    snprintf(user, 1024, "%s", message);
}

Test(stop, refusals)
{
    char text[1024] = "";
    folio_log log = {keep_message, text, FOLIO_LOG_DEBUG};
    folio_stop_set *set = NULL;
    const char *const empty[] = {"a", ""}, *const inside[] = {"\x89z"},
                      *const missing[] = {NULL}, *const fine[] = {"a"};
    const size_t lens[] = {1, 0}, two[] = {2}, huge[] = {(1 << 20) + 1};
    cr_assert_eq(folio_stop_set_open(empty, lens, 2, &log, &set),
                 FOLIO_E_INVAL);
    cr_assert(strstr(text, "string 1 is empty"), "%s", text);
    cr_assert_eq(folio_stop_set_open(inside, two, 1, &log, &set),
                 FOLIO_E_INVAL);
    cr_assert(strstr(text, "byte 89"), "%s", text);
    cr_assert_eq(folio_stop_set_open(missing, two, 1, &log, &set),
                 FOLIO_E_INVAL);
    cr_assert_eq(folio_stop_set_open(fine, huge, 1, &log, &set), FOLIO_E_INVAL);
    cr_assert(strstr(text, "1048577 bytes"), "%s", text);
    cr_assert_eq(folio_stop_set_open(fine, lens, 0, &log, &set), FOLIO_E_INVAL);
    cr_assert_eq(folio_stop_set_open(fine, lens, 1, &log, NULL), FOLIO_E_INVAL);
    cr_assert_null(set);
}

Test(stop, memory)
{
    static const char *const stops[] = {"abc", "bd"};
    static const size_t lens[] = {3, 2};
    folio_stop_set *set = NULL;
    folio_stop_state state = folio_stop_begin();
    char out[16];
    size_t n = 0;
    int nth = 1;
    for (;; nth++) {
        fail_alloc_arm(nth);
        const folio_status st = folio_stop_set_open(stops, lens, 2, NULL, &set);
        if (!fail_alloc_disarm())
            break;
        cr_assert_eq(st, FOLIO_E_NOMEM);
        cr_assert_null(set);
    }
    cr_assert_gt(nth, 4);
    fail_alloc_arm(1);
    const int32_t hit = folio_stop_push(set, &state, "xabd", 4, out, &n);
    cr_assert_not(fail_alloc_disarm());
    cr_assert_eq(hit, 1);
    cr_assert_eq(n, 2);
    folio_stop_set_close(&set);
}
