// Tests out-of-memory errors: they name the purpose of the memory, and list how much memory each part of the engine
// holds.
#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "base/out_of_memory.h"
#include "engine/engine.h"
#include "fsdp/backends.h"
#include "fsdp/fully_shard.h"
#include "support/faults/error_of.h"
#include "support/memory/sanitizers.h"
#include "support/training/sharding.h"

namespace fsdp {
namespace {

using ::testing::AllOf;
using testing::Bag;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kAbsurd = int64_t{1} << 50;  // bytes: more than the address space

void allocate_absurdly() { (void)torch::empty({kAbsurd}, torch::kByte); }

TEST(OutOfMemory, IsToldFromOtherErrors) {
  const auto is_it = [](const std::function<void()>& body) {
    try {
      body();
    } catch (const std::exception& error) {
      return base::is_out_of_memory(error);
    }
    return false;
  };
  EXPECT_TRUE(is_it(allocate_absurdly));
  EXPECT_TRUE(is_it([] { throw std::bad_alloc(); }));
  EXPECT_TRUE(is_it([] { TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory"); }));
  EXPECT_FALSE(is_it([] { TORCH_CHECK(false, "something else"); }));
}

TEST(OutOfMemory, InAnOperatorOnParametersNamesUnitAndHolders) {
  torch::nn::Linear linear(4, 4);
  auto sharded = testing::shard_strictly(*linear);
  const torch::Tensor x = torch::ones({1, 4});
  const std::string message = error_of([&] { linear(x.expand({kAbsurd / 16, 4})); });
  EXPECT_THAT(message, AllOf(HasSubstr("can't allocate memory"), HasSubstr("rank 0 ran out of memory: aten::"),
                             HasSubstr("unit 'root'"), HasSubstr("parameter shards"), HasSubstr("gradient buffers"),
                             HasSubstr("gathered units: 'root'")));
  linear(x).sum().backward();  // nothing is left pinned
  EXPECT_EQ(sharded->diagnostics().stats().gathered_units, 0);
}

TEST(OutOfMemory, ElsewhereIsExplainedOnRequest) {
  torch::nn::Linear linear(4, 4);
  auto sharded = testing::shard_strictly(*linear);
  const std::vector<MemoryCategory> more = {{"optimizer state", 3 << 20, 4 << 20, 4 << 20}};
  const std::string text = error_of([&] {
    try {
      allocate_absurdly();
    } catch (const std::exception& error) {
      throw std::runtime_error(sharded->diagnostics().explain_out_of_memory(error, more));
    }
  });
  EXPECT_THAT(text,
              AllOf(HasSubstr(std::to_string(kAbsurd)), HasSubstr("parameter shards"),
                    HasSubstr("optimizer state                 3.00        4.00"), HasSubstr("gathered units: none")));
  EXPECT_EQ(sharded->diagnostics().explain_out_of_memory(std::runtime_error("something else")), "something else");
  // An error that has been explained is not explained again.
  const std::runtime_error explained(text);
  EXPECT_EQ(sharded->diagnostics().explain_out_of_memory(explained), text);
}

// ---- real limits, in processes of their own

int64_t address_space_bytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t pages = 0;
  statm >> pages;
  return pages * sysconf(_SC_PAGESIZE);
}

void limit_memory_to(int64_t more) {
  const auto bytes = static_cast<rlim_t>(address_space_bytes() + more);
  const rlimit limit{bytes, bytes};
  TORCH_CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
}

constexpr int64_t kMiB = 1 << 20;

// Runs `body` with 16 MiB of address space left, prints its error, and ends the process.
[[noreturn]] void run_out_of_memory(const std::function<void()>& prepare, const std::function<void()>& body) {
  at::set_num_threads(1);
  prepare();
  limit_memory_to(16 * kMiB);
  std::fputs(error_of(body).c_str(), stderr);
  std::_Exit(0);
}

class MemoryLimit : public ::testing::Test {
 protected:
  MemoryLimit() {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    options_.communicator = make_fake_communicator(0, 2);
  }
  Options options_;
  Bag bag_{std::vector<torch::Tensor>{torch::ones({64 * kMiB / 4})}};
  std::shared_ptr<ShardedModule> sharded_;
};

TEST_F(MemoryLimit, WhereAUnitIsGathered) {
  if (!testing::kAddressesCanBeLimited) GTEST_SKIP() << "a sanitizer needs the addresses";
  EXPECT_EXIT(run_out_of_memory(
                  [&] {
                    sharded_ = fully_shard(*bag_, options_);
                    sharded_->diagnostics().verify_sharding();
                  },
                  [&] { (void)bag_->parameters().at(0).sum(); }),
              ::testing::ExitedWithCode(0),
              "tried to allocate 67108[0-9]* bytes.*rank 0 ran out of memory: gathering unit 'root'.*parameter shards "
              " *32.00  *32.00.*gathered units: none");
}

TEST_F(MemoryLimit, WhereAGradientIsCaptured) {
  if (!testing::kAddressesCanBeLimited) GTEST_SKIP() << "a sanitizer needs the addresses";
  torch::Tensor loss;
  EXPECT_EXIT(run_out_of_memory(
                  [&] {
                    sharded_ = fully_shard(*bag_, options_);
                    loss = bag_->parameters().at(0).sum();
                  },
                  [&] { loss.backward(); }),
              ::testing::ExitedWithCode(0),
              "rank 0 ran out of memory: capturing the gradient of 'p0', unit 'root'.*unsharded parameters  *64.00");
}

TEST_F(MemoryLimit, WhereShardsAreMade) {
  if (!testing::kAddressesCanBeLimited) GTEST_SKIP() << "a sanitizer needs the addresses";
  // The first fully_shard of a process starts autograd's threads, whose stacks take memory as well.
  Bag first{std::vector<torch::Tensor>{torch::ones({4})}};
  EXPECT_EXIT(run_out_of_memory([&] { fully_shard(*first, options_); }, [&] { fully_shard(*bag_, options_); }),
              ::testing::ExitedWithCode(0), "rank 0 ran out of memory: making the shards of a unit");
}

}  // namespace
}  // namespace fsdp
