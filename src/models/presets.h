// Models of published sizes, by name.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace fsdp::models {

// The settings that a publication trained a model with.
struct PublishedRuns {
  int64_t sequence_length = 0;       // tokens in a sample; for T5 in its source, and again in its target
  int64_t image_size = 0;            // height and width of an image, for image models
  std::vector<int64_t> batch_sizes;  // samples per GPU and step; for image models, entry i belongs to gpus[i]
  std::vector<int64_t> gpus;         // numbers of GPUs; for tabular models the smallest and the largest
};

struct Preset {
  std::string name;
  std::string source;     // the publication that sizes and runs are from
  nlohmann::json config;  // as in a Hugging Face folder's config.json
  std::optional<PublishedRuns> runs;
};

const std::vector<Preset>& presets();

// Returns the preset with this name. An unknown name is an error that lists the known names.
const Preset& find_preset(const std::string& name);

}  // namespace fsdp::models
