/*
 * What holds for LLVM inside libkiln.so when the process ends: none of its static objects is ever destroyed.
 *
 * C++ registers the destructor of each static object by __cxa_atexit when the object is made, and exit() runs what was registered last
 * first. LLVM makes objects whenever it first needs them, so they would be gone before an atexit handler, or the destructor of a C++
 * global, that was registered earlier and computes something; and under the hands of a thread that compiles while main returns. LLVM's
 * objects hold nothing but memory, which the system takes back. So libkiln.so has a __cxa_atexit of its own, hidden, which LLVM's archives
 * bind to as they are linked in, and which registers nothing. What was never destroyed is still reachable from LLVM's statics: no leak.
 *
 * atexit() of the C library is linked into each library and calls __cxa_atexit, so it registers nothing here, either: kiln's own
 * code uses os_at_exit. libLLVM.so registers with the C library, as ever: where it is used (KILN_LLVM_SHARED, and programs made of the
 * layers' archives) what computes after main may crash. tests/exit shows both.
 */
int __cxa_atexit(void (*destroy)(void *), void *object, void *library);

__attribute__((visibility("hidden"))) int __cxa_atexit(void (*destroy)(void *), void *object, void *library)
{
    (void)destroy;
    (void)object;
    (void)library;
    return 0;
}
