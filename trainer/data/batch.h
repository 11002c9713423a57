// Samples in the form that a model takes.
#pragma once

#include <ATen/core/Tensor.h>

namespace fsdp::trainer {

struct Batch {
  at::Tensor inputs;               // [samples, …]: token ids, int64, or pixel values, or numeric features
  at::Tensor labels;               // [samples, …], int64; models::kIgnoredLabel: no prediction at this position
  at::Tensor attention_mask = {};  // shaped like inputs, false for padding; undefined: no padding
  at::Tensor categorical = {};     // [samples, features], int64; defined for tabular data only

  Batch to(c10::Device device) const {
    const auto moved = [&](const at::Tensor& tensor) { return tensor.defined() ? tensor.to(device) : tensor; };
    return {moved(inputs), moved(labels), moved(attention_mask), moved(categorical)};
  }
};

}  // namespace fsdp::trainer
