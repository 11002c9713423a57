// Notes that the ranks of one group leave for one another in the store where they met, while the group is stuck.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/collective_record.h"
#include "comm/meeting_point.h"

namespace fsdp {

// What a rank says of itself.
struct RankStatus {
  struct Issued {
    uint64_t number = 0;
    uint64_t identity_hash = 0;
    bool waiting = false;
    std::string description;
  };
  uint64_t issued = 0;       // collectives of this group
  std::string doing;         // over all groups: what it waits for, or what it issued last; one line
  std::vector<Issued> last;  // of this group, oldest first

  const Issued* find(uint64_t number) const;
};
RankStatus status_of(const FlightRecord& record, int group);

// Every call is a round trip or a few to the store; none waits for another rank. Each throws when the store cannot be
// reached. Not thread-safe.
class StatusBoard {
 public:
  // `point`: the group's own.
  StatusBoard(std::shared_ptr<MeetingPoint> point, int rank, int size);
  ~StatusBoard();

  // Asks all ranks; returns the number of the request.
  int64_t ask();
  // The number of the last request of any rank; 0: nobody has asked.
  int64_t asked();
  // This rank's answer, to all requests up to this one.
  void answer(int64_t request, const RankStatus& status);
  // By rank; no value for those that have not answered this request, or a later one.
  std::vector<std::optional<RankStatus>> answers_to(int64_t request);

 private:
  std::shared_ptr<MeetingPoint> point_;
  int rank_;
  int size_;
};

}  // namespace fsdp
