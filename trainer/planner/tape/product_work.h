// The arithmetic of matrix products, convolutions and attention.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>

#include "planner/device/device_log.h"

namespace fsdp::planner {

enum class ProductType : uint8_t { kMatrices, kConvolution, kConvolutionBackward, kAttention, kAttentionBackward };

// One kernel as `batch` products of [m, k] and [k, n].
//
// A convolution is a product for each of its groups: m output positions of all samples, n channels of the output, k
// values of the input. Attention is a product for each head of each sample: m queries, n keys, k their width. Backward
// has the sizes of forward.
struct ProductWork {
  ProductType type = ProductType::kMatrices;
  bool causal = false;  // attention whose later keys are masked: about half of `flops` has an effect
  bool biased = false;  // attention with a bias of its scores, which may mask keys
  // Whether both factors are read across their rows, as those of a weight's gradient are.
  bool across_rows = false;
  at::ScalarType dtype = at::kFloat;
  int64_t batch = 1;
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  // A multiplication and an addition are two. All keys count, masked or not. Backward of attention counts as twice
  // forward, as models/flops.h does: the products of queries and keys that the kernel computes again do not count.
  double flops = 0;

  bool operator==(const ProductWork&) const = default;
};

// Returns nothing for other operators.
std::optional<ProductWork> product_work(const KernelCall& call);

}  // namespace fsdp::planner
