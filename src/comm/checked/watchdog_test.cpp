// Tests that the watchdog reports which rank is late while the others still wait.
#include "comm/checked/watchdog.h"

#include <algorithm>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>

#include "comm/checked/checked_communicator.h"
#include "support/ranks/thread_ranks.h"
#include "support/ranks/unchecked_communicator.h"

namespace fsdp::comm::watchdog_test {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr auto kWarning = std::chrono::milliseconds(80);

// Collects the lines of all ranks' watchdogs; a test can wait for one of them.
class Lines {
 public:
  void add(const std::string& line) {
    std::lock_guard lock(mutex_);
    lines_.push_back(line);
    changed_.notify_all();
  }
  // Waits for a line with `part` and returns whether it came; gives up after more time than any machine needs.
  bool wait_for(const std::string& part) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(60), [&] {
      return std::any_of(lines_.begin(), lines_.end(),
                         [&](const std::string& line) { return line.find(part) != std::string::npos; });
    });
  }
  void clear() {
    std::lock_guard lock(mutex_);
    lines_.clear();
  }
  std::vector<std::string> all() const {
    std::lock_guard lock(mutex_);
    return lines_;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> lines_;
};

class WatchdogTest : public ::testing::Test {
 protected:
  std::shared_ptr<CheckedCommunicator> watched(const std::shared_ptr<Communicator>& inner,
                                               std::chrono::milliseconds warning = kWarning) {
    DebugOptions debug;
    debug.collective_check.level = CollectiveCheckLevel::kOff;
    debug.watchdog_warning = warning;
    debug.log = [this](const std::string& line) { lines_.add(line); };
    return CheckedCommunicator::over(inner, std::make_shared<CollectiveMonitor>(inner->rank(), debug), "world");
  }

  static void gather(Communicator& group, const std::string& unit, Pass pass = Pass::kForward) {
    auto output = torch::zeros({4 * group.size()});
    group.all_gather(output, torch::ones({4}), {unit, 3, pass})->wait();
  }

  Lines lines_;
};

TEST_F(WatchdogTest, NamesTheLateRankUnitAndPass) {
  for (int ranks : {2, 3}) {
    lines_.clear();
    testing::run_ranks(ranks, [&](std::shared_ptr<Communicator> inner) {
      const auto group = watched(inner);
      gather(*group, "layer.0");
      // The late rank continues only after its lateness was noticed.
      if (inner->rank() == ranks - 1) {
        EXPECT_TRUE(lines_.wait_for("is late"));
      }
      gather(*group, "layer.1", Pass::kBackward);
      if (inner->rank() == 0) {
        EXPECT_TRUE(lines_.wait_for("goes on"));
      }
      group->barrier({"end", 0, Pass::kUser});
    });
    EXPECT_THAT(
        lines_.all(),
        Contains(AllOf(HasSubstr("rank 0 has waited"), HasSubstr("all-gather of 'layer.1' (backward, generation 3)"),
                       HasSubstr(c10::str("rank ", ranks - 1, " is late; its last collective: rank ", ranks - 1,
                                          ", #0 all-gather of 'layer.0' (forward")),
                       HasSubstr("done after"))));
    EXPECT_THAT(lines_.all(), Contains(AllOf(HasSubstr("rank 0 goes on"), HasSubstr("'layer.1'"))));
  }
}

TEST_F(WatchdogTest, NamesTheMessageThatWasNotSent) {
  testing::run_ranks(2, [&](std::shared_ptr<Communicator> inner) {
    const auto group = watched(inner);
    const auto send = [&](uint64_t micro_batch) {
      group->send(torch::ones({4}), 1, {"activation of a micro-batch", micro_batch, Pass::kForward});
    };
    const auto receive = [&](uint64_t micro_batch) {
      group->recv(torch::ones({4}), 0, {"activation of a micro-batch", micro_batch, Pass::kForward})->wait();
    };
    if (inner->rank() == 0) {
      send(0);
      EXPECT_TRUE(lines_.wait_for("has not sent it"));
      send(1);
    } else {
      receive(0);
      receive(1);
      EXPECT_TRUE(lines_.wait_for("goes on"));
    }
    group->barrier({"end", 0, Pass::kUser});
  });
  EXPECT_THAT(
      lines_.all(),
      Contains(AllOf(HasSubstr("rank 1 has waited"),
                     HasSubstr("for its message of 'activation of a micro-batch' (forward, generation 1), Float "
                               "of sizes [4], from rank 0 to rank 1 (#1): rank 0 has not sent it (last sent: "
                               "message of 'activation of a micro-batch' (forward, generation 0)"))));
}

TEST_F(WatchdogTest, OnlyTheLowestOfTheWaitingRanksSpeaks) {
  testing::run_ranks(4, [&](std::shared_ptr<Communicator> inner) {
    const auto group = watched(inner);
    if (inner->rank() == 2) {
      EXPECT_TRUE(lines_.wait_for("rank 2 is late"));
    }
    gather(*group, "a");
    if (inner->rank() == 0) {
      EXPECT_TRUE(lines_.wait_for("goes on"));
    }
    group->barrier({"end", 0, Pass::kUser});
  });
  EXPECT_THAT(lines_.all(), Each(HasSubstr("rank 0 ")));
  EXPECT_THAT(lines_.all(), Each(Not(HasSubstr("rank 3 is late"))));
}

