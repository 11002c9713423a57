#include "convert/training_source.h"

#include <ATen/ops/empty.h>

#include <string_view>

#include "base/check.h"
#include "formats/common/json_text.h"
#include "formats/common/tensor_names.h"

namespace fsdp::convert {
namespace {

using Role = StateTensor::Role;

constexpr std::string_view kModel = formats::kModelPrefix, kBuffer = formats::kBufferPrefix,
                           kOptimizer = formats::kOptimizerPrefix;

bool takes(std::string_view name, std::string_view prefix) { return name.substr(0, prefix.size()) == prefix; }

}  // namespace

TrainingSource::TrainingSource(const std::filesystem::path& folder, Notes& notes) : folder_(folder) {
  for (const auto& [name, stored] : folder_.manifest().tensors) add_tensor(name, stored, notes);
  take_state();
}

void TrainingSource::add_tensor(const std::string& name, const formats::StoredTensor& stored, Notes& notes) {
  const formats::TensorInfo info{name, stored.dtype, stored.shape};
  const size_t end = name.rfind('/');
  if (takes(name, kModel)) {
    contents_.tensors.push_back({Role::kParameter, name.substr(kModel.size()), "", info});
  } else if (takes(name, kBuffer)) {
    contents_.tensors.push_back({Role::kBuffer, name.substr(kBuffer.size()), "", info});
  } else if (takes(name, kOptimizer) && end > kOptimizer.size()) {
    const std::string fqn = name.substr(kOptimizer.size(), end - kOptimizer.size());
    contents_.tensors.push_back({Role::kOptimizer, fqn, name.substr(end + 1), info});
  } else {
    notes.push_back("left out: tensor " + name + ", which belongs neither to the model nor to its optimizer");
  }
}

void TrainingSource::take_state() {
  const nlohmann::json& state = folder_.manifest().state;
  const auto optimizer = state.is_object() ? state.find("optimizer") : state.end();
  if (state.is_object() && optimizer != state.end()) {
    FSDP_CHECK_WITH(FileError, optimizer->is_object() && optimizer->contains("leaves") && optimizer->contains("groups"),
                    folder_.path().string(), ": state.optimizer of the manifest is ", formats::json_text(*optimizer),
                    "; expected leaves and groups");
    contents_.leaves = optimizer->at("leaves");
    contents_.groups = optimizer->at("groups");
  }
  contents_.user = state.is_object() && state.contains("user") ? state.at("user") : nlohmann::json();
}

void TrainingSource::read(const StateTensor& tensor, int64_t begin, int64_t end, const at::Tensor& out) {
  const std::string& name = tensor.info.name;
  const formats::StoredTensor& stored = folder_.tensor(name);
  if (stored.strides.empty()) {
    folder_.read(name, begin, end, out);
    return;
  }
  if (ordered_name_ != name) {
    const at::Tensor whole = at::empty({stored.numel()}, at::TensorOptions(stored.dtype));
    folder_.read(name, 0, stored.numel(), whole);
    ordered_ = whole.as_strided(stored.shape, stored.strides).contiguous().view(-1);
    ordered_name_ = name;
  }
  out.copy_(ordered_.slice(0, begin, end));
}

}  // namespace fsdp::convert
