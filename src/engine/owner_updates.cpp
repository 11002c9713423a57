#include "engine/owner_updates.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <map>
#include <vector>

#include "engine/membership.h"
#include "engine/whole_parameters.h"
#include "flat/rank_order.h"
#include "torch_seams/clean_dispatch.h"
#include "torch_seams/shard_version.h"

namespace fsdp::engine {
namespace {

// [Note: updates by owners]
// Each parameter is updated on one rank of the shard group, its owner. The other ranks need parts of the result. It
// travels as a reduce-scatter to which all ranks but the owner contribute zeros: sums of one value and zeros are exact,
// and each rank receives its shard and nothing else. Owners depend only on the sizes of all parameters, frozen ones
// included, so they stay the same from step to step, as optimizer state requires.
//
// The parts of a parameter that is split over a tensor-parallel group are gathered in the group of one rank of the
// shard group. One of that group's ranks is the owner, and the others get the result from it.

using Update = std::function<void(const WholeParameter&)>;

// Chooses the place of each parameter's owner: the one with the least to do so far.
class Owners {
 public:
  explicit Owners(int64_t places) : load_(places, 0) {}
  int64_t next(int64_t numel) {
    auto least = std::min_element(load_.begin(), load_.end());
    *least += numel;
    return least - load_.begin();
  }

 private:
  std::vector<int64_t> load_;
};

// The owner of a parameter: its rank in the shard group and, if the parameter is split, in the tensor-parallel group.
struct Owner {
  int64_t shard_rank = 0;
  int part_rank = 0;
};

// Owners of one tree, by the number of places among which they are chosen.
class OwnersOfTree {
 public:
  Owner next(const flat::FlatParameter& flat, size_t index, int parts) {
    const flat::ShardedParameter& parameter = flat.parameters()[index];
    const int64_t factor = flat.position().factor;
    if (!parameter.part) return {at(factor).next(flat.layout().numel(static_cast<int64_t>(index)))};
    const int64_t place = at(factor * parts).next(c10::multiply_integers(parameter.part->whole_sizes));
    return {place / parts, static_cast<int>(place % parts)};
  }

 private:
  Owners& at(int64_t places) { return owners_.try_emplace(places, places).first->second; }

  std::map<int64_t, Owners> owners_;
};

// Returns a whole buffer in rank order, with padding of zeros. If that is its own order, it is the same tensor.
at::Tensor in_rank_order(const flat::FlatParameter& flat, const at::Tensor& whole) {
  if (flat.layout().is_in_rank_order()) {
    zero_padding(flat, whole);
    return whole;
  }
  at::Tensor rank_order = at::empty_like(whole);
  copy_to_rank_order(flat, whole, rank_order);
  return rank_order;
}

// Gives every rank its part of the values that the owners have computed.
void share_values(Unit& unit, flat::FlatParameter& flat, const at::Tensor& values) {
  seams::CleanDispatchGuard clean;
  unit.engine().gatherer().prepare_write_to_shards(unit);
  const at::Tensor shard = flat.shard().detach();
  if (flat.position().factor > 1) {
    const at::Tensor part = flat.memory().apart() ? at::empty(shard.sizes(), values.options()) : shard;
    unit.groups().shard->reduce_scatter(part, in_rank_order(flat, values), {}, unit.next_id(Pass::kUser))->wait();
    if (flat.memory().apart()) shard.copy_(part);
  } else if (flat.memory().apart()) {
    shard.copy_(values);
  }
  seams::bump_version(flat.shard());
}

// Updates a parameter of which each rank of the tensor-parallel group has a part.
void update_parts(tensor_parallel::Exchange& exchange, const flat::ShardedParameter& parameter, int owner,
                  const at::Tensor& value, const at::Tensor& gradient, const Update& update) {
  const at::Tensor whole = exchange.whole_of(value, *parameter.part, parameter.fqn);
  const at::Tensor whole_gradient = exchange.whole_of(gradient, *parameter.part, parameter.fqn);
  if (exchange.rank() == owner) update({parameter.fqn, whole, whole_gradient});
  exchange.share(whole, owner, parameter.fqn);
  seams::CleanDispatchGuard clean;
  value.copy_(flat::cut_out(whole, *parameter.part));
}

void update_flat(Unit& unit, size_t index, OwnersOfTree& owners, const Update& update) {
  flat::FlatParameter& flat = *unit.flat_parameters()[index];
  const std::shared_ptr<tensor_parallel::Exchange>& exchange = unit.engine().options().exchange;
  std::vector<Owner> owner_of;
  for (size_t i = 0; i < flat.parameters().size(); ++i) {
    owner_of.push_back(owners.next(flat, i, exchange ? exchange->size() : 1));
  }
  if (!flat.requires_grad()) return;
  WholeGradient gradient = gather_gradient(unit, index);
  at::Tensor values = gather_values(unit, flat);
  for (size_t i = 0; i < owner_of.size(); ++i) {
    const flat::ShardedParameter& parameter = flat.parameters()[i];
    const auto index_in_flat = static_cast<int64_t>(i);
    at::Tensor value = flat.view_in(values, index_in_flat);
    if (owner_of[i].shard_rank != flat.position().rank) {
      seams::CleanDispatchGuard clean;
      value.zero_();
      continue;
    }
    if (!gradient.defined.test(index_in_flat)) continue;
    const at::Tensor of_value = flat.view_in(gradient.flat, index_in_flat);
    if (parameter.part) {
      update_parts(*exchange, parameter, owner_of[i].part_rank, value, of_value, update);
    } else {
      update({parameter.fqn, value, of_value});
    }
  }
  share_values(unit, flat, values);
}

}  // namespace

void update_whole_parameters(Engine& engine, const Update& update) {
  engine.preparation().ensure();
  engine.passes().settle_gradients();
  OwnersOfTree owners;
  for (const auto& unit : engine.units()) {
    check_membership(*unit);
    for (size_t i = 0; i < unit->flat_parameters().size(); ++i) update_flat(*unit, i, owners, update);
  }
}

}  // namespace fsdp::engine
