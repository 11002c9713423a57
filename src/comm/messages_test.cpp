// Tests messages between two ranks: order, freedom from waiting, memory, differences, and waits beside collectives.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <random>
#include <thread>

#include "comm/testing/collectives.h"
#include "fsdp/backends.h"
#include "fsdp/communicator.h"
#include "fsdp/memory_sharing.h"
#include "support/faults/error_of.h"
#include "support/ranks/thread_ranks.h"

namespace fsdp::comm::messages_test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using testing::error_of;
using testing::errors_of_ranks;
using ::testing::HasSubstr;
using testing::id;
using testing::run_ranks;

// Returns a tensor that depends on its sender, its receiver and its number.
at::Tensor contents(int from, int to, int number) {
  static const std::vector<std::vector<int64_t>> sizes{{7}, {0}, {3, 5}, {}, {2, 3, 4099}, {1, 0, 3}};
  static const std::vector<at::ScalarType> dtypes{at::kFloat, at::kLong, at::kBFloat16, at::kDouble, at::kBool};
  const std::vector<int64_t>& shape = sizes[static_cast<size_t>(number) % sizes.size()];
  const at::Tensor values = torch::arange(at::IntArrayRef(shape).empty() ? 1 : c10::multiply_integers(shape));
  return (values % 11 + 3 * from + 7 * to + number).view(shape).to(dtypes[static_cast<size_t>(number) % dtypes.size()]);
}

TEST(Messages, ArriveInOrderWhateverTheOrderOfWaiting) {
  for (int size : {2, 3, 4}) {
    run_ranks(size, [](std::shared_ptr<Communicator> comm) {
      constexpr int kMessages = 12;
      struct Expected {
        std::unique_ptr<Work> work;
        at::Tensor output, expected;
      };
      std::vector<Expected> all;
      for (int number = 0; number < kMessages; ++number) {
        for (int peer = 0; peer < comm->size(); ++peer) {
          if (peer == comm->rank()) continue;
          comm->send(contents(comm->rank(), peer, number), peer, id("m", static_cast<uint64_t>(number)));
          const at::Tensor expected = contents(peer, comm->rank(), number);
          all.push_back({nullptr, torch::zeros_like(expected), expected});
          all.back().work = comm->recv(all.back().output, peer, id("m", static_cast<uint64_t>(number)));
        }
      }
      std::mt19937 random(static_cast<unsigned>(comm->rank()));
      std::shuffle(all.begin(), all.end(), random);
      for (Expected& one : all) {
        one.work->wait();
        EXPECT_TRUE(torch::equal(one.output, one.expected));
      }
    });
  }
}

TEST(Messages, TheSenderWaitsForNobody) {
  run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    constexpr int kMessages = 300;
    if (comm->rank() == 0) {
      for (int number = 0; number < kMessages; ++number) comm->send(contents(0, 1, number), 1, id("m"));
    }
    comm->barrier(id("all are sent, none is received"));
    for (int number = 0; comm->rank() == 1 && number < kMessages; ++number) {
      const at::Tensor output = torch::zeros_like(contents(0, 1, number));
      comm->recv(output, 0, id("m"))->wait();
      EXPECT_TRUE(torch::equal(output, contents(0, 1, number)));
    }
    comm->barrier(id("end"));
  });
}

TEST(Messages, TheTensorMayBeWrittenAfterWaiting) {
  run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    // The memory of the first kind is read in place where ranks share memory.
    for (const bool shared : {true, false}) {
      const at::Tensor tensor =
          shared ? comm->memory_sharing().reduction_input(4000).view(at::kFloat) : torch::empty({1000});
      for (int round = 0; round < 20; ++round) {
        if (comm->rank() == 0) {
          tensor.fill_(round);
          comm->send(tensor, 1, id("m"))->wait();
        } else {
          comm->recv(tensor, 0, id("m"))->wait();
          EXPECT_TRUE(tensor.eq(round).all().item<bool>());
        }
      }
    }
    comm->barrier(id("end"));
  });
}

