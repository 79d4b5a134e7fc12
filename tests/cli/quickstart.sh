#!/usr/bin/env bash
# The command line of tools/quickstart: what it refuses before it installs,
# builds or fetches anything. (Its work is a stage of its own.)
. "$(dirname -- "${BASH_SOURCE[0]}")/lib.bash"
QUICKSTART=$HERE/../../tools/quickstart

command_ "$QUICKSTART" --help
exits help 0
has help "$OUT" "usage: tools/quickstart"
has help "$OUT" "--"
command_ env -u HOME -u XDG_CACHE_HOME "$QUICKSTART" --help
exits "help without HOME" 0
has "help without HOME" "$OUT" "/.cache/folio/models"
empty "help without HOME, stderr" "$ERR"
for option in --bogus -x; do
    command_ "$QUICKSTART" $option
    exits "$option" 2
    empty "$option, stdout" "$OUT"
    has "$option" "$ERR" "unknown option '$option'"
    has "$option" "$ERR" "usage: tools/quickstart"
    command_ "$QUICKSTART" Once $option
    exits "$option behind a word" 2
done
finish
