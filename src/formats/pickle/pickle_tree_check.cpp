#include "formats/pickle/pickle_tree_check.h"

#include <algorithm>
#include <unordered_map>

namespace fsdp::formats {
namespace {

class TreeCheck {
 public:
  TreeCheck(const PickleInput& input, const PickleLimits& limits) : input_(input), limits_(limits) {}

  void check(const PickleValue& root) { measure(root, 1); }

 private:
  struct Extent {
    bool open = true;  // the walk is inside the value
    size_t height = 1;
    uint64_t values = 1;  // with shared values counted at each occurrence
  };

  Extent measure(const PickleValue& value, size_t depth) {
    check_depth(value, depth);
    if (value.items.empty() && value.arguments == nullptr) return {};
    return value.recalled ? measure_recalled(value, depth) : measure_parts(value, depth);
  }

  Extent measure_recalled(const PickleValue& value, size_t depth) {
    const auto [place, is_new] = seen_.try_emplace(&value);
    Extent& extent = place->second;
    if (is_new) {
      extent = measure_parts(value, depth);
      extent.open = false;
    } else if (extent.open) {
      input_.fail_at(value.offset, "the value contains itself");
    }
    check_depth(value, depth + extent.height - 1);
    return extent;
  }

  Extent measure_parts(const PickleValue& value, size_t depth) {
    Extent extent;
    const auto add = [&](const PickleValue& part) {
      const Extent inner = measure(part, depth + 1);
      extent.height = std::max(extent.height, inner.height + 1);
      extent.values += inner.values;
      if (extent.values > limits_.max_values) {
        input_.fail_at(value.offset, "the value holds more than ", limits_.max_values,
                       " values, counting shared ones wherever they stand");
      }
    };
    std::for_each(value.items.begin(), value.items.end(), [&](const PickleValue* item) { add(*item); });
    for (const PickleValue* part : {value.arguments, value.state}) {
      if (part != nullptr) add(*part);
    }
    return extent;
  }

  void check_depth(const PickleValue& value, size_t depth) const {
    if (depth > limits_.max_depth) input_.fail_at(value.offset, "nested deeper than ", limits_.max_depth, " levels");
  }

  const PickleInput& input_;
  const PickleLimits& limits_;
  std::unordered_map<const PickleValue*, Extent> seen_;
};

}  // namespace

void check_pickle_tree(const PickleValue& root, const PickleInput& input, const PickleLimits& limits) {
  TreeCheck(input, limits).check(root);
}

}  // namespace fsdp::formats
