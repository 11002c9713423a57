// Checks that costs are proportional to a model's size. Costs are counted in basic blocks of the library, for one size
// and for a size four times as large.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "../../benchmarks/growth_jobs.h"
#include "growth/step_count.h"

namespace fsdp::growth {
namespace {

// Largest accepted exponent of the steps as a power of the size. It is above 1, because sorting adds a logarithm.
constexpr double kLargestExponent = 1.2;
constexpr int64_t kSize = 400;
constexpr int64_t kFactor = 4;
// Smaller costs are not compared, because fixed costs and chance would decide.
constexpr int64_t kFewSteps = 2000;

using Steps = std::map<std::string, int64_t>;

Steps steps_of(const Job& job, int64_t size) {
  Steps least;
  job.run(size, [&](const std::string& what, const std::function<void()>& action) {
    const int64_t before = steps_of_this_thread();
    action();
    const int64_t taken = steps_of_this_thread() - before;
    const auto [entry, is_new] = least.emplace(what, taken);
    entry->second = std::min(entry->second, taken);
  });
  return least;
}

class Growth : public ::testing::TestWithParam<Job> {};
INSTANTIATE_TEST_SUITE_P(All, Growth, ::testing::ValuesIn(jobs()), [](const auto& info) {
  std::string name = info.param.name;
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
});

TEST_P(Growth, IsInProportionToTheSize) {
  at::set_num_threads(1);
  const Steps small = steps_of(GetParam(), kSize), large = steps_of(GetParam(), kFactor * kSize);
  ASSERT_FALSE(small.empty());
  for (const auto& [what, steps] : large) {
    if (steps < kFewSteps) continue;
    const double exponent =
        std::log(static_cast<double>(steps) / static_cast<double>(std::max<int64_t>(small.at(what), 1))) /
        std::log(static_cast<double>(kFactor));
    RecordProperty(what, steps);
    EXPECT_LE(exponent, kLargestExponent) << what << ": " << small.at(what) << " steps for " << kSize << " "
                                          << GetParam().size << ", " << steps << " for " << kFactor * kSize;
  }
}

// The counter works: a job takes more steps than it has units.
TEST(Growth, StepsAreCounted) {
  for (const auto& [what, steps] : steps_of(jobs().front(), kSize)) {
    if (what == "fully_shard" || what == "step") {
      EXPECT_GT(steps, kSize) << what;
    }
  }
}

}  // namespace
}  // namespace fsdp::growth
