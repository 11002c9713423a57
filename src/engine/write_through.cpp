#include "engine/write_through.h"

#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>

#include <utility>

#include "base/text_digest.h"
#include "engine/engine.h"
#include "engine/membership.h"
#include "engine/whole_parameters.h"
#include "flat/rank_order.h"
#include "fsdp/errors.h"
#include "torch_seams/clean_dispatch.h"
#include "torch_seams/shard_version.h"

namespace fsdp::engine {
namespace {

// Returns `view`, whose storage is that of a parameter, in the whole copy at `offset` (in elements of the copy).
at::Tensor same_view_in(const at::Tensor& whole, int64_t offset, const at::Tensor& view) {
  const int64_t bytes = offset * whole.element_size() + view.storage_offset() * view.element_size();
  at::Tensor result = at::empty({0}, whole.options().dtype(view.scalar_type()))
                          .set_(whole.storage(), bytes / view.element_size(), view.sizes(), view.strides());
  result._set_conj(view.is_conj());
  result._set_neg(view.is_neg());
  return result;
}

std::string digest_of_elements(const at::Tensor& range) {
  const at::Tensor here = range.cpu();
  return base::digest_of({static_cast<const char*>(here.const_data_ptr()), here.nbytes()});
}

// Returns the texts of all ranks that hold parts or copies of a unit, in the same order on each.
std::vector<std::string> exchange(Unit& unit, const std::string& text) {
  std::vector<std::string> texts = {text};
  for (Communicator* group : {unit.groups().shard.get(), unit.groups().replicate.get()}) {
    if (!group || group->size() == 1) continue;
    const std::string joined = [&] {
      std::string all;
      for (const std::string& one : texts) all += one;
      return all;
    }();
    texts = group->all_gather_bytes(joined, unit.next_id(Pass::kUser));
  }
  return texts;
}

constexpr size_t kDigestLength = 32;

}  // namespace

WriteThrough::WriteThrough(Unit& unit, std::string op)
    : unit_(unit), op_(std::move(op)), copies_(unit.flat_parameters().size()) {
  unit_.engine().preparation().ensure();
  check_membership(unit_);
  check_writable();
  for (size_t i = 0; i < copies_.size(); ++i) {
    copies_[i].written = ParameterMask(unit_.flat_parameters()[i]->layout().num_parameters());
  }
}

void WriteThrough::check_writable() const {
  base::MutexLock lock(unit_.mutex);
  TORCH_CHECK(!unit_.use.forbidden(), "fsdp: ", unit_.where(), ": ", op_,
              " writes to a parameter inside summon_full_params(rank0_only): there only rank 0 has it");
  TORCH_CHECK(!unit_.use.pinned() || !unit_.buffers.reads_in_place(), "fsdp: ", unit_.where(), ": ", op_,
              " writes to a parameter while the unit is pinned and ranks read its parameters in the same memory. Write "
              "after the scope of pin() or the operator that uses the unit has ended, or inside "
              "ShardedModule::with_full_params");
}

WriteThrough::Copy& WriteThrough::copy_of(const flat::FlatParameter& flat) {
  size_t index = 0;
  while (unit_.flat_parameters().at(index).get() != &flat) ++index;
  Copy& copy = copies_[index];
  if (!copy.whole.defined()) {
    unit_.engine().memory().explaining([this] { return c10::str(op_, " on a copy of unit '", unit_.name(), "'"); },
                                       [&] {
                                         at::Tensor whole = gather_values(unit_, flat);
                                         seams::CleanDispatchGuard clean;
                                         copy.whole = whole.is_alias_of(flat.shard()) ? whole.clone() : whole;
                                       });
  }
  return copy;
}

at::Tensor WriteThrough::stand_in(const at::Tensor& view, int64_t index, bool written) {
  const Unit::Place place = unit_.place(index);
  const flat::FlatDtypes& dtypes = place.flat.dtypes();
  const bool as_parameter = view.scalar_type() == dtypes.compute;
  TORCH_CHECK(as_parameter || dtypes.compute == dtypes.shard, "fsdp: ", unit_.where(), ": parameter '",
              unit_.parameter(index).fqn, "' is an argument of ", op_,
              ", which writes to parameters of the unit, as a view of ", view.scalar_type(),
              " elements. The operator runs on ", dtypes.shard, " elements, not on ", dtypes.compute,
              " ones: write inside ShardedModule::with_full_params");
  Copy& copy = copy_of(place.flat);
  if (written) copy.written.set(place.parameter);
  seams::CleanDispatchGuard clean;
  const int64_t offset = place.flat.layout().offset(place.parameter);
  if (!as_parameter || dtypes.compute == dtypes.shard) return same_view_in(copy.whole, offset, view);
  return copy.whole.as_strided(view.sizes(), view.strides(), offset + view.storage_offset());
}

std::string WriteThrough::digests() const {
  seams::CleanDispatchGuard clean;
  std::string text;
  for (size_t i = 0; i < copies_.size(); ++i) {
    const flat::FlatLayout& layout = unit_.flat_parameters()[i]->layout();
    for (int64_t k = 0; k < layout.num_parameters(); ++k) {
      if (copies_[i].written.test(k)) {
        text += digest_of_elements(copies_[i].whole.narrow(0, layout.offset(k), layout.numel(k)));
      }
    }
  }
  return text;
}

std::vector<std::string> WriteThrough::written_fqns() const {
  std::vector<std::string> fqns;
  for (size_t i = 0; i < copies_.size(); ++i) {
    const flat::FlatParameter& flat = *unit_.flat_parameters()[i];
    for (int64_t k = 0; k < flat.layout().num_parameters(); ++k) {
      if (copies_[i].written.test(k)) fqns.push_back(flat.parameters()[static_cast<size_t>(k)].fqn);
    }
  }
  return fqns;
}

void WriteThrough::check_alike() {
  const std::string own = digests();
  for (const std::string& theirs : exchange(unit_, own)) {
    for (size_t at = 0; at < theirs.size(); at += kDigestLength) {
      const size_t mine = at % own.size();
      if (theirs.size() % own.size() == 0 && theirs.compare(at, kDigestLength, own, mine, kDigestLength) == 0) continue;
      throw ErrorOfAllRanks(
          {__func__, __FILE__, __LINE__},
          c10::str(
              "fsdp: ", unit_.where(), ": the ranks have written different values to parameter '",
              written_fqns()[mine / kDigestLength], "' by ", op_,
              ". Each rank would keep its own part of them, so nothing was written. Run the operator with the same "
              "arguments, and with generators in the same state, on all ranks, or write inside "
              "ShardedModule::with_full_params"));
    }
  }
}

void WriteThrough::keep() {
  unit_.engine().gatherer().prepare_write_through(unit_);
  base::MutexLock lock(unit_.mutex);
  const bool up_to_date = unit_.versions.up_to_date();
  for (size_t i = 0; i < copies_.size(); ++i) {
    if (copies_[i].written.count() == 0) continue;
    const flat::FlatParameter& flat = *unit_.flat_parameters()[i];
    seams::CleanDispatchGuard clean;
    flat.shard().copy_(own_part(flat, copies_[i].whole));
    if (const at::Tensor& gathered = unit_.buffers.of(flat); gathered.defined()) gathered.copy_(copies_[i].whole);
    seams::bump_version(flat.shard());
    flat.memory().page_out(flat.shard());
  }
  // What autograd has saved is judged by the versions of the module's own tensors, as in a plain module.
  if (up_to_date) unit_.versions.note_seen();
}

}  // namespace fsdp::engine
