// A chain of equal layers, for tests that count bytes.
#pragma once

#include <torch/torch.h>

#include <cstdint>

#include "support/training/sharding.h"

namespace fsdp::testing {

// Sizes divide evenly, and with a unit for each layer no parameter is left for the root.
struct EvenChain {
  static constexpr int64_t kWidth = 16;
  static constexpr int kLayers = 3;
  static constexpr uint64_t kBytes = kLayers * (kWidth * kWidth + kWidth) * sizeof(float);
  // At the end of backward, each rank sends one byte per layer to each rank of the groups over which gradients are
  // reduced. The byte says what this rank has captured.
  static constexpr uint64_t kAgreement = kLayers;

  static torch::nn::Sequential make() {
    return seeded([] {
      torch::nn::Sequential chain;
      for (int i = 0; i < kLayers; ++i) chain->push_back(torch::nn::Linear(kWidth, kWidth));
      return chain;
    });
  }
};

}  // namespace fsdp::testing
