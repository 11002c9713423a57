#include "config/edit_distance.h"

#include <algorithm>

namespace fsdp::trainer {

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> cost(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) cost[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) cost[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replace = cost[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
      cost[i][j] = std::min({replace, cost[i - 1][j] + 1, cost[i][j - 1] + 1});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
    }
  }
  return cost[a.size()][b.size()];
}

std::optional<std::string> similar_name(const std::string& name, const std::vector<std::string>& known) {
  if (known.empty()) return std::nullopt;
  const auto distance = [&](const std::string& other) { return edit_distance(name, other); };
  const auto nearest = std::min_element(known.begin(), known.end(), [&](const std::string& a, const std::string& b) {
    return distance(a) < distance(b);
  });
  if (3 * distance(*nearest) <= nearest->size()) return *nearest;
  const auto has_it = [&](const std::string& other) { return !name.empty() && other.find(name) != std::string::npos; };
  if (std::count_if(known.begin(), known.end(), has_it) != 1) return std::nullopt;
  return *std::find_if(known.begin(), known.end(), has_it);
}

}  // namespace fsdp::trainer
