// Makes a group over Gloo, for ranks that have a place to meet.
#pragma once

#include <memory>

#include "comm/meeting/meeting_point.h"
#include "fsdp/backends.h"
#include "fsdp/communicator.h"

namespace fsdp::comm {

// Connects rank `rank` of `size` to the other ranks that come to `point`, which may be null for a group of one. A point
// can be used again: the k-th communicators that the ranks make at a point belong together. Throws, naming ranks and
// values, if two processes claim one rank, if the ranks disagree about the size of the group, or if some ranks have not
// come within options.timeout.
std::shared_ptr<Communicator> make_gloo_communicator(const std::shared_ptr<MeetingPoint>& point, int rank, int size,
                                                     const GlooOptions& options);

// Like make_gloo_communicator, but for tensors in host memory only.
std::shared_ptr<Communicator> make_host_communicator(const std::shared_ptr<MeetingPoint>& point, int rank, int size,
                                                     const GlooOptions& options);

}  // namespace fsdp::comm
