// Runs collectives on device tensors through a communicator that exchanges host memory.
#pragma once

#include <memory>

#include "fsdp/communicator.h"

namespace fsdp::comm {

// Wraps `host` for tensors on any device. Tensors in host memory are passed on unchanged. Others are copied to the host
// (into pinned memory, for CUDA) when a collective is issued, which blocks until the device has completed what was
// enqueued on the current stream. wait() waits for the result and enqueues its copy to the device on the stream that is
// current then.
std::shared_ptr<Communicator> make_staged_communicator(std::shared_ptr<Communicator> host);

}  // namespace fsdp::comm
