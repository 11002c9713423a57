// Tensors of a checkpoint (docs/checkpoints.md), under the names of the model.
#pragma once

#include <map>
#include <string>

#include "formats/own/checkpoint_folder.h"
#include "state/saved_optimizer.h"
#include "state/tensor_source.h"

namespace fsdp::state {

class CheckpointTensors final : public TensorSource {
 public:
  // Provides the tensors whose names begin with one of `prefixes`, under their names without the prefix. The folder
  // must outlive this object.
  CheckpointTensors(const formats::CheckpointFolder& folder, const std::vector<std::string>& prefixes);

  const std::map<std::string, SourceTensor>& tensors() const override { return tensors_; }
  void read(const std::string& name, int64_t begin, int64_t end, const at::Tensor& out) const override;

 private:
  const formats::CheckpointFolder& folder_;
  std::map<std::string, SourceTensor> tensors_;
  std::map<std::string, std::string> stored_;  // by name, the name in the folder
};

// The parameters, by FQN, and the buffers.
CheckpointTensors model_in(const formats::CheckpointFolder& folder);
SavedOptimizer optimizer_in(const formats::CheckpointFolder& folder);

}  // namespace fsdp::state
