#include "planner/pricing/fused_kernels.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace fsdp::planner {
namespace {

constexpr int kStreamOfKernels = 0;
constexpr int kNoGroup = -1;

struct KernelGroup {
  std::vector<size_t> entries;
  bool backward = false;
};

// Kernels that compilers leave alone: they add at places that data gives, or change all tensors of a list.
bool stays_alone(const std::string& name) {
  return name.rfind("aten::_foreach_", 0) == 0 || name.rfind("aten::_fused_", 0) == 0 ||
         name.rfind("aten::embedding_dense_backward", 0) == 0 || name.rfind("aten::index_put_", 0) == 0 ||
         name.rfind("aten::_index_put_impl_", 0) == 0;
}

bool may_fuse(const Tape& tape, const TapeEntry& entry) {
  return entry.kind == TapeKind::kKernel && entry.place == Place::kDevice && entry.id < 0 && !entry.crosses &&
         entry.bytes > 0 && !stays_alone(tape.name(entry));
}

// In forward, the engine records how far the host has come with gathered parameters; in backward, that gradients are
// complete, which a group must not delay.
bool ends_group(const TapeEntry& entry) {
  if (entry.kind == TapeKind::kHostWaitsStream) return true;
  if (entry.stream != kStreamOfKernels) return false;
  if (entry.kind == TapeKind::kRecord) return entry.backward;
  return entry.kind == TapeKind::kCollective || (entry.kind == TapeKind::kKernel && entry.bytes > 0);
}

std::vector<KernelGroup> groups_between_products(const Tape& tape) {
  std::vector<KernelGroup> groups;
  bool open = false;
  for (size_t i = 0; i < tape.entries().size(); ++i) {
    const TapeEntry& entry = tape.entries()[i];
    if (entry.stream != kStreamOfKernels || !may_fuse(tape, entry)) {
      if (ends_group(entry)) open = false;
      continue;
    }
    if (!open || groups.back().backward != entry.backward)
      groups.push_back({.entries = {}, .backward = entry.backward});
    open = true;
    groups.back().entries.push_back(i);
  }
  return groups;
}

// The kernels of src/models: RMSNormImpl::forward and apply_rotary, and what autograd runs for them. In fp32, norms do
// not copy.
using KernelNames = std::vector<std::string>;
const std::vector<KernelNames>& kernels_of_modules() {
  static const std::vector<KernelNames> modules = {
      {"copy_", "pow", "mean", "add", "rsqrt", "mul", "copy_", "mul"},
      {"pow", "mean", "add", "rsqrt", "mul", "mul"},
      {"mul", "mul", "sum", "copy_", "mul", "mul", "sum", "pow", "mul", "mul", "div", "pow", "mul", "mul", "add_",
       "copy_"},
      {"mul", "mul", "sum", "mul", "mul", "sum", "pow", "mul", "mul", "div", "pow", "mul", "mul", "add_"},
      {"roll", "mul", "mul", "add"},
      {"mul", "mul", "roll", "add_"},
  };
  return modules;
}

// "aten::pow.Tensor_Scalar" is "pow".
std::string short_name(const std::string& name) {
  const size_t begin = name.rfind(':') + 1;
  return name.substr(begin, name.find('.', begin) - begin);
}

bool begins_at(const KernelNames& module, const KernelNames& names, size_t begin) {
  return begin + module.size() <= names.size() &&
         std::equal(module.begin(), module.end(), names.begin() + static_cast<std::ptrdiff_t>(begin));
}

std::vector<KernelGroup> groups_of_modules(const Tape& tape) {
  std::vector<KernelGroup> groups;
  for (const KernelGroup& all : groups_between_products(tape)) {
    KernelNames names;
    for (const size_t entry : all.entries) names.push_back(short_name(tape.name(tape.entries()[entry])));
    for (size_t i = 0; i < names.size();) {
      const auto found = std::find_if(kernels_of_modules().begin(), kernels_of_modules().end(),
                                      [&](const KernelNames& module) { return begins_at(module, names, i); });
      if (found == kernels_of_modules().end()) {
        ++i;
        continue;
      }
      const auto begin = all.entries.begin() + static_cast<std::ptrdiff_t>(i);
      i += found->size();
      groups.push_back(
          {.entries = {begin, begin + static_cast<std::ptrdiff_t>(found->size())}, .backward = all.backward});
    }
  }
  return groups;
}

// Bytes of one allocation that a group touches: views of the same place count once.
class TouchedBytes {
 public:
  void add(const TapeAccess& access) {
    int64_t& bytes = by_offset_[access.offset];
    bytes = std::max(bytes, access.bytes);
  }
  int64_t sum(int64_t most) const {
    int64_t sum = 0;
    for (const auto& [offset, bytes] : by_offset_) sum += bytes;
    return std::min(sum, most);
  }

