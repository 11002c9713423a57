#include "planner/report/stage_document.h"

#include <cstdint>
#include <utility>

#include "planner/report/text_row.h"

namespace fsdp::planner {

nlohmann::ordered_json stage_document(const trainer::PipelineLayout& layout, const trainer::ShardedParts& parts,
                                      const nlohmann::ordered_json& plan) {
  nlohmann::ordered_json stages = nlohmann::ordered_json::array();
  for (const trainer::ShardedPart& part : parts) {
    stages.push_back(trainer::part_text(layout.parts.at(static_cast<size_t>(part.stage))));
  }
  int64_t parameters = 0;
  for (const auto& unit : plan.at("units")) parameters += unit.at("parameters").get<int64_t>();
  const auto& memory = plan.at("memory");
  nlohmann::ordered_json document = {
      {"rank", plan.at("rank")},
      {"stages", std::move(stages)},
      {"parameters", parameters},
      {"verdict", memory.at("verdict")},
      {"bytes", memory.contains("device") ? memory["device"].at("total") : memory.at("host").at("per_host")}};
  if (plan.contains("time")) {
    for (const char* figure : {"compute_seconds", "step_seconds"}) document[figure] = plan["time"].at(figure);
  }
  return document;
}

std::optional<std::string> busy_text(const nlohmann::ordered_json& rank) {
  if (!rank.contains("step_seconds")) return std::nullopt;
  const double share = rank["compute_seconds"].get<double>() / rank["step_seconds"].get<double>();
  return fixed_text(100 * share, 0) + " % of the step";
}

std::string stages_text(const nlohmann::ordered_json& rank) {
  std::string text;
  for (const auto& stage : rank.at("stages")) text += (text.empty() ? "" : "; ") + stage.get<std::string>();
  return text;
}

}  // namespace fsdp::planner
