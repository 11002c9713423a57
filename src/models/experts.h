// Experts that share the tokens of a sequence (Shazeer et al., Outrageously Large Neural Networks, 2017), as in
// transformers.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

#include "models/activations.h"
#include "models/layers.h"

namespace fsdp::models {

// The experts that a router chose for each token.
struct Routing {
  at::Tensor logits;   // [tokens, experts], of all experts
  at::Tensor experts;  // [tokens, experts_per_token] int64
  at::Tensor weights;  // the same shape
};

struct RouterOptions {
  int64_t experts = 0;
  int64_t experts_per_token = 0;
  bool renormalizes = false;    // weights of a token sum to 1
  bool rounds_weights = false;  // weights have the dtype of the logits; otherwise fp32 (fp64 for fp64)
};

// Chooses the experts with the largest probabilities, softmax(x weightᵀ) in fp32 (fp64 for fp64). Parameter: weight
// [experts, hidden_size].
class RouterImpl : public torch::nn::Module {
 public:
  RouterImpl(int64_t hidden_size, const RouterOptions& router, const at::TensorOptions& options);
  // hidden_states: [tokens, hidden_size].
  Routing forward(const at::Tensor& hidden_states);

  at::Tensor weight;

 private:
  RouterOptions router_;
};
TORCH_MODULE(Router);

// The gated MLPs of all experts in two parameters: gate_up_proj [experts, 2 * intermediate_size, hidden_size], whose
// upper half are the gates, and down_proj [experts, hidden_size, intermediate_size].
class ExpertsImpl : public torch::nn::Module {
 public:
  ExpertsImpl(int64_t experts, int64_t hidden_size, int64_t intermediate_size, Activation activation,
              const at::TensorOptions& options);
  // Returns for each token the weighted sum of its experts' outputs: [tokens, hidden_size]. Tokens are sorted by
  // expert, and each expert that has any multiplies them at once; how many each has is known to the host first, which
  // waits for the device. On the meta device, and after assume_even_routing(), all experts have equally many.
  at::Tensor forward(const at::Tensor& hidden_states, const Routing& routing);

  at::Tensor gate_up_proj, down_proj;

 private:
  // hidden_states: the tokens of one expert. Returns its output for them.
  at::Tensor apply(const at::Tensor& hidden_states, const at::Tensor& gate_up, const at::Tensor& down) const;

  Activation activation_;
};
TORCH_MODULE(Experts);

// From now on, all experts of a layer have equally many tokens in this process, whatever its routers choose: for
// processes that compute sizes and times without values, as `fsdp plan` does. May be called from any thread.
void assume_even_routing();

// Returns the load-balancing loss of Fedus et al., Switch Transformers, 2021, equations 4 to 6, over the tokens of all
// layers: the number of experts times the sum over experts of the share of choices that fell on it and its mean
// probability. It is least, experts_per_token, where all experts are chosen equally often. logits: those of each layer,
// [tokens, experts].
at::Tensor load_balancing_loss(const std::vector<at::Tensor>& logits, int64_t experts_per_token);

}  // namespace fsdp::models
