#include "planner/tape/tape.h"

#include <utility>

#include "base/visit_tensors.h"

namespace fsdp::planner {
namespace {

int64_t nbytes_of(const torch::jit::Stack& values) {
  int64_t nbytes = 0;
  for (const c10::IValue& value : values) {
    base::visit_tensors(value, [&](const at::Tensor& tensor) {
      if (tensor.defined()) nbytes += static_cast<int64_t>(tensor.nbytes());
    });
  }
  return nbytes;
}

}  // namespace

void Tape::kernel(const KernelCall& call) {
  entries_.push_back({.kind = TapeKind::kKernel,
                      .place = call.place,
                      .stream = static_cast<int16_t>(call.stream),
                      .name = name_of(c10::toString(call.op.operator_name())),
                      .bytes = nbytes_of(call.arguments) + nbytes_of(call.results)});
}

void Tape::allocated(Place place, int64_t id, int64_t nbytes, int stream) {
  entries_.push_back({.kind = TapeKind::kAllocation,
                      .place = place,
                      .stream = static_cast<int16_t>(stream),
                      .id = id,
                      .bytes = nbytes});
}

void Tape::freed(int64_t id) { entries_.push_back({.kind = TapeKind::kFree, .id = id}); }

void Tape::recorded(int64_t event, int stream) {
  entries_.push_back({.kind = TapeKind::kRecord, .stream = static_cast<int16_t>(stream), .id = event});
}

void Tape::blocked(int64_t event, int stream) {
  entries_.push_back({.kind = TapeKind::kBlock, .stream = static_cast<int16_t>(stream), .id = event});
}

void Tape::host_waited_for_event(int64_t event) {
  entries_.push_back({.kind = TapeKind::kHostWaitsEvent, .id = event});
}

void Tape::host_waited_for_stream(int stream) {
  entries_.push_back({.kind = TapeKind::kHostWaitsStream, .stream = static_cast<int16_t>(stream)});
}

int Tape::add_group(std::vector<int> ranks) {
  groups_.push_back(std::move(ranks));
  return static_cast<int>(groups_.size()) - 1;
}

int64_t Tape::issued(const TapeCollective& collective, Place place, int stream) {
  const auto index = static_cast<int64_t>(collectives_.size());
  collectives_.push_back(collective);
  entries_.push_back({.kind = TapeKind::kCollective,
                      .place = place,
                      .stream = static_cast<int16_t>(stream),
                      .id = index,
                      .bytes = collective.numel * static_cast<int64_t>(c10::elementSize(collective.dtype))});
  return index;
}

void Tape::waited(int64_t collective, Place place, int stream) {
  entries_.push_back(
      {.kind = TapeKind::kWait, .place = place, .stream = static_cast<int16_t>(stream), .id = collective});
}

int32_t Tape::name_of(const std::string& text) {
  const auto [known, is_new] = numbers_.emplace(text, static_cast<int32_t>(names_.size()));
  if (is_new) names_.push_back(text);
  return known->second;
}

}  // namespace fsdp::planner
