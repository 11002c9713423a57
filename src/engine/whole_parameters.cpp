#include "engine/whole_parameters.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include "flat/rank_order.h"
#include "torch_seams/clean_dispatch.h"

namespace fsdp::engine {

at::Tensor gather_parts(Unit& unit, const flat::FlatParameter& flat, const at::Tensor& part) {
  seams::CleanDispatchGuard clean;
  at::Tensor mine = part.to(flat.compute_device());
  if (flat.position().factor == 1) return mine;
  at::Tensor gathered = at::empty({flat.layout().padded_numel()}, mine.options());
  unit.groups().shard->all_gather(gathered, mine, unit.next_id(Pass::kUser))->wait();
  if (flat.layout().is_in_rank_order()) return gathered;
  at::Tensor whole = at::empty_like(gathered);
  copy_to_whole(flat, gathered, whole);
  return whole;
}

at::Tensor gather_values(Unit& unit, const flat::FlatParameter& flat) {
  return gather_parts(unit, flat, flat.shard().detach());
}

WholeGradient gather_gradient(Unit& unit, size_t index) {
  const flat::FlatParameter& flat = *unit.flat_parameters().at(index);
  WholeGradient whole{at::Tensor(), ParameterMask(flat.layout().num_parameters())};
  if (!flat.requires_grad()) return whole;
  at::Tensor part = unit.gradients().of(index)->leaves().collect(whole.defined);
  merge_over(unit.groups().shard.get(), whole.defined, unit.next_id(Pass::kUser));
  if (whole.defined.count() > 0) whole.flat = gather_parts(unit, flat, part);
  return whole;
}

SummonedGradients::SummonedGradients(Unit& unit) : unit_(unit) {
  for (size_t i = 0; i < unit.flat_parameters().size(); ++i) {
    gradients_.push_back(gather_gradient(unit, i));
    show(i);
  }
}

void SummonedGradients::show(size_t index) {
  flat::FlatParameter& flat = *unit_.flat_parameters()[index];
  for (int64_t k = 0; flat.requires_grad() && k < flat.layout().num_parameters(); ++k) {
    unit_.sentinels.clear_record(flat, k);
    flat.parameters()[k].tensor.mutable_grad() =
        gradients_[index].defined.test(k) ? flat.view_in(gradients_[index].flat, k) : at::Tensor();
  }
}

void SummonedGradients::write_back() {
  for (size_t i = 0; i < gradients_.size(); ++i) {
    if (unit_.flat_parameters()[i]->requires_grad()) write_back(i);
  }
}

void SummonedGradients::write_back(size_t index) {
  flat::FlatParameter& flat = *unit_.flat_parameters()[index];
  WholeGradient& whole = gradients_[index];
  at::NoGradGuard no_grad;
  for (int64_t k = 0; k < flat.layout().num_parameters(); ++k) {
    const flat::ShardedParameter& parameter = flat.parameters()[k];
    const at::Tensor& gradient = parameter.tensor.grad();
    if (!gradient.defined()) {
      whole.defined.clear(k);
      if (whole.flat.defined()) flat.view_in(whole.flat, k).zero_();
      continue;
    }
    TORCH_CHECK(gradient.sizes() == at::IntArrayRef(parameter.sizes), "fsdp: ", unit_.where(), ": parameter '",
                parameter.fqn, "' of shape ", at::IntArrayRef(parameter.sizes), " was given a gradient of shape ",
                gradient.sizes());
    if (!whole.flat.defined()) {
      int64_t numel = flat.layout().padded_numel();
      whole.flat = at::zeros({numel}, at::TensorOptions(flat.dtypes().gradient).device(flat.compute_device()));
    }
    at::Tensor place = flat.view_in(whole.flat, k);
    if (!whole.defined.set(k) || !gradient.is_set_to(place)) place.copy_(gradient);
  }
  at::Tensor part = whole.flat.defined() ? own_part(flat, whole.flat) : at::Tensor();
  unit_.gradients().of(index)->set_leaf_gradients(part, whole.defined);
}

// Installs the sentinels again for parameters whose shards have gradients.
SummonedGradients::~SummonedGradients() {
  for (size_t i = 0; i < gradients_.size(); ++i) {
    flat::FlatParameter& flat = *unit_.flat_parameters()[i];
    for (int64_t k = 0; flat.requires_grad() && k < flat.layout().num_parameters(); ++k) {
      flat.parameters()[k].tensor.mutable_grad().reset();
      if (gradients_[i].defined.test(k)) unit_.sentinels.install(flat, k);
    }
  }
}

}  // namespace fsdp::engine
