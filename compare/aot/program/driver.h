// What the program needs besides the kernel: a check of every call to the driver, and the driver itself.
#pragma once

#include <cuda.h>

// Leave with a sentence on stderr if a call to the driver failed.
#define CHECK(call) check((call), #call)

void check(CUresult result, const char* call);
