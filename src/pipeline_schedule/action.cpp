#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "fsdp/pipeline_schedule.h"

namespace fsdp {
namespace {

using Kind = PipelineActionKind;

constexpr std::array<std::pair<Kind, const char*>, 11> kNames = {{
    {Kind::kForward, "F"},
    {Kind::kBackward, "B"},
    {Kind::kInputGradient, "I"},
    {Kind::kWeightGradient, "W"},
    {Kind::kUnshard, "UNSHARD"},
    {Kind::kReshard, "RESHARD"},
    {Kind::kReduceGradients, "REDUCE_GRAD"},
    {Kind::kSendForward, "SEND_F"},
    {Kind::kReceiveForward, "RECV_F"},
    {Kind::kSendBackward, "SEND_B"},
    {Kind::kReceiveBackward, "RECV_B"},
}};

// Takes the digits in front of `text` off it; returns none if there are none.
std::optional<int> take_number(std::string_view& text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end == text.data() || number < 0) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return number;
}

}  // namespace

const char* to_string(PipelineActionKind kind) {
  for (const auto& [known, name] : kNames) {
    if (known == kind) return name;
  }
  TORCH_CHECK(false, "fsdp: unknown kind of pipeline action ", static_cast<int>(kind));
}

bool computes(PipelineActionKind kind) {
  return kind == Kind::kForward || kind == Kind::kBackward || kind == Kind::kInputGradient ||
         kind == Kind::kWeightGradient;
}

bool has_micro_batch(PipelineActionKind kind) {
  return kind != Kind::kUnshard && kind != Kind::kReshard && kind != Kind::kReduceGradients;
}

std::string to_string(const PipelineAction& action) {
  std::string text = std::to_string(action.stage) + to_string(action.kind);
  if (action.micro_batch) text += std::to_string(*action.micro_batch);
  return text;
}

PipelineAction parse_pipeline_action(std::string_view text) {
  std::string_view rest = text;
  const auto stage = take_number(rest);
  const std::string_view name = rest.substr(0, rest.find_first_of("0123456789"));
  rest.remove_prefix(name.size());
  const auto kind = std::find_if(kNames.begin(), kNames.end(), [&](const auto& one) { return one.second == name; });
  const auto micro_batch = take_number(rest);
  const bool complete = stage && kind != kNames.end() && rest.empty();
  TORCH_CHECK(complete && micro_batch.has_value() == has_micro_batch(kind->first), "\"", text,
              "\" is no action of a pipeline: expected a stage, one of F, B, I, W, SEND_F, RECV_F, SEND_B and RECV_B, "
              "and a micro-batch, as in \"2F0\", or a stage and one of UNSHARD, RESHARD and REDUCE_GRAD");
  return {*stage, kind->first, micro_batch};
}

}  // namespace fsdp