TEST(Messages, AWorkThatNobodyWaitsForIsSkipped) {
  run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    for (int number = 0; number < 5; ++number) {
      if (comm->rank() == 0) {
        comm->send(contents(0, 1, number), 1, id("m"));
        continue;
      }
      const at::Tensor output = torch::zeros_like(contents(0, 1, number));
      const auto work = comm->recv(output, 0, id("m"));
      if (number % 2 == 1) continue;
      work->wait();
      EXPECT_TRUE(torch::equal(output, contents(0, 1, number)));
    }
    comm->barrier(id("end"));
  });
}

TEST(Messages, MemoryIsFreedOnceTheReceiverHasIt) {
  run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    at::Tensor tensor = torch::ones({1000});
    const auto sent = tensor.storage().getWeakStorageImpl();
    if (comm->rank() == 0) comm->send(tensor, 1, id("m"));
    if (comm->rank() == 1) comm->recv(torch::empty({1000}), 0, id("m"))->wait();
    tensor.reset();
    comm->barrier(id("it is received"));
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!sent.expired() && std::chrono::steady_clock::now() < deadline) comm->trim();
    EXPECT_TRUE(sent.expired());
    comm->barrier(id("end"));
  });
}

TEST(Messages, CountTheirBytes) {
  run_ranks(3, [](std::shared_ptr<Communicator> comm) {
    const std::vector<uint64_t> before = comm->bytes_sent_to();
    if (comm->rank() == 0) comm->send(torch::ones({10, 3}), 2, id("m"));
    if (comm->rank() == 2) comm->recv(torch::ones({10, 3}), 0, id("m"))->wait();
    std::vector<uint64_t> sent = comm->bytes_sent_to();
    for (size_t rank = 0; rank < sent.size(); ++rank) sent[rank] -= before[rank];
    EXPECT_EQ(sent[2], comm->rank() == 0 ? 120u : 0u);
    EXPECT_EQ(sent[1], 0u);
    comm->barrier(id("end"));
  });
}

TEST(Messages, AGroupAndItsTwinAreApart) {
  run_ranks(4, [](std::shared_ptr<Communicator> comm) {
    const auto twin = comm->twin();
    const int next = (comm->rank() + 1) % 4, before = (comm->rank() + 3) % 4;
    const at::Tensor first = torch::zeros({1}), second = torch::zeros({1});
    comm->send(torch::full({1}, 1.0), next, id("in the group"));
    twin->send(torch::full({1}, 2.0), next, id("in the twin"));
    twin->recv(second, before, id("in the twin"))->wait();
    comm->recv(first, before, id("in the group"))->wait();
    EXPECT_EQ(first.item<float>(), 1);
    EXPECT_EQ(second.item<float>(), 2);
    comm->barrier(id("end"));
  });
}

TEST(Messages, ThatDifferAreNamedOnBothSides) {
  struct Case {
    at::Tensor output;
    CollectiveId id;
    const char* received;
  };
  const std::vector<Case> cases{
      {torch::zeros({3}), id("y"), "rank 1 receives message of 'y' (forward, generation 0), Float of sizes [3]"},
      {torch::zeros({3}), id("x", 4), "rank 1 receives message of 'x' (forward, generation 4), Float of sizes [3]"},
      {torch::zeros({3}, at::kInt), id("x"),
       "rank 1 receives message of 'x' (forward, generation 0), Int of sizes [3]"},
      {torch::zeros({1, 3}), id("x"), "rank 1 receives message of 'x' (forward, generation 0), Float of sizes [1, 3]"},
      {torch::zeros({4}), id("x"), "rank 1 receives message of 'x' (forward, generation 0), Float of sizes [4]"}};
  for (const Case& one : cases) {
    const auto errors = errors_of_ranks(2, [&](std::shared_ptr<Communicator> comm) {
      if (comm->rank() == 0) comm->send(torch::zeros({3}), 1, id("x"));
      if (comm->rank() == 1) comm->recv(one.output, 0, one.id)->wait();
      comm->barrier(id("end"));
    });
    EXPECT_THAT(errors, Each(AllOf(HasSubstr(one.received),
                                   HasSubstr("from rank 0 to rank 1, while rank 0 sends message of 'x' (forward, "
                                             "generation 0), Float of sizes [3], from rank 0 to rank 1 (message "
                                             "number 0 between them)"))));
  }
}

