#include "comm/failure.h"

#include "comm/error_text.h"

namespace fsdp::comm {
namespace {

Failure::Kind kind_of(const std::exception& error) {
  if (dynamic_cast<const RankLost*>(&error)) return Failure::Kind::kRankLost;
  if (dynamic_cast<const RankLate*>(&error)) return Failure::Kind::kRankLate;
  if (dynamic_cast<const RanksDiffer*>(&error)) return Failure::Kind::kRanksDiffer;
  if (dynamic_cast<const WaitInterrupted*>(&error)) return Failure::Kind::kInterrupted;
  return Failure::Kind::kOther;
}

}  // namespace

Failure Failure::of(const std::exception& error) { return {kind_of(error), first_line(error)}; }

void Failure::raise() const {
  const c10::SourceLocation here{__func__, __FILE__, __LINE__};
  switch (kind) {
    case Kind::kRankLost:
      throw RankLost(here, reason);
    case Kind::kRankLate:
      throw RankLate(here, reason);
    case Kind::kRanksDiffer:
      throw RanksDiffer(here, reason);
    case Kind::kInterrupted:
      throw WaitInterrupted(here, reason);
    case Kind::kOther:
      break;
  }
  throw CommunicationError(here, reason);
}

}  // namespace fsdp::comm
