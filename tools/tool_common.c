#define _XOPEN_SOURCE 700 /* POSIX of 2008, with realpath */
/* tool_common.c: see tool_common.h. */
#include "tool_common.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const char *tool_name = "folio";
static bool json_asked;

int tool_exit_status(folio_status st)
{
    return st == FOLIO_OK ? 0 : 10 - (int)st;
}

int tool_finish(int status)
{
    const bool bad = fflush(stdout) != 0 || ferror(stdout);
    if (!bad || status != 0)
        return status;
    fprintf(stderr, "%s: stdout could not be written\n", tool_name);
    return tool_exit_status(FOLIO_E_IO);
}

int tool_usage(const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    fprintf(stderr, "%s: %s\n", tool_name, text);
    if (json_asked)
        tool_json_error("USAGE", text);
    return TOOL_EXIT_USAGE;
}

static void log_line(void *user, folio_log_level level, const char *text)
{
    static const char *const names[] = {"error", "warning", "note", "debug"};
    tool_log *l = user;
    if (level == FOLIO_LOG_ERROR)
        snprintf(l->error, sizeof l->error, "%s", text);
    if (!l->quiet && !(l->holds && level == FOLIO_LOG_ERROR))
        fprintf(stderr, "%s: %s: %s\n", tool_name, names[level], text);
}

folio_log tool_log_to(tool_log *l, folio_log_level max)
{
    folio_log log = {log_line, l, max};
    return log;
}

void tool_see_json(int argc, char **argv, const tool_option *opts,
                   size_t n_opts)
{
    json_asked = false;
    for (int k = 1; k < argc; k++) {
        size_t i = 0;
        json_asked |= strcmp(argv[k], "--json") == 0;
        while (i < n_opts && strcmp(argv[k], opts[i].name) &&
               (!opts[i].brief || strcmp(argv[k], opts[i].brief)))
            i++;
        k += i < n_opts && opts[i].arg; /* "-p --json" is a prompt */
    }
}

int tool_next_option(int argc, char **argv, const tool_option *opts,
                     size_t n_opts, int *next, const char **arg)
{
    *arg = NULL;
    if (*next >= argc)
        return -1;
    const char *s = argv[(*next)++];
    const char *eq = s[0] == '-' && s[1] == '-' ? strchr(s, '=') : NULL;
    size_t len = eq ? (size_t)(eq - s) : strlen(s);
    for (size_t i = 0; i < n_opts; i++) {
        bool full =
            strlen(opts[i].name) == len && strncmp(s, opts[i].name, len) == 0;
        bool brief = opts[i].brief && strcmp(s, opts[i].brief) == 0;
        if (!full && !brief)
            continue;
        if (!opts[i].arg) {
            if (!eq)
                return (int)i;
            tool_usage("%s takes no argument", opts[i].name);
            return -2;
        }
        if (eq) {
            *arg = eq + 1;
        } else if (*next < argc) {
            *arg = argv[(*next)++];
        } else {
            tool_usage("%s needs %s", opts[i].name, opts[i].arg);
            return -2;
        }
        if (!**arg && !strcmp(opts[i].arg, "FILE")) {
            tool_usage("%s needs the name of a file, '' is none", opts[i].name);
            return -2;
        }
        return (int)i;
    }
    tool_usage("unknown option '%.900s' (see --help)", s);
    return -2;
}

enum { HELP_AT = 26, HELP_END = 100 };

/* Behind what stands in this line already, or in a new one. */
static int print_word(int col, const char *w, int n)
{
    if (col + 1 + n > HELP_END) {
        printf("\n%*s", HELP_AT, "");
        col = HELP_AT;
    }
    printf(" %.*s", n, w);
    return col + 1 + n;
}