TEST(Messages, ThatCannotBeSentAreRefused) {
  run_ranks(2, [](std::shared_ptr<Communicator> comm) {
    const int other = 1 - comm->rank();
    const std::string self = c10::str("rank ", comm->rank(), " of a group of 2 ranks cannot ");
    EXPECT_THAT(error_of([&] { comm->send(torch::zeros({1}), comm->rank(), id("m")); }),
                HasSubstr(self + c10::str("send one to rank ", comm->rank())));
    EXPECT_THAT(error_of([&] { comm->recv(torch::zeros({1}), 2, id("m")); }),
                HasSubstr(self + "receive one from rank 2"));
    EXPECT_THAT(error_of([&] { comm->send(torch::zeros({2, 2}).t(), other, id("m")); }),
                HasSubstr("the tensor to send must be contiguous, got sizes [2, 2] and strides [1, 2]"));
    EXPECT_THAT(error_of([&] { comm->recv({}, other, id("m")); }), HasSubstr("got an undefined one"));
    comm->barrier(id("end"));
  });
}

TEST(Messages, ThatDoNotComeInTimeNameTheSender) {
  std::atomic<bool> over = false;
  const auto errors = errors_of_ranks(3,
                                      [&](std::shared_ptr<Communicator> comm) {
                                        if (comm->rank() == 1) {
                                          const std::string error =
                                              error_of([&] { comm->recv(torch::zeros({1}), 0, id("m"))->wait(); });
                                          over = true;
                                          throw std::runtime_error(error);
                                        }
                                        while (!over) std::this_thread::sleep_for(std::chrono::milliseconds(1));
                                      },
                                      {.timeout = std::chrono::milliseconds(400)});
  EXPECT_THAT(errors[1], AllOf(HasSubstr("rank 1 waits for its message of 'm' (forward, generation 0), Float of sizes "
                                         "[1], from rank 0 to rank 1: rank 0 is late; waited"),
                               HasSubstr("Is it stuck, or does it skip this message?")));
}

TEST(Messages, OfARankThatLeftNameIt) {
  for (int size : {2, 4}) {
    const auto errors = errors_of_ranks(size,
                                        [](std::shared_ptr<Communicator> comm) {
                                          if (comm->rank() == 0) throw std::runtime_error("this rank has no message");
                                          if (comm->rank() == 1) comm->recv(torch::zeros({1}), 0, id("m"))->wait();
                                          comm->barrier(id("end"));
                                        },
                                        {.timeout = std::chrono::hours(1)});
    EXPECT_THAT(errors[1], HasSubstr("rank 0 is lost"));
  }
}

// In a pipeline, the last stages are done before the first ones.
TEST(Messages, GoBetweenTwoRanksAfterAThirdOneHasLeft) {
  std::atomic<bool> has_left = false;
  const auto errors = errors_of_ranks(3, [&](std::shared_ptr<Communicator> comm) {
    if (comm->rank() == 2) {
      has_left = true;
      throw std::runtime_error("done");
    }
    while (!has_left) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::this_thread::sleep_for(std::chrono::milliseconds(300));  // until the others have noticed
    const int other = 1 - comm->rank();
    const auto sent = comm->send(torch::full({3}, comm->rank()), other, id("m"));
    const at::Tensor output = torch::zeros({3}, torch::kLong);
    comm->recv(output, other, id("m"))->wait();
    sent->wait();
    EXPECT_TRUE(output.eq(other).all().item<bool>());
  });
  EXPECT_THAT(errors, ElementsAre("no error", "no error", "done"));
}

TEST(Messages, SentBeforeARankLeftArrive) {
  const auto errors = errors_of_ranks(2, [](std::shared_ptr<Communicator> comm) {
    if (comm->rank() == 0) {
      comm->send(torch::full({3}, 5.0), 1, id("m"))->wait();
      throw std::runtime_error("done");
    }
    const at::Tensor output = torch::zeros({3});
    comm->recv(output, 0, id("m"))->wait();
    EXPECT_TRUE(output.eq(5).all().item<bool>());
  });
  EXPECT_THAT(errors[0], HasSubstr("done"));
}

// Two stages of a pipeline with two ranks each: rank = 2 * stage + place.
struct Stages {
  explicit Stages(const std::shared_ptr<Communicator>& world)
      : comm(world),
        stage(world->rank() / 2),
        place(world->rank() % 2),
        data_parallel(world->subgroup({2 * stage, 2 * stage + 1}, id("data parallel"))),
        pipeline(world->subgroup({place, 2 + place}, id("pipeline"))) {}

