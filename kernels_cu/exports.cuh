// The one door out of a kernel library: ctypes asks for a kernel by name and gets its CUkernel.
//
// A .cu file that holds kernels ends with PROBES_EXPORT and its table of {name, function}.
#pragma once

#include <cuda_runtime.h>

#include <cstring>

namespace probes {
struct Export {
    const char* name;
    const void* function;
};
}  // namespace probes

#define PROBES_EXPORT(table)                                                                                  \
    extern "C" int probes_kernel(const char* name, void** kernel) {                                           \
        for (const auto& row : table)                                                                         \
            if (std::strcmp(row.name, name) == 0)                                                             \
                return static_cast<int>(cudaGetKernel(reinterpret_cast<cudaKernel_t*>(kernel), row.function)); \
        return static_cast<int>(cudaErrorSymbolNotFound);                                                     \
    }                                                                                                         \
    extern "C" const char* probes_error(int code) { return cudaGetErrorString(static_cast<cudaError_t>(code)); }
