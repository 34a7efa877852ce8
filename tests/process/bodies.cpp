// Bodies of kiln_functions that do what a body should not: throw, end its thread, free their function, end scopes that are not theirs,
// or leave scopes open; and what they may do: make their results in a scope of their own.
#define KILN_NO_LOCATIONS
#include "kiln.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <pthread.h>
#include <stdexcept>
#include <string>
#include <thread>

static int failures;

static bool check(bool ok, const char *what)
{
    if (!ok) {
        std::printf("%s (%s)\n", what, kiln_error_message());
        failures++;
    }
    kiln_clear_error();
    return ok;
}

static double value(kiln_tensor *x)
{
    double sum = -1;
    return kiln_item(kiln_sum(x), &sum) == KILN_OK ? sum : -1;
}

struct Plan {
    bool does_throw = false, ends_thread = false;
    kiln_function *self = nullptr, *inner = nullptr;
    kiln_scope *outer = nullptr;
    kiln_tensor *state = nullptr;
    int scopes = 0; // begun and ended around the result; negative: left open
    bool late = false, refused = false;
};

static void body(kiln_tensor **in, kiln_tensor **out, void *user)
{
    Plan *plan = static_cast<Plan *>(user);
    kiln_scope *own[3] = {};
    for (int i = 0; i < std::abs(plan->scopes); i++)
        own[i] = kiln_scope_begin();
    if (plan->state && kiln_assign(plan->state, kiln_add(plan->state, kiln_scalar(1))) != KILN_OK)
        return;
    if (plan->outer) {
        kiln_scope_end(plan->outer);
        plan->refused = kiln_error_status() == KILN_INVALID && std::strstr(kiln_error_message(), "kiln_scope_end");
        kiln_clear_error();
    }
    if (plan->self) {
        kiln_function_free(plan->self);
        plan->refused = kiln_error_status() == KILN_INVALID && std::strstr(kiln_error_message(), "being called");
        kiln_clear_error();
    }
    if (plan->inner) {
        kiln_tensor *y = nullptr;
        try {
            if (kiln_function_call(plan->inner, in, &y) != KILN_OK)
                return;
        } catch (const std::runtime_error &) {
            y = in[0];
        }
        out[0] = kiln_mul(y, kiln_scalar(10));
    } else {
        out[0] = kiln_add(in[0], kiln_scalar(2));
    }
    if (plan->does_throw)
        throw std::runtime_error("thrown in a body");
    if (plan->ends_thread)
        pthread_exit(nullptr);
    for (int i = plan->scopes; i-- > 0;)
        kiln_scope_end(own[i]);
}

// Another thread finds the library free, and so does this one.
static void still_works(const char *after)
{
    bool there = false;
    std::thread([&] {
        kiln_scope *scope = kiln_scope_begin();
        there = value(kiln_full(KILN_F32, KILN_SHAPE(5), 2)) == 10;
        kiln_scope_end(scope);
    }).join();
    check(there, after);
    kiln_scope *scope = kiln_scope_begin();
    check(value(kiln_exp(kiln_zeros(KILN_F32, KILN_SHAPE(3)))) == 3, after);
    kiln_scope_end(scope);
}

