#include "config/config_schema.h"

#include "config/config_keys.h"

namespace fsdp::trainer {

namespace {

std::vector<ConfigKey> all_keys() {
  std::vector<ConfigKey> keys;
  for (auto section : {model_and_data_keys(), optimization_keys(), precision_keys(), device_keys(), sharding_keys(),
                       parallelism_keys(), checkpoint_keys(), divergence_keys(), output_keys()}) {
    keys.insert(keys.end(), section.begin(), section.end());
  }
  return keys;
}

}  // namespace

const std::vector<ConfigKey>& config_schema() {
  static const std::vector<ConfigKey> keys = all_keys();
  return keys;
}

const ConfigKey* find_config_key(const std::string& name) {
  for (const ConfigKey& key : config_schema()) {
    if (key.name == name) return &key;
  }
  return nullptr;
}

}  // namespace fsdp::trainer
