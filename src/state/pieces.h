// What one rank writes of a training run's state.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "checkpoint/tensor_info.h"
#include "state/training_state.h"

namespace fsdp {

// Elements of one tensor.
struct Piece {
  std::string name;  // of the tensor
  checkpoint::StoredTensor tensor;
  int64_t begin = 0;
  at::Tensor values;  // 1-D

  bool is_whole() const { return values.numel() == tensor.numel() && tensor.strides.empty(); }
  // In the file: under the tensor's name and shape where all of it is there, in order.
  checkpoint::TensorInfo stored() const;
};

struct RankPieces {
  std::vector<Piece> pieces;
  // By FQN, the numbers that the optimizer keeps for a parameter: of those whose first element this rank holds.
  nlohmann::json leaves = nlohmann::json::object();
  nlohmann::json groups = nlohmann::json::array();  // of the optimizer; the same on all ranks
  // By FQN, the checksum of a parameter that is not sharded: the same on all ranks, or the save fails.
  std::map<std::string, std::string> ignored{};
};

// The values are views of the shards. Rank 0 has the buffers and the parameters that are not sharded, too. Touches no
// other rank.
RankPieces pieces_of(const TrainingState& state, int rank);

}  // namespace fsdp
