#include "schedule/unit_cut.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace fsdp::schedule {
namespace {

constexpr int64_t kUnits = 32;           // the number of units if no target is given
constexpr int64_t kRootCostDivisor = 4;  // a cut with a root may be larger by 1 / this

using Units = std::vector<std::vector<size_t>>;

class Cutter {
 public:
  Cutter(const std::vector<CutItem>& items, const CutRules& rules) : items_(items), rules_(rules) {}

  UnitCut run() const {
    std::vector<size_t> all(items_.size()), returning, others;
    std::iota(all.begin(), all.end(), 0);
    std::partition_copy(all.begin(), all.end(), std::back_inserter(returning), std::back_inserter(others),
                        [&](size_t i) { return items_[i].returns; });
    UnitCut without = cut({}, all);
    if (returning.empty()) return without;
    UnitCut with = cut(returning, others);
    int64_t bound = rules_.bound_nbytes.value_or(without.needed_nbytes + without.needed_nbytes / kRootCostDivisor);
    return with.needed_nbytes <= bound ? with : without;
  }

 private:
  // Tries smaller and smaller units, until they fit the bound or each is a single item.
  UnitCut cut(const std::vector<size_t>& root, const std::vector<size_t>& chain) const {
    UnitCut result;
    for (int64_t target = first_target();; target -= std::max<int64_t>(1, target / 8)) {
      Units units;
      for (const std::vector<size_t>& run : runs_of(chain)) {
        Units of_run = balanced(run, target);
        units.insert(units.end(), of_run.begin(), of_run.end());
      }
      bool smallest = target == 1 || units.size() == chain.size();
      result.needed_nbytes = needed(root, units);
      result.fits = result.needed_nbytes <= rules_.bound_nbytes.value_or(result.needed_nbytes);
      result.units = std::move(units);
      if (result.fits || smallest) break;
    }
    if (!root.empty()) {
      result.has_root = true;
      result.units.insert(result.units.begin(), root);
    }
    return result;
  }

  int64_t first_target() const {
    std::vector<size_t> all(items_.size());
    std::iota(all.begin(), all.end(), 0);
    int64_t share = (sum(all, &CutItem::nbytes) + kUnits - 1) / kUnits;
    return std::max<int64_t>(1, rules_.target_nbytes.value_or(std::min(share, rules_.max_target_nbytes)));
  }

  // Splits the chain where parameters of others were used in between.
  Units runs_of(const std::vector<size_t>& chain) const {
    Units runs;
    for (size_t i : chain) {
      if (runs.empty() || !items_[i].joins) runs.emplace_back();
      runs.back().push_back(i);
    }
    return runs;
  }

  // Returns as few units as `target` allows, with the largest of them as small as possible. Searches for the smallest
  // limit that still gives so few units.
  Units balanced(const std::vector<size_t>& run, int64_t target) const {
    Units units = greedy(run, target);
    int64_t low = 0, high = target;  // limits; high is enough
    while (low < high) {
      int64_t middle = low + (high - low) / 2;
      Units tried = greedy(run, middle);
      if (tried.size() <= units.size()) {
        high = middle;
        units = std::move(tried);
      } else {
        low = middle + 1;
      }
    }
    return units;
  }

  Units greedy(const std::vector<size_t>& run, int64_t limit) const {
    Units units;
    int64_t filled = 0;
    for (size_t i : run) {
      if (units.empty() || filled + items_[i].nbytes > limit) {
        units.emplace_back();
        filled = 0;
      }
      units.back().push_back(i);
      filled += items_[i].nbytes;
    }
    return units;
  }

  int64_t needed(const std::vector<size_t>& root, const Units& units) const {
    size_t gathered = rules_.reshards ? rules_.gathered_at_a_time : units.size();
    return sum(root, &CutItem::gathered_nbytes) + largest_window(units, gathered, &CutItem::gathered_nbytes) +
           needed_gradients(root, units);
  }

  // While a unit's gradients are copied to their buffer, the root's gradients wait for their buffer.
  int64_t needed_gradients(const std::vector<size_t>& root, const Units& units) const {
    int64_t most = largest_window(units, rules_.gradients_at_a_time, &CutItem::gradient_nbytes);
    for (const std::vector<size_t>& unit : units) most = std::max(most, with_copy(unit));
    return std::max(sum(root, &CutItem::gradient_nbytes) + most, with_copy(root));
  }

  // Returns the bytes of a unit's gradients and of the buffer that they are copied to, if they are copied.
  int64_t with_copy(const std::vector<size_t>& unit) const {
    const bool adopts = unit.size() == 1 && items_[unit.front()].adopts;
    return (adopts ? 1 : 2) * sum(unit, &CutItem::gradient_nbytes);
  }

  int64_t largest_window(const Units& units, size_t width, int64_t CutItem::* nbytes) const {
    std::vector<int64_t> sizes;
    int64_t most = 0, together = 0;
    for (size_t i = 0; i < units.size(); ++i) {
      sizes.push_back(sum(units[i], nbytes));
      together += sizes[i] - (i >= width ? sizes[i - width] : 0);
      most = std::max(most, together);
    }
    return most;
  }

  int64_t sum(const std::vector<size_t>& unit, int64_t CutItem::* nbytes) const {
    return std::accumulate(unit.begin(), unit.end(), int64_t{0},
                           [&](int64_t before, size_t i) { return before + items_[i].*nbytes; });
  }

  const std::vector<CutItem>& items_;
  const CutRules& rules_;
};

}  // namespace

UnitCut cut_into_units(const std::vector<CutItem>& items, const CutRules& rules) { return Cutter(items, rules).run(); }

}  // namespace fsdp::schedule
