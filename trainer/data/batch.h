// Samples as a model takes them.
#pragma once

#include <ATen/core/Tensor.h>

namespace fsdp::trainer {

struct Batch {
  at::Tensor inputs;               // [samples, …]: token ids, int64, or pixel values, or numeric features
  at::Tensor labels;               // [samples, …], int64; models::kIgnoredLabel: nothing is predicted there
  at::Tensor attention_mask = {};  // as inputs, false where they are padding; undefined: nowhere
  at::Tensor categorical = {};     // [samples, features], int64, of tabular data; else undefined

  Batch to(c10::Device device) const {
    const auto moved = [&](const at::Tensor& tensor) { return tensor.defined() ? tensor.to(device) : tensor; };
    return {moved(inputs), moved(labels), moved(attention_mask), moved(categorical)};
  }
};

}  // namespace fsdp::trainer
