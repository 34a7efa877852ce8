// Computes in the destructor of a C++ global, which is made before main: first thing of all ("none"), or after main computed something.
#include "tests/exit/work.h"

#include <cstdio>
#include <cstring>
#include <unistd.h>

struct Model {
    kiln_tensor *weights = nullptr;
    ~Model()
    {
        double sum = 0;
        if (!compute_new(2111) || (weights && (kiln_item(kiln_sum(kiln_exp(weights)), &sum) != KILN_OK || sum != 16))) {
            std::fprintf(stderr, "the destructor: %g, %s\n", sum, kiln_error_message());
            _exit(1);
        }
        kiln_release(weights);
        std::puts("computed in the destructor");
    }
};
static Model model;

int main(int argc, char **argv)
{
    if (argc == 2 && std::strcmp(argv[1], "none") == 0)
        return 0;
    kiln_scope *scope = kiln_scope_begin();
    model.weights = kiln_retain(kiln_zeros(KILN_F32, KILN_SHAPE(4, 4)));
    kiln_scope_end(scope);
    return compute_new(5) ? 0 : 1;
}
