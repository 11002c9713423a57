// Samples as a model takes them.
#pragma once

#include <ATen/core/Tensor.h>

namespace fsdp::trainer {

struct Batch {
  at::Tensor inputs;               // [samples, …]: token ids, int64, or pixel values
  at::Tensor labels;               // [samples, …], int64; models::kIgnoredLabel: nothing is predicted there
  at::Tensor attention_mask = {};  // as inputs, false where they are padding; undefined: nowhere

  Batch to(c10::Device device) const {
    return {inputs.to(device), labels.to(device), attention_mask.defined() ? attention_mask.to(device) : at::Tensor()};
  }
};

}  // namespace fsdp::trainer
