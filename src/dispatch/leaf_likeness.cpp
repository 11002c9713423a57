#include "dispatch/leaf_likeness.h"

#include <unordered_map>
#include <utility>

#include "torch_seams/dispatch_key.h"
#include "torch_seams/keyed_storage.h"
#include "torch_seams/shard_version.h"

namespace fsdp::dispatch {
namespace {

// Returns the unit of a leaf if it will be cut together with others and the tensor is the whole leaf; otherwise null.
engine::Unit* unit_to_be_cut(const at::Tensor& tensor) {
  const seams::StorageOwner* owner = seams::has_sharded_key(tensor) ? seams::storage_owner(tensor) : nullptr;
  engine::Unit* unit = owner && owner->kind == seams::StorageOwner::Kind::kShard ? engine::unit_of(*owner) : nullptr;
  const bool whole = unit && unit->pending_cut() &&
                     tensor.sizes() == unit->flat_parameters().front()->original_leaves().front().sizes();
  return whole ? unit : nullptr;
}

engine::Likeness likeness_of(const OperatorInfo& info, const torch::jit::Stack& stack) {
  const c10::IValue* arguments = stack.data() + stack.size() - info.num_arguments;
  engine::Likeness likeness{.values = engine::Likeness::Values::kConstant, .op = info.name.name};
  switch (info.made_like) {
    case MadeLike::kZeros:
      break;
    case MadeLike::kOnes:
      likeness.constant = 1;
      break;
    case MadeLike::kFull:  // full_like(leaf, value, …)
      likeness.constant = arguments[1].toScalar();
      break;
    case MadeLike::kNewFull:  // leaf.new_full(size, value, …)
      likeness.constant = arguments[2].toScalar();
      break;
    case MadeLike::kCopy:
      likeness.values = engine::Likeness::Values::kCopy;
      break;
    default:
      likeness.values = engine::Likeness::Values::kUndefined;
  }
  return likeness;
}

}  // namespace

MadeLike made_like(const std::string& name) {
  static const std::unordered_map<std::string, MadeLike> operators = {
      {"aten::empty_like", MadeLike::kEmpty}, {"aten::new_empty", MadeLike::kEmpty},
      {"aten::zeros_like", MadeLike::kZeros}, {"aten::new_zeros", MadeLike::kZeros},
      {"aten::ones_like", MadeLike::kOnes},   {"aten::new_ones", MadeLike::kOnes},
      {"aten::full_like", MadeLike::kFull},   {"aten::new_full", MadeLike::kNewFull},
      {"aten::clone", MadeLike::kCopy}};
  const auto found = operators.find(name);
  return found == operators.end() ? MadeLike::kNothing : found->second;
}

LeafLikeness::LeafLikeness(const OperatorInfo& info, const torch::jit::Stack& stack) {
  if (info.made_like == MadeLike::kNothing) return;
  unit_ = unit_to_be_cut((stack.end() - info.num_arguments)->toTensor());
  if (unit_) likeness_ = likeness_of(info, stack);
}

void LeafLikeness::note(const torch::jit::Stack& stack) {
  if (!unit_) return;
  const flat::FlatParameter& flat = *unit_->flat_parameters().front();
  const at::Tensor& made = stack.back().toTensor();
  if (made.sizes() == flat.original_leaves().front().sizes()) {
    unit_->pending_cut()->companions.note(made, std::move(likeness_), seams::version_of(flat.shard()));
  }
}

}  // namespace fsdp::dispatch
