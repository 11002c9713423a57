// Notes that the ranks of one group leave for each other in the store where they met, while the group is stuck.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/checked/collective_record.h"
#include "comm/meeting/meeting_point.h"

namespace fsdp::comm {

// The status that a rank reports.
struct RankStatus {
  struct Issued {
    uint64_t number = 0;
    uint64_t identity_hash = 0;
    bool waiting = false;
    std::string description;
  };
  uint64_t issued = 0;       // number of collectives of this group
  std::string doing;         // over all groups: what the rank waits for, or what it issued last; one line
  std::vector<Issued> last;  // the last collectives of this group, oldest first

  const Issued* find(uint64_t number) const;
};
RankStatus status_of(const FlightRecord& record, int group);

// Each call takes one or a few round trips to the store; none waits for another rank. Each call throws if the store
// cannot be reached. Not thread-safe.
class StatusBoard {
 public:
  // `point`: the meeting point of this group alone.
  StatusBoard(std::shared_ptr<MeetingPoint> point, int rank, int size);
  ~StatusBoard();

  // Asks all ranks; returns the number of the request.
  int64_t ask();
  // Returns the number of the last request of any rank; 0 if there is none.
  int64_t asked();
  // Stores this rank's answer to all requests up to `request`.
  void answer(int64_t request, const RankStatus& status);
  // Returns the answers by rank; no value for ranks that have answered neither this request nor a later one.
  std::vector<std::optional<RankStatus>> answers_to(int64_t request);

 private:
  std::shared_ptr<MeetingPoint> point_;
  int rank_;
  int size_;
};

}  // namespace fsdp::comm
