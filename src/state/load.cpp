#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <c10/util/strides.h>

#include <algorithm>
#include <map>
#include <set>

#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/dtype.h"
#include "state/held_part.h"
#include "state/leaf_names.h"
#include "state/together.h"
#include "state/training_state.h"
#include "torch_seams/shard_version.h"

namespace fsdp {

namespace {

namespace fs = std::filesystem;
using checkpoint::CheckpointFolder;
using checkpoint::StoredTensor;
using nlohmann::json;

std::string shown(const StoredTensor& tensor) {
  return c10::str(checkpoint::safetensors_dtype(tensor.dtype), " [", c10::Join(", ", tensor.shape), "]");
}

std::vector<int64_t> strides_or_plain(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides) {
  const c10::DimVector plain = c10::contiguous_strides(sizes);
  return strides.empty() ? std::vector<int64_t>(plain.begin(), plain.end()) : strides;
}

// Elements [begin, end) of a parameter, in the order in which it lies in memory here, into `to`.
void read_elements(const CheckpointFolder& saved, const std::string& name, const HeldPart& part, const at::Tensor& to) {
  if (part.numel() == 0) return;
  const StoredTensor& stored = saved.tensor(name);
  if (stored.strides == part.strides) {
    saved.read(name, part.begin, part.end, to);
    return;
  }
  const at::TensorOptions options(stored.dtype);
  const at::Tensor whole = at::empty({stored.numel()}, options);
  saved.read(name, 0, stored.numel(), whole);
  const at::Tensor here = at::empty_strided(part.sizes, strides_or_plain(part.sizes, part.strides), options);
  here.copy_(whole.as_strided(part.sizes, strides_or_plain(stored.shape, stored.strides)));
  to.copy_(here.as_strided({stored.numel()}, {1}).narrow(0, part.begin, part.numel()));
}

// ---------------------------------------------------------------- does it fit?

// What is wrong with the checkpoint for this model, a line each.
class Misfits {
 public:
  explicit Misfits(const CheckpointFolder& saved) : saved_(saved) {}

  void expect(const std::string& name, c10::ScalarType dtype, const std::vector<int64_t>& sizes) {
    expected_.insert(name);
    const auto found = saved_.manifest().tensors.find(name);
    if (found == saved_.manifest().tensors.end()) {
      lines_ += "\n  missing: " + name;
    } else if (found->second.dtype != dtype || found->second.shape != sizes) {
      lines_ += c10::str("\n  differs: ", name, " is ", shown(found->second), " there, ", shown({dtype, sizes, {}, {}}),
                         " here");
    }
  }
  void check() {
    for (const auto& [name, tensor] : saved_.manifest().tensors) {
      const bool of_model = name.rfind("model/", 0) == 0 || name.rfind("buffer/", 0) == 0;
      if (of_model && expected_.count(name) == 0) lines_ += "\n  unexpected: " + name + " " + shown(tensor);
    }
    TORCH_CHECK(lines_.empty(), saved_.path().string(), ": is a checkpoint of another model:", lines_);
  }

 private:
  const CheckpointFolder& saved_;
  std::set<std::string> expected_;
  std::string lines_;
};

void check_model(const CheckpointFolder& saved, const TrainingState& state) {
  Misfits misfits(saved);
  for (const HeldPart& part : held_parts(state.model)) {
    misfits.expect(model_name(part.fqn), part.values.scalar_type(), part.sizes);
  }
  for (const auto& buffer : state.module.named_buffers()) {
    if (buffer.value().defined()) {
      misfits.expect(buffer_name(buffer.key()), buffer.value().scalar_type(), buffer.value().sizes().vec());
    }
  }
  misfits.check();
}

// ---------------------------------------------------------------- model

void load_model(const CheckpointFolder& saved, const TrainingState& state) {
  for (const HeldPart& part : held_parts(state.model)) {
    read_elements(saved, model_name(part.fqn), part, part.values.detach());
    seams::bump_version(part.leaf);  // units that are gathered are so again
    state.model.page_out();
  }
  for (auto& buffer : state.module.named_buffers()) {
    at::Tensor value = buffer.value();
    if (!value.defined() || value.numel() == 0) continue;
    at::Tensor read = at::empty({value.numel()}, value.options());
    saved.read(buffer_name(buffer.key()), 0, value.numel(), read);
    value.copy_(read.view(value.sizes()));
  }
}

// ---------------------------------------------------------------- optimizer

// The numbers of one parameter, or null where it had no state.
const json* scalars_of(const json& optimizer, const std::string& fqn) {
  const auto found = optimizer.at("leaves").find(fqn);
  return found == optimizer.at("leaves").end() ? nullptr : &*found;
}

class OptimizerLoader {
 public:
  OptimizerLoader(const CheckpointFolder& saved, const TrainingState& state)
      : saved_(saved), state_(state), stored_(saved.manifest().state.at("optimizer")) {
    for (const auto& [name, tensor] : saved.manifest().tensors) note_tensor(name);
  }

