/* Broken on purpose: a Criterion test that leaks. Criterion itself lets it pass; the report file is what fails it. */
#include <criterion/criterion.h>
#include <stdlib.h>

Test(gate, leak)
{
    void *volatile lost = malloc(100);
    lost = NULL;
    cr_assert_null(lost);
}
