// A thread that notices when this rank waits long for others, and reports which rank is late.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/checked/collective_record.h"
#include "comm/meeting/meeting_point.h"

namespace fsdp::comm {

// [Note: who is late]
// The state of other ranks cannot be queried over the group that is stuck. So ranks leave notes in the store where they
// met (status_board.h): a rank that has waited for `warning` posts a request, and each rank answers with the number of
// collectives it has issued, the last of them, and what it does. The late rank is a rank that waits for nothing. So if
// nothing has happened in the group on a rank for a quarter of `warning`, its watchdog looks for requests, about eight
// times in `warning` and at most every two seconds; while training runs, the store receives nothing. All ranks count
// the collectives of a group in the same way: a rank that has issued fewer is late; a rank that has issued another
// collective under the same number has diverged; a rank that does not answer within half of `warning` has ended, is
// stopped, or is cut off. If several ranks wait, the lowest one reports.
class Watchdog {
 public:
  using Log = std::function<void(const std::string& line)>;

  // Lines are passed to `log` on the watchdog's thread; if `log` is empty, they go to stderr.
  Watchdog(std::shared_ptr<FlightRecord> record, Log log);
  // Ends the thread.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  struct GroupOptions {
    int group = 0;                        // number of the group in the record
    int rank = 0;                         // of this process in the group
    std::vector<int> names;               // the numbers of the group's ranks in messages
    std::shared_ptr<MeetingPoint> point;  // of the group alone; null: other ranks cannot be asked
    std::chrono::milliseconds warning{0};
  };
  // Watches a group from now on. The first call starts the thread. Threads: safe.
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

}  // namespace fsdp::comm
