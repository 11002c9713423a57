#include "models/regnet_config.h"

#include <c10/util/StringUtil.h>

#include <algorithm>

#include "models/activations.h"
#include "models/config_reader.h"
#include "models/image_config.h"

namespace fsdp::models {
namespace {

constexpr int64_t kSmallestSqueezed = 3;  // a quarter of it rounds to one channel

void check_sizes(const ConfigReader& config, const RegNetConfig& regnet) {
  if (regnet.depths.size() != regnet.hidden_sizes.size()) {
    config.refuse("depths", c10::str("as long as hidden_sizes, ", regnet.hidden_sizes.size()));
  }
  for (int64_t channels : regnet.hidden_sizes) {
    if (channels % regnet.groups(channels) != 0) {
      config.refuse("groups_width", c10::str("such that it splits each of hidden_sizes evenly: ", channels,
                                             " does not split into ", regnet.groups(channels), " equal groups"));
    }
  }
  if (regnet.layer_type != "y") return;
  const std::string expected = c10::str("at least ", kSmallestSqueezed, " with layer_type \"y\"");
  if (regnet.embedding_size < kSmallestSqueezed) config.refuse("embedding_size", expected);
  if (*std::min_element(regnet.hidden_sizes.begin(), regnet.hidden_sizes.end()) < kSmallestSqueezed) {
    config.refuse("hidden_sizes", expected);
  }
}

}  // namespace

int64_t RegNetConfig::groups(int64_t channels) const { return std::max<int64_t>(1, channels / groups_width); }

RegNetConfig parse_regnet_config(const nlohmann::json& json) {
  const ConfigReader config(json, "config.json");
  RegNetConfig regnet;
  regnet.num_channels = config.positive_integer("num_channels", regnet.num_channels);
  regnet.embedding_size = config.positive_integer("embedding_size", regnet.embedding_size);
  regnet.hidden_sizes = config.positive_integers("hidden_sizes");
  regnet.depths = config.positive_integers("depths");
  regnet.groups_width = config.positive_integer("groups_width", regnet.groups_width);
  regnet.layer_type = config.choice("layer_type", regnet.layer_type, {"x", "y"});
  regnet.hidden_act = config.choice("hidden_act", regnet.hidden_act, activation_names());
  regnet.downsample_in_first_stage = config.boolean("downsample_in_first_stage", regnet.downsample_in_first_stage);
  regnet.num_labels = parse_num_labels(config);
  check_sizes(config, regnet);
  return regnet;
}

}  // namespace fsdp::models
