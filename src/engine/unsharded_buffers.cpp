#include "engine/unsharded_buffers.h"

#include <algorithm>
#include <utility>

#include "engine/unit.h"
#include "flat/rank_order.h"
#include "fsdp/memory_sharing.h"
#include "schedule/block_places.h"
#include "torch_seams/clean_dispatch.h"
#include "torch_seams/shard_version.h"
#include "torch_seams/write_watch.h"

namespace fsdp::engine {
namespace {

bool needs_memory(const flat::FlatParameter& flat, bool may_alias) {
  return !may_alias || !(flat.shard_is_whole() || flat.shared_unsharded().defined());
}

int64_t unsharded_nbytes_of(const flat::FlatParameter& flat) {
  return flat.layout().padded_numel() * static_cast<int64_t>(c10::elementSize(flat.dtypes().compute));
}

int64_t nbytes_in_block(const flat::FlatParameter& flat) {
  return schedule::BlockPlaces::rounded(unsharded_nbytes_of(flat));
}

// Whether the parts of all ranks go straight to their places, each in a message of its own. Below this mean size of a
// part, one message for all of them and a copy cost less.
bool gathers_into_place(const flat::FlatParameter& flat, const at::Tensor& full, const Communicator& group) {
  constexpr int64_t kWorthAMessage = 64 << 10;
  const flat::FlatLayout& layout = flat.layout();
  if (layout.is_in_rank_order() || !full.is_cpu() || !group.gathers_ranges()) return false;
  return layout.shard_numel() * full.element_size() >= kWorthAMessage * layout.num_parameters();
}

// Does the only cast of a unit and pass. Values from the host are copied as they are and cast on the device. Otherwise
// the host would have to wait for the copy.
void copy_shard(const flat::FlatParameter& flat, const at::Tensor& own, BufferPool& pool) {
  if (!flat.memory().apart() || flat.dtypes().shard == flat.dtypes().compute) {
    own.copy_(flat.shard(), /*non_blocking=*/true);
    return;
  }
  at::Tensor staged = pool.acquire(flat.layout().shard_numel(), flat.dtypes().shard, Residence::kAside);
  staged.copy_(flat.shard(), /*non_blocking=*/true);
  own.copy_(staged);
  pool.release(staged);
}

}  // namespace

UnshardedBuffers::UnshardedBuffers(Unit& unit) : unit_(unit), state_(UnitState::kSharded, unit_transitions()) {}

void UnshardedBuffers::add_flat() {
  unsharded_.emplace_back();
  in_rank_order_.emplace_back();
  published_.emplace_back();
  parked_.emplace_back();
  parked_shards_.emplace_back();
}

void UnshardedBuffers::clear(BufferPool& pool) {
  TORCH_CHECK(sharded(), "fsdp: ", unit_.where(), ": a unit in use cannot be cut anew");
  release_kept(pool);
  unsharded_.clear();
  in_rank_order_.clear();
  published_.clear();
  parked_.clear();
  parked_shards_.clear();
}

void UnshardedBuffers::release_kept(BufferPool& pool) {
  pool.release_kept(this);
  for (at::Tensor& parked : parked_) pool.release_kept(&parked);
}

// ---------------------------------------------------------------- memory

int64_t UnshardedBuffers::block_nbytes() const {
  int64_t nbytes = 0;
  for (const auto& flat : unit_.flat_parameters()) {
    nbytes += needs_memory(*flat, /*may_alias=*/true) ? nbytes_in_block(*flat) : 0;
  }
  return nbytes;
}

void UnshardedBuffers::acquire(BufferPool& pool, bool may_alias) {
  const auto& flats = unit_.flat_parameters();
  used_nbytes_ = 0;
  int64_t nbytes = 0;
  for (size_t i = 0; i < flats.size(); ++i) {
    if (needs_memory(*flats[i], may_alias)) {
      nbytes += nbytes_in_block(*flats[i]);
      used_nbytes_ += unsharded_nbytes_of(*flats[i]);
    } else if (flats[i]->shared_unsharded().defined()) {
      unsharded_[i] = flats[i]->shared_unsharded();
    }
  }
  if (nbytes == 0) return;
  const Residence residence = unit_.has_own_memory() ? Residence::kStaying : Residence::kTransient;
  block_ = pool.acquire_bytes(nbytes, residence, this, nbytes - used_nbytes_);
  int64_t offset = 0;
  for (size_t i = 0; i < flats.size(); ++i) {
    if (needs_memory(*flats[i], may_alias)) {
      unsharded_[i] = block_.narrow(0, offset, unsharded_nbytes_of(*flats[i])).view(flats[i]->dtypes().compute);
      offset += nbytes_in_block(*flats[i]);
    }
  }
}

// ---------------------------------------------------------------- gathering and releasing

int64_t UnshardedBuffers::begin_gather(BufferPool& pool, Pass pass, bool may_alias, bool may_differ) {
  state_.transition(UnitState::kGathering, [this] { return unit_.where(); });
  issued_gathers_ = 0;
  if (may_differ) published_.assign(published_.size(), std::nullopt);
  try {
    const c10::Stream& stream = unit_.context().streams.gather;
    base::CurrentStreamGuard on_stream(stream);
    seams::CleanDispatchGuard clean;
    acquire(pool, may_alias);
    for (size_t i = 0; i < unsharded_.size(); ++i) {
      if (unsharded_[i].defined()) gather_flat(i, pass, pool);
    }
    issued_.record(stream);
  } catch (...) {
    discard_gather();
    throw;
  }
  return issued_gathers_;
}

void UnshardedBuffers::gather_flat(size_t index, Pass pass, BufferPool& pool) {
  const at::Tensor& full = unsharded_[index];
  if (auto gather =
          parked_[index].defined() ? gather_parked(index, full, pass) : gather_shards(index, full, pass, pool)) {
    gathers_.push_back(std::move(gather));
    ++issued_gathers_;
  }
}

std::unique_ptr<Work> UnshardedBuffers::gather_shards(size_t index, const at::Tensor& full, Pass pass,
                                                      BufferPool& pool) {
  const flat::FlatParameter& flat = *unit_.flat_parameters()[index];
  const std::shared_ptr<Communicator>& group = unit_.groups().shard;
  const flat::ShardPosition& position = flat.position();
  if (reads_in_place(index) && flat.publishes()) return publish(index, full, pass);
  if (gathers_into_place(flat, full, *group)) {
    copy_own_part(flat, flat.shard(), full);
    return group->all_gather_ranges(full, ranges_in_whole(flat.layout()), unit_.next_id(pass));
  }
  at::Tensor& gathered = in_rank_order_[index];
  gathered = flat.layout().is_in_rank_order()
                 ? full
                 : pool.acquire(flat.layout().padded_numel(), flat.dtypes().compute, Residence::kAside);
  const bool as_it_is = flat.dtypes().shard == flat.dtypes().compute && !flat.memory().apart();
  const int64_t n = flat.layout().shard_numel();
  const at::Tensor own = gathered.narrow(0, position.rank * n, n);
  if (position.factor == 1 || !as_it_is) copy_shard(flat, own, pool);
  return position.factor == 1 ? nullptr
                              : group->all_gather(gathered, as_it_is ? flat.shard() : own, unit_.next_id(pass));
}

// Writes this rank's part to the memory in which all ranks read the unit. The first backward after a forward finds
// forward's copy there, unless the memory was released since. All other gathers write the part anew, so that they see
// writes to the shard of any kind.
std::unique_ptr<Work> UnshardedBuffers::publish(size_t index, const at::Tensor& full, Pass pass) {
  const flat::FlatParameter& flat = *unit_.flat_parameters()[index];
  Communicator& group = *unit_.groups().shard;
  MemorySharing& sharing = group.memory_sharing();
  const CollectiveId id{unit_.name(), 0, pass};
  if (flat.layout().cut() == ShardCut::kRows) sharing.open(full, id);
  sharing.await_readers(full, id);
  const bool is_kept = sharing.keeps_contents(full);
  const uint32_t version = seams::version_of(flat.shard());
  const std::optional<uint32_t> published = std::exchange(published_[index], std::nullopt);
  if (pass != Pass::kBackward || !is_kept || published != version) copy_own_part(flat, flat.shard(), full);
  if (pass != Pass::kBackward) published_[index] = version;
  const int64_t n = flat.layout().shard_numel();
  return group.all_gather(full, full.narrow(0, flat.position().rank * n, n), unit_.next_id(pass));
}

std::unique_ptr<Work> UnshardedBuffers::gather_parked(size_t index, const at::Tensor& full, Pass pass) {
  parked_written_.block_current();
  return park_group_->all_gather(full, parked_[index], unit_.next_id(pass));
}

void UnshardedBuffers::finish_gather(BufferPool& pool) {
  try {
    issued_.block_current();
    for (std::unique_ptr<Work>& gather : gathers_) gather->wait();
    for (size_t i = 0; i < in_rank_order_.size(); ++i) take_from_rank_order(i, pool);
  } catch (...) {
    discard_gather();
    throw;
  }
  if (!reads_in_place()) gathers_.clear();
  for (size_t i = 0; i < unsharded_.size(); ++i) {
    flat::FlatParameter& flat = *unit_.flat_parameters()[i];
    flat.attach(unsharded_[i].defined() ? unsharded_[i] : flat.shard());
    if (unsharded_[i].defined()) flat.memory().page_out(flat.shard());
  }
  readers_.begin(unit_.context().device());
  state_.transition(UnitState::kUnsharded, [this] { return unit_.where(); });
}

void UnshardedBuffers::take_from_rank_order(size_t index, BufferPool& pool) {
  at::Tensor& gathered = in_rank_order_[index];
  if (gathered.defined() && !gathered.is_same(unsharded_[index])) {
    seams::CleanDispatchGuard clean;
    copy_to_whole(*unit_.flat_parameters()[index], gathered, unsharded_[index]);
    pool.release(gathered);
  }
  gathered.reset();
}

// The buffers are not used again, because a collective that failed may still write to them.
void UnshardedBuffers::discard_gather() {
  gathers_.clear();
  for (at::Tensor& unsharded : unsharded_) unsharded.reset();
  for (at::Tensor& gathered : in_rank_order_) gathered.reset();
  block_.reset();
  state_.transition(UnitState::kSharded, [this] { return unit_.where(); });
}

void UnshardedBuffers::use_on_current_stream() { readers_.add(unit_.context().device()); }

void UnshardedBuffers::release(BufferPool& pool) {
  state_.transition(UnitState::kSharded, [this] { return unit_.where(); });
  for (size_t i = 0; i < unsharded_.size(); ++i) {
    flat::FlatParameter& flat = *unit_.flat_parameters()[i];
    flat.detach();
    if (!unsharded_[i].defined()) flat.memory().page_out(flat.shard());
    unsharded_[i].reset();
  }
  readers_.end(unit_.context().device());
  gathers_.clear();
  if (block_.defined()) {
    pool.release(block_, static_cast<int64_t>(block_.nbytes()) - used_nbytes_);
    block_.reset();
  }
}

// ---------------------------------------------------------------- parking

void UnshardedBuffers::park(BufferPool& pool) {
  if (!park_group_) return;
  seams::CleanDispatchGuard clean;
  for (size_t i = 0; i < unsharded_.size(); ++i) {
    if (parked_[i].defined() || reads_in_place(i)) continue;
    const flat::FlatParameter& flat = *unit_.flat_parameters()[i];
    const int64_t n = flat.layout().padded_numel() / park_group_->size();
    parked_[i] = pool.acquire(n, flat.dtypes().compute, Residence::kStaying, &parked_[i]);
    parked_[i].copy_(unsharded_[i].narrow(0, park_group_->rank() * n, n));
    if (seams::is_exported(flat.shard())) parked_shards_[i] = flat.shard().clone();
  }
  parked_written_.record_current(unit_.context().device());
}

// Uses the gather stream, because gathers were the last to read the parked part.
void UnshardedBuffers::unpark(BufferPool& pool) {
  base::CurrentStreamGuard on_stream(unit_.context().streams.gather);
  for (at::Tensor& parked : parked_) {
    if (parked.defined()) {
      pool.release(parked);
      parked.reset();
    }
  }
  for (at::Tensor& shard : parked_shards_) shard.reset();
}

bool UnshardedBuffers::parks_any() const {
  return std::any_of(parked_.begin(), parked_.end(), [](const at::Tensor& parked) { return parked.defined(); });
}

bool UnshardedBuffers::is_parked_with(const flat::FlatParameter& flat, const at::Tensor& shard) const {
  const at::Tensor& known = parked_shards_[index_of(flat)];
  return known.defined() && known.view(at::kByte).equal(shard.view(at::kByte));
}

// ---------------------------------------------------------------- places

bool UnshardedBuffers::reads_in_place(size_t flat) const {
  return unsharded_[flat].defined() && unsharded_[flat].is_same(unit_.flat_parameters()[flat]->shared_unsharded());
}

bool UnshardedBuffers::reads_in_place() const {
  for (size_t i = 0; i < unsharded_.size(); ++i) {
    if (reads_in_place(i)) return true;
  }
  return false;
}

bool UnshardedBuffers::reads_shards() const {
  for (size_t i = 0; i < unsharded_.size(); ++i) {
    if (reads_in_place(i) && !unit_.flat_parameters()[i]->publishes()) return true;
  }
  return false;
}

bool UnshardedBuffers::holds_copies() const {
  return std::any_of(unsharded_.begin(), unsharded_.end(), [](const at::Tensor& full) { return full.defined(); });
}

const at::Tensor& UnshardedBuffers::of(const flat::FlatParameter& flat) const { return unsharded_[index_of(flat)]; }

size_t UnshardedBuffers::index_of(const flat::FlatParameter& flat) const {
  size_t index = 0;
  while (unit_.flat_parameters().at(index).get() != &flat) ++index;
  return index;
}

}  // namespace fsdp::engine
