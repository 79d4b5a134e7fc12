/* tool_common.h: what the programs share: options from a table, log lines to
 * stderr, files into memory, bytes as JSON. Sees include/folio only. */
#ifndef FOLIO_TOOL_COMMON_H
#define FOLIO_TOOL_COMMON_H

#include <folio/folio.h>
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Exit statuses: 0, 1 where some of many requests failed, 2 for a wrong command
 * line, 10 + code number otherwise, 130 after an interrupt. */
#define TOOL_EXIT_FAILED    1
#define TOOL_EXIT_USAGE     2
#define TOOL_EXIT_INTERRUPT 130
int tool_exit_status(folio_status st);
/* The last thing a main does: the status it would end with, or that of IO where
 * stdout could not take what was printed (a full disk). */
int tool_finish(int status);

/* The last error of the library, kept so that it can go into JSON. */
typedef struct tool_log {
    char error[4096];
    bool quiet; /* print nothing: errors only travel in JSON */
    bool holds; /* print no error: it may turn out to be none */
} tool_log;

/* A folio_log that prints "name: level: text" to stderr up to `max`. */
folio_log tool_log_to(tool_log *l, folio_log_level max);

/* Program name for messages; set once in main. */
extern const char *tool_name;

/* An option: "--name", maybe with a short form and an argument. */
typedef struct tool_option {
    const char *name;  /* "--device" */
    const char *brief; /* "-d" or NULL */
    const char *arg;   /* what the argument is called, NULL = none */
    const char *help;  /* with the default */
    const char *example;
} tool_option;

/* Whether --json is among the options, so that an error of the command line can
 * be told in JSON too. To be asked first: tool_usage then does so. */
void tool_see_json(int argc, char **argv, const tool_option *opts,
                   size_t n_opts);
/* What is wrong with the command line, on stderr and, after --json, as an error
 * object on stdout. Returns TOOL_EXIT_USAGE. */
int tool_usage(const char *fmt, ...) FOLIO_PRINTF(1, 2);

/* Walks argv: returns the option's index and its argument, -1 at the end, -2
 * after printing what is wrong. "--name=value" works too; *next is the state,
 * 1 at first. What is called FILE must not be empty. */
int tool_next_option(int argc, char **argv, const tool_option *opts,
                     size_t n_opts, int *next, const char **arg);
void tool_print_options(const tool_option *opts, size_t n_opts);

/* Whole strings only; false when it is not such a number in [lo, hi]. */
bool tool_parse_int(const char *s, long long lo, long long hi, long long *out);
/* Decimal digits only, up to 2^64 - 1. */
bool tool_parse_u64(const char *s, uint64_t *out);
bool tool_parse_num(const char *s, double lo, double hi, double *out);
/* "1,2,3" or "" to a malloc'ed array. */
bool tool_parse_ids(const char *s, int32_t **ids, size_t *n);

/* Whether writing to one of them would overwrite the other. A name may be NULL:
 * no file. */
bool tool_same_file(const char *a, const char *b);
/* Nothing is there yet, or a file that may be replaced or removed: no device,
 * no pipe. */
bool tool_is_plain(const char *path);

/* Whether `path` can be written once there is something to write, through a
 * link if it is one; *why says why not. Leaves what is there as it is and no
 * file behind. */
bool tool_try_output(const char *path, const char **why);
/* Removes a file that could not be written to its end; a link to it stays. */
void tool_remove_output(const char *path);

/* A file ("-" = stdin) of at most 1 GiB as bytes with a zero behind; NULL with
 * *why set. A folder or a device other than a terminal is none. */
char *tool_read_file(const char *path, size_t *n, const char **why);

/* Text with U+FFFD for bytes that are not UTF-8, and the bytes as hex. */
json_t *tool_json_text(const char *bytes, size_t n);
json_t *tool_json_hex(const char *bytes, size_t n);
/* A float with 9 digits, null where it is not finite. */
json_t *tool_json_num(double v);
/* Prints with a newline and frees; false if stdout failed. */
bool tool_json_print(json_t *j);
/* Prints {"error": {"code", "message"}}. */
void tool_json_error(const char *code, const char *message);

#endif
