#include "jit/llvm/build.h"
void emit_contract(Emit *e) { (void)e; }