  std::shared_ptr<Communicator> comm;
  int stage;
  int place;
  std::shared_ptr<Communicator> data_parallel;
  std::shared_ptr<Communicator> pipeline;
};

// The circle of [Note: waiting for a message].
TEST(MessagesBesideCollectives, NoCircleIsClosed) {
  run_ranks(4, [](std::shared_ptr<Communicator> world) {
    const Stages stages(world);
    const at::Tensor sum = torch::ones({100}), message = torch::full({10}, 3.0);
    const auto reduction = stages.data_parallel->all_reduce(sum, sum, {}, id("sum"));
    if (stages.place == 0 && stages.stage == 0) reduction->wait();
    if (stages.place == 1 && stages.stage == 1) reduction->wait();
    if (stages.place == 0) {
      if (stages.stage == 0) stages.pipeline->send(message, 1, id("activation"));
      if (stages.stage == 1) stages.pipeline->recv(message, 0, id("activation"))->wait();
    } else {
      if (stages.stage == 1) stages.pipeline->send(message, 0, id("gradient"));
      if (stages.stage == 0) stages.pipeline->recv(message, 1, id("gradient"))->wait();
    }
    if (stages.place != stages.stage) reduction->wait();
    EXPECT_TRUE(sum.eq(2).all().item<bool>());
    world->barrier(id("end"));
  });
}

// Ranks that are early or late at random pass messages up and down while sums of their stage are in flight, for which
// they wait at a time of their own.
class MessageStress {
 public:
  MessageStress(const std::shared_ptr<Communicator>& world, unsigned seed)
      : stages_(world), same_(seed), own_(seed + 100 + static_cast<unsigned>(world->rank())) {}

  void step() {
    ++step_;
    const auto numel = static_cast<int64_t>(same_() % 3000 + 1);
    if (same_() % 2 == 0) begin_sum(numel);
    pass_on(0, 1, "activation", numel);
    if (same_() % 2 == 0) begin_sum(numel + 1);
    pass_on(1, 0, "gradient", numel);
    while (sums_.size() > own_() % 4) end_sum();
  }
  void end() {
    while (!sums_.empty()) end_sum();
    stages_.comm->barrier(id("end"));
  }

 private:
  struct Sum {
    std::unique_ptr<Work> work;
    at::Tensor tensor;
    float expected;
  };

  void delay() {
    const unsigned draw = own_() % 32;
    if (draw == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    if (draw < 8) std::this_thread::sleep_for(std::chrono::microseconds(own_() % 200));
  }
  float value() const { return static_cast<float>(step_ % 101); }
  void begin_sum(int64_t numel) {
    const at::Tensor tensor = torch::full({numel}, value());
    delay();
    sums_.push_back({stages_.data_parallel->all_reduce(tensor, tensor, {}, id("sum", step_)), tensor, 2 * value()});
  }
  void end_sum() {
    const auto one = sums_.begin() + static_cast<std::ptrdiff_t>(own_() % sums_.size());
    delay();
    one->work->wait();
    EXPECT_TRUE(one->tensor.eq(one->expected).all().item<bool>());
    sums_.erase(one);
  }
  void pass_on(int from, int to, const std::string& name, int64_t numel) {
    delay();
    if (stages_.stage == from) {
      stages_.pipeline->send(torch::full({numel}, value()), to, id(name, step_));
      return;
    }
    const at::Tensor output = torch::empty({numel});
    stages_.pipeline->recv(output, from, id(name, step_))->wait();
    EXPECT_TRUE(output.eq(value()).all().item<bool>());
  }

  const Stages stages_;
  std::mt19937 same_;
  std::mt19937 own_;
  uint64_t step_ = 0;
  std::vector<Sum> sums_;
};

TEST(MessagesBesideCollectives, RanksThatAreEarlyAndLateNeverHang) {
  run_ranks(4, [](std::shared_ptr<Communicator> world) {
    MessageStress stress(world, 1);
    for (int step = 0; step < 500; ++step) stress.step();
    stress.end();
  });
}

}  // namespace
}  // namespace fsdp::comm::messages_test
