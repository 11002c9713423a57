// Sources:
//   host_per_kernel, host_per_collective: guesses. An operator that Python calls takes about 20 us, one that compiled
//     code launches a few; hooks of FSDP in Python take some 100 us for each unit.
//   copies_gathers: FSDP2 copies each gather into its parameters (torch/distributed/fsdp/_fully_shard/
//     _fsdp_collectives.py, split_with_sizes_copy).
//   attention_rate of "llm-foundry": ALiBi ran in Triton alone (mosaicml/llm-foundry, configuration_mpt.py: "alibi only
//     implemented with torch and triton attention"), in a port of the first FlashAttention. That one reaches 25 to 40 %
//     of the peak (abstract of FlashAttention-2's paper); 0.325 over 0.575, the mean of 0.62 and 0.53 of
//     FlashAttention-2 (known_devices.cpp), is 0.57. That this holds on Hopper is a guess.
//   skips_masked_keys of "llm-foundry": the same port takes ALiBi as a bias of one row for each head, and skips blocks
//     of keys after the queries (llmfoundry/models/layers/flash_attn_triton.py).
//   optimizer_traffic of "llm-foundry": Composer's DecoupledAdamW (composer/optim/decoupled_weight_decay.py) is a
//     sequence of eight kernels that move 80 bytes for each parameter in fp32: mul_ 8, add_ 12, mul_ 8, addcmul_ 12,
//     sqrt 8, division 8, add_ 8, addcdiv_ 16. One fused kernel moves 28.
#include "planner/target/stack.h"

#include <c10/util/StringUtil.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "config/config_schema.h"
#include "config/edit_distance.h"
#include "config/errors.h"
#include "config/json_object_file.h"
#include "formats/common/json_text.h"
#include "planner/target/name_index.h"
#include "planner/target/quantity.h"

