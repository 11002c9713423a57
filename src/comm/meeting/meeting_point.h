// The place where the ranks of a group find each other before they are connected: a key-value store that all of them
// reach.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "fsdp/rank_environment.h"

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

}  // namespace fsdp::comm
