// Replaces the communicator over NCCL if its headers were not found when this library was built.
#include <c10/util/Exception.h>

#include "comm/nccl/nccl_communicator.h"
#include "fsdp/backends.h"

namespace fsdp {
namespace {

[[noreturn]] void say_what_is_missing() {
  TORCH_CHECK(false,
              "this build of fsdp.cpp has no NCCL, since CMake found no nccl.h that compiles. Get the headers with "
              "scripts/nccl_headers.sh (from the Python packages nvidia-nccl-cu13, nvidia-cuda-runtime, "
              "nvidia-cuda-crt and nvidia-cuda-cccl), or name the folders that hold nccl.h and cuda_runtime.h in the "
              "CMake variables NCCL_INCLUDE_DIR and CUDA_INCLUDE_DIR, and build again. make_gloo_communicator needs "
              "none of it, and takes tensors on any device");
}

}  // namespace

namespace comm {

bool nccl_is_built_in() { return false; }

std::shared_ptr<Communicator> make_nccl_communicator(const std::shared_ptr<MeetingPoint>&, int, int, const NcclOptions&,
                                                     const NcclPlace&) {
  say_what_is_missing();
}

}  // namespace comm

std::shared_ptr<Communicator> make_nccl_communicator(const RankEnvironment&, const NcclOptions&) {
  say_what_is_missing();
}

}  // namespace fsdp
