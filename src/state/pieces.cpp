#include "state/pieces.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <optional>
#include <utility>

#include "formats/common/checksum.h"
#include "formats/common/tensor_names.h"
#include "state/held_leaves.h"
#include "state/split_tensors.h"
#include "state/unsharded_tensors.h"

namespace fsdp::state {

namespace {

using formats::StoredTensor;
using formats::TensorInfo;
using nlohmann::json;

Piece piece_of(const HeldPart& part, const std::string& name, const at::Tensor& values) {
  const auto [begin, end] = part.to_write();
  return {name,
          {values.scalar_type(), part.sizes, part.strides, {}},
          begin,
          values.narrow(0, begin - part.begin, end - begin)};
}

Piece whole_piece(const std::string& name, const at::Tensor& tensor) {
  const at::Tensor value = tensor.detach().contiguous();
  return {name, {value.scalar_type(), value.sizes().vec(), {}, {}}, 0, value.view(-1)};
}

void add_part(const TrainingState& state, const HeldPart& part, RankPieces& to) {
  to.pieces.push_back(piece_of(part, formats::model_name(part.fqn), part.values().detach()));
  const auto kept = state.optimizer ? state.optimizer->leaf(part.leaf) : std::nullopt;
  if (!kept) return;
  for (const auto& [name, tensor] : kept->tensors) {
    to.pieces.push_back(piece_of(part, formats::optimizer_name(part.fqn, name),
                                 tensor.detach().view(-1).narrow(0, part.leaf_offset, part.numel())));
  }
  if (part.begin == 0 && part.numel() > 0 && part.replica == 0) to.leaves[part.fqn] = kept->scalars;
}

bool saves(const ModelPart& part, const std::string& fqn, const TiedSavers& tied) {
  const auto found = tied.find(fqn);
  return found == tied.end() || found->second == part.stage;
}

void add_ignored(const TrainingState& state, const ModelPart& part, RankPieces& to) {
  for (const auto& [name, parameter] : ignored_parameters(part.model, part.module)) {
    if (state.of_rank.count(name) > 0) continue;
    Piece piece = whole_piece(formats::model_name(name), parameter);
    const at::Tensor values = piece.values.cpu();
    to.ignored[name] = formats::checksums_text(
        {formats::checksum_of({static_cast<const char*>(values.const_data_ptr()), values.nbytes()})});
    if (is_first_of_parts(state.parts)) to.pieces.push_back(std::move(piece));
  }
}

void add_buffers(const torch::nn::Module& module, RankPieces& to) {
  for (const auto& [name, buffer] : named_buffers(module)) {
    to.pieces.push_back(whole_piece(formats::buffer_name(name), buffer));
  }
}

void add_split(const SplitTensor& tensor, RankPieces& to) {
  const bool is_state = !tensor.state.empty();
  const std::string name =
      is_state ? formats::optimizer_name(tensor.name, tensor.state) : formats::model_name(tensor.name);
  to.pieces.push_back({name,
                       {tensor.rows.scalar_type(), tensor.sizes, {}, {}},
                       held_elements(tensor).first,
                       tensor.rows.detach().view(-1)});
  if (is_state) to.leaves[tensor.name] = json::object();
}

json groups_of(const TrainingState& state) {
  json groups = json::array();
  if (!state.optimizer || !is_first_of_parts(state.parts)) return groups;
  for (const ParameterGroup& group : parameter_groups(held_parts(state.parts), *state.optimizer)) {
    groups.push_back({{"parameters", group.parameters}, {"options", group.options}});
  }
  return groups;
}

}  // namespace

TensorInfo Piece::stored() const {
  if (is_whole()) return {name, tensor.dtype, tensor.shape};
  return {c10::str(name, "[", begin, ":", begin + values.numel(), "]"), tensor.dtype, {values.numel()}};
}

RankPieces pieces_of(const TrainingState& state, int rank, const TiedSavers& tied) {
  const at::NoGradGuard no_grad;
  check_split_tensors(state);
  RankPieces all;
  for (const ModelPart& part : state.parts) {
    for (const HeldPart& held : held_parts(part.model)) {
      if (saves(part, held.fqn, tied)) add_part(state, held, all);
    }
  }
  for (const SplitTensor& tensor : state.split) add_split(tensor, all);
  for (const auto& [name, tensor] : state.of_rank)
    all.pieces.push_back(whole_piece(formats::rank_name(rank, name), tensor));
  for (const ModelPart& part : state.parts) {
    if (is_first_of_parts(state.parts)) add_buffers(part.module, all);
    add_ignored(state, part, all);
  }
  all.stages = stages_text(state.parts);
  all.groups = groups_of(state);
  return all;
}

}  // namespace fsdp::state
