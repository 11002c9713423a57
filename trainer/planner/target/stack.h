// The software that runs a step, as far as the times of its kernels and of its host depend on it.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace fsdp::planner {

// Which memory-bound kernels run as one. kModules: those of an RMS norm, and of a rotary embedding.
enum class Fusion : uint8_t { kNone, kModules, kAll };

// The default is this library: it changes nothing.
struct Stack {
  std::string name = "ours";
  // Seconds of the host thread for each kernel and for each collective; none: as the cluster says.
  std::optional<double> host_per_kernel = {};
  std::optional<double> host_per_collective = {};
  Fusion fusion = Fusion::kNone;
  double attention_rate = 1;       // of fused attention, in parts of the device's
  bool skips_masked_keys = false;  // whether attention with a bias is as quick as causal attention
  double optimizer_traffic = 1;    // bytes that Adam moves, as a multiple of one fused kernel's
  bool copies_gathers = false;     // whether gathered parameters are copied out of what was sent
  bool float8_products = false;    // of linear layers, but not of the head
  bool float8_gathers = false;

  bool is_ours() const { return *this == Stack(); }
  bool uses_float8() const { return float8_products || float8_gathers; }
  bool operator==(const Stack&) const = default;
};

const std::vector<Stack>& known_stacks();

// Reads the value of --stack: a file if it ends in ".json" or contains a slash, otherwise a name. Throws a ConfigError
// that names the file, the key, the value and the accepted values.
Stack read_stack(const std::string& name_or_file);

// Like read_stack, for the members of a file. `source`: its name in errors.
Stack read_stack(const nlohmann::json& file, const std::string& source);

}  // namespace fsdp::planner
