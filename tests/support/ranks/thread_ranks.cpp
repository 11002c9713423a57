#include "support/ranks/thread_ranks.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/cpu_communicator.h"
#include "comm/gloo/gloo_communicator.h"
#include "comm/meeting/meeting_point.h"
#include "comm/staged/staged_communicator.h"
#include "fsdp/backends.h"
#include "support/devices/test_device.h"
#include "support/faults/error_of.h"
#include "support/ranks/event_loop_ticks.h"

namespace fsdp::testing {
namespace {

class Errors {
 public:
  void add(int rank, const char* what) {
    std::lock_guard<std::mutex> lock(mutex_);
    text_ += "rank " + std::to_string(rank) + ": " + what + "\n";
  }
  void rethrow() const {
    if (!text_.empty()) throw std::runtime_error(text_);
  }

 private:
  std::mutex mutex_;
  std::string text_;
};

void skip_without_devices(int world_size) {
  if (enough_devices(world_size)) return;
  const std::string why = std::to_string(world_size) + " ranks need as many devices";
  [&] { GTEST_SKIP() << why; }();
  // Ends the test from here as well. GoogleTest takes the exception for the skip that was reported already.
  throw ::testing::AssertionException(
      ::testing::TestPartResult(::testing::TestPartResult::kSkip, __FILE__, __LINE__, why.c_str()));
}

std::string communicator_of(const std::string& wanted) {
  const char* variable = std::getenv("FSDP_TEST_COMMUNICATOR");
  const std::string name = !wanted.empty() ? wanted : variable != nullptr ? variable : "gloo";
  TORCH_CHECK(name == "gloo" || name == "shm" || name == "hosts", "FSDP_TEST_COMMUNICATOR is '", name,
              "'; it can be gloo, shm or hosts");
  return name;
}

std::shared_ptr<Communicator> make_communicator(const RankOptions& wanted,
                                                const std::shared_ptr<comm::MeetingPoint>& point, int rank,
                                                int world_size, const GlooOptions& options) {
  const std::string name = communicator_of(wanted.communicator);
  if (name == "gloo") return comm::make_gloo_communicator(point, rank, world_size, options);
  comm::HostProbe probe;
  probe.spare = [nbytes = wanted.spare_memory] { return nbytes; };
  if (name == "hosts" && world_size >= 4 && world_size % 2 == 0) {
    probe.name = rank < world_size / 2 ? "first" : "second";
  }
  auto gloo = comm::make_host_communicator(point, rank, world_size, options);
  ChosenCommunicator chosen = comm::share_memory(std::move(gloo), probe);
  TORCH_CHECK(world_size == 1 || chosen.communicator->backend() != "gloo", "ranks share no memory: ", chosen.reason);
  return comm::make_staged_communicator(std::move(chosen.communicator));
}

// Makes MKL choose its kernels, which it does at its first call, on one thread. If two threads make the first call at
// the same time, one of them may compute with other kernels, whose last bits differ: this happens in 1 of 100 runs of a
// program on a busy machine.
void choose_kernels_of_mkl() {
  static const bool chosen = [] {
    const torch::Tensor ones = torch::ones({16, 16});
    torch::tanh(torch::mm(ones, ones));
    return true;
  }();
  (void)chosen;
}

}  // namespace

void run_ranks(int world_size, const std::function<void(std::shared_ptr<Communicator>)>& body,
               const RankOptions& options) {
  skip_without_devices(world_size);
  choose_kernels_of_mkl();
  shorten_event_loop_ticks(std::chrono::milliseconds(2));
  const auto point = comm::make_in_memory_meeting_point();
  GlooOptions gloo;
  gloo.timeout = options.timeout;
  Errors errors;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      use_device_of_rank(rank);
      try {
        body(make_communicator(options, point, rank, world_size, gloo));
      } catch (const c10::Error& error) {
        errors.add(rank, error.what_without_backtrace());
      } catch (const std::exception& error) {
        errors.add(rank, error.what());
      }
    });
  }
  for (auto& thread : threads) thread.join();
  errors.rethrow();
}

std::vector<std::string> errors_of_ranks(int world_size, const std::function<void(std::shared_ptr<Communicator>)>& body,
                                         const RankOptions& options) {
  std::vector<std::string> errors(static_cast<size_t>(world_size));
  run_ranks(
      world_size,
      [&](std::shared_ptr<Communicator> comm) {
        const auto rank = static_cast<size_t>(comm->rank());
        errors[rank] = error_of([&] { body(std::move(comm)); });
      },
      options);
  return errors;
}

}  // namespace fsdp::testing
