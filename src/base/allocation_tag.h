// Says for which purpose memory is allocated, to whoever watches an allocator.
#pragma once

#include <cstdint>

namespace fsdp::base {

enum class AllocationPurpose : uint8_t {
  kOther,  // the model's own: activations, buffers, temporaries
  kShards,
  kGradientShards,
  kUnshardedParameters,
  kGradientBuffers,
  kOptimizerState,
  kCommunication,
};
constexpr int kAllocationPurposes = 7;
const char* to_string(AllocationPurpose purpose);

// Names the purpose of what this thread allocates while the tag lives. An inner tag replaces an outer one.
class AllocationTag {
 public:
  explicit AllocationTag(AllocationPurpose purpose);
  ~AllocationTag();
  AllocationTag(const AllocationTag&) = delete;
  AllocationTag& operator=(const AllocationTag&) = delete;

  // The purpose of what this thread allocates now.
  static AllocationPurpose current();

 private:
  AllocationPurpose outer_;
};

}  // namespace fsdp::base
