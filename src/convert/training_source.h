// Reads a training checkpoint as a source.
#pragma once

#include <string>

#include "convert/source.h"
#include "formats/own/checkpoint_folder.h"

namespace fsdp::convert {

class TrainingSource final : public Source {
 public:
  TrainingSource(const std::filesystem::path& folder, Notes& notes);
  // Memory: a whole tensor and a reordered copy, if the tensor is not stored in row-major order.
  void read(const StateTensor& tensor, int64_t begin, int64_t end, const at::Tensor& out) override;

 private:
  void add_tensor(const std::string& name, const formats::StoredTensor& stored, Notes& notes);
  void take_state();

  formats::CheckpointFolder folder_;
  // The last read tensor that is not stored in row-major order, reordered to it.
  std::string ordered_name_;
  at::Tensor ordered_;
};

}  // namespace fsdp::convert
