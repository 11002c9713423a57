// The names of enumerators in config files: one table for each enumeration.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/config.h"

namespace fsdp::trainer {

template <typename Enum, size_t N>
using NamesOf = std::array<std::pair<Enum, const char*>, N>;

// The table of Enum, in the order of the documentation.
template <typename Enum>
struct ConfigNames;

template <>
struct ConfigNames<LrSchedulerType> {
  static constexpr NamesOf<LrSchedulerType, 3> kTable = {{{LrSchedulerType::kConstant, "constant"},
                                                          {LrSchedulerType::kLinear, "linear"},
                                                          {LrSchedulerType::kCosine, "cosine"}}};
};
template <>
struct ConfigNames<AttentionMask> {
  static constexpr NamesOf<AttentionMask, 2> kTable = {
      {{AttentionMask::kCausal, "causal"}, {AttentionMask::kBlockCausal, "block_causal"}}};
};
template <>
struct ConfigNames<sparse::RowRule> {
  static constexpr NamesOf<sparse::RowRule, 2> kTable = {
      {{sparse::RowRule::kRowWiseAdagrad, "row_wise_adagrad"}, {sparse::RowRule::kSgd, "sgd"}}};
};
template <>
struct ConfigNames<c10::ScalarType> {
  static constexpr NamesOf<c10::ScalarType, 3> kTable = {
      {{c10::kFloat, "fp32"}, {c10::kBFloat16, "bf16"}, {c10::kHalf, "fp16"}}};
};
template <>
struct ConfigNames<DeviceChoice> {
  static constexpr NamesOf<DeviceChoice, 3> kTable = {
      {{DeviceChoice::kAuto, "auto"}, {DeviceChoice::kCpu, "cpu"}, {DeviceChoice::kCuda, "cuda"}}};
};
template <>
struct ConfigNames<ShardingStrategy> {
  static constexpr NamesOf<ShardingStrategy, 5> kTable = {
      {{ShardingStrategy::kFullShard, "full_shard"},
       {ShardingStrategy::kShardGradOp, "shard_grad_op"},
       {ShardingStrategy::kNoShard, "no_shard"},
       {ShardingStrategy::kHybridShard, "hybrid_shard"},
       {ShardingStrategy::kHybridShardZero2, "hybrid_shard_zero2"}}};
};
template <>
struct ConfigNames<UnitsBy> {
  static constexpr NamesOf<UnitsBy, 4> kTable = {{{UnitsBy::kTransformer, "transformer"},
                                                  {UnitsBy::kSize, "size"},
                                                  {UnitsBy::kAutoUnits, "auto_units"},
                                                  {UnitsBy::kNone, "none"}}};
};
template <>
struct ConfigNames<BackwardPrefetch> {
  static constexpr NamesOf<BackwardPrefetch, 3> kTable = {{{BackwardPrefetch::kNone, "none"},
                                                           {BackwardPrefetch::kPre, "backward_pre"},
                                                           {BackwardPrefetch::kPost, "backward_post"}}};
};
template <>
struct ConfigNames<CollectiveCheckLevel> {
  static constexpr NamesOf<CollectiveCheckLevel, 3> kTable = {{{CollectiveCheckLevel::kOff, "off"},
                                                               {CollectiveCheckLevel::kSampled, "sampled"},
                                                               {CollectiveCheckLevel::kAlways, "always"}}};
};
template <>
struct ConfigNames<ReportTo> {
  static constexpr NamesOf<ReportTo, 2> kTable = {{{ReportTo::kCsv, "csv"}, {ReportTo::kTensorBoard, "tensorboard"}}};
};

// Returns the name of a value in configs. Throws for a value without one.
template <typename Enum>
std::string config_name(Enum value) {
  for (const auto& [known, name] : ConfigNames<Enum>::kTable) {
    if (known == value) return name;
  }
  TORCH_CHECK(false, "an enumeration of the config has no name for its value ", static_cast<int>(value));
}

// Returns the value with this name. Throws for an unknown name.
template <typename Enum>
Enum from_config_name(std::string_view name) {
  for (const auto& [value, known] : ConfigNames<Enum>::kTable) {
    if (name == known) return value;
  }
  TORCH_CHECK(false, "an enumeration of the config has no value named \"", name, "\"");
}

// Returns all names, in the order of the table.
template <typename Enum>
std::vector<std::string> config_names() {
  std::vector<std::string> names;
  for (const auto& [value, name] : ConfigNames<Enum>::kTable) names.emplace_back(name);
  return names;
}

}  // namespace fsdp::trainer
