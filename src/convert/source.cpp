#include "convert/source.h"

#include <fnmatch.h>

#include <algorithm>

#include "base/check.h"
#include "convert/dcp_source.h"
#include "convert/hf_source.h"
#include "convert/training_source.h"
#include "formats/common/json_text.h"

namespace fsdp::convert {

using formats::json_text;
using nlohmann::json;

bool Contents::has_optimizer() const {
  return !groups.empty() || !leaves.empty() ||
         std::any_of(tensors.begin(), tensors.end(),
                     [](const StateTensor& tensor) { return tensor.role == StateTensor::Role::kOptimizer; });
}

int64_t Contents::nbytes() const {
  int64_t bytes = 0;
  for (const StateTensor& tensor : tensors) bytes += tensor.info.nbytes();
  return bytes;
}

bool matches(const std::string& name, const std::vector<std::string>& patterns) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const std::string& pattern) { return ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0; });
}

std::unique_ptr<Source> open_source(const std::filesystem::path& folder, const SourceOptions& options, Notes& notes) {
  switch (kind_of(folder)) {
    case FolderKind::kHuggingFace:
      return std::make_unique<HfSource>(folder, options, notes);
    case FolderKind::kTraining:
      return std::make_unique<TrainingSource>(folder, notes);
    case FolderKind::kDcp:
      return std::make_unique<DcpSource>(folder, options, notes);
  }
  return nullptr;
}

namespace {

bool is_list_of(const json& value, bool (*is_one)(const json& item)) {
  return value.is_array() && std::all_of(value.begin(), value.end(), is_one);
}

void check_group(const json& group, const std::string& where) {
  const json parameters = group.is_object() && group.contains("parameters") ? group["parameters"] : json();
  FSDP_CHECK_WITH(
      FileError,
      parameters.empty() || !is_list_of(parameters, [](const json& name) { return name.is_number_integer(); }), where,
      ": the optimizer's state numbers the parameters, as optimizer.state_dict() does; save the "
      "result of torch.distributed.checkpoint.state_dict.get_optimizer_state_dict(model, optimizer), which names "
      "them (the weights alone can be converted: --to hf)");
  const bool is_sound = is_list_of(parameters, [](const json& name) { return name.is_string(); }) &&
                        group.contains("options") && group["options"].is_object();
  FSDP_CHECK_WITH(FileError, is_sound, where, ": a parameter group is ", json_text(group),
                  "; expected a list of names as parameters, and options");
}

}  // namespace

void check_optimizer(const Contents& contents, const std::string& where) {
  const auto is_scalars = [](const json& scalars) {
    return scalars.is_object() &&
           std::all_of(scalars.begin(), scalars.end(), [](const json& value) { return value.is_number(); });
  };
  FSDP_CHECK_WITH(
      FileError, contents.leaves.is_object() && std::all_of(contents.leaves.begin(), contents.leaves.end(), is_scalars),
      where, ": the scalars of the optimizer's state are ", json_text(contents.leaves),
      "; expected an object of numbers for each parameter");
  FSDP_CHECK_WITH(FileError, contents.groups.is_array(), where, ": parameter groups are ", json_text(contents.groups),
                  "; expected a list");
  for (const json& group : contents.groups) check_group(group, where);
}

}  // namespace fsdp::convert
