#include "state/checkpoint_source.h"

#include "base/check.h"
#include "formats/common/tensor_names.h"

namespace fsdp::state {

CheckpointTensors::CheckpointTensors(const formats::CheckpointFolder& folder, const std::vector<std::string>& prefixes)
    : folder_(folder) {
  for (const auto& [stored, tensor] : folder.manifest().tensors) {
    for (const std::string& prefix : prefixes) {
      if (stored.rfind(prefix, 0) != 0) continue;
      const std::string name = stored.substr(prefix.size());
      FSDP_CHECK_WITH(FileError, stored_.emplace(name, stored).second, folder.path().string(), ": '", name,
                      "' occurs twice");
      tensors_[name] = {tensor.dtype, tensor.shape, tensor.strides};
    }
  }
}

void CheckpointTensors::read(const std::string& name, int64_t begin, int64_t end, const at::Tensor& out) const {
  if (begin < end) folder_.read(stored_.at(name), begin, end, out);
}

CheckpointTensors model_in(const formats::CheckpointFolder& folder) {
  return {folder, {formats::kModelPrefix, formats::kBufferPrefix}};
}

SavedOptimizer optimizer_in(const formats::CheckpointFolder& folder) {
  const nlohmann::json& state = folder.manifest().state.at("optimizer");
  return {std::make_shared<CheckpointTensors>(folder, std::vector<std::string>{formats::kOptimizerPrefix}),
          state.at("leaves").get<std::map<std::string, Numbers>>(), parse_groups(state.at("groups"))};
}

}  // namespace fsdp::state