void tool_print_options(const tool_option *opts, size_t n_opts)
{
    for (size_t i = 0; i < n_opts; i++) {
        char left[64];
        snprintf(left, sizeof left, "%s%s%s%s%s",
                 opts[i].brief ? opts[i].brief : "", opts[i].brief ? ", " : "",
                 opts[i].name, opts[i].arg ? " " : "",
                 opts[i].arg ? opts[i].arg : "");
        printf("  %-*s", HELP_AT - 2, left);
        int col = (int)strlen(left) + 2;
        col = col > HELP_AT ? col : HELP_AT;
        for (const char *w = opts[i].help; *w; w += strspn(w, " ")) {
            const int n = (int)strcspn(w, " ");
            col = print_word(col, w, n);
            w += n;
        }
        if (opts[i].example) {
            char example[96];
            const int n = snprintf(example, sizeof example, "Example: %s",
                                   opts[i].example);
            print_word(col, example, n);
        }
        putchar('\n');
    }
}

bool tool_parse_int(const char *s, long long lo, long long hi, long long *out)
{
    char *end;
    errno = 0;
    long long v = strtoll(s, &end, 10);
    if (errno || end == s || *end || v < lo || v > hi)
        return false;
    *out = v;
    return true;
}

bool tool_parse_u64(const char *s, uint64_t *out)
{
    uint64_t n = 0;
    if (!*s || s[strspn(s, "0123456789")])
        return false;
    for (; *s; s++) {
        const uint64_t digit = (uint64_t)(*s - '0');
        if (n > (UINT64_MAX - digit) / 10)
            return false;
        n = 10 * n + digit;
    }
    *out = n;
    return true;
}

bool tool_parse_num(const char *s, double lo, double hi, double *out)
{
    char *end;
    double v = strtod(s, &end);
    if (end == s || *end || !isfinite(v) || v < lo || v > hi)
        return false;
    *out = v;
    return true;
}

bool tool_parse_ids(const char *s, int32_t **ids, size_t *n)
{
    size_t cap = 1, count = 0;
    for (const char *p = s; *p; p++)
        cap += *p == ',';
    int32_t *v = malloc(cap * sizeof *v);
    if (!v)
        return false;
    while (*s) {
        char *end;
        errno = 0;
        long long x = strtoll(s, &end, 10);
        bool last = *end == '\0';
        if (errno || end == s || x < 0 || x > INT32_MAX ||
            (!last && *end != ',') || (*end == ',' && end[1] == '\0')) {
            free(v);
            return false;
        }
        v[count++] = (int32_t)x;
        s = last ? end : end + 1;
    }
    *ids = v;
    *n = count;
    return true;
}

/* Why this is not something to read to its end, or NULL. */
static const char *no_file(FILE *f, bool std)
{
    struct stat sb;
    if (fstat(fileno(f), &sb) != 0)
        return strerror(errno);
    if (S_ISDIR(sb.st_mode))
        return "is a folder";
    if (S_ISBLK(sb.st_mode) ||
        (S_ISCHR(sb.st_mode) && !std && !isatty(fileno(f))))
        return "is a device, not a file";
    return NULL;
}

char *tool_read_file(const char *path, size_t *n, const char **why)
{
    enum { MOST = 1 << 30 };
    bool std = strcmp(path, "-") == 0;
    FILE *f = std ? stdin : fopen(path, "rb");
    size_t cap = 1 << 16, len = 0;
    if (!f) {
        *why = strerror(errno);
        return NULL;
    }
    *why = no_file(f, std);
    if (*why) {
        if (!std)
            fclose(f);
        return NULL;
    }
    char *buf = malloc(cap);
    while (buf) {
        len += fread(buf + len, 1, cap - 1 - len, f);
        if (len < cap - 1 || cap > MOST)
            break;
        char *more = realloc(buf, cap *= 2);
        if (!more)
            free(buf);
        buf = more;
    }
    bool bad = ferror(f) != 0;
    *why = !buf ? "out of memory" : bad ? strerror(errno) : NULL;
    if (buf && !bad && len > MOST) {
        *why = "is longer than 1 GiB";
        bad = true;
    }
    if (!std)
        fclose(f);
    if (!buf || bad) {
        free(buf);
        return NULL;
    }
    buf[len] = '\0';
    *n = len;
    return buf;
}

