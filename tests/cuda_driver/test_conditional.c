// Conditional nodes of graphs: loops and branches, one in another; what the driver's documentation wants of them, and what it calls undefined.
#include "tests/cuda_driver/harness.h"

#include <stdlib.h>

typedef struct Setup {
    CUfunction count_down, set, increase;
    CUdeviceptr counter, total, yes;
    CUcontext context;
    CUstream stream;
    CUgraph graph;
} Setup;

static Setup set_up(const char *settings)
{
    Setup s;
    uint32_t zero = 0, one = 1;
    harness_start(settings);
    CUmodule m = harness_module("conditional.ptx");
    s.count_down = harness_function(m, "count_down");
    s.set = harness_function(m, "set");
    s.increase = harness_function(m, "increase");
    s.counter = harness_upload(&zero, sizeof zero);
    s.total = harness_upload(&zero, sizeof zero);
    s.yes = harness_upload(&one, sizeof one);
    CHECK_OK(cu.cuCtxGetCurrent(&s.context));
    CHECK_OK(cu.cuStreamCreate(&s.stream, CU_STREAM_NON_BLOCKING));
    CHECK_OK(cu.cuGraphCreate(&s.graph, 0));
    return s;
}

static CUgraphConditionalHandle handle(const Setup *s, CUgraph graph, unsigned value, unsigned flags)
{
    CUgraphConditionalHandle h = 0;
    CHECK_OK(cu.cuGraphConditionalHandleCreate(&h, graph, s->context, value, flags));
    return h;
}

static CUgraphNodeParams conditional(const Setup *s, CUgraphConditionalHandle h, unsigned type)
{
    CUgraphNodeParams p = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL};
    p.conditional = (CUDA_CONDITIONAL_NODE_PARAMS){.handle = h, .type = type, .size = 1, .ctx = s->context};
    return p;
}

// A kernel of one thread behind *last, which it becomes.
static CUresult kernel(CUgraph graph, CUgraphNode *last, CUfunction f, void **params)
{
    CUDA_KERNEL_NODE_PARAMS p = {
        .func = f, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1, .kernelParams = params};
    CUgraphNode after = *last;
    return cu.cuGraphAddKernelNode_v2(last, graph, after ? &after : NULL, after ? 1 : 0, &p);
}

static CUgraph body(const Setup *s, CUgraph graph, CUgraphNode *last, CUgraphConditionalHandle h, unsigned type)
{
    CUgraphNodeParams p = conditional(s, h, type);
    CUgraphNode after = *last;
    CHECK_OK(cu.cuGraphAddNode_v2(last, graph, after ? &after : NULL, NULL, after ? 1 : 0, &p));
    return p.conditional.phGraph_out[0];
}

static uint32_t word(CUdeviceptr at)
{
    uint32_t v;
    CHECK_OK(cu.cuCtxSynchronize());
    harness_download(&v, at, sizeof v);
    return v;
}

static void put(CUdeviceptr at, uint32_t v)
{
    CHECK_OK(cu.cuMemsetD32_v2(at, v, 1));
    CHECK_OK(cu.cuCtxSynchronize());
}

static CUresult run(const Setup *s, CUgraphExec exec)
{
    CUresult result = cu.cuGraphLaunch(exec, s->stream);
    return result ? result : cu.cuStreamSynchronize(s->stream);
}