static void exceptions(const char *check_option)
{
    if (kiln_set_option("check", check_option) != KILN_OK)
        return;
    Plan plan;
    kiln_scope *scope = kiln_scope_begin();
    kiln_function *f = kiln_function_new(body, 1, 1, &plan);
    kiln_tensor *x = kiln_ones(KILN_F32, KILN_SHAPE(4)), *y = x;
    plan.state = kiln_zeros(KILN_F32, KILN_SHAPE(2));
    plan.does_throw = true;
    plan.scopes = 2; // open when it throws
    for (int i = 0; i < 3; i++) {
        std::string caught;
        try {
            (void)!kiln_function_call(f, &x, &y);
        } catch (const std::runtime_error &error) {
            caught = error.what();
        }
        check(caught == "thrown in a body" && !y, "an exception reaches the caller, and there is no result");
        check(value(plan.state) == 0, "what was assigned before is undone");
        still_works("after an exception");
    }
    plan.does_throw = false;
    check(kiln_function_call(f, &x, &y) == KILN_OK && value(y) == 12 && value(plan.state) == 2, "the function can be called afterwards");
    plan.does_throw = true; // traced: it is not run
    if (std::strcmp(check_option, "off") == 0)
        check(kiln_function_call(f, &x, &y) == KILN_OK && value(y) == 12 && value(plan.state) == 4, "replayed");
    else
        try {
            (void)!kiln_function_call(f, &x, &y);
            check(false, "check=pure runs it");
        } catch (const std::runtime_error &) {
        }
    still_works("after all");
    Plan outer;
    outer.inner = f;
    kiln_function *g = kiln_function_new(body, 1, 1, &outer);
    check(kiln_function_call(g, &x, &y) == KILN_OK && value(y) == 40, "a body catches what another one throws");
    kiln_function_free(g);
    kiln_function_free(f);
    kiln_scope_end(scope);
    (void)!kiln_set_option("check", "off");
}

static void ended_thread()
{
    Plan plan;
    plan.ends_thread = true;
    kiln_function *f = kiln_function_new(body, 1, 1, &plan);
    std::thread([&] {
        kiln_tensor *x = kiln_ones(KILN_F32, KILN_SHAPE(4)), *y;
        (void)!kiln_function_call(f, &x, &y);
        check(false, "the thread has ended");
    }).join();
    still_works("after pthread_exit in a body");
    kiln_function_free(f);
    check(kiln_error_status() == KILN_OK, "it is not being called any more");
}

static void foreign()
{
    kiln_scope *scope = kiln_scope_begin();
    kiln_tensor *x = kiln_ones(KILN_F32, KILN_SHAPE(4)), *y = nullptr;
    Plan plan;
    plan.outer = scope;
    kiln_function *f = kiln_function_new(body, 1, 1, &plan);
    check(kiln_function_call(f, &x, &y) == KILN_OK && plan.refused && value(y) == 12 && value(x) == 4, "a scope of the caller's is kept");
    Plan around;
    around.inner = f;
    plan.refused = false;
    kiln_function *g = kiln_function_new(body, 1, 1, &around);
    check(kiln_function_call(g, &x, &y) == KILN_OK && plan.refused && value(y) == 120, "likewise in a function inside another");
    kiln_function_free(g);
    kiln_function_free(f);

    Plan freeing;
    f = kiln_function_new(body, 1, 1, &freeing);
    freeing.self = f;
    check(kiln_function_call(f, &x, &y) == KILN_OK && freeing.refused && value(y) == 12, "a body does not free its own function");
    kiln_function_free(f);
    check(kiln_error_status() == KILN_OK, "afterwards it is freed");
    kiln_scope_end(scope);
}

static void own_scopes()
{
    for (int scopes = -3; scopes <= 3; scopes++)
        for (int inside = 0; inside < 2; inside++) {
            kiln_scope *scope = kiln_scope_begin();
            kiln_tensor *x = kiln_ones(KILN_F32, KILN_SHAPE(4)), *y = nullptr;
            Plan plan, around;
            plan.scopes = scopes;
            kiln_function *f = kiln_function_new(body, 1, 1, &plan), *g = kiln_function_new(body, 1, 1, &around);
            around.inner = f;
            for (int call = 0; call < 2; call++)
                check(kiln_function_call(inside ? g : f, &x, &y) == KILN_OK && value(y) == (inside ? 120 : 12),
                      "results made in scopes of the body's own");
            kiln_function_free(g);
            kiln_function_free(f);
            kiln_scope_end(scope);
            check(kiln_error_status() == KILN_OK, "the scope around was the innermost again");
        }
}

int main()
{
    exceptions("off");
    exceptions("pure");
    ended_thread();
    foreign();
    own_scopes();
    if (!failures)
        std::puts("nothing broke");
    return failures != 0;
}
