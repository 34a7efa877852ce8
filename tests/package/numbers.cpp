// Numbers as operands in C++: overloads, with and without locations. Prints one line.
#include <kiln.h>

#include <cstdio>
#include <utility>

template <class A, class B> static kiln_tensor *twice(kiln_tensor *x) { return kiln_mul(x, 2); }

int main()
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x = kiln_full(KILN_F32, KILN_SHAPE(2), 3);
    std::size_t n = 4;
    kiln_tensor *y = kiln_add(kiln_mul(kiln_sub(x, 1.0), 2.0f), kiln_where(kiln_gt(x, n), true, kiln_clamp(x, -1L, 1u)));
    y = kiln_add(twice<int, long>(y), std::pair<int, double>{1, 0.5}.second); // commas in template arguments
    double total = 0;
    kiln_check(kiln_item(kiln_sum(y), &total));
    std::printf("%g\n", total);
    kiln_scope_end(scope);
    return kiln_add(x, nullptr) != nullptr;
}
