#include "flat/flat_parameter.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <utility>

#include "flat/dense_strides.h"
#include "torch_seams/dispatch_key.h"
#include "torch_seams/shard_version.h"
#include "torch_seams/write_watch.h"

namespace fsdp::flat {
namespace {

std::vector<ParameterExtent> extents_of(const std::vector<ShardedParameter>& parameters) {
  std::vector<ParameterExtent> extents;
  for (const ShardedParameter& parameter : parameters) {
    const at::Tensor& tensor = parameter.tensor;
    extents.push_back({tensor.numel(), tensor.dim() == 0 ? 1 : tensor.size(parameter.shard_dim)});
  }
  return extents;
}

bool has_whole_rows(const at::Tensor& tensor, int64_t dim) {
  return tensor.dim() == 0 || tensor.size(dim) <= 1 || tensor.stride(dim) == tensor.numel() / tensor.size(dim);
}

// The strides with which a parameter lies in a whole buffer: memory formats are kept, unless the cut by rows needs rows
// that the format does not have.
std::vector<int64_t> flat_strides(const at::Tensor& tensor, int64_t shard_dim, ShardCut cut) {
  const bool keeps = tensor.is_non_overlapping_and_dense() && tensor.numel() > 0 &&
                     (cut == ShardCut::kFlat || has_whole_rows(tensor, shard_dim));
  return keeps ? tensor.strides().vec()
               : strides_with_outermost(tensor.sizes(), cut == ShardCut::kFlat ? 0 : shard_dim);
}

std::string quoted_names(const ShardedParameter& parameter) {
  std::string names = "'" + parameter.fqn + "'";
  for (const std::string& other : parameter.other_fqns) names += " (also '" + other + "')";
  return names;
}

std::string sentinel_message(const ShardedParameter& parameter, const std::string& unit_name) {
  return "fsdp: the gradient of parameter " + quoted_names(parameter) + " (unit '" + unit_name +
         "') was read on the module: it lives in the shards; use ShardedModule::parameters() and "
         "ShardedModule::clip_grad_norm_";
}

}  // namespace

FlatParameter::FlatParameter(std::vector<ShardedParameter> parameters, const FlatDtypes& dtypes, ShardPosition position,
                             const ShardMemory& memory)
    : parameters_(std::move(parameters)),
      dtypes_(dtypes),
      position_(std::move(position)),
      memory_(memory),
      layout_(extents_of(parameters_), position_.factor, position_.cut) {}

FlatParameter::FlatParameter(std::vector<ShardedParameter> parameters, const FlatDtypes& dtypes, ShardPosition position,
                             const ShardMemory& memory, void* unit, int64_t first_index)
    : FlatParameter(std::move(parameters), dtypes, std::move(position), memory) {
  c10::InferenceMode no_inference(false);
  c10::impl::ExcludeDispatchKeyGuard not_seen(seams::kShardedKey);  // set_data runs operators on the new views
  at::NoGradGuard no_grad;
  shard_ = make_shard(unit);
  for (int64_t i = 0; i < layout_.num_parameters(); ++i) {
    ShardedParameter& parameter = parameters_[i];
    parameter.sizes = parameter.tensor.sizes().vec();
    parameter.strides = flat_strides(parameter.tensor, parameter.shard_dim, layout_.cut());
    copy_into_shard(i);
    replace_by_keyed_view(i, unit, first_index + i);
    original_leaves_.push_back(make_leaf(slice_of(shard_, i), parameter.requires_grad));
  }
  count_trained();
  flat_leaf_ = make_leaf(shard_, requires_grad());
}

FlatParameter::FlatParameter(Moved moved, const FlatDtypes& dtypes, ShardPosition position, const ShardMemory& memory,
                             void* unit, int64_t first_index)
    : FlatParameter(std::move(moved.parameters), dtypes, std::move(position), memory) {
  c10::InferenceMode no_inference(false);
  at::NoGradGuard no_grad;
  shard_ = make_shard(unit);
  shard_.copy_(moved.shard);
  original_leaves_ = std::move(moved.leaves);
  for (int64_t i = 0; i < layout_.num_parameters(); ++i) {
    take_over(i, unit, first_index + i);
    seams::move_versioned_leaf(original_leaves_[i], slice_of(shard_, i));
  }
  count_trained();
  flat_leaf_ = make_leaf(shard_, requires_grad());
}

// Clears the unit of the owner, because leaves may outlive this object.
FlatParameter::~FlatParameter() {
  if (shard_owner_) shard_owner_->unit = nullptr;
}

at::Tensor FlatParameter::provide_shared(at::ScalarType dtype, bool transient) const {
  if (!position_.shared_buffer || !memory_.on_compute_host() || layout_.padded_numel() == 0) return {};
  // The rows of one rank are not one slice of a shared buffer.
  if (layout_.cut() == ShardCut::kRows && !transient) return {};
  const auto itemsize = static_cast<int64_t>(c10::elementSize(dtype));
  at::Tensor bytes = position_.shared_buffer(layout_.padded_numel() * itemsize, transient);
  return bytes.defined() ? bytes.view(dtype) : at::Tensor();
}

at::Tensor FlatParameter::make_shard(void* unit) {
  if (dtypes_.shard == dtypes_.compute) shared_ = provide_shared(dtypes_.shard, /*transient=*/false);
  provide_transient();
  const at::Tensor shard =
      shared_.defined() ? make_slice_of_shared(unit) : memory_.zeros(layout_.shard_numel(), dtypes_.shard);
  seams::prepare_to_watch(shard);
  return shard;
}

void FlatParameter::provide_transient() {
  transient_ = shards_are_whole() ? at::Tensor() : provide_shared(dtypes_.compute, /*transient=*/true);
}

const at::Tensor& FlatParameter::shared_unsharded() const { return shards_are_whole() ? shared_ : transient_; }

// The slice has a storage of its own, no larger than the shard, so that saving it does not save other ranks' parts.
at::Tensor FlatParameter::make_slice_of_shared(void* unit) {
  const at::Tensor own = shared_.narrow(0, position_.rank * layout_.shard_numel(), layout_.shard_numel());
  return make_watched_shard(own, shared_, unit);
}

// `memory` keeps the elements of `own` alive.
at::Tensor FlatParameter::make_watched_shard(const at::Tensor& own, const at::Tensor& memory, void* unit) {
  shard_owner_ = c10::make_intrusive<seams::StorageOwner>(seams::StorageOwner::Kind::kShard, unit, 0);
  shard_owner_->gone = [memory] {};
  c10::Storage storage = seams::make_empty_storage(shard_owner_, own.nbytes(), own.device(), "fsdp: a shard was read");
  seams::fill_storage(*storage.unsafeGetStorageImpl(), shard_owner_, own.mutable_data_ptr());
  return seams::make_keyed_tensor(storage, dtypes_.shard, own.sizes(), own.strides());
}

void FlatParameter::watch_shard(void* unit) {
  if (shard_owner_) return;
  c10::InferenceMode no_inference(false);
  c10::impl::ExcludeDispatchKeyGuard not_seen(seams::kShardedKey);
  at::NoGradGuard no_grad;
  shard_ = make_watched_shard(shard_, shard_, unit);
  seams::prepare_to_watch(shard_);
  for (int64_t i = 0; i < layout_.num_parameters(); ++i) {
    seams::move_versioned_leaf(original_leaves_[i], slice_of(shard_, i));
  }
  seams::move_versioned_leaf(flat_leaf_, shard_);
}

void FlatParameter::take_over(int64_t parameter, void* unit, int64_t index) {
  for (const seams::StorageOwnerPtr& owner :
       {parameters_[parameter].owner, parameters_[parameter].sentinel_owner.lock()}) {
    if (owner) {
      owner->unit = unit;
      owner->index = index;
    }
  }
}

void FlatParameter::copy_into_shard(int64_t parameter) {
  at::Tensor value = std::exchange(parameters_[parameter].value, {});
  const at::Tensor& tensor = value.defined() ? value : parameters_[parameter].tensor;
  ParameterSlice part = slice(parameter);
  if (tensor.is_meta() || part.numel() == 0) return;
  // A view of the elements in the order of the whole buffer; copied only if they lie otherwise.
  at::Tensor dense = tensor.detach();
  if (const at::IntArrayRef strides = parameters_[parameter].strides; tensor.strides() != strides) {
    dense = at::empty_strided(tensor.sizes(), strides, tensor.options()).copy_(dense);
  }
  at::Tensor ordered = dense.as_strided({dense.numel()}, {1});
  slice_of(shard_, parameter).copy_(ordered.slice(0, part.begin, part.end));
}

void FlatParameter::replace_by_keyed_view(int64_t parameter, void* unit, int64_t index) {
  ShardedParameter& p = parameters_[parameter];
  p.requires_grad = p.tensor.requires_grad();
  p.owner = c10::make_intrusive<seams::StorageOwner>(seams::StorageOwner::Kind::kParameter, unit, index);
  point_at_new_storage(p, parameter);
}

void FlatParameter::point_at_new_storage(ShardedParameter& p, int64_t position) {
  at::Tensor view = make_keyed_view(position, p.owner, "fsdp: a sharded parameter was read");
  p.keyed_storage = view.storage();
  seams::replace_data(p.tensor, view);
}

void FlatParameter::set_dtypes(at::ScalarType compute, at::ScalarType reduce) {
  TORCH_CHECK(!attached_, "fsdp: the dtypes of a gathered FlatParameter cannot change");
  dtypes_.reduce = reduce;
  if (std::exchange(dtypes_.compute, compute) == compute) return;
  c10::InferenceMode no_inference(false);
  c10::impl::ExcludeDispatchKeyGuard not_seen(seams::kShardedKey);
  at::NoGradGuard no_grad;
  provide_transient();
  for (int64_t i = 0; i < layout_.num_parameters(); ++i) {
    ShardedParameter& parameter = parameters_[i];
    parameter.sentinel_installed = false;     // removing the sentinel must not clear the gradient
    parameter.tensor.mutable_grad().reset();  // it has the old dtype
    parameter.capture_hook.reset();
    point_at_new_storage(parameter, i);
  }
  name_storages(unit_name_);
}

at::Tensor FlatParameter::make_keyed_view(int64_t parameter, const seams::StorageOwnerPtr& owner,
                                          const std::string& message) const {
  const ShardedParameter& p = parameters_[parameter];
  size_t nbytes = layout_.numel(parameter) * c10::elementSize(dtypes_.compute);
  c10::Storage storage = seams::make_empty_storage(owner, nbytes, memory_.compute_device(), message);
  return seams::make_keyed_tensor(storage, dtypes_.compute, p.sizes, p.strides);
}

at::Tensor FlatParameter::make_gradient_sentinel(int64_t parameter, std::function<void()> gone) {
  ShardedParameter& p = parameters_[parameter];
  auto owner = c10::make_intrusive<seams::StorageOwner>(seams::StorageOwner::Kind::kGradientSentinel,
                                                        p.owner->unit.load(), p.owner->index.load());
  owner->gone = std::move(gone);
  p.sentinel_owner = c10::weak_intrusive_ptr<seams::StorageOwner>(owner);
  return make_keyed_view(parameter, owner, sentinel_message(p, unit_name_));
}

at::Tensor FlatParameter::make_leaf(const at::Tensor& part, bool requires_grad) const {
  return seams::make_versioned_leaf(part).set_requires_grad(requires_grad);
}

// ---------------------------------------------------------------- requires_grad

void FlatParameter::count_trained() {
  num_trained_ = std::count_if(parameters_.begin(), parameters_.end(),
                               [](const ShardedParameter& parameter) { return parameter.requires_grad; });
}

bool FlatParameter::wanted_requires_grad(int64_t parameter) const {
  const bool known = parameters_[parameter].requires_grad;
  if (parameters_[parameter].tensor.requires_grad() != known) return !known;
  if (original_leaves_[parameter].requires_grad() != known) return !known;
  return flat_leaf_.requires_grad() != requires_grad() ? flat_leaf_.requires_grad() : known;
}

bool FlatParameter::requires_grad_changed() const {
  for (int64_t i = 0; i < layout_.num_parameters(); ++i) {
    if (wanted_requires_grad(i) != parameters_[i].requires_grad) return true;
  }
  return false;
}

void FlatParameter::follow_requires_grad() {
  std::vector<bool> wanted;
  for (int64_t i = 0; i < layout_.num_parameters(); ++i) wanted.push_back(wanted_requires_grad(i));
  for (int64_t i = 0; i < layout_.num_parameters(); ++i) {
    parameters_[i].requires_grad = wanted[i];
    parameters_[i].tensor.set_requires_grad(wanted[i]);
    original_leaves_[i].set_requires_grad(wanted[i]);
  }
  count_trained();
  flat_leaf_.set_requires_grad(requires_grad());
}

// ---------------------------------------------------------------- views

at::Tensor FlatParameter::slice_of(const at::Tensor& like_shard, int64_t parameter) const {
  ParameterSlice part = slice(parameter);
  return like_shard.narrow(0, part.shard_offset, part.numel());
}

at::Tensor FlatParameter::view_in(const at::Tensor& flat, int64_t parameter) const {
  const ShardedParameter& p = parameters_[parameter];
  return flat.as_strided(p.sizes, p.strides, flat.storage_offset() + layout_.offset(parameter));
}

void FlatParameter::attach(const at::Tensor& flat) {
  // A pointer to write with would count as a write to the shard, where that serves as the buffer.
  char* base = static_cast<char*>(const_cast<void*>(flat.const_data_ptr()));
  size_t itemsize = c10::elementSize(dtypes_.compute);
  for (int64_t i = 0; i < layout_.num_parameters(); ++i) {
    seams::fill_storage(parameters_[i].storage(), parameters_[i].owner, base + layout_.offset(i) * itemsize);
  }
  attached_ = true;
}

void FlatParameter::detach() {
  for (ShardedParameter& parameter : parameters_) seams::empty_storage(parameter.storage(), parameter.owner);
  attached_ = false;
}

void FlatParameter::name_storages(const std::string& unit_name) {
  unit_name_ = unit_name;
  for (ShardedParameter& p : parameters_) {
    if (!attached_) {
      seams::set_empty_message(
          p.storage(), "fsdp: the memory of parameter " + quoted_names(p) + " (unit '" + unit_name +
                           "') was read while the unit is sharded, by code that bypasses the dispatcher (data_ptr, "
                           "numpy, serialization): run it inside ShardedModule::pin");
    }
    if (p.sentinel_installed && p.tensor.grad().defined()) {
      seams::set_empty_message(*p.tensor.grad().storage().unsafeGetStorageImpl(), sentinel_message(p, unit_name));
    }
  }
}

}  // namespace fsdp::flat
