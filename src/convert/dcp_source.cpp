#include "convert/dcp_source.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "base/check.h"
#include "formats/common/json_text.h"

namespace fsdp::convert {
namespace {

using formats::quoted_name;
using nlohmann::json;
using Role = StateTensor::Role;

// Splits "FQN.NAME" into FQN and name.
std::pair<std::string, std::string> split_state(const std::string& rest) {
  const size_t dot = rest.rfind('.');
  return dot == std::string::npos ? std::pair(std::string(), rest)
                                  : std::pair(rest.substr(0, dot), rest.substr(dot + 1));
}

}  // namespace

DcpSource::DcpSource(const std::filesystem::path& folder, const SourceOptions& options, Notes& notes)
    : folder_(folder), layout_(find_layout(folder_.metadata(), options, notes)) {
  add_model(options, notes);
  add_optimizer(notes);
}

void DcpSource::add_model(const SourceOptions& options, Notes& notes) {
  std::vector<std::string> buffers = options.buffers;
  if (folder_.metadata().bytes.count(kBuffersKey) > 0) {
    for (const json& name : folder_.value(kBuffersKey)) {
      buffers.push_back(name.is_string() ? name.get<std::string>() : "");
    }
  }
  for (const auto& [name, tensor] : folder_.metadata().tensors) {
    if (layout_.state_name(name) || layout_.group_name(name)) continue;
    if (const auto fqn = layout_.model_name(name)) {
      const bool is_buffer = matches(*fqn, buffers);
      contents_.tensors.push_back({is_buffer ? Role::kBuffer : Role::kParameter, *fqn, "", tensor.info});
      if (!is_buffer) fqns_.push_back(*fqn);
    } else {
      notes.push_back("left out: tensor " + name + ", which is not under the model's prefix");
    }
  }
}

void DcpSource::add_optimizer(Notes& notes) {
  for (const auto& [name, tensor] : folder_.metadata().tensors) {
    if (const auto rest = layout_.state_name(name)) add_state(name, tensor.info, *rest);
  }
  std::map<std::string, json> groups;
  add_values(groups, notes);
  for (const auto& [name, tensor] : folder_.metadata().tensors) {
    if (const auto rest = layout_.group_name(name)) groups.emplace(*rest, number(name));
  }
  contents_.groups = parse_groups(groups, fqns_, notes);
}

// Scalars of a parameter's state, such as its step, are tensors without dimensions.
void DcpSource::add_state(const std::string& name, const formats::TensorInfo& info, const std::string& rest) {
  const auto [fqn, state] = split_state(rest);
  if (info.shape.empty() && (state == "step" || !folder_.metadata().tensors.count(layout_.model + fqn) ||
                             !folder_.tensor(layout_.model + fqn).info.shape.empty())) {
    contents_.leaves[fqn][state] = number(name);
    return;
  }
  contents_.tensors.push_back({Role::kOptimizer, fqn, state, info});
  if (!contents_.leaves.contains(fqn)) contents_.leaves[fqn] = json::object();
}

void DcpSource::add_values(std::map<std::string, json>& groups, Notes& notes) {
  for (const auto& [name, location] : folder_.metadata().bytes) {
    if (const auto rest = layout_.group_name(name)) {
      groups.emplace(*rest, folder_.value(name));
    } else if (const auto state = layout_.state_name(name)) {
      const auto [fqn, number] = split_state(*state);
      const json value = folder_.value(name);
      FSDP_CHECK_WITH(FileError, value.is_number(), folder_.path().string(), ": ", quoted_name(name), " is ",
                      formats::json_text(value), "; expected a number");
      contents_.leaves[fqn][number] = value.get<double>();
    } else if (name == kUserKey) {
      contents_.user = folder_.value(name);
    } else if (name != kBuffersKey) {
      notes.push_back("left out: value " + name);
    }
  }
}

double DcpSource::number(const std::string& name) const {
  const formats::TensorInfo& info = folder_.tensor(name).info;
  FSDP_CHECK_WITH(FileError, info.numel() == 1, folder_.path().string(), ": ", quoted_name(name), " has ", info.numel(),
                  " elements; expected one number");
  const at::Tensor value = at::empty({1}, at::TensorOptions(info.dtype));
  folder_.read(name, 0, 1, value);
  return value.to(at::kDouble).item<double>();
}

void DcpSource::read(const StateTensor& tensor, int64_t begin, int64_t end, const at::Tensor& out) {
  folder_.read(tensor.info.name, begin, end, out);
}

}  // namespace fsdp::convert
