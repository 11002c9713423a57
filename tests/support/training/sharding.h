// Helpers for tests of the engine: shard models in the strictest mode, compare gradients and errors.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "fsdp/fully_shard.h"

namespace fsdp::testing {

// Returns a group of one rank.
std::shared_ptr<Communicator> one_rank();

// Returns a policy that makes a unit of every module that has parameters of its own.
WrapPolicy every_module();

// Returns options for one rank with every_module().
Options one_rank_options();
// Returns options for one rank without a policy, as lists of modules require.
Options one_rank_options_for_lists();
// Returns options for one rank without a policy that compute in `dtype`.
Options low_on_one_rank(at::ScalarType dtype = at::kBFloat16);

// Calls fully_shard in the strictest mode: each unit is released as soon as the outermost operator on it ends, its
// memory is overwritten with NaN, and the next gather uses another address.
std::shared_ptr<ShardedModule> shard_strictly(torch::nn::Module& module, const Options& options = one_rank_options());
std::shared_ptr<ShardedModule> shard_strictly(const std::vector<std::shared_ptr<torch::nn::Module>>& modules,
                                              const Options& options);

// Returns numbers between -1 and 1 that repeat only after a long time, the same in each call.
torch::Tensor numbers(at::IntArrayRef sizes);

// A module that has the given tensors as parameters p0, p1, …, for tests of operators.
struct BagImpl : torch::nn::Module {
  explicit BagImpl(const std::vector<torch::Tensor>& tensors);
};
TORCH_MODULE(Bag);

// Expects an error whose message contains all `parts`; returns the message.
std::string expect_error(const std::function<void()>& body, std::initializer_list<const char*> parts);

// Returns whole gradients by FQN, for one rank and use_orig_params. A gradient is undefined if the leaf has none.
std::map<std::string, torch::Tensor> gradients_of(const ShardedModule& sharded);
// Returns copies of the whole parameters by FQN, in the dtype of the shards. Collective.
std::map<std::string, torch::Tensor> weights_of(ShardedModule& sharded);
// Return the gradients and weights of a module that is not sharded; each shared parameter has its first name.
std::map<std::string, torch::Tensor> gradients_of(const torch::nn::Module& module);
std::map<std::string, torch::Tensor> weights_of(const torch::nn::Module& module);

torch::Tensor copy_on_host(const torch::Tensor& tensor);

// Expects the same names, and for each name two undefined tensors or two bit-equal tensors (a NaN equals itself), on
// any devices.
void expect_same(const std::map<std::string, torch::Tensor>& got, const std::map<std::string, torch::Tensor>& want);
bool same_bits(const torch::Tensor& a, const torch::Tensor& b);

// Seeds the global generator and returns make(). The threads of run_ranks share the generator, so a mutex admits one
// thread at a time.
std::mutex& seed_mutex();
template <typename Make>
auto seeded(Make make, uint64_t seed = 17) {
  std::lock_guard lock(seed_mutex());
  torch::manual_seed(seed);
  return make();
}

// Sets p -= p.grad / 16 for each distinct tensor that has a gradient.
void descend(const std::vector<torch::Tensor>& parameters);

// Runs two steps of plain gradient descent on the same model, plain and sharded with `options` in the strictest mode.
// Losses, gradients and weights must be bit-equal.
template <typename Make, typename Loss>
void expect_trains_alike(Make make, Loss loss_of, const Options& options = one_rank_options(),
                         const std::function<void(torch::nn::Module&)>& convert_plain = {}) {
  auto plain = seeded(make);
  if (convert_plain) convert_plain(*plain);
  auto model = seeded(make);
  auto sharded = shard_strictly(*model, options);
  for (int step = 0; step < 2; ++step) {
    plain->zero_grad();
    sharded->zero_grad();
    torch::manual_seed(100 + step);
    torch::Tensor want = loss_of(plain);
    want.backward();
    torch::manual_seed(100 + step);
    torch::Tensor got = loss_of(model);
    got.backward();
    ASSERT_TRUE(same_bits(got.detach(), want.detach())) << "loss at step " << step << ": " << got << " and " << want;
    expect_same(gradients_of(*sharded), gradients_of(*plain));
    EXPECT_EQ(sharded->diagnostics().stats().gathered_units, 0);
    descend(sharded->parameters());
    descend(plain->parameters());
  }
  expect_same(weights_of(*sharded), weights_of(*plain));
}

}  // namespace fsdp::testing
