// A thread that notices when this rank waits long for others, and says who is late.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/collective_record.h"
#include "comm/meeting_point.h"

namespace fsdp {

// [Note: who is late]
// What other ranks do cannot be asked over the group that is stuck. So they leave notes in the store where they met
// (status_board.h): a rank that has waited for `warning` puts up a request, and each answers with how many collectives
// it has issued, the last of them, and what it does. The late rank is the one that waits for nothing, so the watchdog
// of a rank on which nothing has happened in the group for a quarter of that time looks for requests, about eight times
// in it and at most every two seconds: while training goes on, the store hears nothing. Ranks count the collectives of
// a group alike: who has issued fewer is late, who has issued another one under the same number has diverged, and who
// does not answer within half of `warning` has ended, is stopped, or is cut off. Of several ranks that wait, the lowest
// speaks.
class Watchdog {
 public:
  using Log = std::function<void(const std::string& line)>;

  // Lines go to `log`, on the watchdog's thread; empty: stderr.
  Watchdog(std::shared_ptr<FlightRecord> record, Log log);
  // Ends the thread.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  struct GroupOptions {
    int group = 0;                        // in the record
    int rank = 0;                         // of this process in the group
    std::vector<int> names;               // what to call the group's ranks
    std::shared_ptr<MeetingPoint> point;  // the group's own; null: other ranks cannot be asked
    std::chrono::milliseconds warning{0};
  };
  // Watches a group from now on. The first one starts the thread. Threads: safe.
  void watch(GroupOptions options);

 private:
  class Guard;

  void run();
  void say(const std::string& line) const;

  const std::shared_ptr<FlightRecord> record_;
  const Log log_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopped_ = false;
  std::vector<std::shared_ptr<Guard>> guards_;
  std::chrono::milliseconds period_{0};
  std::thread thread_;
};

}  // namespace fsdp
