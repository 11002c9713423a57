#include <c10/util/Exception.h>

#include "fsdp/communicator.h"
#include "fsdp/debug_options.h"
#include "fsdp/options.h"
#include "fsdp/trace.h"

namespace fsdp {

const char* to_string(Pass pass) {
  switch (pass) {
    case Pass::kSetup:
      return "setup";
    case Pass::kForward:
      return "forward";
    case Pass::kBackward:
      return "backward";
    case Pass::kReduce:
      return "reduce";
    case Pass::kUser:
      return "user";
  }
  TORCH_CHECK(false, "fsdp: unknown pass ", static_cast<int>(pass));
}

const char* to_string(CollectiveCheckLevel level) {
  switch (level) {
    case CollectiveCheckLevel::kOff:
      return "off";
    case CollectiveCheckLevel::kSampled:
      return "sampled";
    case CollectiveCheckLevel::kAlways:
      return "always";
  }
  TORCH_CHECK(false, "fsdp: unknown level of collective checks ", static_cast<int>(level));
}

const char* to_string(ShardingStrategy strategy) {
  switch (strategy) {
    case ShardingStrategy::kFullShard:
      return "FULL_SHARD";
    case ShardingStrategy::kShardGradOp:
      return "SHARD_GRAD_OP";
    case ShardingStrategy::kNoShard:
      return "NO_SHARD";
    case ShardingStrategy::kHybridShard:
      return "HYBRID_SHARD";
    case ShardingStrategy::kHybridShardZero2:
      return "_HYBRID_SHARD_ZERO2";
  }
  TORCH_CHECK(false, "fsdp: unknown sharding strategy ", static_cast<int>(strategy));
}

const char* to_string(BackwardPrefetch prefetch) {
  switch (prefetch) {
    case BackwardPrefetch::kNone:
      return "none";
    case BackwardPrefetch::kPre:
      return "BACKWARD_PRE";
    case BackwardPrefetch::kPost:
      return "BACKWARD_POST";
  }
  TORCH_CHECK(false, "fsdp: unknown backward prefetch ", static_cast<int>(prefetch));
}

const char* to_string(TraceTrack track) {
  switch (track) {
    case TraceTrack::kStep:
      return "step";
    case TraceTrack::kCompute:
      return "compute";
    case TraceTrack::kWait:
      return "wait";
    case TraceTrack::kGather:
      return "gather";
    case TraceTrack::kReduce:
      return "reduce";
    case TraceTrack::kLimiter:
      return "limiter";
    case TraceTrack::kStageForward:
      return "stage_forward";
    case TraceTrack::kStageBackward:
      return "stage_backward";
    case TraceTrack::kStageInputGradient:
      return "stage_input_gradient";
    case TraceTrack::kStageWeightGradient:
      return "stage_weight_gradient";
    case TraceTrack::kStageWait:
      return "stage_wait";
  }
  TORCH_CHECK(false, "fsdp: unknown track ", static_cast<int>(track));
}

}  // namespace fsdp
