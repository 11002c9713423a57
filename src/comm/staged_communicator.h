// Tensors on a device through a communicator that exchanges host memory.
#pragma once

#include <memory>

#include "fsdp/communicator.h"

namespace fsdp {

// `host` for tensors on any device. Those in host memory are passed on as they are. Others are copied to the host (into
// pinned memory, for CUDA) when a collective is issued, which blocks until the device has done what the current stream
// held; wait() waits for the result and enqueues its copy to the device on the stream that is current then.
std::shared_ptr<Communicator> make_staged_communicator(std::shared_ptr<Communicator> host);

}  // namespace fsdp