  void load() {
    std::map<const at::TensorImpl*, std::vector<HeldPart>> leaves;
    for (HeldPart& part : held_parts(state_.model)) leaves[part.leaf.unsafeGetTensorImpl()].push_back(part);
    const LeafNames names(state_.model);
    const auto groups = state_.optimizer->groups();
    for (size_t group = 0; group < groups.size(); ++group) {
      std::vector<std::string> fqns;
      for (const at::Tensor& leaf : groups[group]) {
        fqns.insert(fqns.end(), names.of(leaf).begin(), names.of(leaf).end());
        state_.optimizer->set_leaf(leaf, read_leaf(leaf, leaves.at(leaf.unsafeGetTensorImpl())));
      }
      if (!fqns.empty()) state_.optimizer->set_options(group, options_of(fqns));
    }
  }

 private:
  // "optimizer/FQN/NAME": an FQN has no slash.
  void note_tensor(const std::string& name) {
    constexpr const char* kPrefix = "optimizer/";
    const size_t end = name.rfind('/');
    if (name.rfind(kPrefix, 0) == 0 && end > std::string(kPrefix).size()) {
      const std::string fqn = name.substr(std::string(kPrefix).size(), end - std::string(kPrefix).size());
      tensors_[fqn].insert(name.substr(end + 1));
    }
  }

  std::optional<LeafState> read_leaf(const at::Tensor& leaf, const std::vector<HeldPart>& parts) const {
    std::optional<LeafState> state;
    std::string first;
    for (const HeldPart& part : parts) {
      const json* scalars = scalars_of(stored_, part.fqn);
      if (!scalars) continue;
      const auto values = scalars->get<std::map<std::string, double>>();
      if (!state) {
        state.emplace().scalars = values;
        first = part.fqn;
      }
      TORCH_CHECK(state->scalars == values, saved_.path().string(), ": parameters '", first, "' and '", part.fqn,
                  "' lie in one leaf here, but their optimizer states differ in ", json(state->scalars).dump(), " and ",
                  scalars->dump(), ": load them with use_orig_params");
      read_tensors(leaf, part, *state);
    }
    return state;
  }

  void read_tensors(const at::Tensor& leaf, const HeldPart& part, LeafState& state) const {
    const auto names = tensors_.find(part.fqn);
    if (names == tensors_.end()) return;
    for (const std::string& name : names->second) {
      const std::string stored = optimizer_name(part.fqn, name);
      at::Tensor& tensor = state.tensors[name];
      if (!tensor.defined()) {
        tensor = at::zeros(leaf.sizes(), leaf.options().dtype(saved_.tensor(stored).dtype).requires_grad(false));
      }
      read_elements(saved_, stored, part, tensor.view(-1).narrow(0, part.leaf_offset, part.numel()));
    }
  }

  // Those of the one saved group that the parameters were in.
  std::map<std::string, double> options_of(const std::vector<std::string>& fqns) const {
    for (const json& group : stored_.at("groups")) {
      const auto names = group.at("parameters").get<std::set<std::string>>();
      const auto inside = [&](const std::string& fqn) { return names.count(fqn) > 0; };
      if (std::none_of(fqns.begin(), fqns.end(), inside)) continue;
      const auto outside = std::find_if_not(fqns.begin(), fqns.end(), inside);
      TORCH_CHECK(outside == fqns.end(), saved_.path().string(), ": parameters '", fqns.front(), "' and '",
                  outside == fqns.end() ? "" : *outside,
                  "' are in one parameter group here, but were not when the checkpoint was saved");
      return group.at("options").get<std::map<std::string, double>>();
    }
    TORCH_CHECK(false, saved_.path().string(), ": holds no optimizer state for parameter '", fqns.front(), "'");
  }

  const CheckpointFolder& saved_;
  const TrainingState& state_;
  const json& stored_;
  std::map<std::string, std::set<std::string>> tensors_;  // by FQN
};

}  // namespace

json load_training_state(const fs::path& folder, const TrainingState& state, Communicator& world) {
  const at::NoGradGuard no_grad;
  json user;
  together(world, "loading the checkpoint " + folder.string(), [&] {
    const CheckpointFolder saved(folder);
    check_model(saved, state);
    load_model(saved, state);
    if (state.optimizer) OptimizerLoader(saved, state).load();
    user = saved.manifest().state.at("user");
    return std::string();
  });
  return user;
}

}  // namespace fsdp
