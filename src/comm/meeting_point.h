// Where the ranks of a group find each other before they are connected: a key-value store that all of them
// reach.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "fsdp/communicator.h"

namespace fsdp {

// Opaque, so that no c10d header is needed to pass one on; defined in meeting_point_impl.h.
class MeetingPoint;

// A store in the memory of this process, for ranks that are threads.
std::shared_ptr<MeetingPoint> make_in_memory_meeting_point();

// The TCP store at master_address:master_port. Rank 0 opens it, unless torchrun's agent did so already
// (TORCHELASTIC_USE_AGENT_STORE=True); the others connect. Throws, naming address and port: at once when rank
// 0 finds the port in use, after `timeout` when the store cannot be reached.
std::shared_ptr<MeetingPoint> make_tcp_meeting_point(const RankEnvironment& environment,
                                                     std::chrono::milliseconds timeout);

// A place of its own inside `point`, for those who know its name.
std::shared_ptr<MeetingPoint> inner_meeting_point(const MeetingPoint& point, const std::string& name);

// Connects rank `rank` of `size` to the others that come to `point`. A point can be used again: the k-th
// communicator that each rank makes at a point belong together. Throws, naming ranks and values, when two
// processes claim one rank, when the ranks disagree about the size of the group, and when some have not come
// within options.timeout.
std::shared_ptr<Communicator> make_gloo_communicator(const std::shared_ptr<MeetingPoint>& point, int rank, int size,
                                                     const GlooOptions& options);

// The same for tensors in host memory only.
std::shared_ptr<Communicator> make_host_communicator(const std::shared_ptr<MeetingPoint>& point, int rank, int size,
                                                     const GlooOptions& options);

}  // namespace fsdp
