// Tests the summaries that reductions give of their outputs: over every backend, for all kinds, on all ranks.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>

#include "support/ranks/thread_ranks.h"

namespace fsdp::comm::reduction_summary_test {
namespace {

CollectiveId id(const std::string& name) { return {name, 0, Pass::kReduce}; }

at::Tensor values(int rank, int64_t numel) {
  return torch::arange(numel, torch::kFloat).remainder(13).sub(6).mul(rank + 1);
}

void expect_of(const ReductionSummary& summary, const at::Tensor& output) {
  EXPECT_TRUE(summary.known && summary.finite);
  const double squares = output.to(at::kDouble).square().sum().item<double>();
  EXPECT_NEAR(summary.squared_norm, squares, 2e-6 * squares);
}

struct Dtypes {
  at::ScalarType input, output;
};
const std::vector<Dtypes> kDtypes = {
    {at::kFloat, at::kFloat}, {at::kBFloat16, at::kFloat}, {at::kFloat, at::kBFloat16}, {at::kDouble, at::kDouble}};

// Calls `body` with 1 to 4 ranks, several sizes of the output, and all dtypes.
void in_each_case(const std::function<void(Communicator&, int64_t numel, const Dtypes&)>& body) {
  for (int ranks : {1, 2, 3, 4}) {
    testing::run_ranks(ranks, [&](std::shared_ptr<Communicator> comm) {
      for (int64_t numel : {0, 1, 7, 3001}) {
        for (const Dtypes& dtypes : kDtypes) body(*comm, numel, dtypes);
      }
    });
  }
}

TEST(ReductionSummaries, OfReduceScatter) {
  in_each_case([](Communicator& comm, int64_t numel, const Dtypes& dtypes) {
    at::Tensor sum = torch::empty({numel}, dtypes.output);
    ReductionSummary summary;
    const at::Tensor input = values(comm.rank(), numel * comm.size()).to(dtypes.input);
    comm.reduce_scatter(sum, input, {.scale = 0.5, .summary = &summary}, id("u"))->wait();
    expect_of(summary, sum);
  });
}

// The summary has the same bits on all ranks, because each decides by it what to do next.
TEST(ReductionSummaries, OfAllReduce) {
  in_each_case([](Communicator& comm, int64_t numel, const Dtypes& dtypes) {
    at::Tensor sum = torch::empty({numel}, dtypes.output);
    ReductionSummary summary;
    const at::Tensor input = values(comm.rank(), numel).to(dtypes.input);
    comm.all_reduce(sum, input, {.scale = 0.37, .summary = &summary}, id("u"))->wait();
    expect_of(summary, sum);
    const std::string bits(reinterpret_cast<const char*>(&summary.squared_norm), sizeof(double));
    for (const std::string& other : comm.all_gather_bytes(bits, id("compare"))) EXPECT_EQ(other, bits);
  });
}

TEST(ReductionSummaries, TellOfTheRankThatHoldsIt) {
  testing::run_ranks(3, [](std::shared_ptr<Communicator> comm) {
    at::Tensor input = values(comm->rank(), 3000);
    if (comm->rank() == 0) input[1500] = std::numeric_limits<float>::infinity();  // in the part of rank 1
    at::Tensor sum = torch::empty({1000});
    ReductionSummary summary;
    comm->reduce_scatter(sum, input, {.summary = &summary}, id("u"))->wait();
    EXPECT_EQ(summary.finite, comm->rank() != 1);
    at::Tensor all = torch::empty({3000});
    comm->all_reduce(all, input, {.summary = &summary}, id("v"))->wait();
    EXPECT_FALSE(summary.finite);
  });
}

}  // namespace
}  // namespace fsdp::comm::reduction_summary_test