 private:
  std::map<int64_t, int64_t> by_offset_;
};

using Touched = std::map<int64_t, TouchedBytes>;  // by allocation

// One kernel's use of an allocation.
struct MemoryUser {
  int group = kNoGroup;
  bool reads = false;
};

class GroupTraffic {
 public:
  GroupTraffic(const Tape& tape, std::vector<KernelGroup> groups) : tape_(tape), groups_(std::move(groups)) {
    note_allocations();
    note_users();
    for (size_t group = 0; group < groups_.size(); ++group) add_group(group);
    for (size_t group = 0; group < groups_.size(); ++group) find_internal(static_cast<int>(group));
  }

  const std::vector<KernelGroup>& groups() const { return groups_; }

  int64_t bytes(size_t group) const {
    Touched read;
    for (const auto& [memory, touched] : reads_[group]) {
      const auto again = internal_.find(memory);
      if (again == internal_.end()) {
        read.emplace(memory, touched);
      } else {
        for (const auto& one : reads_[static_cast<size_t>(again->second)]) read.insert(one);
      }
    }
    int64_t bytes = unknown_[group];
    for (const auto& [memory, touched] : read) bytes += touched.sum(size_of(memory));
    for (const auto& [memory, touched] : writes_[group]) {
      if (internal_.count(memory) == 0) bytes += touched.sum(size_of(memory));
    }
    return bytes;
  }

 private:
  void note_allocations() {
    for (const TapeEntry& entry : tape_.entries()) {
      if (entry.kind == TapeKind::kAllocation) allocations_[entry.id] = &entry;
    }
  }

  void note_users() {
    std::vector<int> group_of(tape_.entries().size(), kNoGroup);
    for (size_t group = 0; group < groups_.size(); ++group) {
      for (const size_t entry : groups_[group].entries) group_of[entry] = static_cast<int>(group);
    }
    for (size_t i = 0; i < tape_.entries().size(); ++i) {
      for (const TapeAccess& access : tape_.accesses()[i]) {
        users_[access.memory].push_back({.group = group_of[i], .reads = access.reads});
      }
    }
  }

  void add_group(size_t group) {
    Touched &reads = reads_.emplace_back(), &writes = writes_.emplace_back();
    unknown_.push_back(0);
    for (const size_t entry : groups_[group].entries) {
      for (const TapeAccess& access : tape_.accesses()[entry]) {
        if (access.memory < 0) unknown_[group] += access.bytes * (access.reads + access.writes);
        if (access.memory >= 0 && access.reads && writes.count(access.memory) == 0) reads[access.memory].add(access);
      }
      for (const TapeAccess& access : tape_.accesses()[entry]) {
        if (access.memory >= 0 && access.writes) writes[access.memory].add(access);
      }
    }
  }

  // Finds results that the group need not write.
  void find_internal(int group) {
    for (const auto& [memory, touched] : writes_[static_cast<size_t>(group)]) {
      if (is_internal(memory, group)) internal_.emplace(memory, group);
    }
  }

  bool is_internal(int64_t memory, int group) const {
    const auto allocation = allocations_.find(memory);
    if (allocation == allocations_.end() || allocation->second->purpose != base::AllocationPurpose::kOther)
      return false;
    const std::vector<MemoryUser>& users = users_.at(memory);
    if (users.front().group != group) return false;  // made by others
    bool is_read = false;
    for (const MemoryUser& user : users) {
      is_read |= user.reads;
      if (user.group != group && !computes_again(user, group)) return false;
    }
    return is_read;
  }

  bool computes_again(const MemoryUser& user, int group) const {
    return user.reads && user.group != kNoGroup && groups_[static_cast<size_t>(user.group)].backward &&
           !groups_[static_cast<size_t>(group)].backward;
  }

  int64_t size_of(int64_t memory) const { return allocations_.at(memory)->bytes; }

  const Tape& tape_;
  std::vector<KernelGroup> groups_;
  std::map<int64_t, const TapeEntry*> allocations_;
  std::map<int64_t, std::vector<MemoryUser>> users_;  // by allocation, in order
  std::vector<Touched> reads_;                        // by group: of what others have made
  std::vector<Touched> writes_;
  std::vector<int64_t> unknown_;     // bytes of memory that is not on the tape
  std::map<int64_t, int> internal_;  // allocations, and the group that makes each
};

}  // namespace

FusedKernels::FusedKernels(const Tape& tape, Fusion fusion) : tape_(tape) {
  if (fusion == Fusion::kNone) return;
  TORCH_CHECK(tape.accesses().size() == tape.entries().size(), "fsdp plan: the tape has no accesses");
  const GroupTraffic traffic(tape, fusion == Fusion::kAll ? groups_between_products(tape) : groups_of_modules(tape));
  for (size_t group = 0; group < traffic.groups().size(); ++group) {
    const std::vector<size_t>& entries = traffic.groups()[group].entries;
    int64_t apart = 0;
    for (const size_t entry : entries) {
      apart += tape.entries()[entry].bytes;
      bytes_[entry] = 0;
    }
    bytes_[entries.back()] = std::min(apart, traffic.bytes(group));
  }
}

int64_t FusedKernels::bytes(size_t entry) const {
  const auto found = bytes_.find(entry);
  return found == bytes_.end() ? tape_.entries()[entry].bytes : found->second;
}

}  // namespace fsdp::planner
