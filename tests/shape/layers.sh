#!/usr/bin/env bash
# Proves that every rule of tools/check-layers fires: a clean tree passes, and
# each planted offender is named with its file, line and rule.
set -euo pipefail
root=$(cd -- "$(dirname -- "$0")/../.." && pwd -P)
tmp=$(mktemp -d)
trap 'rm -rf -- "$tmp"' EXIT
passed=0 failed=0

# A tree with what looks like an offence and is none.
fresh()
{
    rm -rf -- "$tmp/t"
    mkdir -p "$tmp/t"/{include/folio,cl,tools,tests/consumer} \
        "$tmp/t"/src/{base,format,text,sample,sched,device,mem,model,api} \
        "$tmp/t"/src/ops/{ref,host,cl}
    cd -- "$tmp/t"
    printf '#include <stddef.h>\n' >include/folio/status.h
    printf '#include <folio/status.h>\nchar *getenv(const char *);\n' \
        >src/base/base.h
    printf '%s\n' '#include "base/base.h"' '/* exit(1) and' 'abort() */' \
        'int f(struct s *p) { p->exit(1); return snprintf(0, 0, "printf(");}' \
        "int g(void) { return '\"'; } // abort()" \
        'int my_exit(int a);' >src/format/a.c
    printf '#include <CL/cl.h>\n#include "base/base.h"\n' >src/device/dev.c
    printf '#include <clblast_c.h>\n#include "device/native.h"\n' \
        >src/ops/cl/cl_gemm.c
    printf '#include "ops/ops.h"\n#include "cl/kv_layout.clh"\n' \
        >src/ops/ref/ref.c
    printf '%s\n' '/* INFINITY, goto */ barrier(' '  CLK_LOCAL_MEM_FENCE);' \
        >cl/a.cl
    printf '#include <folio/status.h>\n#include "tool_x.h"\n' >tools/cl-a.c
}

# plant RULE FILE LINE TEXT: TEXT becomes a file whose line LINE offends.
plant()
{
    local rule=$1 file=$2 line=$3 said
    fresh
    mkdir -p -- "$(dirname -- "$file")"
    printf '%b' "$4" >"$file"
    if said=$("$root/tools/check-layers" "$tmp/t"); then
        echo "not noticed: $rule"
    elif ! grep -qF "$file:$line: $rule" <<<"$said" ||
        [ "$(grep -cE '^(src|include|cl|tools|tests)/' <<<"$said")" != 1 ]; then
        printf 'wanted only "%s:%s: %s", got:\n%s\n' "$file" "$line" "$rule" \
            "$said"
    else
        passed=$((passed + 1))
        return
    fi
    failed=$((failed + 1))
}

fresh
if "$root/tools/check-layers" "$tmp/t"; then
    passed=1
else
    echo "the clean tree is not clean"
    failed=1
fi

# One forbidden include for each room.
while read -r room target; do
    plant "room $room may not include \"$target\"" "src/$room/bad.c" 2 \
        "/* x */\n#include \"$target\"\n"
done <<'ROOMS'
base format/gguf.h
format text/tok.h
text sample/sample.h
sample format/gguf.h
sched device/dev.h
sched mem/kv.h
device format/tensor_type.h
mem format/gguf.h
mem ops/ref/ref.h
ops mem/arena.h
ops format/gguf.h
ops/ref ops/cl/cl_attn.h
ops/ref mem/arena.h
ops/host ops/cl/cl_attn.h
ops/cl ops/ref/ref.h
model sched/block_pool.h
model text/tok.h
api tools/tool_x.h
ROOMS
plant 'room sched may not include "../device/dev.h"' src/sched/bad.c 1 \
    '#include "../device/dev.h"\n'
plant '"a.h": name the room' src/format/bad.c 1 '#include "a.h"\n'
plant 'room text knows no device' src/text/bad.c 1 \
    '#include <folio/device.h>\n'
plant '<CL/cl.h> may be included by src/device/ only' src/mem/bad.c 1 \
    '#include <CL/cl.h>\n'
plant '<CL/cl_ext.h> may be included by' tools/cl-bad.c 1 \
    '#include <CL/cl_ext.h>\n'
plant '<clblast_c.h> may be included by src/ops/cl/cl_gemm.c' \
    src/ops/cl/cl_bad.c 1 '#include <clblast_c.h>\n'
plant '<pcre2.h> may be included by src/text/' src/format/bad.c 1 \
    '#include <pcre2.h>\n'
plant '<omp.h> may be included by nowhere' src/ops/host/bad.c 1 \
    '#include <omp.h>\n'
plant 'raw handles' src/ops/cl/cl_bad.c 1 '#include "device/native.h"\n'
plant 'a public header includes only' include/folio/bad.h 1 \
    '#include "base/base.h"\n'
plant 'programs see include/folio only' tools/cl-bad.c 1 \
    '#include "base/base.h"\n'
plant 'programs see include/folio only' tests/consumer/bad.c 1 \
    '#include "../src/base/base.h"\n'
plant 'src/util is no room' src/util/bad.c 1 'int x;\n'
plant 'src/(none) is no room' src/bad.c 1 'int x;\n'
plant 'the environment is read in' src/format/bad.c 2 \
    'int x;\nchar *f(void) { return getenv("X"); }\n'
for call in 'exit(1)' '_exit(1)' 'abort()'; do
    plant 'the library never ends the process' src/sched/bad.c 3 \
        "/*\n*/ int y;\nvoid f(void) { $call; }\n"
done
for call in 'printf("x")' 'vprintf(a, b)' 'puts("x")' 'perror("x")' \
    'fprintf(stderr, "x")' 'fputs("\\"x", stdout)'; do
    plant 'the library never prints' src/base/bad.c 1 "void f(void) { $call; }\n"
done
plant 'no OpenMP' src/ops/bad.c 1 '#pragma omp parallel\n'
plant 'kernels include nothing' cl/bad.cl 1 '#include "common.clh"\n'
plant 'no goto in kernels' cl/bad.clh 2 'x:\ngoto x;\n'
plant 'no infinities' cl/bad.cl 1 'float m = -INFINITY;\n'
plant 'the file name is taken by src/format/a.c' src/text/a.c 1 'int x;\n'
plant "longer than 800 lines" cl/bad.cl 801 "$(printf 'int x;\\n%.0s' {1..801})"

# Has no line number: the call may span lines.
fresh
printf 'barrier(\n0);\n' >cl/bad.cl
said=$("$root/tools/check-layers" "$tmp/t") || true
if grep -qF 'cl/bad.cl: a barrier(' <<<"$said"; then
    passed=$((passed + 1))
else
    echo "not noticed: a barrier without a fence"
    failed=$((failed + 1))
fi

echo "$passed passed, $failed failed, 0 skipped"
[ $failed = 0 ]
