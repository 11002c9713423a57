#include "pipeline/stage_links.h"

#include <c10/util/StringUtil.h>

#include <utility>

namespace fsdp::pipeline {

StageLinks::StageLinks(std::vector<int> rank_of_stage, int rank, const std::shared_ptr<Communicator>& group)
    : rank_of_stage_(std::move(rank_of_stage)), rank_(rank), lists_(group) {}

void StageLinks::begin_step() {
  ++step_;
  lists_.clear();
  outputs_.clear();
  inputs_.clear();
  gradients_.clear();
}

CollectiveId StageLinks::id_of_activation(int stage, int micro_batch) const {
  return {c10::str("activation of micro-batch ", micro_batch, ", stage ", stage), step_, Pass::kForward};
}

CollectiveId StageLinks::id_of_gradient(int stage, int micro_batch) const {
  return {c10::str("gradient of micro-batch ", micro_batch, ", stage ", stage), step_, Pass::kBackward};
}

// ---------------------------------------------------------------- forward

void StageLinks::expect_inputs(int stage, int micro_batch, c10::Device device) {
  lists_.expect_activations({stage, micro_batch}, rank_of(stage - 1), id_of_activation(stage - 1, micro_batch), device);
}

std::vector<ReceivedTensor> StageLinks::take_inputs(int stage, int micro_batch) {
  if (stage == 0) return {};
  if (receives_inputs(stage)) return lists_.take_activations({stage, micro_batch});
  return std::move(inputs_.extract({stage, micro_batch}).mapped());
}

void StageLinks::put_outputs(int stage, int micro_batch, std::vector<at::Tensor> outputs) {
  if (sends_outputs(stage)) {
    outputs_[{stage, micro_batch}] = std::move(outputs);
    return;
  }
  std::vector<ReceivedTensor>& inputs = inputs_[{stage + 1, micro_batch}];
  for (const at::Tensor& output : outputs) inputs.push_back({output.detach(), output.requires_grad()});
}

void StageLinks::send_outputs(int stage, int micro_batch) {
  const auto outputs = outputs_.extract({stage, micro_batch});
  lists_.send_activations(outputs.mapped(), rank_of(stage + 1), id_of_activation(stage, micro_batch));
}

// ---------------------------------------------------------------- backward

void StageLinks::expect_gradients(int stage, int micro_batch, std::vector<at::Tensor> gradients) {
  lists_.expect_gradients({stage, micro_batch}, std::move(gradients), rank_of(stage + 1),
                          id_of_gradient(stage, micro_batch));
}

std::vector<at::Tensor> StageLinks::take_gradients(int stage, int micro_batch) {
  if (is_last(stage)) return {};
  if (sends_outputs(stage)) return lists_.take_gradients({stage, micro_batch});
  return std::move(gradients_.extract({stage, micro_batch}).mapped());
}

void StageLinks::put_gradients(int stage, int micro_batch, std::vector<at::Tensor> gradients) {
  if (stage > 0) gradients_[{stage - 1, micro_batch}] = std::move(gradients);
}

void StageLinks::send_gradients(int stage, int micro_batch) {
  const auto gradients = gradients_.extract({stage - 1, micro_batch});
  if (gradients.empty()) return;
  lists_.send_gradients(gradients.mapped(), rank_of(stage - 1), id_of_gradient(stage - 1, micro_batch));
}

}  // namespace fsdp::pipeline
