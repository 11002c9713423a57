// Models of published sizes, by name.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace fsdp::models {

// What a publication trained a model with.
struct PublishedRuns {
  int64_t sequence_length = 0;       // tokens in a sample; of T5 in its source, and again in its target
  int64_t image_size = 0;            // height and width of a sample, of an image model
  std::vector<int64_t> batch_sizes;  // samples of one GPU and step; of an image model with as many gpus each
  std::vector<int64_t> gpus;         // numbers of GPUs; of a tabular model the fewest and the most
};

struct Preset {
  std::string name;
  std::string source;     // where sizes and runs are from
  nlohmann::json config;  // as in a Hugging Face folder's config.json
  std::optional<PublishedRuns> runs;
};

const std::vector<Preset>& presets();

// An unknown name is an error that lists the names there are.
const Preset& find_preset(const std::string& name);

}  // namespace fsdp::models
