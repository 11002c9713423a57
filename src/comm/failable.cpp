#include "comm/failable.h"

#include <c10/util/StringUtil.h>

#include "comm/failure.h"

namespace fsdp::comm {

void check_present(const Communicator& group, int rank) {
  for (const Loss& loss : losses_of(group)) {
    if (loss.rank != rank) continue;
    Failure{Failure::Kind::kRankLost, c10::str("rank ", group.world_rank(rank), " is lost: ", loss.why)}.raise();
  }
}

}  // namespace fsdp::comm
