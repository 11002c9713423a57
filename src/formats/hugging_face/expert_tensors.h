// Weights of experts in Hugging Face folders. A model holds those of a layer in one tensor, [experts, rows, columns].
// Folders hold either the same tensor, or a tensor for each expert and projection, each of which is a range of its
// elements.
#pragma once

#include <algorithm>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "formats/common/tensor_info.h"

namespace fsdp::formats {

// A tensor of a folder that holds elements [begin, begin + info.numel()) of a flattened tensor of the model.
struct FolderPart {
  TensorInfo info;
  int64_t begin = 0;

  int64_t end() const { return begin + info.numel(); }
};

// Returns the parts in which folders with this config.json hold a tensor of the model, in the order of its elements, or
// nothing if they hold it under its own name. A renamed tensor is one part.
std::vector<FolderPart> folder_parts(const nlohmann::json& config, const TensorInfo& tensor);

// A tensor of a model, with the tensors of its folder that hold it, in the order of its elements.
struct ModelTensor {
  TensorInfo info;
  std::vector<FolderPart> parts;
};

// Returns the tensors of the model whose folder has this config.json and these tensors, in their order; the tensors of
// experts of one layer together become one, at the place of the first. Throws if experts of a layer are missing or
// differ in shape or dtype. `where` names the folder in errors.
std::vector<ModelTensor> model_tensors(const nlohmann::json& config, const std::vector<TensorInfo>& stored,
                                       const std::string& where);

// Calls visit(part, begin, end) for each part that holds elements of [begin, end) of the model's tensor, in their
// order; the arguments are a range of the part's own elements.
template <typename Visit>
void for_each_part(const std::vector<FolderPart>& parts, int64_t begin, int64_t end, const Visit& visit) {
  for (const FolderPart& part : parts) {
    const int64_t from = std::max(begin, part.begin), to = std::min(end, part.end());
    if (from < to) visit(part, from - part.begin, to - part.begin);
  }
}

}  // namespace fsdp::formats
