// A training checkpoint as a source.
#pragma once

#include <string>

#include "checkpoint/checkpoint_folder.h"
#include "convert/source.h"

namespace fsdp::convert {

class TrainingSource final : public Source {
 public:
  TrainingSource(const std::filesystem::path& folder, Notes& notes);
  // Memory: a whole tensor where it does not lie row-major.
  void read(const StateTensor& tensor, int64_t begin, int64_t end, const at::Tensor& out) override;

 private:
  void add_tensor(const std::string& name, const checkpoint::StoredTensor& stored, Notes& notes);
  void take_state();

  checkpoint::CheckpointFolder folder_;
  // The tensor in row-major order that was read last, of those that lie in another one.
  std::string ordered_name_;
  at::Tensor ordered_;
};

}  // namespace fsdp::convert
