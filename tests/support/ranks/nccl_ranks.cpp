#include "support/ranks/nccl_ranks.h"

#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <cstdlib>

#include "base/device_stream.h"
#include "comm/meeting/meeting_point.h"
#include "comm/nccl/nccl_communicator.h"
#include "fsdp/backends.h"
#include "support/devices/simulated_device.h"
#include "support/files/project_paths.h"
#include "support/ranks/thread_ranks.h"

namespace fsdp::testing {
namespace {

template <typename Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  TORCH_CHECK(function != nullptr, fake_nccl_path(), " has no function ", name);
}

void run_on_devices(int size, const std::function<c10::Device(int rank)>& device_of,
                    const std::function<void(std::shared_ptr<Communicator>)>& body, const NcclOptions& options) {
  const auto point = comm::make_in_memory_meeting_point();
  run_ranks(size, [&](std::shared_ptr<Communicator> rank) {
    const c10::Device device = device_of(rank->rank());
    const base::CurrentStreamGuard own_stream(base::take_stream(device));
    body(comm::make_nccl_communicator(point, rank->rank(), size, options, {device, fake_nccl_path()}));
  });
}

}  // namespace

std::string fake_nccl_path() { return build_folder() + "/libfake_nccl.so"; }

FakeNccl fresh_fake_nccl() {
  void* library = dlopen(fake_nccl_path().c_str(), RTLD_NOW | RTLD_LOCAL);
  TORCH_CHECK(library != nullptr, dlerror());
  FakeNccl fake{};
  find(library, "fake_nccl_fail_next", fake.fail_next);
  find(library, "fake_nccl_set_async_error", fake.set_async_error);
  find(library, "fake_nccl_set_in_progress", fake.set_in_progress);
  find(library, "fake_nccl_set_version", fake.set_version);
  find(library, "fake_nccl_live_communicators", fake.live_communicators);
  find(library, "fake_nccl_live_operators", fake.live_operators);
  decltype(&::fake_nccl_reset) reset = nullptr;
  find(library, "fake_nccl_reset", reset);
  decltype(&::fake_nccl_set_enqueue) set_enqueue = nullptr;
  find(library, "fake_nccl_set_enqueue", set_enqueue);
  reset();
  set_enqueue(&enqueue_on_simulated_stream);
  return fake;
}

void run_nccl_ranks(int size, c10::Device device, const std::function<void(std::shared_ptr<Communicator>)>& body,
                    const NcclOptions& options) {
  run_on_devices(size, [&](int) { return device; }, body, options);
}

void run_nccl_ranks_on_own_devices(int size, const std::function<void(std::shared_ptr<Communicator>)>& body) {
  run_on_devices(size, &simulated_device, body, {});
}

}  // namespace fsdp::testing
