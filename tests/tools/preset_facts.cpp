// preset_facts: prints the names of all presets as a JSON array.
// preset_facts NAME [LENGTH…]: prints a JSON object with the preset's "config", "parameters" (the shape of each by its
// name, shared ones under all their names) and, for causal language models, "flops_per_token" of sequences of the given
// lengths.
#include <c10/util/Exception.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/presets.h"
#include "models/registry.h"
#include "tools/tool_main.h"

namespace {

using fsdp::models::CausalLM;
using fsdp::models::PretrainedModel;
using nlohmann::json;

json names() {
  json all = json::array();
  for (const auto& preset : fsdp::models::presets()) all.push_back(preset.name);
  return all;
}

json facts(const std::string& name, const std::vector<std::string>& lengths) {
  const json& config = fsdp::models::find_preset(name).config;
  const auto model = fsdp::models::make_uninitialized<PretrainedModel>(config, at::TensorOptions().device(at::kMeta));
  json parameters = json::object(), flops = json::object();
  for (const auto& parameter : model->named_parameters()) parameters[parameter.key()] = parameter.value().sizes().vec();
  if (const auto causal = std::dynamic_pointer_cast<CausalLM>(model)) {
    for (const std::string& length : lengths) flops[length] = causal->flops_per_token(std::stoll(length));
  }
  return {{"config", config}, {"parameters", parameters}, {"flops_per_token", flops}};
}

void run(const std::vector<std::string>& arguments) {
  const json result = arguments.empty() ? names() : facts(arguments[0], {arguments.begin() + 1, arguments.end()});
  std::printf("%s\n", result.dump().c_str());
}

}  // namespace

int main(int argc, char** argv) { fsdp::testing::tool_main(argc, argv, run); }