/* Length of the valid character at s, or 0; *skip = bytes of the maximal part
 * that one U+FFFD stands for. */
static size_t utf8_char(const unsigned char *s, size_t n, size_t *skip)
{
    *skip = 1;
    if (s[0] < 0x80)
        return 1;
    size_t len = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    if (s[0] < 0xc2 || s[0] > 0xf4)
        return 0;
    for (size_t i = 1; i < len; i++) {
        unsigned lo = 0x80, hi = 0xbf;
        if (i == 1) {
            lo = s[0] == 0xe0 ? 0xa0 : s[0] == 0xf0 ? 0x90 : lo;
            hi = s[0] == 0xed ? 0x9f : s[0] == 0xf4 ? 0x8f : hi;
        }
        if (i >= n || s[i] < lo || s[i] > hi) {
            *skip = i;
            return 0;
        }
    }
    return len;
}

json_t *tool_json_text(const char *bytes, size_t n)
{
    char *out = malloc(3 * n + 1);
    size_t len = 0;
    if (!out)
        return NULL;
    for (size_t i = 0; i < n;) {
        size_t skip;
        size_t k = utf8_char((const unsigned char *)bytes + i, n - i, &skip);
        if (k) {
            memcpy(out + len, bytes + i, k);
            len += k;
            i += k;
        } else {
            memcpy(out + len, "\xef\xbf\xbd", 3);
            len += 3;
            i += skip;
        }
    }
    json_t *j = json_stringn(out, len);
    free(out);
    return j;
}

json_t *tool_json_hex(const char *bytes, size_t n)
{
    static const char digits[] = "0123456789abcdef";
    char *out = malloc(2 * n + 1);
    if (!out)
        return NULL;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)bytes[i];
        out[2 * i] = digits[c >> 4];
        out[2 * i + 1] = digits[c & 15];
    }
    json_t *j = json_stringn(out, 2 * n);
    free(out);
    return j;
}

json_t *tool_json_num(double v)
{
    return isfinite(v) ? json_real(v) : json_null();
}

bool tool_json_print(json_t *j)
{
    bool ok = j && json_dumpf(j, stdout, JSON_REAL_PRECISION(9)) == 0;
    ok = ok && putchar('\n') != EOF && fflush(stdout) == 0;
    json_decref(j);
    return ok;
}

void tool_json_error(const char *code, const char *message)
{
    json_t *text = tool_json_text(message, strlen(message));
    tool_json_print(
        json_pack("{s:{s:s,s:o}}", "error", "code", code, "message", text));
}

bool tool_same_file(const char *a, const char *b)
{
    struct stat x, y;
    if (!a || !b)
        return false;
    if (stat(a, &x) != 0 || stat(b, &y) != 0)
        return strcmp(a, b) == 0;
    return S_ISREG(x.st_mode) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

bool tool_is_plain(const char *path)
{
    struct stat s;
    return stat(path, &s) != 0 || S_ISREG(s.st_mode);
}

void tool_remove_output(const char *path)
{
    /* The file: a link that leads to it was the user's before. */
    char *real = realpath(path, NULL);
    if (real && tool_is_plain(real))
        remove(real);
    free(real);
}

bool tool_try_output(const char *path, const char **why)
{
    struct stat sb;
    const bool there = stat(path, &sb) == 0;
    if (there && S_ISDIR(sb.st_mode)) {
        *why = "is a folder";
        return false;
    }
    if (there && !S_ISREG(sb.st_mode))
        return true; /* opening a pipe would wait for its reader */
    const int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0) {
        *why = strerror(errno);
        return false;
    }
    close(fd);
    if (!there)
        tool_remove_output(path);
    return true;
}
