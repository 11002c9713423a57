#include "base/allocation_tag.h"

#include <c10/util/Exception.h>

#include <utility>

namespace fsdp::base {
namespace {

AllocationPurpose& purpose_of_thread() {
  thread_local AllocationPurpose purpose = AllocationPurpose::kOther;
  return purpose;
}

}  // namespace

const char* to_string(AllocationPurpose purpose) {
  switch (purpose) {
    case AllocationPurpose::kOther:
      return "other";
    case AllocationPurpose::kShards:
      return "parameter shards";
    case AllocationPurpose::kGradientShards:
      return "gradient shards";
    case AllocationPurpose::kUnshardedParameters:
      return "unsharded parameters";
    case AllocationPurpose::kGradientBuffers:
      return "gradient buffers";
    case AllocationPurpose::kOptimizerState:
      return "optimizer state";
    case AllocationPurpose::kCommunication:
      return "communication";
  }
  TORCH_CHECK(false, "fsdp: unknown purpose of memory ", static_cast<int>(purpose));
}

AllocationTag::AllocationTag(AllocationPurpose purpose) : outer_(std::exchange(purpose_of_thread(), purpose)) {}
AllocationTag::~AllocationTag() { purpose_of_thread() = outer_; }
AllocationPurpose AllocationTag::current() { return purpose_of_thread(); }

}  // namespace fsdp::base
