// The part of a training run's state that one rank writes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "formats/common/tensor_info.h"
#include "formats/own/manifest.h"
#include "state/training_state.h"

namespace fsdp::state {

// Elements of one tensor.
struct Piece {
  std::string name;  // the tensor's name
  formats::StoredTensor tensor;
  int64_t begin = 0;
  at::Tensor values;  // 1-D

  bool is_whole() const { return values.numel() == tensor.numel() && tensor.strides.empty(); }
  // How the piece is stored in the file: under the tensor's name and shape if the piece is the whole tensor in
  // row-major order, else 1-D under "NAME[begin:end]".
  formats::TensorInfo stored() const;
};

struct RankPieces {
  std::vector<Piece> pieces;
  // By FQN, the numbers that the optimizer keeps for each parameter whose first element this rank holds.
  nlohmann::json leaves = nlohmann::json::object();
  // The optimizer's parameter groups, on the first rank of each part of the model; else empty.
  nlohmann::json groups = nlohmann::json::array();
  // By FQN, the checksums of the parameters that are not sharded. They must be the same on all ranks that hold the same
  // part, or the save fails.
  std::map<std::string, std::string> ignored{};
  std::string stages{};  // the part of the model (model_parts.h)
};

// Collects the pieces of this rank; their values are views of the shards. The first rank of each part of the model also
// has its buffers and its parameters that are not sharded. Does not communicate with other ranks.
RankPieces pieces_of(const TrainingState& state, int rank, const TiedSavers& tied = {});

}  // namespace fsdp::state
