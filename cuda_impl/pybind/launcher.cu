// Launches on the CPU: the launch tables of all ops, with kernels that were built one by one.
#include "launcher.h"

PYBIND11_MODULE(launcher, m) {
    define_launcher(m, {});
}
