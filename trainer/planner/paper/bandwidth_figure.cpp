#include "planner/paper/bandwidth_figure.h"

#include <algorithm>

#include "planner/report/text_row.h"
#include "planner/time/collective_time.h"
#include "planner/time/kernel_time.h"

namespace fsdp::planner {
namespace {

constexpr double kElementBytes = 4;
constexpr int kWholePower = 30;
constexpr int kKneePower = 25;  // 33 million elements
constexpr double kFlat = 1.15;

double collective_seconds(CollectiveFunction function, double elements, const Cluster& cluster) {
  const Topology topology{.ranks = cluster.ranks(), .nodes = cluster.hosts};
  return collective_time(function, elements * kElementBytes, topology, cluster.links).seconds();
}

// ProcessGroupNCCL groups the broadcasts, so that they are launched once.
double broadcasts_seconds(int64_t elements, int64_t moved, const Cluster& cluster) {
  const double part = static_cast<double>(elements) / cluster.ranks();
  double seconds = cluster.links.launch;
  for (int rank = 0; rank < cluster.ranks(); ++rank) {
    const double more = rank == 0 ? static_cast<double>(moved) : rank == 1 ? -static_cast<double>(moved) : 0.0;
    const double own = collective_seconds(CollectiveFunction::kBroadcast, part + more, cluster);
    seconds += own > 0 ? own - cluster.links.launch : 0;
  }
  return seconds;
}

double copies_seconds(int64_t elements, const Cluster& cluster) {
  const double part = static_cast<double>(elements) / cluster.ranks() * kElementBytes;
  return cluster.ranks() * memory_seconds(cluster.speed, 2 * part);
}

bool is_fastest_at(int power, const Cluster& cluster) {
  const double even = gather_seconds(GatherForm::kEven, int64_t{1} << power, cluster);
  return even < gather_seconds(GatherForm::kList, int64_t{1} << power, cluster) &&
         even < gather_seconds(GatherForm::kUneven, int64_t{1} << power, cluster) &&
         even < gather_seconds(GatherForm::kUneven1e6, int64_t{1} << power, cluster);
}

PaperCheck fastest_check(const Cluster& cluster) {
  std::vector<double> list, uneven;
  bool is_fastest = true;
  for (const int power : gathered_powers()) {
    const double even = gather_seconds(GatherForm::kEven, int64_t{1} << power, cluster);
    list.push_back(gather_seconds(GatherForm::kList, int64_t{1} << power, cluster) / even);
    uneven.push_back(gather_seconds(GatherForm::kUneven, int64_t{1} << power, cluster) / even);
    is_fastest = is_fastest && is_fastest_at(power, cluster);
  }
  return {.figure = "2(a)",
          .what = "all-gathers of even inputs into one tensor are the fastest",
          .paper = "highest efficiency",
          .accepted = "at each size",
          .planned = "lists: " + range_text(list, 2, " times as long") + ", uneven inputs " + range_text(uneven, 2, ""),
          .agreement = is_fastest ? Agreement::kAgrees : Agreement::kDiffers};
}

PaperCheck list_check(const Cluster& cluster) {
  int slower = 0;
  for (const int power : gathered_powers()) {
    if (gather_seconds(GatherForm::kList, int64_t{1} << power, cluster) >
        gather_seconds(GatherForm::kUneven, int64_t{1} << power, cluster)) {
      ++slower;
    }
  }
  const auto sizes = std::to_string(gathered_powers().size());
  return {.figure = "2(a)",
          .what = "lists of outputs are faster than uneven inputs",
          .paper = "not in its text",
          .accepted = "at each size",
          .planned = "at " + std::to_string(gathered_powers().size() - static_cast<size_t>(slower)) + " of " + sizes +
                     " sizes",
          .agreement = slower == 0 ? Agreement::kAgrees : Agreement::kDiffers};
}

std::vector<PaperCheck> knee_checks(const Cluster& cluster) {
  const double whole = split_gather_seconds(int64_t{1} << kWholePower, cluster);
  std::vector<double> flat, rising;
  for (const int power : split_powers()) {
    const double ratio = split_gather_seconds(int64_t{1} << power, cluster) / whole;
    (power >= kKneePower ? flat : rising).push_back(ratio);
  }
  return {check_within("2(b)", "total time down to 33 million elements, over that of one all-gather",
                       "rises rapidly only below", {.low = 1, .high = kFlat, .digits = 2}, flat),
          {.figure = "2(b)",
           .what = "total time below, over that of one all-gather",
           .paper = "rises rapidly",
           .accepted = "above " + fixed_text(kFlat, 2),
           .planned = range_text(rising, 2, ""),
           .agreement =
               *std::min_element(rising.begin(), rising.end()) > kFlat ? Agreement::kAgrees : Agreement::kDiffers}};
}

}  // namespace

double gather_seconds(GatherForm form, int64_t elements, const Cluster& cluster) {
  if (form == GatherForm::kUneven) return broadcasts_seconds(elements, 1, cluster);
  if (form == GatherForm::kUneven1e6) return broadcasts_seconds(elements, 1'000'000, cluster);
  const double even = collective_seconds(CollectiveFunction::kAllGather, static_cast<double>(elements), cluster);
  return form == GatherForm::kList ? even + copies_seconds(elements, cluster) : even;
}

double split_gather_seconds(int64_t elements, const Cluster& cluster) {
  const int64_t gathers = (int64_t{1} << kWholePower) / elements;
  return static_cast<double>(gathers) * gather_seconds(GatherForm::kEven, elements, cluster);
}

const std::vector<int>& gathered_powers() {
  static const std::vector<int> powers = {24, 25, 26, 27, 28, 29, 30};
  return powers;
}

const std::vector<int>& split_powers() {
  static const std::vector<int> powers = {20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30};
  return powers;
}

std::vector<PaperCheck> bandwidth_checks(const Cluster& cluster) {
  std::vector<PaperCheck> checks = {fastest_check(cluster), list_check(cluster)};
  for (PaperCheck& check : knee_checks(cluster)) checks.push_back(std::move(check));
  return checks;
}

}  // namespace fsdp::planner
