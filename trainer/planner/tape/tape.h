// The record of a planned run, in the order in which the host did things.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "comm/collective_shapes.h"
#include "fsdp/communicator.h"
#include "planner/device/device_log.h"
#include "planner/tape/host_path.h"
#include "planner/tape/kernel_traffic.h"
#include "planner/tape/meeting.h"
#include "planner/tape/product_work.h"

namespace fsdp::planner {

enum class TapeKind : uint8_t {
  kKernel,          // name: the operator; id: an index into Tape::products(), -1: none; bytes: KernelTraffic::bytes
  kAllocation,      // name: the operator that makes a result; id: the allocation; bytes: as requested
  kFree,            // id: the allocation
  kRecord,          // id: the point
  kBlock,           // id: the point
  kCollective,      // id: an index into Tape::collectives(); bytes: of the larger tensor
  kWait,            // id: the same index
  kHostWaitsEvent,  // id: the point
  kHostWaitsStream,
};

// Entries contain numbers only: a tensor would live longer than in a real run.
struct TapeEntry {
  TapeKind kind;
  Place place = Place::kDevice;
  base::AllocationPurpose purpose = base::AllocationPurpose::kOther;
  bool backward = false;  // whether a backward pass runs
  bool crosses = false;   // whether a kernel copies between host and device
  int16_t stream = -1;    // -1: none
  int32_t name = -1;      // an index into Tape::names(); -1: none
  int64_t id = -1;
  int64_t bytes = 0;
};

// A tensor that a kernel on the device reads or writes.
struct TapeAccess {
  int64_t memory = -1;  // the allocation; -1: not on the tape
  int64_t offset = 0;   // in it
  int64_t bytes = 0;
  bool reads = false;
  bool writes = false;
};

// A collective that the planned rank issued.
struct TapeCollective {
  comm::CollectiveKind kind = comm::CollectiveKind::kAllGather;
  CollectiveId id;
  int64_t numel = 0;                 // of the larger tensor; of a gather of bytes, the bytes that this rank sends
  at::ScalarType dtype = at::kByte;  // of the data that is sent
  int group = 0;                     // an index into Tape::groups()
  bool twin = false;                 // whether through the group's twin
  bool converts = false;             // whether the next kernel of its stream converts the sum, and belongs to it
  HostPath path = HostPath::kGloo;   // of ranks on CPUs
  int from = -1, to = -1;            // of a message: the two ranks, by their numbers in the whole run
  Meeting meeting = {};              // with the planned ranks of other stages; messages always have one
};

// Threads: PlannedMemory::report gives it one report at a time.
class Tape final : public DeviceLog {
 public:
  Tape() = default;
  // A tape of these entries, whose names are indices of `names`, and whose kernels' ids are indices of `products`.
  Tape(std::vector<TapeEntry> entries, std::vector<std::string> names, std::vector<ProductWork> products = {});

  void kernel(const KernelCall& call) override;
  void allocated(const NewMemory& memory) override;
  void freed(int64_t id) override;
  void recorded(int64_t event, int stream) override;
  void blocked(int64_t event, int stream) override;
  void host_waited_for_event(int64_t event) override;
  void host_waited_for_stream(int stream) override;

  // Adds a group of ranks, by their numbers in the whole run. Returns its index.
  int add_group(std::vector<int> ranks);
  // Returns the collective's index.
  int64_t issued(const TapeCollective& collective, Place place, int stream);
  void waited(int64_t collective, Place place, int stream);
  // Notes the time of each entry that follows.
  void note_times() { notes_times_ = true; }
  // Notes what each kernel that follows reads and writes. For a tape without entries.
  void note_accesses() { notes_accesses_ = true; }

  const std::vector<TapeEntry>& entries() const { return entries_; }
  const std::vector<TapeCollective>& collectives() const { return collectives_; }
  const std::vector<ProductWork>& products() const { return products_; }
  const std::vector<std::vector<int>>& groups() const { return groups_; }
  const std::vector<std::string>& names() const { return names_; }
  // The time at which each of the last entries was made, in nanoseconds as in TraceRange, from note_times() on.
  const std::vector<int64_t>& times() const { return times_; }
  // The accesses of each entry, from note_accesses() on; otherwise empty.
  const std::vector<std::vector<TapeAccess>>& accesses() const { return accesses_; }
  const std::string& name(const TapeEntry& entry) const { return names_.at(static_cast<size_t>(entry.name)); }

 private:
  void add(TapeEntry entry);
  int32_t name_of(const std::string& text);

  std::vector<TapeEntry> entries_;
  std::vector<int64_t> times_;
  bool notes_times_ = false;
  struct LivingMemory {
    int64_t id;
    int64_t bytes;
  };
  TapeAccess access_of(const TensorAccess& access) const;

  std::vector<std::vector<TapeAccess>> accesses_;
  bool notes_accesses_ = false;
  std::map<uintptr_t, LivingMemory> living_;  // by address
  std::unordered_map<int64_t, uintptr_t> addresses_;
  std::vector<TapeCollective> collectives_;
  std::vector<ProductWork> products_;
  std::vector<std::vector<int>> groups_;
  std::vector<std::string> names_;
  std::unordered_map<std::string, int32_t> numbers_;
};

}  // namespace fsdp::planner
