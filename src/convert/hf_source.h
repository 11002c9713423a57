// Reads a Hugging Face folder as a source: parameters, and buffers by name. Tensors of experts become those of the
// model (formats/hugging_face/expert_tensors.h).
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "convert/source.h"
#include "formats/hugging_face/expert_tensors.h"
#include "formats/hugging_face/hf_folder.h"

namespace fsdp::convert {

class HfSource final : public Source {
 public:
  HfSource(const std::filesystem::path& folder, const SourceOptions& options, Notes& notes);
  void read(const StateTensor& tensor, int64_t begin, int64_t end, const at::Tensor& out) override;

 private:
  formats::HfFolder folder_;
  std::unordered_map<std::string, std::vector<formats::FolderPart>> parts_;  // by name in the model
};

}  // namespace fsdp::convert
