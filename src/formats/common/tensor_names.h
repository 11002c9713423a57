// Names of tensors in a training checkpoint (docs/checkpoints.md).
#pragma once

#include <string>

namespace fsdp::formats {

constexpr const char *kModelPrefix = "model/", *kBufferPrefix = "buffer/", *kOptimizerPrefix = "optimizer/";

inline std::string model_name(const std::string& fqn) { return kModelPrefix + fqn; }
inline std::string buffer_name(const std::string& fqn) { return kBufferPrefix + fqn; }
inline std::string optimizer_name(const std::string& fqn, const std::string& name) {
  return kOptimizerPrefix + fqn + "/" + name;
}
inline std::string rank_name(int rank, const std::string& name) { return "rank/" + std::to_string(rank) + "/" + name; }

}  // namespace fsdp::formats
