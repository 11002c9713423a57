// Measures time and peak memory of a language model's head and loss in forward and backward. The plain and the fused
// version take turns.
// Usage: fused_loss TOKENS WIDTH VOCABULARY DTYPE [TURNS]; DTYPE is fp32 or bf16. Prints two lines of a Markdown table.
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "models/fused_cross_entropy.h"
#include "models/loss.h"
#include "support/memory/counting_allocator.h"

namespace {

using fsdp::testing::CountedMemory;

struct Inputs {
  torch::Tensor hidden_states, weight, labels;
};

struct Measured {
  std::vector<double> seconds;
  int64_t peak = 0;  // bytes in addition to the inputs
  double loss = 0;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void run_once(const Inputs& inputs, bool fused, Measured& measured) {
  inputs.hidden_states.mutable_grad().reset();
  inputs.weight.mutable_grad().reset();
  CountedMemory memory;
  const int64_t before = memory.current_bytes();
  memory.reset_peak();
  const auto start = std::chrono::steady_clock::now();
  const torch::Tensor loss =
      fused ? fsdp::models::fused_cross_entropy(inputs.hidden_states, inputs.weight, inputs.labels)
            : fsdp::models::mean_cross_entropy(torch::linear(inputs.hidden_states, inputs.weight), inputs.labels);
  loss.backward();
  measured.seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  measured.peak = memory.peak_bytes() - before;
  measured.loss = loss.item<double>();
}

void print(const char* name, const Measured& measured, const Measured& plain) {
  const auto [least, most] = std::minmax_element(measured.seconds.begin(), measured.seconds.end());
  std::printf("| %s | %.3f (%.3f–%.3f) | %.2f | %.1f | %.2f | %.7f |\n", name, median(measured.seconds), *least, *most,
              median(measured.seconds) / median(plain.seconds), static_cast<double>(measured.peak) / (1 << 20),
              static_cast<double>(measured.peak) / static_cast<double>(plain.peak), measured.loss);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string dtype = argc >= 5 ? argv[4] : "";
  if (dtype != "fp32" && dtype != "bf16") {
    std::fprintf(stderr, "usage: fused_loss TOKENS WIDTH VOCABULARY fp32|bf16 [TURNS]\n");
    return 2;
  }
  at::set_num_threads(1);
  torch::manual_seed(0);
  const int64_t tokens = std::atoll(argv[1]), width = std::atoll(argv[2]), vocabulary = std::atoll(argv[3]);
  const auto type = dtype == "bf16" ? torch::kBFloat16 : torch::kFloat;
  const Inputs inputs = {torch::randn({tokens, width}).to(type).requires_grad_(),
                         (torch::randn({vocabulary, width}) / 16).to(type).requires_grad_(),
                         torch::randint(vocabulary, {tokens})};
  Measured plain, fused, warm_up;
  for (const bool is_fused : {false, true}) run_once(inputs, is_fused, warm_up);
  for (int turn = 0, turns = argc > 5 ? std::atoi(argv[5]) : 5; turn < turns; ++turn) {
    run_once(inputs, false, plain);
    run_once(inputs, true, fused);
  }
  print("plain", plain, plain);
  print("fused", fused, plain);
  return 0;
}
