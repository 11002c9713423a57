// Selects the samples of a rank.
#pragma once

#include <cstdint>
#include <vector>

namespace fsdp::trainer {

// Distributes a list of samples over the ranks: rank r of W takes positions r, r + W, r + 2W, … The list is 0, 1, 2, …
// or torch.randperm's permutation with a generator seeded with seed + epoch, as in torch.utils.data.DistributedSampler.
// Unlike there, no sample is repeated to make the ranks' shares equal.
class DistributedSampler {
 public:
  struct Options {
    int64_t samples = 0;
    int rank = 0;
    int world_size = 1;
    bool shuffle = false;
    uint64_t seed = 0;
  };
  explicit DistributedSampler(const Options& options) : options_(options) {}

  // Returns the samples of this rank in `epoch`, in order.
  std::vector<int64_t> indices(int64_t epoch) const;

 private:
  Options options_;
};

}  // namespace fsdp::trainer
