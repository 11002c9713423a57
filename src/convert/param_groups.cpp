#include "convert/param_groups.h"

#include <algorithm>

#include "formats/common/json_text.h"

namespace fsdp::convert {
namespace {

using nlohmann::json;

// An optimizer that both torch.optim and LibTorch have.
struct Family {
  const char* name;
  const char* mark;                                        // an option that only this one has, by LibTorch's name
  std::vector<const char*> shared;                         // options of both
  std::vector<const char*> flags;                          // shared options that are booleans in Python
  std::vector<std::pair<const char*, json>> only_python;   // with torch's defaults
  std::vector<std::pair<const char*, json>> assumed = {};  // defaults of missing shared options
};

const std::vector<Family>& families() {
  static const std::vector<Family> all{
      {"Adam or AdamW",
       "beta1",
       {"lr", "beta1", "beta2", "eps", "weight_decay", "amsgrad", "decoupled_weight_decay"},
       {"amsgrad", "decoupled_weight_decay"},
       {{"maximize", false},
        {"foreach", nullptr},
        {"capturable", false},
        {"differentiable", false},
        {"fused", nullptr}},
       {{"amsgrad", false}, {"decoupled_weight_decay", true}}},
      {"SGD",
       "dampening",
       {"lr", "momentum", "dampening", "weight_decay", "nesterov"},
       {"nesterov"},
       {{"maximize", false}, {"foreach", nullptr}, {"differentiable", false}, {"fused", nullptr}}},
      {"Adagrad",
       "lr_decay",
       {"lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps"},
       {},
       {{"maximize", false}, {"foreach", nullptr}, {"differentiable", false}, {"fused", nullptr}}},
      {"RMSprop",
       "alpha",
       {"lr", "alpha", "eps", "weight_decay", "momentum", "centered"},
       {"centered"},
       {{"maximize", false}, {"foreach", nullptr}, {"capturable", false}, {"differentiable", false}}}};
  return all;
}

template <typename Has>
const Family* family_of(const Has& has) {
  const auto found =
      std::find_if(families().begin(), families().end(), [&](const Family& family) { return has(family.mark); });
  return found == families().end() ? nullptr : &*found;
}

bool is_one_of(const std::string& name, const std::vector<const char*>& names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Adds a note, unless it was added before.
void note(Notes& notes, const std::string& line) {
  if (std::find(notes.begin(), notes.end(), line) == notes.end()) notes.push_back(line);
}

void note_defaults(const Family& family, Notes& notes) {
  std::string line = std::string("parameter groups are treated as those of ") + family.name;
  line += "; options that LibTorch does not have get PyTorch's defaults:";
  for (const auto& [name, value] : family.only_python) line += std::string(" ") + name + "=" + value.dump();
  note(notes, line);
}

// Returns the assumed options that `has` does not find, and notes each.
template <typename Has>
std::vector<std::pair<const char*, json>> assumed(const Family& family, const Has& has, Notes& notes) {
  std::vector<std::pair<const char*, json>> missing;
  for (const auto& option : family.assumed) {
    if (has(option.first)) continue;
    missing.push_back(option);
    note(notes, std::string("parameter groups have no ") + option.first + ": assumed to be " + option.second.dump());
  }
  return missing;
}

// Splits "betas", which is one option in Python, into "beta1" and "beta2".
std::map<std::string, json> with_two_betas(std::map<std::string, json> options) {
  const auto betas = options.find("betas");
  if (betas != options.end() && betas->second.is_array() && betas->second.size() == 2) {
    options["beta1"] = betas->second[0];
    options["beta2"] = betas->second[1];
    options.erase(betas);
  }
  return options;
}

}  // namespace

PythonOptions to_python(const json& options, Notes& notes) {
  PythonOptions python;
  const auto has = [&](const char* name) { return options.contains(name); };
  const Family* family = family_of(has);
  for (const auto& [name, value] : options.items()) {
    if (name == "beta1" && options.contains("beta2")) {
      python.emplace_back("betas", json::array({value, options.at("beta2")}));
    } else if (name == "beta2" && options.contains("beta1")) {
      continue;
    } else if (family != nullptr && is_one_of(name, family->flags)) {
      python.emplace_back(name, value != 0);
    } else {
      python.emplace_back(name, value);
    }
  }
  if (family == nullptr) return python;
  for (const auto& [name, value] : assumed(*family, has, notes)) python.emplace_back(name, value);
  python.insert(python.end(), family->only_python.begin(), family->only_python.end());
  note_defaults(*family, notes);
  return python;
}

json from_python(const std::map<std::string, json>& python, Notes& notes) {
  auto given = with_two_betas(python);
  const auto has = [&](const char* name) { return given.count(name) > 0; };
  const Family* family = family_of(has);
  if (family != nullptr) {
    for (const auto& [name, value] : assumed(*family, has, notes)) given[name] = value;
  }
  json options = json::object();
  for (const auto& [name, value] : given) {
    const bool is_number = value.is_number() || value.is_boolean();
    if (is_number && (family == nullptr || is_one_of(name, family->shared))) {
      options[name] = value.is_boolean() ? json(value.get<bool>() ? 1.0 : 0.0) : json(value.get<double>());
      continue;
    }
    const auto is_this = [&name = name, &value = value](const auto& known) {
      return name == known.first && value == known.second;
    };
    const bool is_default =
        family != nullptr && std::any_of(family->only_python.begin(), family->only_python.end(), is_this);
    if (!is_default) {
      note(notes, "left out: option " + name + "=" + formats::json_text(value) +
                      " of parameter groups, which LibTorch's optimizers do not have");
    }
  }
  return options;
}

}  // namespace fsdp::convert
