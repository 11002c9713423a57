#include "base/end_process.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>

#include "base/sanitizers.h"

namespace fsdp::base {

namespace {

constexpr bool kSanitized = FSDP_ADDRESS_SANITIZER || FSDP_THREAD_SANITIZER;

}  // namespace

void end_process(int status) {
  // Does not ask for devices, which would start CUDA's driver in every command.
  const bool has_cuda_library = c10::impl::hasDeviceGuardImpl(c10::DeviceType::CUDA);
  if (kSanitized || has_cuda_library) std::exit(status);
  std::cout.flush();
  std::fflush(nullptr);
  std::_Exit(status);
}

}  // namespace fsdp::base
