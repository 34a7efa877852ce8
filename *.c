#include <kiln.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

int main(void)
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_scope_end(scope);
    return 0;
}
