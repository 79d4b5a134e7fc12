#!/usr/bin/env bash
# --device and FOLIO_DEVICE: a wrong choice shows the table and fails.
. "$(dirname -- "${BASH_SOURCE[0]}")/lib.bash"
need_model

for d in 7 -1 abc ''; do
    fails "device '$d'" NO_DEVICE -m "$MODEL" -p Hi -n 1 --device "$d"
    json "device '$d' names it" "'host' in j['error']['message'] and
        'devices:' in j['error']['message'] and
        '''$d''' in j['error']['message']"
    run -m "$MODEL" -p Hi -n 1 --device "$d"
    has "device '$d' shows the table" "$ERR" "devices: host"
done
fails "device of a long name" NO_DEVICE -m "$MODEL" -p Hi -n 1 \
    --device "$(printf '%0300d' 0 | tr 0 x)"

FOLIO_DEVICE=abc host -p Hi -n 1
exits "--device goes before FOLIO_DEVICE" 0
FOLIO_DEVICE=abc run -m "$MODEL" -p Hi -n 1
exits "wrong FOLIO_DEVICE" 15
has "wrong FOLIO_DEVICE is named" "$ERR" FOLIO_DEVICE
FOLIO_DEVICE=host run -m "$MODEL" -p Hi -n 1 --json
exits "FOLIO_DEVICE=host" 0
json "FOLIO_DEVICE=host" "'host' in j['device']"
for d in host HOST Host; do
    run -m "$MODEL" -p Hi -n 1 --json --device $d
    exits "--device $d" 0
done
FOLIO_MAX_ALLOC=12x host -p Hi -n 1
exits "FOLIO_MAX_ALLOC that is no number" 11
has "FOLIO_MAX_ALLOC that is no number" "$ERR" "12x"

# PoCL, where it is: by name, and by the index that the table shows.
run -m "$MODEL" --device none-of-them -p Hi -n 1
index=$(sed -nE 's/^ +([0-9]+): .*Portable Computing Language.*/\1/p' "$ERR")
if [ -z "$index" ]; then
    lacking "PoCL by name" "no PoCL among the devices here"
else
    LIMIT=300
    for d in pocl "$index" "Portable Computing"; do
        run -m "$MODEL" --device "$d" -p "Gravity is" -n 3 --json
        exits "--device '$d'" 0
        json "--device '$d'" "'host' not in j['device'] and j['n_new'] == 3"
    done
fi
finish
