#include "formats/hugging_face/expert_tensors.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <unordered_map>

#include "base/check.h"
#include "formats/common/json_text.h"

namespace fsdp::formats {
namespace {

using nlohmann::json;

// How the folders of a kind of models name the weights of experts.
struct Names {
  const char* block;  // the module, where the model has "mlp"
  const char *gate, *up, *down;
};

const Names* names_of(const json& config) {
  static const std::map<std::string, Names> kNames{
      {"mixtral", {"block_sparse_moe", "w1", "w3", "w2"}},
      {"olmoe", {"mlp", "gate_proj", "up_proj", "down_proj"}},
      {"qwen2_moe", {"mlp", "gate_proj", "up_proj", "down_proj"}},
      {"qwen3_moe", {"mlp", "gate_proj", "up_proj", "down_proj"}},
  };
  const auto type = config.is_object() ? config.find("model_type") : config.end();
  if (!config.is_object() || type == config.end() || !type->is_string()) return nullptr;
  const auto found = kNames.find(type->get<std::string>());
  return found == kNames.end() ? nullptr : &found->second;
}

// Returns the part of `name` before `end`, if it ends so.
std::optional<std::string> without(std::string_view name, std::string_view end) {
  if (!name.ends_with(end)) return std::nullopt;
  return std::string(name.substr(0, name.size() - end.size()));
}

std::string expert_name(const std::string& layer, const Names& names, int64_t expert, const char* projection) {
  return c10::str(layer, ".", names.block, ".experts.", expert, ".", projection, ".weight");
}

std::vector<FolderPart> parts_of_experts(const TensorInfo& tensor, const std::string& layer, const Names& names,
                                         const std::vector<const char*>& projections) {
  const int64_t experts = tensor.shape[0], rows = tensor.shape[1] / static_cast<int64_t>(projections.size());
  std::vector<FolderPart> parts;
  int64_t begin = 0;
  for (int64_t expert = 0; expert < experts; ++expert) {
    for (const char* projection : projections) {
      parts.push_back({{expert_name(layer, names, expert, projection), tensor.dtype, {rows, tensor.shape[2]}}, begin});
      begin = parts.back().end();
    }
  }
  return parts;
}

// An expert's projection in a folder: which layer's, which one.
struct ExpertTensor {
  std::string layer;
  int64_t expert;
  std::string projection;
};

std::optional<ExpertTensor> parse_expert(const std::string& name, const Names& names) {
  const std::string middle = c10::str(".", names.block, ".experts.");
  const size_t at = name.find(middle);
  if (at == std::string::npos) return std::nullopt;
  const std::string_view rest = std::string_view(name).substr(at + middle.size());
  int32_t expert = 0;
  const auto [end, failure] = std::from_chars(rest.data(), rest.data() + rest.size(), expert);
  if (failure != std::errc() || expert < 0) return std::nullopt;
  const auto projection = without(rest.substr(static_cast<size_t>(end - rest.data())), ".weight");
  if (!projection || !projection->starts_with(".")) return std::nullopt;
  const ExpertTensor tensor{name.substr(0, at), expert, projection->substr(1)};
  const auto is = [&](const char* known) { return tensor.projection == known; };
  return is(names.gate) || is(names.up) || is(names.down) ? std::optional(tensor) : std::nullopt;
}

// The experts' tensors of all layers of a folder.
class ExpertIndex {
 public:
  ExpertIndex(const std::vector<TensorInfo>& stored, const Names& names) : names_(names) {
    for (const TensorInfo& info : stored) {
      const auto expert = parse_expert(info.name, names);
      if (!expert) continue;
      infos_.emplace(info.name, &info);
      int64_t& count = counts_[expert->layer];
      count = std::max(count, expert->expert + 1);
    }
  }

