// The results that stages of neighbouring numbers exchange.
#pragma once

#include <optional>
#include <string>

#include "fsdp/pipeline_schedule.h"

namespace fsdp::pipeline_schedule {

// The outputs of a stage for one micro-batch, or the gradients of its inputs.
struct Message {
  int stage = 0;  // which made it
  bool gradients = false;
  int micro_batch = 0;

  auto operator<=>(const Message&) const = default;

  int receiver() const { return gradients ? stage - 1 : stage + 1; }  // a stage
};

// "the outputs of stage 2 for micro-batch 0", "the gradients of stage 3's inputs for micro-batch 0"
std::string to_string(const Message& message);

// What a pass makes that another stage needs, or none.
std::optional<Message> made_by(const PipelineAction& action, int stages);

// What a pass needs of another stage, or none.
std::optional<Message> needed_by(const PipelineAction& action, int stages);

// What a send sends, or none for other actions.
std::optional<Message> sent_by(const PipelineAction& action);

// What a receive receives, or none for other actions.
std::optional<Message> received_by(const PipelineAction& action);

PipelineAction send_of(const Message& message);
PipelineAction receive_of(const Message& message);

}  // namespace fsdp::pipeline_schedule
