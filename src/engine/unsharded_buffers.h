// The gathered parameters of one unit: who fills their memory, and until when.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/stream_order.h"
#include "base/transitions.h"
#include "engine/buffer_pool.h"
#include "engine/unit_state.h"
#include "flat/flat_parameter.h"
#include "fsdp/communicator.h"
#include "fsdp/pass.h"

namespace fsdp::engine {

class Unit;

// Its states are those of the unit: UnitState. The memory of all FlatParameters of a unit is one block of the pool, so
// that units and not FlatParameters share the arena. A FlatParameter needs none if its shard, or memory that ranks
// share, serves as its unsharded buffer.
//
// Threads: guarded by the unit's mutex; gathered() and gathering() are safe from any thread.
class UnshardedBuffers {
 public:
  explicit UnshardedBuffers(Unit& unit);
  // Must be called after a FlatParameter was added to the unit.
  void add_flat();
  // Clears the FlatParameters, which the unit is about to lose, and releases their memory. The unit must be sharded.
  void clear(BufferPool& pool);

  bool gathered() const { return state_.is(UnitState::kUnsharded); }
  bool gathering() const { return state_.is(UnitState::kGathering); }
  bool sharded() const { return state_.is(UnitState::kSharded); }

  // Issues the gather of a sharded unit and returns the number of all-gathers. finish_gather() waits for it on the
  // current stream. If either fails, the unit is sharded afterwards. `may_alias`: shards may serve as buffers.
  // `may_differ`: somebody may have written to the shards, uncounted, since the last gather.
  int64_t begin_gather(BufferPool& pool, Pass pass, bool may_alias, bool may_differ);
  void finish_gather(BufferPool& pool);
  // Notes that an operator on the current stream is about to use the gathered unit.
  void use_on_current_stream();
  // Gives the memory of a gathered unit back to the pool, which keeps it only with Options::keep_memory. The current
  // stream waits for all uses.
  void release(BufferPool& pool);

  // Parking (ReshardAfterForward with a group size): keeps this rank's part of the gathered parameters, so that the
  // next gather goes over the smaller group that shares them. Keeps nothing of parameters that ranks read in the same
  // memory, or without such a group. The unit must be gathered.
  void park(BufferPool& pool);
  // Ends parking: releases what is parked.
  void unpark(BufferPool& pool);
  // Whether a part of a FlatParameter is parked, and whether the shard that it was parked with is known and had the
  // bits of `shard`. It is known if code outside of LibTorch may have kept a pointer to the shard.
  bool is_parked(const flat::FlatParameter& flat) const { return parked_[index_of(flat)].defined(); }
  bool parks_any() const;
  bool is_parked_with(const flat::FlatParameter& flat, const at::Tensor& shard) const;
  // Gives back memory that is kept for the sharded unit alone, because its options have changed.
  void release_kept(BufferPool& pool);
  const std::shared_ptr<Communicator>& park_group() const { return park_group_; }
  void set_park_group(std::shared_ptr<Communicator> group) { park_group_ = std::move(group); }

  // Whether this rank now reads gathered parameters in memory that ranks share, and whether that memory is the shards.
  bool reads_in_place() const;
  bool reads_shards() const;
  // Whether any of the gathered parameters lie outside of this rank's shards.
  bool holds_copies() const;
  // Returns the unsharded buffer of a FlatParameter; undefined if its shard serves as the buffer, or while the unit is
  // sharded.
  const at::Tensor& of(const flat::FlatParameter& flat) const;

  // Bytes of memory that gathering takes.
  int64_t block_nbytes() const;
  // Bytes of that memory in use, without padding. The unit must have been gathered.
  int64_t used_nbytes() const { return used_nbytes_; }

 private:
  void acquire(BufferPool& pool, bool may_alias);
  void gather_flat(size_t index, Pass pass, BufferPool& pool);
  std::unique_ptr<Work> gather_parked(size_t index, const at::Tensor& full, Pass pass);
  std::unique_ptr<Work> gather_shards(size_t index, const at::Tensor& full, Pass pass, BufferPool& pool);
  std::unique_ptr<Work> publish(size_t index, const at::Tensor& full, Pass pass);
  void take_from_rank_order(size_t index, BufferPool& pool);
  void discard_gather();
  bool reads_in_place(size_t flat) const;
  size_t index_of(const flat::FlatParameter& flat) const;

  Unit& unit_;  // its FlatParameters, groups and names
  base::StateMachine<UnitState> state_;
  at::Tensor block_;                   // kByte; undefined if no FlatParameter needs memory
  std::vector<at::Tensor> unsharded_;  // by FlatParameter; undefined if the shard itself serves
  // By FlatParameter: what a gather in progress receives, if that is not the order of `unsharded_`.
  std::vector<at::Tensor> in_rank_order_;
  // By FlatParameter: the version of the shard that this rank has published in forward; unset after the next backward's
  // gather, or if the shard may have changed, uncounted.
  std::vector<std::optional<uint32_t>> published_;
  int64_t issued_gathers_ = 0;  // all-gathers of the last begin_gather()
  base::DeviceEvent issued_;    // after the work that the gather has enqueued on its stream
  base::StreamReaders readers_;
  int64_t used_nbytes_ = 0;
  std::shared_ptr<Communicator> park_group_;
  std::vector<at::Tensor> parked_;         // by FlatParameter; undefined unless parked
  std::vector<at::Tensor> parked_shards_;  // by FlatParameter; undefined unless known
  base::DeviceEvent parked_written_;
  // In progress, and gathers whose results are read in place. Destroyed before the memory that they use.
  std::vector<std::unique_ptr<Work>> gathers_;
};

}  // namespace fsdp::engine
