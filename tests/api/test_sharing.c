/* Results that are an input as it lies (x * 1, reshapes): shared where that is safe, never seen to change. */
#include "api.h"

API_TEST(sharing, a_result_outlives_changes_of_borrowed_memory)
{
    float data[4] = {1, 2, 3, 4};
    kiln_tensor *x = kiln_wrap(KILN_F32, KILN_SHAPE(4), data, NULL, NULL);
    kiln_tensor *same = kiln_mul(x, kiln_scalar(1)), *square = kiln_reshape(x, KILN_SHAPE(2, 2));
    cr_assert(kiln_eval_many((kiln_tensor *[]){same, square}, 2) == KILN_OK, "%s", kiln_error_message());
    data[0] = 100;
    kiln_touch(x);
    EXPECT(same, KILN_F32, KILN_SHAPE(4), 0, 1, 2, 3, 4);
    EXPECT(square, KILN_F32, KILN_SHAPE(2, 2), 0, 1, 2, 3, 4);
    EXPECT(kiln_mul(x, kiln_scalar(1)), KILN_F32, KILN_SHAPE(4), 0, 100, 2, 3, 4);
}

API_TEST(sharing, a_shared_result_is_not_overwritten_in_place)
{
    kiln_tensor *p = kiln_full(KILN_F32, KILN_SHAPE(3), 2);
    cr_assert(kiln_eval(p) == KILN_OK);
    kiln_tensor *same = kiln_mul(p, kiln_scalar(1)), *column = kiln_reshape(p, KILN_SHAPE(3, 1));
    cr_assert(kiln_eval_many((kiln_tensor *[]){same, column}, 2) == KILN_OK);
    cr_assert(kiln_assign(p, kiln_add(p, kiln_scalar(5))) == KILN_OK);
    EXPECT(p, KILN_F32, KILN_SHAPE(3), 0, 7, 7, 7);
    EXPECT(same, KILN_F32, KILN_SHAPE(3), 0, 2, 2, 2);
    EXPECT(column, KILN_F32, KILN_SHAPE(3, 1), 0, 2, 2, 2);
}
