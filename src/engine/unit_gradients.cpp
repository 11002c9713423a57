#include "engine/unit_gradients.h"

#include <algorithm>

#include "engine/unit.h"
#include "fsdp/memory_sharing.h"

namespace fsdp::engine {

void UnitGradients::add(flat::FlatParameter& flat) {
  gradients_.push_back(flat.requires_grad() ? make(flat) : nullptr);
}

void UnitGradients::make_missing(size_t flat) {
  if (!gradients_[flat]) gradients_[flat] = make(*unit_.flat_parameters()[flat]);
}

std::unique_ptr<FlatGradient> UnitGradients::make(flat::FlatParameter& flat) const {
  return std::make_unique<FlatGradient>(flat, unit_.context().options.use_orig_params, source_of_leaves(flat),
                                        [&unit = unit_] { return unit.where(); });
}

// Returns memory that other ranks read, if gradients are captured and reduced in the memory of the leaves' gradients
// and ranks read it in place. Otherwise returns an empty source.
BufferPool::Source UnitGradients::source_of_leaves(const flat::FlatParameter& flat) const {
  const std::shared_ptr<Communicator>& group = unit_.groups().replicate;
  const bool shared = group && group->memory_sharing().reads_in_place() && flat.position().factor == 1 &&
                      flat.memory().on_compute_host();
  return shared ? [group](int64_t nbytes) { return group->memory_sharing().reduction_input(nbytes); }
                : BufferPool::Source();
}

FlatGradient* UnitGradients::of(size_t flat) {
  return unit_.flat_parameters()[flat]->requires_grad() ? kept(flat) : nullptr;
}

bool UnitGradients::capturing() const {
  return std::any_of(gradients_.begin(), gradients_.end(),
                     [](const auto& gradient) { return gradient && gradient->capturing(); });
}

bool UnitGradients::complete() const {
  return std::all_of(gradients_.begin(), gradients_.end(), [](const auto& gradient) {
    return !gradient || !gradient->flat().requires_grad() || gradient->complete();
  });
}

void UnitGradients::notice_cleared() {
  for (size_t i = 0; i < gradients_.size(); ++i) {
    flat::FlatParameter& flat = *unit_.flat_parameters()[i];
    check_leaves(flat);
    if (gradients_[i]) unit_.sentinels.notice_cleared(flat, *gradients_[i]);
  }
}

// An optimizer would train a replaced leaf, which is never gathered.
void UnitGradients::check_leaves(const flat::FlatParameter& flat) const {
  for (size_t k = 0; k < flat.parameters().size(); ++k) {
    TORCH_CHECK(flat.original_leaves()[k].is_alias_of(flat.shard()), "fsdp: ", unit_.where(),
                ": the shard of parameter '", flat.parameters()[k].fqn,
                "' was replaced (assignment to .data of a tensor of ShardedModule::"
                "parameters()): write into it instead");
  }
  TORCH_CHECK(flat.flat_leaf().is_alias_of(flat.shard()), "fsdp: ", unit_.where(), ": the shard of parameter '",
              flat.parameters().front().fqn, "' and others was replaced: write into it instead");
}

}  // namespace fsdp::engine
