// What nvcc's own headers define without an #include, for text that was written for nvcc.
#pragma once

#include "math.h"
