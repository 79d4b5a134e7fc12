#include "check/check.h"
int ck_bench(ck_ctx *c)
{
    (void)c;
    return 1;
}