  // Returns the fused tensor that this tensor belongs to.
  ModelTensor fused(const ExpertTensor& of, const std::string& where) const {
    const bool is_down = of.projection == names_.down;
    const std::vector<const char*> projections =
        is_down ? std::vector{names_.down} : std::vector{names_.gate, names_.up};
    const int64_t experts = counts_.at(of.layer);
    const TensorInfo& first = info_of(expert_name(of.layer, names_, 0, projections.front()), where);
    FSDP_CHECK_WITH(FileError, first.shape.size() == 2, where, ": tensor ", quoted_name(first.name), " has shape ",
                    c10::IntArrayRef(first.shape), "; the weight of an expert is a matrix");
    const auto factor = static_cast<int64_t>(projections.size());
    check_all(of.layer, experts, projections, first, where);
    ModelTensor tensor;
    tensor.info = {of.layer + ".mlp.experts." + (is_down ? "down_proj" : "gate_up_proj"),
                   first.dtype,
                   {experts, factor * first.shape[0], first.shape[1]}};
    tensor.parts = parts_of_experts(tensor.info, of.layer, names_, projections);
    return tensor;
  }

 private:
  const TensorInfo& info_of(const std::string& name, const std::string& where) const {
    const auto found = infos_.find(name);
    FSDP_CHECK_WITH(FileError, found != infos_.end(), where, ": tensor ", quoted_name(name),
                    " is missing, but the folder has other experts of that layer");
    return *found->second;
  }

  void check_all(const std::string& layer, int64_t experts, const std::vector<const char*>& projections,
                 const TensorInfo& first, const std::string& where) const {
    for (int64_t expert = 0; expert < experts; ++expert) {
      for (const char* projection : projections) {
        const TensorInfo& info = info_of(expert_name(layer, names_, expert, projection), where);
        FSDP_CHECK_WITH(FileError, info.shape == first.shape && info.dtype == first.dtype, where, ": tensors ",
                        quoted_name(first.name), " and ", quoted_name(info.name),
                        " of two experts differ in shape or dtype");
      }
    }
  }

  const Names& names_;
  std::unordered_map<std::string, const TensorInfo*> infos_;
  std::unordered_map<std::string, int64_t> counts_;  // of experts, by layer
};

// Returns the name in the model of a tensor that is no expert's.
std::string model_name(const std::string& stored, const Names& names) {
  const auto layer = without(stored, c10::str(".", names.block, ".gate.weight"));
  return layer ? *layer + ".mlp.gate.weight" : stored;
}

}  // namespace

std::vector<FolderPart> folder_parts(const json& config, const TensorInfo& tensor) {
  const Names* names = names_of(config);
  if (names == nullptr) return {};
  if (tensor.shape.size() == 3) {
    const auto gate_up = without(tensor.name, ".mlp.experts.gate_up_proj");
    if (gate_up && tensor.shape[1] % 2 == 0) {
      return parts_of_experts(tensor, *gate_up, *names, {names->gate, names->up});
    }
    if (const auto down = without(tensor.name, ".mlp.experts.down_proj")) {
      return parts_of_experts(tensor, *down, *names, {names->down});
    }
  }
  const auto router = without(tensor.name, ".mlp.gate.weight");
  const std::string renamed = router ? c10::str(*router, ".", names->block, ".gate.weight") : tensor.name;
  if (renamed == tensor.name) return {};
  return {{{renamed, tensor.dtype, tensor.shape}, 0}};
}

std::vector<ModelTensor> model_tensors(const json& config, const std::vector<TensorInfo>& stored,
                                       const std::string& where) {
  std::vector<ModelTensor> tensors;
  const auto add_as_is = [&](const TensorInfo& info, std::string name) {
    tensors.push_back({{std::move(name), info.dtype, info.shape}, {{info, 0}}});
  };
  const Names* names = names_of(config);
  if (names == nullptr) {
    for (const TensorInfo& info : stored) add_as_is(info, info.name);
    return tensors;
  }
  const ExpertIndex experts(stored, *names);
  std::unordered_map<std::string, bool> fused;  // names of those that are in `tensors` already
  for (const TensorInfo& info : stored) {
    const auto expert = parse_expert(info.name, *names);
    if (!expert) {
      add_as_is(info, model_name(info.name, *names));
      continue;
    }
    const std::string key = expert->layer + (expert->projection == names->down ? " down" : " gate and up");
    if (fused.emplace(key, true).second) tensors.push_back(experts.fused(*expert, where));
  }
  return tensors;
}

}  // namespace fsdp::formats
