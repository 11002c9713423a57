// The place where the ranks of a group find each other before they are connected: a key-value store that all of them
// reach.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "fsdp/backends.h"
#include "fsdp/communicator.h"

namespace fsdp::comm {

// Opaque, so that no c10d header is needed to pass one on; defined in meeting_point_impl.h.
class MeetingPoint;

// Returns a store in the memory of this process, for ranks that are threads.
std::shared_ptr<MeetingPoint> make_in_memory_meeting_point();

// Returns the TCP store at master_address:master_port. Rank 0 opens it, unless torchrun's agent has already done so
// (TORCHELASTIC_USE_AGENT_STORE=True); the other ranks connect. Throws, naming address and port: at once if rank 0
// finds the port in use, after `timeout` if the store cannot be reached.
std::shared_ptr<MeetingPoint> make_tcp_meeting_point(const RankEnvironment& environment,
                                                     std::chrono::milliseconds timeout);

// Returns a separate part of `point`, for ranks that know its name.
std::shared_ptr<MeetingPoint> inner_meeting_point(const MeetingPoint& point, const std::string& name);

// Connects rank `rank` of `size` to the other ranks that come to `point`. A point can be used again: the k-th
// communicators that the ranks make at a point belong together. Throws, naming ranks and values, if two processes claim
// one rank, if the ranks disagree about the size of the group, or if some ranks have not come within options.timeout.
std::shared_ptr<Communicator> make_gloo_communicator(const std::shared_ptr<MeetingPoint>& point, int rank, int size,
                                                     const GlooOptions& options);

// Like make_gloo_communicator, but for tensors in host memory only.
std::shared_ptr<Communicator> make_host_communicator(const std::shared_ptr<MeetingPoint>& point, int rank, int size,
                                                     const GlooOptions& options);

}  // namespace fsdp::comm
