// FLOPs that activation checkpointing runs again: the forward of blocks, which is a third of their forward and backward
// (flops.h). Added to the FLOPs of the model, they give the FLOPs of the hardware.
#pragma once

#include <cstdint>
#include <vector>

#include "fsdp/activation_checkpoint.h"

namespace fsdp::models {

// The operators that compute the products of a block. SavedOperators that contain the operator keep its results.
enum class ProductKind : uint8_t {
  kMm,           // linear layers without bias: aten::mm
  kAddmm,        // linear layers with bias: aten::addmm
  kBmm,          // products of batches of matrices: aten::bmm
  kSdpa,         // fused attention: any aten::_scaled_dot_product_…_attention…
  kSdpaOrBmm,    // attention with a trained bias: fused on some devices, aten::bmm on others
  kConvolution,  // aten::convolution
};

// The products of one kind in a block, and their FLOPs in forward and backward, for one sample or token.
struct Products {
  ProductKind kind;
  double flops;
};

inline ProductKind linear_kind(bool with_bias) { return with_bias ? ProductKind::kAddmm : ProductKind::kMm; }

double sum_of(const std::vector<Products>& block);

// Recomputed FLOPs of the block with this index; 0 if the policy does not apply to it.
double recomputed_flops(const CheckpointPolicy& policy, int64_t index, const std::vector<Products>& block);
// Recomputed FLOPs of the blocks 0 to count - 1, which are all alike.
double recomputed_flops_of_all(const CheckpointPolicy& policy, int64_t count, const std::vector<Products>& block);

}  // namespace fsdp::models
