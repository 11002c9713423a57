// Answers of forked processes, of which some fail. The suite's name makes it run before others start threads.
#include "planner/run/child_answers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <stdexcept>
#include <thread>

#include "config/errors.h"

namespace fsdp::planner::child_answers_test {
namespace {

using nlohmann::ordered_json;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(ChildAnswersDeathTest, AnswersAreInOrder) {
  int answered = 0;
  const std::vector<Answer> answers = answers_of_children(
      7, 3, [](size_t index) { return ordered_json{{"index", index}, {"process", getpid()}}; },
      [&](size_t, const Answer& answer) {
        EXPECT_TRUE(answer.refusal.empty());
        ++answered;
      });
  ASSERT_EQ(answers.size(), 7);
  EXPECT_EQ(answered, 7);
  for (size_t i = 0; i < answers.size(); ++i) {
    EXPECT_EQ(answers[i].result["index"], i);
    EXPECT_NE(answers[i].result["process"], getpid());
  }
}

TEST(ChildAnswersDeathTest, AnErrorOfTheCallerEndsThoseThatRun) {
  const auto work = [](size_t index) -> ordered_json {
    if (index > 0) std::this_thread::sleep_for(std::chrono::hours(1));
    return index;
  };
  const auto stop = [](size_t, const Answer& answer) { throw std::runtime_error(answer.result.dump()); };
  EXPECT_THAT([&] { answers_of_children(3, 3, work, stop); }, ::testing::ThrowsMessage<std::runtime_error>("0"));
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);  // there are no children
}

TEST(ChildAnswersDeathTest, AFailureIsThatOfItsChildAlone) {
  const std::vector<Answer> answers = answers_of_children(6, 2, [](size_t index) -> ordered_json {
    if (index == 0) throw trainer::ConfigError("key \"x\" is wrong");
    if (index == 1) throw std::runtime_error("no memory left");
    if (index == 2) std::abort();
    if (index == 3) std::_Exit(5);
    if (index == 4) std::_Exit(0);
    return {{"index", index}};
  });
  EXPECT_EQ(answers[0].refusal, "key \"x\" is wrong");
  EXPECT_THAT(answers[0].failure, IsEmpty());
  EXPECT_THAT(answers[1].failure, HasSubstr("no memory left"));
  EXPECT_THAT(answers[2].failure, HasSubstr("signal 6"));
  EXPECT_THAT(answers[3].failure, HasSubstr("status 5"));
  EXPECT_THAT(answers[4].failure, HasSubstr("status 0"));
  for (size_t i = 0; i < 5; ++i) EXPECT_TRUE(answers[i].result.is_null()) << i;
  EXPECT_EQ(answers[5].result["index"], 5);
  EXPECT_THAT(answers[5].failure, IsEmpty());
}

// A pipe holds 64 KiB.
TEST(ChildAnswersDeathTest, LongAnswersAreWhole) {
  const std::vector<Answer> answers =
      answers_of_children(3, 3, [](size_t index) { return ordered_json(std::string(1'000'000 + index, 'x')); });
  for (size_t i = 0; i < answers.size(); ++i) EXPECT_EQ(answers[i].result, std::string(1'000'000 + i, 'x'));
}

TEST(ChildAnswersDeathTest, NoMoreRunAtOnceThanAllowed) {
  void* shared = mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  auto* running = new (shared) std::atomic<int>(0);
  const std::vector<Answer> answers = answers_of_children(8, 2, [&](size_t) {
    const int now = ++*running;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    --*running;
    return ordered_json(now);
  });
  int most = 0;
  for (const Answer& answer : answers) most = std::max(most, answer.result.get<int>());
  EXPECT_EQ(most, 2);
  munmap(shared, sizeof(std::atomic<int>));
}

}  // namespace
}  // namespace fsdp::planner::child_answers_test
