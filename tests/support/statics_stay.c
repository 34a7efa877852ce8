/*
 * For programs made of the layers' archives and libLLVM.so that may end while a thread still compiles: exit() would destroy libLLVM.so's static
 * objects under its hands. Here they stay, as inside libkiln.so (jit/llvm/inside/exit.c). The linker exports this for libLLVM.so to find.
 */
int __cxa_atexit(void (*destroy)(void *), void *object, void *library);

__attribute__((visibility("default"))) int __cxa_atexit(void (*destroy)(void *), void *object, void *library)
{
    (void)destroy;
    (void)object;
    (void)library;
    return 0;
}