namespace fsdp::planner {
namespace {

using nlohmann::json;
using trainer::ConfigError;

constexpr double kPythonKernel = 20e-6;
constexpr double kPythonCollective = 200e-6;
constexpr double kCompiledKernel = 8e-6;
constexpr double kFirstFlashAttention = 0.57;
constexpr double kUnfusedAdam = 80.0 / 28;

const std::vector<std::string>& fusion_names() {
  static const std::vector<std::string> names = {"none", "modules", "all"};
  return names;
}

// Returns why a value is refused, or an empty text.
using ReadMember = std::function<std::string(Stack&, const json&)>;

struct StackMember {
  std::string name;
  std::string accepted;
  ReadMember read;
};

StackMember seconds_member(const std::string& name, std::optional<double> Stack::* member) {
  return {name, accepted_quantity(Unit::kSeconds) + ", from 0 to 1s, or null",
          [member](Stack& stack, const json& value) -> std::string {
            stack.*member = std::nullopt;
            if (value.is_null()) return "";
            const Quantity seconds = quantity_of(value, Unit::kSeconds);
            if (!seconds.value) return seconds.complaint;
            if (!(*seconds.value >= 0 && *seconds.value <= 1)) return "is out of range";
            stack.*member = seconds.value;
            return "";
          }};
}

StackMember factor_member(const std::string& name, double Stack::* member, double most) {
  return {name, c10::str("a number, > 0 and <= ", most),
          [member, most](Stack& stack, const json& value) -> std::string {
            if (!value.is_number()) return "is not a number";
            const auto factor = value.get<double>();
            if (!(factor > 0 && factor <= most)) return "is out of range";
            stack.*member = factor;
            return "";
          }};
}

StackMember flag_member(const std::string& name, bool Stack::* member) {
  return {name, "true or false", [member](Stack& stack, const json& value) -> std::string {
            if (!value.is_boolean()) return "is neither";
            stack.*member = value.get<bool>();
            return "";
          }};
}

StackMember fusion_member() {
  return {"fusion", trainer::join_or(fusion_names()), [](Stack& stack, const json& value) -> std::string {
            const auto index = name_index(fusion_names(), value);
            if (!index) return "is not an accepted value";
            stack.fusion = static_cast<Fusion>(*index);
            return "";
          }};
}

const std::vector<StackMember>& stack_members() {
  static const std::vector<StackMember> members = {
      seconds_member("host_per_kernel", &Stack::host_per_kernel),
      seconds_member("host_per_collective", &Stack::host_per_collective),
      fusion_member(),
      factor_member("attention_rate", &Stack::attention_rate, 10),
      flag_member("skips_masked_keys", &Stack::skips_masked_keys),
      factor_member("optimizer_traffic", &Stack::optimizer_traffic, 10),
      flag_member("copies_gathers", &Stack::copies_gathers),
      flag_member("float8_products", &Stack::float8_products),
      flag_member("float8_gathers", &Stack::float8_gathers),
  };
  return members;
}

std::vector<std::string> names_of_stacks() {
  std::vector<std::string> names;
  for (const Stack& stack : known_stacks()) names.push_back(stack.name);
  return names;
}

Stack named_stack(const std::string& name, const std::string& source) {
  for (const Stack& stack : known_stacks()) {
    if (stack.name == name) return stack;
  }
  const std::optional<std::string> similar = trainer::similar_name(name.substr(0, 100), names_of_stacks());
  throw ConfigError(c10::str(source, " \"", name, "\": no stack has this name",
                             similar ? c10::str("; the nearest known one is \"", *similar, "\"") : "",
                             "; accepted: ", trainer::join_or(names_of_stacks()), ", or a FILE.json"));
}

void read_member(const std::string& name, const json& value, const std::string& source, Stack& stack) {
  std::vector<std::string> known = {"base"};
  for (const StackMember& member : stack_members()) {
    known.push_back(member.name);
    if (member.name != name) continue;
    const std::string complaint = member.read(stack, value);
    if (complaint.empty()) return;
    throw ConfigError(c10::str(source, ": key \"", name, "\": ", formats::json_text(value), " ", complaint,
                               "; accepted: ", member.accepted));
  }
  throw ConfigError(c10::str(source, ": unknown key \"", name, "\"; accepted: ", c10::Join(", ", known)));
}

}  // namespace

const std::vector<Stack>& known_stacks() {
  static const std::vector<Stack> stacks = {
      {},
      {.name = "fsdp1", .host_per_kernel = kPythonKernel, .host_per_collective = kPythonCollective},
      {.name = "fsdp2",
       .host_per_kernel = kPythonKernel,
       .host_per_collective = kPythonCollective,
       .copies_gathers = true},
      {.name = "compiled",
       .host_per_kernel = kCompiledKernel,
       .host_per_collective = kPythonCollective,
       .fusion = Fusion::kAll,
       .copies_gathers = true},
      {.name = "compiled-fp8",
       .host_per_kernel = kCompiledKernel,
       .host_per_collective = kPythonCollective,
       .fusion = Fusion::kAll,
       .copies_gathers = true,
       .float8_products = true,
       .float8_gathers = true},
      {.name = "llm-foundry",
       .host_per_kernel = kPythonKernel,
       .host_per_collective = kPythonCollective,
       .attention_rate = kFirstFlashAttention,
       .skips_masked_keys = true,
       .optimizer_traffic = kUnfusedAdam},
  };
  return stacks;
}

Stack read_stack(const std::string& name_or_file) {
  const bool is_file = name_or_file.find('/') != std::string::npos || name_or_file.ends_with(".json");
  if (!is_file) return named_stack(name_or_file, "--stack");
  return read_stack(trainer::read_json_object(name_or_file), name_or_file);
}

Stack read_stack(const json& file, const std::string& source) {
  Stack stack;
  if (file.contains("base")) {
    if (!file["base"].is_string()) {
      throw ConfigError(c10::str(source, ": key \"base\": ", formats::json_text(file["base"]),
                                 " is not a string; accepted: ", trainer::join_or(names_of_stacks())));
    }
    stack = named_stack(file["base"].get<std::string>(), source + ": key \"base\":");
  }
  for (const auto& [name, value] : file.items()) {
    if (name != "base") read_member(name, value, source, stack);
  }
  stack.name = source;
  return stack;
}

}  // namespace fsdp::planner
