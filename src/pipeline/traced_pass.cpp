#include "pipeline/traced_pass.h"

#include <c10/util/StringUtil.h>

namespace fsdp::pipeline {
namespace {

using Kind = PipelineActionKind;

TraceTrack track_of(Kind kind) {
  switch (kind) {
    case Kind::kForward:
      return TraceTrack::kStageForward;
    case Kind::kInputGradient:
      return TraceTrack::kStageInputGradient;
    case Kind::kWeightGradient:
      return TraceTrack::kStageWeightGradient;
    default:
      return TraceTrack::kStageBackward;
  }
}

}  // namespace

PipelinePass TracedPass::ended(const PipelineAction& action, double end) const {
  const Pass pass = action.kind == Kind::kForward ? Pass::kForward : Pass::kBackward;
  stage_.trace().record(track_of(action.kind), c10::str(to_string(action.kind), *action.micro_batch), pass, traced_,
                        action.stage);
  return {action, begin_, end};
}

}  // namespace fsdp::pipeline
