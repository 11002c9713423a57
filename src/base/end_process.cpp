#include "base/end_process.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>

namespace fsdp::base {

namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif
#else
constexpr bool kSanitized = false;
#endif

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
