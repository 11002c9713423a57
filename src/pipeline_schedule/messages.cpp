#include "pipeline_schedule/messages.h"

namespace fsdp::pipeline_schedule {
namespace {

using Kind = PipelineActionKind;

bool makes_input_gradients(Kind kind) { return kind == Kind::kBackward || kind == Kind::kInputGradient; }

}  // namespace

std::string to_string(const Message& message) {
  const std::string stage = "stage " + std::to_string(message.stage);
  return (message.gradients ? "the gradients of " + stage + "'s inputs" : "the outputs of " + stage) +
         " for micro-batch " + std::to_string(message.micro_batch);
}

std::optional<Message> made_by(const PipelineAction& action, int stages) {
  if (action.kind == Kind::kForward && action.stage + 1 < stages)
    return Message{action.stage, false, *action.micro_batch};
  if (makes_input_gradients(action.kind) && action.stage > 0) return Message{action.stage, true, *action.micro_batch};
  return std::nullopt;
}

std::optional<Message> needed_by(const PipelineAction& action, int stages) {
  if (action.kind == Kind::kForward && action.stage > 0) return Message{action.stage - 1, false, *action.micro_batch};
  if (makes_input_gradients(action.kind) && action.stage + 1 < stages) {
    return Message{action.stage + 1, true, *action.micro_batch};
  }
  return std::nullopt;
}

std::optional<Message> sent_by(const PipelineAction& action) {
  if (action.kind == Kind::kSendForward) return Message{action.stage, false, *action.micro_batch};
  if (action.kind == Kind::kSendBackward) return Message{action.stage, true, *action.micro_batch};
  return std::nullopt;
}

std::optional<Message> received_by(const PipelineAction& action) {
  if (action.kind == Kind::kReceiveForward) return Message{action.stage - 1, false, *action.micro_batch};
  if (action.kind == Kind::kReceiveBackward) return Message{action.stage + 1, true, *action.micro_batch};
  return std::nullopt;
}

PipelineAction send_of(const Message& message) {
  return {message.stage, message.gradients ? Kind::kSendBackward : Kind::kSendForward, message.micro_batch};
}

PipelineAction receive_of(const Message& message) {
  return {message.receiver(), message.gradients ? Kind::kReceiveBackward : Kind::kReceiveForward, message.micro_batch};
}

}  // namespace fsdp::pipeline_schedule
