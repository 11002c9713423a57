// FLOPs of what activation checkpointing runs again: the forward of blocks, a third of their forward and backward
// (flops.h). With the model's they are those of the hardware.
#pragma once

#include <cstdint>
#include <vector>

#include "fsdp/activation_checkpoint.h"

namespace fsdp::models {

// What computes a block's products. SavedOperators that name it keep its results.
enum class ProductKind : uint8_t {
  kMm,           // linear layers without a bias: aten::mm
  kAddmm,        // with one: aten::addmm
  kBmm,          // products of batches of matrices: aten::bmm
  kSdpa,         // fused attention: any aten::_scaled_dot_product_…_attention…
  kSdpaOrBmm,    // attention with a bias that is trained, fused on some devices and aten::bmm on others
  kConvolution,  // aten::convolution
};

// Those of one kind in a block; FLOPs of forward and backward, of a sample or a token.
struct Products {
  ProductKind kind;
  double flops;
};

inline ProductKind linear_kind(bool with_bias) { return with_bias ? ProductKind::kAddmm : ProductKind::kMm; }

double sum_of(const std::vector<Products>& block);

// Of the block with this index; 0 if the policy does not apply to it.
double recomputed_flops(const CheckpointPolicy& policy, int64_t index, const std::vector<Products>& block);
// Of the blocks 0 to count - 1, all alike.
double recomputed_flops_of_all(const CheckpointPolicy& policy, int64_t count, const std::vector<Products>& block);

}  // namespace fsdp::models