TEST_F(WatchdogTest, NamesARankThatIssuedAnotherCollective) {
  testing::UncheckedOptions options;
  options.timeout = std::chrono::seconds(60);
  testing::run_unchecked_ranks(
      3,
      [&](std::shared_ptr<Communicator> inner) {
        const auto group = watched(inner);
        const auto send = [&](const char* unit) {
          auto output = torch::zeros({12});
          group->all_gather(output, torch::ones({4}), {unit, 0, Pass::kForward})->wait();
        };
        if (inner->rank() == 2) {
          EXPECT_TRUE(lines_.wait_for("rank 1 has issued another collective in its place"));
        }
        send(inner->rank() == 1 ? "odd" : "usual");
      },
      options);
  EXPECT_THAT(lines_.all(), Contains(AllOf(HasSubstr("all-gather of 'usual'"), HasSubstr("all-gather of 'odd'"),
                                           HasSubstr("rank 2 is late"))));
}

// A rank that waits for something else counts as late here; the report says what it waits for.
TEST_F(WatchdogTest, NamesTheCollectiveOfTheLateRank) {
  testing::UncheckedOptions options;
  options.timeout = std::chrono::seconds(60);
  testing::run_unchecked_ranks(
      2,
      [&](std::shared_ptr<Communicator> inner) {
        const auto group = watched(inner);
        const auto twin = group->twin();
        auto output = torch::zeros({8});
        auto first = inner->rank() == 0 ? group : twin;
        auto second = inner->rank() == 0 ? twin : group;
        // Each rank waits for a collective that the other has not issued.
        auto work = first->all_gather(output, torch::ones({4}), {"crossed", 0, Pass::kReduce});
        std::thread rescue([&] {
          EXPECT_TRUE(lines_.wait_for("is late"));
          auto other = torch::zeros({8});
          second->all_gather(other, torch::ones({4}), {"crossed", 0, Pass::kReduce})->wait();
        });
        work->wait();
        rescue.join();
      },
      options);
  // Either of the two may report first.
  EXPECT_THAT(lines_.all(), Contains(AnyOf(AllOf(HasSubstr("rank 0 has waited"), HasSubstr("rank 1 is late"),
                                                 HasSubstr("in group 'world, twin': waiting for ")),
                                           AllOf(HasSubstr("rank 1 has waited"), HasSubstr("rank 0 is late"),
                                                 HasSubstr("in group 'world': waiting for ")))));
}

TEST_F(WatchdogTest, ARankThatDoesNotAnswer) {
  testing::UncheckedOptions options;
  options.timeout = std::chrono::seconds(60);
  testing::run_unchecked_ranks(
      2,
      [&](std::shared_ptr<Communicator> inner) {
        if (inner->rank() == 1) {
          EXPECT_TRUE(lines_.wait_for("rank 1 does not answer"));
          gather(*inner, "a");  // without a watchdog
          return;
        }
        gather(*watched(inner), "a");
      },
      options);
}

TEST_F(WatchdogTest, WithoutAMeetingPointSaysThatItDoesNotKnow) {
  testing::UncheckedOptions options;
  options.has_meeting_point = false;
  options.timeout = std::chrono::seconds(60);
  testing::run_unchecked_ranks(
      2,
      [&](std::shared_ptr<Communicator> inner) {
        const auto group = watched(inner);
        if (inner->rank() == 1) {
          EXPECT_TRUE(lines_.wait_for("has no meeting point"));
        }
        gather(*group, "a");
      },
      options);
}

TEST_F(WatchdogTest, SaysNothingInAHealthyRun) {
  testing::run_ranks(3, [&](std::shared_ptr<Communicator> inner) {
    const auto group = watched(inner, std::chrono::seconds(20));
    for (int i = 0; i < 50; ++i) gather(*group, "a");
    gather(*group->twin(), "b");
  });
  EXPECT_THAT(lines_.all(), IsEmpty());
}

int threads_named(const std::string& name) {
  int count = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream in(task.path() / "comm");
    std::string line;
    std::getline(in, line);
    count += line == name;
  }
  return count;
}

// A thread sets its name once it runs, possibly after the constructor that started it has returned.
bool thread_appears(const std::string& name) {
  for (int look = 0; look < 500 && threads_named(name) == 0; ++look) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return threads_named(name) > 0;
}

// The system still lists a joined thread for a moment.
int threads_left(const std::string& name) {
  for (int look = 0; look < 500 && threads_named(name) > 0; ++look) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return threads_named(name);
}

TEST_F(WatchdogTest, LeavesNoThreadBehind) {
  testing::run_ranks(2, [&](std::shared_ptr<Communicator> inner) {
    const auto group = watched(inner);
    gather(*group, "a");
    EXPECT_TRUE(thread_appears("fsdp_watchdog"));
    group->barrier({"end", 0, Pass::kUser});
  });
  EXPECT_EQ(threads_left("fsdp_watchdog"), 0);
  testing::run_ranks(2, [&](std::shared_ptr<Communicator> inner) {
    const auto group = watched(inner, std::chrono::milliseconds(0));
    gather(*group, "a");
    EXPECT_EQ(threads_left("fsdp_watchdog"), 0);
    group->barrier({"end", 0, Pass::kUser});
  });
}

TEST_F(WatchdogTest, AWarningThatWouldComeTooLateIsAnError) {
  testing::run_ranks(2,
                     [&](std::shared_ptr<Communicator> inner) {
                       try {
                         watched(inner, std::chrono::seconds(9));
                         ADD_FAILURE() << "no error";
                       } catch (const c10::Error& error) {
                         EXPECT_THAT(error.what_without_backtrace(), AllOf(HasSubstr("9000 ms"), HasSubstr("8000 ms")));
                       }
                     },
                     {std::chrono::seconds(8)});
}

}  // namespace
}  // namespace fsdp::comm::watchdog_test
