// The config.json of a RegNet.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace fsdp::models {

// Fields have the names of config.json.
struct RegNetConfig {
  int64_t num_channels = 3;
  int64_t embedding_size = 32;
  std::vector<int64_t> hidden_sizes;  // width of each stage
  std::vector<int64_t> depths;        // number of blocks of each stage
  int64_t groups_width = 64;
  std::string layer_type = "y";     // "x": without squeeze and excitation
  std::string hidden_act = "relu";  // one of activation_names()
  bool downsample_in_first_stage = true;
  int64_t num_labels = 2;

  // The number of groups in the middle convolution of a block with `channels` channels.
  int64_t groups(int64_t channels) const;
};

// Required keys: hidden_sizes, depths. All others have the defaults of transformers; see parse_num_labels for the
// number of classes. Wrong types, values out of range, and group widths that do not fit are errors that name the key,
// its value and the accepted values.
RegNetConfig parse_regnet_config(const nlohmann::json& config);

}  // namespace fsdp::models
