#include <cmath>
#include <limits>
#include <optional>

#include "models/rope.h"

namespace fsdp::models {
namespace {

constexpr double kMaxNumber = std::numeric_limits<double>::max();

// The object that says how frequencies are scaled, and where it was found.
struct Scaling {
  ConfigReader reader;
  bool of_layer_type;
};

void parse_length(const ConfigReader& config, const Scaling& scaling, int64_t max_position_embeddings,
                  const RopeFamily& family, RopeConfig& rope) {
  const std::string key = "original_max_position_embeddings";
  const int64_t inside = scaling.reader.positive_integer(key, max_position_embeddings);
  rope.original_max_position_embeddings = inside;
  if (scaling.of_layer_type) return;
  if (family.original_max_position_embeddings != 0) {
    rope.original_max_position_embeddings = config.positive_integer(key, family.original_max_position_embeddings);
  } else if (config.has(key)) {
    rope.original_max_position_embeddings = config.positive_integer(key);
  }
}

void parse_llama3(const ConfigReader& scaling, RopeConfig& rope) {
  rope.factor = scaling.number("factor", {}, 1e-6, 1e6);
  rope.low_freq_factor = scaling.number("low_freq_factor", {}, 1e-6, 1e6);
  rope.high_freq_factor = scaling.number("high_freq_factor", {}, 1e-6, 1e6);
  if (rope.high_freq_factor <= rope.low_freq_factor) {
    scaling.refuse("high_freq_factor", c10::str("greater than low_freq_factor, ", rope.low_freq_factor));
  }
}

// Returns the ratio of the context lengths.
double extension(const RopeConfig& rope, int64_t max_position_embeddings) {
  return static_cast<double>(max_position_embeddings) / static_cast<double>(rope.original_max_position_embeddings);
}

double yarn_attention_factor(const ConfigReader& scaling, double factor) {
  const auto mscale_of = [&](double mscale) { return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0; };
  const double mscale = scaling.number("mscale", 0.0, 0.0, 1e6),
               of_all = scaling.number("mscale_all_dim", 0.0, 0.0, 1e6);
  const double inferred = mscale != 0 && of_all != 0 ? mscale_of(mscale) / mscale_of(of_all) : mscale_of(1.0);
  return scaling.number("attention_factor", inferred, 0.0, 1e6);
}

void parse_yarn(const Scaling& scaling, int64_t max_position_embeddings, RopeConfig& rope) {
  const ConfigReader& reader = scaling.reader;
  rope.factor = reader.number("factor", extension(rope, max_position_embeddings), 1e-6, 1e6);
  rope.attention_factor = yarn_attention_factor(reader, rope.factor);
  rope.beta_fast = reader.number("beta_fast", rope.beta_fast, 1e-6, 1e6);
  rope.beta_slow = reader.number("beta_slow", rope.beta_slow, 1e-6, 1e6);
  // In the object of a layer type transformers does not read it, so it is refused there as a key that nothing reads.
  if (!scaling.of_layer_type) rope.truncate = reader.boolean("truncate", rope.truncate);
  if (rope.theta == 1.0) {
    reader.refuse("rope_theta", "other than 1 with yarn, which divides by its logarithm");
  }
}

void parse_longrope(const ConfigReader& scaling, int64_t max_position_embeddings, RopeConfig& rope) {
  const auto pairs = static_cast<size_t>(rope.rotary_dim / 2);
  rope.short_factor = scaling.numbers("short_factor", pairs, 1e-6, 1e6);
  rope.long_factor = scaling.numbers("long_factor", pairs, 1e-6, 1e6);
  rope.factor = scaling.number("factor", extension(rope, max_position_embeddings), 1e-6, 1e6);
  const auto length = static_cast<double>(rope.original_max_position_embeddings);
  const bool extends = rope.factor > 1.0;
  if (extends && length < 2 && !scaling.has("attention_factor")) {
    scaling.refuse("original_max_position_embeddings", "at least 2: longrope divides by its logarithm");
  }
  const double inferred = extends && length >= 2 ? std::sqrt(1 + std::log(rope.factor) / std::log(length)) : 1.0;
  rope.attention_factor = scaling.number("attention_factor", inferred, 0.0, 1e6);
}

RopeType parse_type(const ConfigReader& scaling, const RopeFamily& family) {
  const std::string key = scaling.has("rope_type") ? "rope_type" : "type";
  scaling.has("type");  // both may be present, with the same value
  if (family.knows_only_longrope) {
    const std::string type = scaling.choice(key, "default", {"default", "longrope", "su", "yarn"});
    return type == "default" ? RopeType::kDefault : RopeType::kLongrope;
  }
  const std::string type = scaling.choice(key, "default", {"default", "linear", "llama3", "yarn", "longrope"});
  if (type == "linear") return RopeType::kLinear;
  if (type == "llama3") return RopeType::kLlama3;
  if (type == "yarn") return RopeType::kYarn;
  return type == "longrope" ? RopeType::kLongrope : RopeType::kDefault;
}

// Sets how many elements of a head are rotated. `reader` has the key, if anything has.
void parse_part(const ConfigReader& reader, int64_t head_dim, double default_factor, const RopeFamily& family,
                RopeConfig& rope) {
  const std::string key = "partial_rotary_factor";
  const double factor = reader.number(key, default_factor, 0.0, 1.0);
  if (factor != 1.0 && !family.may_be_partial) {
    reader.refuse(key, "1 or absent: these models rotate whole heads");
  }
  rope.rotary_dim = static_cast<int64_t>(static_cast<double>(head_dim) * factor);
  if (rope.rotary_dim < 2 || rope.rotary_dim % 2 != 0) {
    reader.refuse(key, c10::str("such that the part of a head that is rotated, ", rope.rotary_dim, " of ", head_dim,
                                " elements, is even and not empty"));
  }
}

void parse_scaling(const ConfigReader& config, const Scaling& scaling, int64_t max_position_embeddings,
                   const RopeFamily& family, RopeConfig& rope) {
  rope.type = parse_type(scaling.reader, family);
  if (rope.type == RopeType::kDefault || rope.type == RopeType::kLinear) {
    // Folders of transformers may say the length of models that do not need it.
    scaling.reader.has("original_max_position_embeddings");
  } else {
    parse_length(config, scaling, max_position_embeddings, family, rope);
  }
  switch (rope.type) {
    case RopeType::kLinear:
      rope.factor = scaling.reader.number("factor", {}, 1e-6, 1e6);
      break;
    case RopeType::kLlama3:
      parse_llama3(scaling.reader, rope);
      break;
    case RopeType::kYarn:
      parse_yarn(scaling, max_position_embeddings, rope);
      break;
    case RopeType::kLongrope:
      parse_longrope(scaling.reader, max_position_embeddings, rope);
      break;
    case RopeType::kDefault:
      break;
  }
  scaling.reader.refuse_unread("the rotary embedding", {});
}

// Returns the reader of the object under a key, or nothing if it is absent.
std::optional<Scaling> object_under(const ConfigReader& config, const std::string& key, bool of_layer_type) {
  if (!config.has(key)) return std::nullopt;
  return Scaling{ConfigReader(config.at(key), config.where() + ": " + key), of_layer_type};
}

bool has_older_spelling(const ConfigReader& config) {
  return config.has("rope_scaling") && !config.at("rope_scaling").empty();
}

std::optional<Scaling> scaling_of(const ConfigReader& config) {
  config.has("rope_parameters");  // counts as read, even where the older spelling wins
  const char* key = has_older_spelling(config) ? "rope_scaling" : "rope_parameters";
  return object_under(config, key, /*of_layer_type=*/false);
}

std::optional<Scaling> scaling_of_layer_type(const ConfigReader& config, const std::string& layer_type,
                                             bool takes_scaling) {
  const bool has_older = has_older_spelling(config);
  if (const auto types = object_under(config, "rope_parameters", /*of_layer_type=*/false)) {
    for (const auto& [key, value] : config.at("rope_parameters").items()) {
      if (key == "full_attention" || key == "sliding_attention") continue;
      types->reader.refuse(key, "absent: in these models its keys are full_attention and sliding_attention");
    }
    if (has_older) config.refuse("rope_scaling", "absent beside rope_parameters");
    return object_under(types->reader, layer_type, /*of_layer_type=*/true);
  }
  return takes_scaling && has_older ? object_under(config, "rope_scaling", /*of_layer_type=*/true) : std::nullopt;
}

}  // namespace

RopeConfig parse_rope_config(const ConfigReader& config, int64_t head_dim, int64_t max_position_embeddings,
                             const RopeFamily& family) {
  RopeConfig rope;
  rope.pairs = family.pairs;
  rope.theta = config.number("rope_theta", family.theta, 1e-6, kMaxNumber);
  config.has("original_max_position_embeddings");
  parse_part(config, head_dim, family.partial_rotary_factor, family, rope);
  const std::optional<Scaling> scaling = scaling_of(config);
  if (!scaling) return rope;
  rope.theta = scaling->reader.number("rope_theta", rope.theta, 1e-6, kMaxNumber);
  if (scaling->reader.has("partial_rotary_factor")) parse_part(scaling->reader, head_dim, 1.0, family, rope);
  parse_scaling(config, *scaling, max_position_embeddings, family, rope);
  return rope;
}

RopeConfig parse_rope_of_layer_type(const ConfigReader& config, const std::string& layer_type, int64_t head_dim,
                                    int64_t max_position_embeddings, const std::string& theta_key, double theta,
                                    bool takes_scaling) {
  RopeConfig rope;
  rope.rotary_dim = head_dim;
  rope.theta = theta_key.empty() ? theta : config.number(theta_key, theta, 1e-6, kMaxNumber);
  const std::optional<Scaling> scaling = scaling_of_layer_type(config, layer_type, takes_scaling);
  if (!scaling) return rope;
  rope.theta = scaling->reader.number("rope_theta", rope.theta, 1e-6, kMaxNumber);
  parse_scaling(config, *scaling, max_position_embeddings, {}, rope);
  return rope;
}

}  // namespace fsdp::models
