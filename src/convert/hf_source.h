// Reads a Hugging Face folder as a source: parameters, and buffers by name.
#pragma once

#include "convert/source.h"
#include "formats/hugging_face/hf_folder.h"

namespace fsdp::convert {

class HfSource final : public Source {
 public:
  HfSource(const std::filesystem::path& folder, const SourceOptions& options, Notes& notes);
  void read(const StateTensor& tensor, int64_t begin, int64_t end, const at::Tensor& out) override;

 private:
  formats::HfFolder folder_;
};

}  // namespace fsdp::convert
