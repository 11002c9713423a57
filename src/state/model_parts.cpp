#include "state/model_parts.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "engine/engine.h"

namespace fsdp::state {

std::vector<HeldPart> held_parts(const ModelParts& parts) {
  std::vector<HeldPart> all;
  for (const ModelPart& part : parts) {
    std::vector<HeldPart> held = held_parts(part.model);
    std::move(held.begin(), held.end(), std::back_inserter(all));
  }
  return all;
}

NamedTensors unsharded_tensors(const ModelParts& parts) {
  NamedTensors all;
  for (const ModelPart& part : parts) {
    NamedTensors tensors = unsharded_tensors(part.model, part.module);
    std::move(tensors.begin(), tensors.end(), std::back_inserter(all));
  }
  return all;
}

std::string stages_text(const ModelParts& parts) {
  std::vector<int> stages;
  for (const ModelPart& part : parts) stages.push_back(part.stage);
  std::sort(stages.begin(), stages.end());
  return c10::Join(", ", stages);
}

bool is_first_of_parts(const ModelParts& parts) { return parts.front().model.engine().mesh().is_first(); }

TiedSavers savers_of_tied(const ModelParts& parts, const std::vector<std::string>& tied, const Exchange& exchange,
                          const std::string& name) {
  if (tied.empty()) return {};
  const auto note = [](TiedSavers& first, const std::string& fqn, int stage) {
    const auto [found, is_new] = first.emplace(fqn, stage);
    if (!is_new) found->second = std::min(found->second, stage);
  };
  const std::vector<std::string> of_ranks = together(exchange, name, [&] {
    TiedSavers here;
    for (const ModelPart& part : parts) {
      for (const HeldPart& held : held_parts(part.model)) {
        if (std::find(tied.begin(), tied.end(), held.fqn) != tied.end()) note(here, held.fqn, part.stage);
      }
    }
    return nlohmann::json(here).dump();
  });
  TiedSavers savers;
  for (const std::string& text : of_ranks) {
    for (const auto& [fqn, stage] : nlohmann::json::parse(text).get<TiedSavers>()) note(savers, fqn, stage);
  }
  return savers;
}

}  // namespace fsdp::state
