#include "comm/collective_errors.h"

#include <c10/util/StringUtil.h>

#include "comm/error_text.h"

namespace fsdp::comm {
namespace {

// Names the most frequent cause of differences in backward, and its remedy.
const char* hint(const CollectiveIdentity& own, const Header& other) {
  auto in_backward = [](const std::string& description) {
    return description.find(c10::str("(", to_string(Pass::kBackward), ",")) != std::string::npos ||
           description.find(c10::str("(", to_string(Pass::kReduce), ",")) != std::string::npos;
  };
  return in_backward(own.describe()) || in_backward(other.description)
             ? ". If the loss of one rank does not depend on modules or parameters that other ranks use, add their "
               "outputs, multiplied by zero, to that loss"
             : "";
}

}  // namespace

Failure CollectiveErrors::differs(const Header& other, int peer) const {
  return {
      Failure::Kind::kRanksDiffer,
      c10::str("rank ", name_of(rank_), " issues ", identity_.describe(), " while rank ", name_of(peer), " issues ",
               other.description, " (collective number ", sequence_,
               " of this group); all ranks must issue the same collectives in the same order", hint(identity_, other))};
}

std::string CollectiveErrors::subject() const {
  return c10::str("rank ", name_of(rank_), " cannot finish its ", identity_.describe(), ": ");
}

Failure CollectiveErrors::lost(int peer, const std::string& why) const {
  return {Failure::Kind::kRankLost, c10::str(subject(), "rank ", name_of(peer), " is lost: ", why)};
}

Failure CollectiveErrors::late(int peer, std::chrono::steady_clock::duration waited,
                               std::chrono::milliseconds timeout) const {
  return {Failure::Kind::kRankLate,
          c10::str(subject(), "rank ", name_of(peer), " is late; waited ", seconds(waited), " s (timeout ",
                   seconds(timeout), " s). Is it stuck, or does it skip this collective?")};
}

Failure CollectiveErrors::interrupted(int peer) const {
  return {Failure::Kind::kInterrupted,
          c10::str(subject(), "it was interrupted while it waited for rank ", name_of(peer))};
}

Failure CollectiveErrors::count_differs(int sender, int64_t sent, int receiver, int64_t expected) const {
  return {Failure::Kind::kRanksDiffer,
          c10::str("in the ", identity_.describe(), ", rank ", name_of(sender), " sends ", sent, " elements to rank ",
                   name_of(receiver), ", which expects ", expected)};
}

}  // namespace fsdp::comm