// while (--counter) total += 3, after a first decision outside.
static void loop(void)
{
    Setup s = set_up("");
    CUgraphConditionalHandle h = handle(&s, s.graph, 0, 0);
    CUgraphNode last = NULL, add, inside = NULL;
    CUgraphExec exec, second;
    uint32_t n = 3;
    int type;
    CHECK_OK(kernel(s.graph, &last, s.count_down, PARAMS(&h, &s.counter)));
    CUgraph in = body(&s, s.graph, &last, h, CU_GRAPH_COND_TYPE_WHILE);
    CHECK_OK(cu.cuGraphNodeGetType(last, &type));
    CHECK(type == CU_GRAPH_NODE_TYPE_CONDITIONAL);
    CHECK_OK(kernel(in, &inside, s.increase, PARAMS(&s.total, &n)));
    add = inside;
    CHECK_OK(kernel(in, &inside, s.count_down, PARAMS(&h, &s.counter)));
    CHECK_CODE(cu.cuGraphDestroy(in), CUDA_ERROR_INVALID_VALUE);
    CHECK_CODE(cu.cuGraphInstantiateWithFlags(&exec, in, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_OK(cu.cuGraphInstantiateWithFlags(&exec, s.graph, 0));
    CHECK_CODE(cu.cuGraphInstantiateWithFlags(&second, s.graph, 0), CUDA_ERROR_INVALID_VALUE); // one at a time
    static const uint32_t turns[] = {1, 2, 8, 1000};
    for (int i = 0; i < 4; i++) {
        put(s.counter, turns[i]);
        put(s.total, 0);
        CHECK_OK(run(&s, exec));
        CHECK(word(s.total) == 3 * (turns[i] - 1));
    }
    n = 5; // parameters of a node in a body; of a launch that is queued they stay
    CUDA_KERNEL_NODE_PARAMS p = {.func = s.increase,
                                 .gridDimX = 1,
                                 .gridDimY = 1,
                                 .gridDimZ = 1,
                                 .blockDimX = 1,
                                 .blockDimY = 1,
                                 .blockDimZ = 1,
                                 .kernelParams = PARAMS(&s.total, &n)};
    put(s.counter, 4);
    put(s.total, 0);
    CHECK_OK(cu.cuGraphLaunch(exec, s.stream));
    CHECK_OK(cu.cuGraphExecKernelNodeSetParams_v2(exec, add, &p));
    CHECK(word(s.total) == 9);
    put(s.counter, 4);
    put(s.total, 0);
    CHECK_OK(cu.cuGraphLaunch(exec, s.stream));
    CHECK_OK(cu.cuGraphExecDestroy(exec)); // in flight, as its graph
    CHECK_OK(cu.cuGraphDestroy(s.graph));
    CHECK(word(s.total) == 15);
}

// A branch in a loop: total += 1 where `yes` holds; what is behind it runs always.
static void branch_in_a_loop(void)
{
    Setup s = set_up("");
    CUgraphConditionalHandle again = handle(&s, s.graph, 1, CU_GRAPH_COND_ASSIGN_DEFAULT);
    CUgraphNode last = NULL, inside = NULL, then = NULL;
    CUgraphExec exec;
    uint32_t one = 1, hundred = 100;
    CUgraph in = body(&s, s.graph, &last, again, CU_GRAPH_COND_TYPE_WHILE);
    CUgraphConditionalHandle choice = handle(&s, in, 0, CU_GRAPH_COND_ASSIGN_DEFAULT);
    CHECK_OK(kernel(in, &inside, s.set, PARAMS(&choice, &s.yes)));
    CUgraph chosen = body(&s, in, &inside, choice, CU_GRAPH_COND_TYPE_IF);
    CHECK_OK(kernel(chosen, &then, s.increase, PARAMS(&s.total, &one)));
    CHECK_OK(kernel(in, &inside, s.increase, PARAMS(&s.total, &hundred)));
    CHECK_OK(kernel(in, &inside, s.count_down, PARAMS(&again, &s.counter)));
    CHECK_OK(cu.cuGraphInstantiateWithFlags(&exec, s.graph, 0));
    for (uint32_t yes = 0; yes < 2; yes++) {
        put(s.counter, 3);
        put(s.total, 0);
        put(s.yes, yes);
        CHECK_OK(run(&s, exec)); // begins with the value of the beginning, each time
        CHECK(word(s.total) == 3 * (100 + yes));
    }
}

static void refused(void)
{
    Setup s = set_up("");
    CUgraphConditionalHandle h, other;
    CUgraph second;
    CUgraphNode node, last = NULL, inside = NULL;
    CUgraphExec exec;
    CHECK_CODE(cu.cuGraphConditionalHandleCreate(&h, s.graph, NULL, 0, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_CODE(cu.cuGraphConditionalHandleCreate(&h, s.graph, s.context, 0, 2), CUDA_ERROR_INVALID_VALUE);
    CHECK_CODE(cu.cuGraphConditionalHandleCreate(&h, (CUgraph)&s, s.context, 0, 0), CUDA_ERROR_INVALID_HANDLE);
    CHECK_OK(cu.cuGraphCreate(&second, 0));
    h = handle(&s, s.graph, 0, 0);
    other = handle(&s, second, 0, 0);
    CUgraphNodeParams p = conditional(&s, other, CU_GRAPH_COND_TYPE_IF);
    CHECK_CODE(cu.cuGraphAddNode_v2(&node, s.graph, NULL, NULL, 0, &p), CUDA_ERROR_INVALID_VALUE); // of another graph
    p = conditional(&s, h, 7);
    CHECK_CODE(cu.cuGraphAddNode_v2(&node, s.graph, NULL, NULL, 0, &p), CUDA_ERROR_INVALID_VALUE);
    p = conditional(&s, h, CU_GRAPH_COND_TYPE_WHILE);
    p.conditional.size = 2;
    CHECK_CODE(cu.cuGraphAddNode_v2(&node, s.graph, NULL, NULL, 0, &p), CUDA_ERROR_INVALID_VALUE);
    p = conditional(&s, h, CU_GRAPH_COND_TYPE_WHILE);
    p.conditional.ctx = NULL;
    CHECK_CODE(cu.cuGraphAddNode_v2(&node, s.graph, NULL, NULL, 0, &p), CUDA_ERROR_INVALID_VALUE);
    p = conditional(&s, h, CU_GRAPH_COND_TYPE_WHILE);
    p.reserved1[28] = 1;
    CHECK_CODE(cu.cuGraphAddNode_v2(&node, s.graph, NULL, NULL, 0, &p), CUDA_ERROR_INVALID_VALUE);
    CHECK_CODE(cu.cuGraphInstantiateWithFlags(&exec, s.graph, 0), CUDA_ERROR_INVALID_VALUE); // a handle without a node
    CUgraph in = body(&s, s.graph, &last, h, CU_GRAPH_COND_TYPE_IF);
    p = conditional(&s, h, CU_GRAPH_COND_TYPE_IF);
    CHECK_CODE(cu.cuGraphAddNode_v2(&node, s.graph, NULL, NULL, 0, &p), CUDA_ERROR_INVALID_VALUE); // it has one
    CHECK_CODE(kernel(s.graph, &inside, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
    CHECK_OK(kernel(in, &inside, s.set, PARAMS(&h, &s.yes)));
    CHECK_OK(cu.cuGraphInstantiateWithFlags(&exec, s.graph, 0));
    CHECK_CODE(run(&s, exec), CUDA_ERROR_LAUNCH_FAILED);
    CHECK_REPORT("whose condition has no value");
}

// What is undefined when a kernel decides.
static void undefined(int which)
{
    Setup s = set_up("");
    CUgraphConditionalHandle h = handle(&s, s.graph, 0, CU_GRAPH_COND_ASSIGN_DEFAULT), wrong = 12345;
    CUgraphNode last = NULL, inside = NULL;
    CUgraphExec exec;
    uint32_t n = 1;
    CUDA_KERNEL_NODE_PARAMS p = {.func = s.set,
                                 .gridDimX = 1,
                                 .gridDimY = 1,
                                 .gridDimZ = 1,
                                 .blockDimX = 2,
                                 .blockDimY = 1,
                                 .blockDimZ = 1,
                                 .kernelParams = PARAMS(which == 1 ? &wrong : &h, &s.yes)};
    CHECK_OK(cu.cuGraphAddKernelNode_v2(&last, s.graph, NULL, 0, &p));
    CUgraph in = body(&s, s.graph, &last, h, CU_GRAPH_COND_TYPE_IF);
    CHECK_OK(kernel(in, &inside, s.increase, PARAMS(&s.total, &n)));
    CHECK_OK(cu.cuGraphInstantiateWithFlags(&exec, s.graph, 0));
    if (which == 2) { // not part of the graph
        CHECK_CODE(harness_launch(s.set, 1, 1, 0, PARAMS(&h, &s.yes)), CUDA_ERROR_LAUNCH_FAILED);
        CHECK_REPORT("of another graph than the kernel's");
        return;
    }
    CHECK_CODE(run(&s, exec), CUDA_ERROR_LAUNCH_FAILED);
    CHECK_REPORT(which == 1 ? "no conditional handle" : "set by more than one thread");
}

static void set_twice(void) { undefined(0); }

static void no_handle(void) { undefined(1); }

static void outside(void) { undefined(2); }

static void endless(void)
{
    Setup s = set_up("steps=100K");
    CUgraphConditionalHandle h = handle(&s, s.graph, 1, CU_GRAPH_COND_ASSIGN_DEFAULT);
    CUgraphNode last = NULL, inside = NULL;
    CUgraphExec exec;
    uint32_t n = 1;
    CUgraph in = body(&s, s.graph, &last, h, CU_GRAPH_COND_TYPE_WHILE);
    CHECK_OK(kernel(in, &inside, s.increase, PARAMS(&s.total, &n)));
    CHECK_OK(cu.cuGraphInstantiateWithFlags(&exec, s.graph, 0));
    CHECK_CODE(run(&s, exec), CUDA_ERROR_LAUNCH_TIMEOUT);
    CHECK_REPORT("does not end");
}

static void older_driver(void)
{
    Setup s = set_up("");
    CUgraphConditionalHandle h = handle(&s, s.graph, 0, 0);
    CUgraphNode node;
    CUgraphNodeParams p = conditional(&s, h, CU_GRAPH_COND_TYPE_IF);
    CUmodule m;
    CHECK(cu.test_cuda_configure("driver=12020") == 0);
    CHECK_CODE(cu.cuGraphConditionalHandleCreate(&h, s.graph, s.context, 0, 0), CUDA_ERROR_NOT_SUPPORTED);
    CHECK_CODE(cu.cuGraphAddNode_v2(&node, s.graph, NULL, NULL, 0, &p), CUDA_ERROR_NOT_SUPPORTED);
    static const char text[] = ".version 6.3\n.target sm_75\n.address_size 64\n"
                               ".extern .func cudaGraphSetConditional(.param .b64 handle, .param .b32 value);\n"
                               ".visible .entry f()\n{\n.param .b64 a;\n.param .b32 b;\nst.param.b64 [a], 0;\nst.param.b32 [b], 0;\n"
                               "call.uni cudaGraphSetConditional, (a, b);\nret;\n}\n";
    CHECK_CODE(cu.cuModuleLoadData(&m, text), CUDA_ERROR_INVALID_PTX);
    CHECK_REPORT("Unresolved extern function 'cudaGraphSetConditional'");
    // Machine code is made without the function, whatever the driver.
    CHECK(cu.test_cuda_configure("driver=13000") == 0);
    CHECK_OK(cu.cuModuleLoadData(&m, text));
    CUlinkState link;
    void *cubin;
    size_t bytes;
    CHECK_OK(cu.cuLinkCreate_v2(0, NULL, NULL, &link));
    CHECK_OK(cu.cuLinkAddData_v2(link, CU_JIT_INPUT_PTX, (void *)(uintptr_t)text, sizeof text, "text", 0, NULL, NULL));
    CHECK_CODE(cu.cuLinkComplete(link, &cubin, &bytes), CUDA_ERROR_INVALID_PTX);
    CHECK_REPORT("undefined reference to 'cudaGraphSetConditional'");
    CHECK_OK(cu.cuLinkDestroy(link));
}

// A module may not go while a launch in a body of a queued graph needs it.
static void unloaded(void)
{
    Setup s = set_up("");
    CUgraphConditionalHandle h = handle(&s, s.graph, 1, CU_GRAPH_COND_ASSIGN_DEFAULT);
    CUgraphNode last = NULL, inside = NULL;
    CUgraphExec exec;
    uint32_t n = 1;
    test_cuda_counters counters;
    CUmodule m = harness_module("conditional.ptx");
    CUgraph in = body(&s, s.graph, &last, h, CU_GRAPH_COND_TYPE_IF);
    CHECK_OK(kernel(in, &inside, harness_function(m, "increase"), PARAMS(&s.total, &n)));
    CHECK_OK(cu.cuGraphInstantiateWithFlags(&exec, s.graph, 0));
    CHECK_OK(cu.cuGraphLaunch(exec, s.stream));
    CHECK_OK(cu.cuModuleUnload(m));
    cu.test_cuda_get_counters(&counters);
    CHECK(counters.violations == 1);
    CHECK(word(s.total) == 1);
    CHECK_CODE(cu.cuGraphLaunch(exec, s.stream), CUDA_ERROR_INVALID_HANDLE);
}

static const Case cases[] = {{"loop", loop},           {"branch_in_a_loop", branch_in_a_loop},
                             {"refused", refused},     {"set_twice", set_twice},
                             {"no_handle", no_handle}, {"outside", outside},
                             {"endless", endless},     {"older_driver", older_driver},
                             {"unloaded", unloaded}};
MAIN(cases)
