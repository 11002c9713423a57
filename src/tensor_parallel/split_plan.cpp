#include "tensor_parallel/split_plan.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <numeric>
#include <optional>
#include <string_view>

namespace fsdp {

const char* to_string(SplitStyle style) {
  switch (style) {
    case SplitStyle::kColwise:
      return "colwise";
    case SplitStyle::kColwiseGathered:
      return "colwise_gather_output";
    case SplitStyle::kRowwise:
      return "rowwise";
    case SplitStyle::kRowwiseOfWhole:
      return "rowwise_split_input";
    case SplitStyle::kVocabulary:
      return "embedding_rowwise";
    case SplitStyle::kSharedByParts:
      return "replicated_with_grad_allreduce";
  }
  return "?";
}

}  // namespace fsdp

namespace fsdp::tensor_parallel {
namespace {

// Takes the first component off a path.
std::string_view take_component(std::string_view& path) {
  const size_t dot = path.find('.');
  const std::string_view first = path.substr(0, dot);
  path = dot == std::string_view::npos ? std::string_view() : path.substr(dot + 1);
  return first;
}

bool matches(std::string_view pattern, std::string_view path) {
  while (!pattern.empty() && !path.empty()) {
    const std::string_view wanted = take_component(pattern), found = take_component(path);
    if (wanted != "*" && wanted != found) return false;
  }
  return pattern.empty() && path.empty();
}

bool is_rowwise(SplitStyle style) { return style == SplitStyle::kRowwise || style == SplitStyle::kRowwiseOfWhole; }

// Returns the dimension along which the rule cuts a parameter, or nothing if it leaves it whole.
std::optional<int64_t> dimension(const TensorParallelRule& rule, int64_t dims) {
  if (dims == 1) return is_rowwise(rule.style) ? std::nullopt : std::optional<int64_t>(0);
  if (rule.style == SplitStyle::kVocabulary) return 0;
  return is_rowwise(rule.style) ? 1 - rule.output_dim : rule.output_dim;
}

std::string where(const TensorParallelRule& rule, const std::string& name) {
  return c10::str("fsdp: tensor_parallel: the rule '", rule.modules, "' (", to_string(rule.style),
                  ") cannot split parameter '", name, "': ");
}

}  // namespace

SplitPlan::SplitPlan(const std::vector<TensorParallelRule>& plan, int rank, int size, bool splits_sequence)
    : plan_(plan), rank_(rank), size_(size), splits_sequence_(splits_sequence), used_(plan.size()) {
  for (const TensorParallelRule& rule : plan_) {
    TORCH_CHECK(rule.groups >= 0 && (rule.output_dim == 0 || rule.output_dim == 1), "fsdp: tensor_parallel: the rule '",
                rule.modules, "' has groups=", rule.groups, " and output_dim=", rule.output_dim,
                "; groups must not be negative, and output_dim is 0 or 1");
  }
}

// Marks all rules that match, so that one which an earlier one hides does not count as a mistake.
const TensorParallelRule* SplitPlan::rule_for(const std::string& module) {
  const TensorParallelRule* first = nullptr;
  for (size_t i = 0; i < plan_.size(); ++i) {
    if (!matches(plan_[i].modules, module)) continue;
    used_[i] = true;
    if (!first) first = &plan_[i];
  }
  return first;
}

Split SplitPlan::split_by(const TensorParallelRule& rule, const std::string& name, at::IntArrayRef sizes) const {
  if (rule.style == SplitStyle::kSharedByParts) return {nullptr, true};
  const auto dims = static_cast<int64_t>(sizes.size());
  TORCH_CHECK(dims == 2 || (dims == 1 && rule.style != SplitStyle::kVocabulary), where(rule, name), "it has ", dims,
              " dimensions");
  const std::optional<int64_t> dim = dimension(rule, dims);
  // The bias of a row-wise layer is added to what the rank has of the sum.
  if (!dim) return {nullptr, splits_sequence_};
  const int64_t size = sizes[static_cast<size_t>(*dim)];
  const std::vector<int64_t> sections = rule.sections.empty() ? std::vector<int64_t>{size} : rule.sections;
  const int64_t sum = std::accumulate(sections.begin(), sections.end(), int64_t{0});
  TORCH_CHECK(sum == size, where(rule, name), "the sections have ", sum, " elements, its dimension ", *dim, " has ",
              size);
  const int64_t groups = rule.groups > 0 ? rule.groups : sections.front();
  for (const int64_t section : sections) {
    TORCH_CHECK(section % groups == 0, where(rule, name), section, " elements cannot be cut into ", groups,
                " equal groups");
  }
  TORCH_CHECK(groups >= size_, where(rule, name), size_, " ranks cannot each get one of ", groups,
              groups == 1 ? " group" : " groups", ". Use at most ", groups, " ranks for tensor parallelism");
  auto part = std::make_shared<flat::PartOfWhole>();
  part->whole_sizes = sizes.vec();
  part->dim = *dim;
  part->of_rank = flat::deal_groups(sections, groups, size_);
  part->rank = rank_;
  part->gathers_outputs = rule.style == SplitStyle::kColwiseGathered || rule.style == SplitStyle::kVocabulary;
  part->takes_part_of_inputs = rule.style == SplitStyle::kRowwiseOfWhole;
  return {part, false};
}

Split SplitPlan::of(const std::vector<std::string>& modules, const std::string& name, at::IntArrayRef sizes) {
  std::optional<Split> found;
  for (const std::string& module : modules) {
    const TensorParallelRule* rule = rule_for(module);
    Split split = rule ? split_by(*rule, name, sizes) : Split{};
    if (!found) {
      found = split;
      continue;
    }
    const bool both = split.part && found->part;
    TORCH_CHECK(both ? split.part->dim == found->part->dim && split.part->of_rank == found->part->of_rank
                     : !split.part && !found->part && split.shared_by_parts == found->shared_by_parts,
                "fsdp: tensor_parallel: parameter '", name, "' is shared by the modules '", c10::Join("', '", modules),
                "', which the plan does not split alike");
    if (both && rule->style != SplitStyle::kVocabulary) found = split;  // how a head uses the table
  }
  return found.value_or(Split{});
}

void SplitPlan::check_all_used() const {
  for (size_t i = 0; i < plan_.size(); ++i) {
    TORCH_CHECK(used_[i], "fsdp: tensor_parallel: the rule '", plan_[i].modules, "' (", to_string(plan_[i].style),
                ") matches no module with parameters");
  }
}

std::string SplitPlan::fingerprint() const {
  std::string text;
  for (const TensorParallelRule& rule : plan_) {
    text += c10::str(rule.modules, ' ', to_string(rule.style), ' ', rule.groups, " [", c10::Join(",", rule.sections),
                     "] ", rule.output_dim, '\n');
  }
  return text;
}

}  // namespace fsdp::tensor_parallel
