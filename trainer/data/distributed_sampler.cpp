#include "data/distributed_sampler.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randperm.h>

namespace fsdp::trainer {

std::vector<int64_t> DistributedSampler::indices(int64_t epoch) const {
  at::Tensor order;
  if (options_.shuffle) {
    auto generator = at::detail::createCPUGenerator(options_.seed + static_cast<uint64_t>(epoch));
    order = at::randperm(options_.samples, generator, at::kLong);
  }
  const int64_t* permutation = order.defined() ? order.const_data_ptr<int64_t>() : nullptr;
  std::vector<int64_t> taken;
  taken.reserve(static_cast<size_t>(options_.samples / options_.world_size + 1));
  for (int64_t i = options_.rank; i < options_.samples; i += options_.world_size) {
    taken.push_back(permutation ? permutation[i] : i);
  }
  return taken;
}

}  // namespace fsdp::trainer
