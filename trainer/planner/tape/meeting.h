// How the work of one rank depends on that of others.
#pragma once

#include <cstdint>
#include <string>

namespace fsdp::planner {

enum class MeetingRole : uint8_t {
  kNone,
  kSends,     // the end of this work is the arrival of a message
  kReceives,  // this work does not end before the message has arrived
  kAll,       // this work does not end before all ranks have begun theirs
};

struct Meeting {
  MeetingRole role = MeetingRole::kNone;
  // The same on all ranks that meet, each of which names it once.
  std::string name = {};
};

}  // namespace fsdp::planner
