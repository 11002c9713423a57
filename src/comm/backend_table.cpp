#include "comm/backend_table.h"

#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include "comm/cpu_communicator.h"
#include "comm/gloo/gloo_communicator.h"
#include "comm/nccl/nccl_communicator.h"
#include "fsdp/backends.h"
#include "fsdp/communicator.h"

namespace fsdp::comm {
namespace {

using CommunicatorPtr = std::shared_ptr<Communicator>;

GlooOptions gloo_options(const RankAt& at) { return {.timeout = at.timeout, .host = at.host}; }

CommunicatorPtr shm_of(const RankEnvironment& environment, c10::Device) {
  return fsdp::make_shm_communicator(environment);
}
CommunicatorPtr shm_at(const RankAt& at, c10::Device) {
  return make_shm_communicator(at.point, at.rank, at.size, gloo_options(at));
}

CommunicatorPtr gloo_of(const RankEnvironment& environment, c10::Device) {
  return fsdp::make_gloo_communicator(environment);
}
CommunicatorPtr gloo_at(const RankAt& at, c10::Device) {
  return make_gloo_communicator(at.point, at.rank, at.size, gloo_options(at));
}

CommunicatorPtr nccl_of(const RankEnvironment& environment, c10::Device device) {
  NcclOptions options;
  options.device = device.index();
  return fsdp::make_nccl_communicator(environment, options);
}
CommunicatorPtr nccl_at(const RankAt& at, c10::Device device) {
  NcclOptions options;
  options.timeout = at.timeout;
  options.host = at.host;
  return make_nccl_communicator(at.point, at.rank, at.size, options, {device, {}});
}

// A row for each of kBackends, in their order.
struct Makers {
  std::string_view name;
  CommunicatorPtr (*of_environment)(const RankEnvironment& environment, c10::Device device);
  CommunicatorPtr (*at_point)(const RankAt& at, c10::Device device);
};

constexpr std::array<Makers, kBackends.size()> kMakers = {{
    {"shm", &shm_of, &shm_at},
    {"gloo", &gloo_of, &gloo_at},
    {"nccl", &nccl_of, &nccl_at},
}};

constexpr bool rows_agree() {
  for (size_t i = 0; i < kBackends.size(); ++i) {
    if (kBackends[i].name != kMakers[i].name) return false;
  }
  return true;
}
static_assert(rows_agree());

const Makers& makers_of(const Backend& backend) {
  for (const Makers& makers : kMakers) {
    if (makers.name == backend.name) return makers;
  }
  TORCH_INTERNAL_ASSERT(false, "no back end ", backend.name);
}

}  // namespace

CommunicatorPtr make_communicator(const Backend& backend, const RankEnvironment& environment, c10::Device device) {
  TORCH_CHECK(backend.serves(!device.is_cpu()), "fsdp: rank ", environment.rank, ": ", backend.words,
              " does not serve ranks on ", device);
  return makers_of(backend).of_environment(environment, device);
}

CommunicatorPtr make_communicator(const Backend& backend, const RankAt& rank, c10::Device device) {
  return makers_of(backend).at_point(rank, device);
}

}  // namespace fsdp::comm
