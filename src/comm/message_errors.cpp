#include "comm/message_errors.h"

#include <c10/util/StringUtil.h>

#include "comm/error_text.h"

namespace fsdp::comm {
std::string MessageErrors::waits() const {
  return c10::str("rank ", rank(), sends_ ? " waits for the receiver of its " : " waits for its ",
                  identity_.describe());
}

Failure MessageErrors::differs(const Header& sent) const {
  return {Failure::Kind::kRanksDiffer,
          c10::str("rank ", rank(), " receives ", identity_.describe(), ", while rank ", peer(), " sends ",
                   sent.description, " (message number ", number_,
                   " between them); messages must be received in the order in which they are sent")};
}

Failure MessageErrors::lost(const std::string& why) const {
  return {Failure::Kind::kRankLost, c10::str(waits(), ": rank ", peer(), " is lost: ", why)};
}

Failure MessageErrors::late(std::chrono::steady_clock::duration waited, std::chrono::milliseconds timeout) const {
  return {Failure::Kind::kRankLate,
          c10::str(waits(), ": rank ", peer(), " is late; waited ", seconds(waited), " s (timeout ", seconds(timeout),
                   " s). Is it stuck, or does it skip this message?")};
}

Failure MessageErrors::interrupted() const {
  return {Failure::Kind::kInterrupted, c10::str(waits(), ": it was interrupted")};
}

}  // namespace fsdp::comm
