#include "planner/tape/tape.h"

#include <chrono>
#include <iterator>
#include <utility>

#include "planner/tape/kernel_traffic.h"
#include "torch_seams/gradient_hooks.h"

namespace fsdp::planner {
namespace {

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

Tape::Tape(std::vector<TapeEntry> entries, std::vector<std::string> names, std::vector<ProductWork> products)
    : entries_(std::move(entries)), products_(std::move(products)), names_(std::move(names)) {
  for (size_t i = 0; i < names_.size(); ++i) numbers_.emplace(names_[i], static_cast<int32_t>(i));
}

void Tape::kernel(const KernelCall& call) {
  int64_t product = -1;
  if (const auto work = product_work(call)) {
    product = static_cast<int64_t>(products_.size());
    products_.push_back(*work);
  }
  const KernelTraffic traffic = kernel_traffic(call);
  add({.kind = TapeKind::kKernel,
       .place = call.place,
       .crosses = traffic.crosses,
       .stream = static_cast<int16_t>(call.stream),
       .name = name_of(c10::toString(call.op.operator_name())),
       .id = product,
       .bytes = traffic.bytes});
  if (!notes_accesses_) return;
  for (const TensorAccess& access : tensor_accesses(call)) accesses_.back().push_back(access_of(access));
}

TapeAccess Tape::access_of(const TensorAccess& access) const {
  TapeAccess noted{.bytes = access.bytes, .reads = access.reads, .writes = access.writes};
  const auto address = reinterpret_cast<uintptr_t>(access.address);
  const auto after = living_.upper_bound(address);
  if (after == living_.begin()) return noted;
  const auto& [begin, memory] = *std::prev(after);
  if (address >= begin + static_cast<uintptr_t>(memory.bytes)) return noted;
  noted.memory = memory.id;
  noted.offset = static_cast<int64_t>(address - begin);
  return noted;
}

void Tape::allocated(const NewMemory& memory) {
  add({.kind = TapeKind::kAllocation,
       .place = memory.place,
       .purpose = memory.purpose,
       .stream = static_cast<int16_t>(memory.stream),
       .name = memory.maker == nullptr ? -1 : name_of(memory.maker),
       .id = memory.id,
       .bytes = memory.nbytes});
  if (!notes_accesses_ || memory.address == nullptr) return;
  const auto address = reinterpret_cast<uintptr_t>(memory.address);
  living_[address] = {memory.id, memory.nbytes};
  addresses_[memory.id] = address;
}

void Tape::freed(int64_t id) {
  add({.kind = TapeKind::kFree, .id = id});
  const auto address = addresses_.extract(id);
  if (!address.empty()) living_.erase(address.mapped());
}

void Tape::recorded(int64_t event, int stream) {
  add({.kind = TapeKind::kRecord, .stream = static_cast<int16_t>(stream), .id = event});
}

void Tape::blocked(int64_t event, int stream) {
  add({.kind = TapeKind::kBlock, .stream = static_cast<int16_t>(stream), .id = event});
}

void Tape::host_waited_for_event(int64_t event) { add({.kind = TapeKind::kHostWaitsEvent, .id = event}); }

void Tape::host_waited_for_stream(int stream) {
  add({.kind = TapeKind::kHostWaitsStream, .stream = static_cast<int16_t>(stream)});
}

int Tape::add_group(std::vector<int> ranks) {
  groups_.push_back(std::move(ranks));
  return static_cast<int>(groups_.size()) - 1;
}

int64_t Tape::issued(const TapeCollective& collective, Place place, int stream) {
  const auto index = static_cast<int64_t>(collectives_.size());
  collectives_.push_back(collective);
  add({.kind = TapeKind::kCollective,
       .place = place,
       .stream = static_cast<int16_t>(stream),
       .id = index,
       .bytes = collective.numel * static_cast<int64_t>(c10::elementSize(collective.dtype))});
  return index;
}

void Tape::waited(int64_t collective, Place place, int stream) {
  add({.kind = TapeKind::kWait, .place = place, .stream = static_cast<int16_t>(stream), .id = collective});
}

void Tape::add(TapeEntry entry) {
  entry.backward = seams::in_backward();
  entries_.push_back(entry);
  if (notes_accesses_) accesses_.emplace_back();
  if (notes_times_) times_.push_back(now_ns());
}

int32_t Tape::name_of(const std::string& text) {
  const auto [known, is_new] = numbers_.emplace(text, static_cast<int32_t>(names_.size()));
  if (is_new) names_.push_back(text);
  return known->second;
}

}  // namespace fsdp::planner
