#include "binding/whole_parameter.h"

#include "engine/engine.h"
#include "torch_seams/dispatch_key.h"
#include "torch_seams/shard_version.h"

namespace fsdp::python {

using seams::StorageOwner;

const StorageOwner* owner_of_whole(const at::Tensor& tensor) {
  const StorageOwner* owner = seams::has_sharded_key(tensor) ? seams::storage_owner(tensor) : nullptr;
  return owner && owner->kind == StorageOwner::Kind::kParameter && owner->unit.load() ? owner : nullptr;
}

engine::Unit& unit_of_whole(const at::Tensor& tensor, const char* caller) {
  const StorageOwner* owner = owner_of_whole(tensor);
  TORCH_CHECK_VALUE(owner, "fsdp: ", caller, ": a tensor of shape ", tensor.sizes(),
                    " is no parameter of a sharded module");
  return *engine::unit_of(*owner);
}

bool Whole::is_gathered(const at::Tensor& tensor) {
  return tensor.storage().unsafeGetStorageImpl()->data_ptr().get() != nullptr;
}

at::Tensor Whole::leaf(const at::Tensor& whole) {
  engine::Unit& unit = unit_of_whole(whole, "leaf");
  engine::Unit::Place place = unit.place(owner_of_whole(whole)->index);
  return place.flat.original_leaves()[place.parameter];
}

at::Tensor Whole::local(const at::Tensor& leaf, const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides,
                        int64_t offset) {
  at::Tensor local = seams::make_versioned_leaf(leaf.detach().as_strided(sizes, strides, offset));
  share_version(local, leaf);
  return local;
}

bool Whole::is_gradient_stand_in(const at::Tensor& tensor) {
  const StorageOwner* owner = seams::has_sharded_key(tensor) ? seams::storage_owner(tensor) : nullptr;
  return owner && owner->kind == StorageOwner::Kind::kGradientSentinel;
}

std::string Whole::fqn(const at::Tensor& whole) {
  engine::Unit& unit = unit_of_whole(whole, "fqn");
  return unit.parameter(owner_of_whole(whole)->index).fqn;
}

int64_t Whole::shard_dim(const at::Tensor& whole) {
  engine::Unit& unit = unit_of_whole(whole, "shard_dim");
  return unit.parameter(owner_of_whole(whole)->index).shard_dim;
}

std::string Whole::unit_name(const at::Tensor& whole) { return unit_of_whole(whole, "unit_name").name(); }

void Whole::check_membership(const at::Tensor& whole) {
  unit_of_whole(whole, "check_membership").engine().tree().check_membership();
}

void Whole::share_version(const at::Tensor& tensor, const at::Tensor& leaf) {
  tensor.unsafeGetTensorImpl()->set_version_counter(leaf.unsafeGetTensorImpl()->version_counter());
}

void Whole::prepare_write(const at::Tensor& leaf) {
  const StorageOwner* owner = seams::has_sharded_key(leaf) ? seams::storage_owner(leaf) : nullptr;
  engine::Unit* unit = owner && owner->kind == StorageOwner::Kind::kShard ? engine::unit_of(*owner) : nullptr;
  if (unit) unit->engine().gatherer().prepare_write_to_shards(*unit);
}

void Whole::prepare_writes(const std::vector<at::Tensor>& leaves) {
  for (const at::Tensor& leaf : leaves) prepare_write(leaf);
}

void register_whole(torch::Library& library) {
  library.class_<Whole>("Whole")
      .def_static("is_whole", &Whole::is_whole)
      .def_static("is_gathered", &Whole::is_gathered)
      .def_static("leaf", &Whole::leaf)
      .def_static("local", &Whole::local)
      .def_static("is_gradient_stand_in", &Whole::is_gradient_stand_in)
      .def_static("fqn", &Whole::fqn)
      .def_static("shard_dim", &Whole::shard_dim)
      .def_static("unit_name", &Whole::unit_name)
      .def_static("check_membership", &Whole::check_membership)
      .def_static("share_version", &Whole::share_version)
      .def_static("prepare_write", &Whole::prepare_write)
      .def_static("prepare_writes", &Whole::prepare_writes)
      .def_static("note_export", &Whole::note_export);
}

}  // namespace fsdp::python
