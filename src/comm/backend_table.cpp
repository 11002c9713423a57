#include "comm/backends.h"

#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include "fsdp/backends.h"
#include "fsdp/communicator.h"

namespace fsdp::comm {

std::shared_ptr<Communicator> make_communicator(const Backend& backend, const RankEnvironment& environment,
                                                c10::Device device) {
  TORCH_CHECK(backend.serves(!device.is_cpu()), "fsdp: rank ", environment.rank, ": ", backend.words,
              " does not serve ranks on ", device);
  if (backend.name == "shm") return make_shm_communicator(environment);
  if (backend.name == "gloo") return make_gloo_communicator(environment);
  TORCH_INTERNAL_ASSERT(backend.name == "nccl");
  NcclOptions options;
  options.device = device.index();
  return make_nccl_communicator(environment, options);
}

}  // namespace fsdp::comm
