#include "planner/search/plan_search.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "planner/search/front.h"
#include "planner/search/largest_batch.h"

namespace fsdp::planner {
namespace {

// So many of the fastest combinations have their neighbours planned.
constexpr size_t kExpanded = 6;
// A gain in speed that is worth another round.
constexpr double kFaster = 1.001;

// Orders of candidates, the best first.
auto fastest(const PlannedCandidate& one) { return std::tuple(-one.speed, one.device, one.host); }
auto on_device(const PlannedCandidate& one) { return std::tuple(one.device, one.host, -one.speed); }
auto on_host(const PlannedCandidate& one) { return std::tuple(one.host, one.device, -one.speed); }

Combination with(Combination combination, size_t dimension, size_t choice) {
  combination[dimension] = choice;
  return combination;
}

class PlanSearch {
 public:
  PlanSearch(const SearchInput& input, Candidates& candidates)
      : input_(input), space_(input.space), candidates_(candidates), limit_(bytes_that_fit(input)) {}

  void run() {
    plan_single_choices();
    explore(crossed_combinations());
    descend(on_device);
    descend(on_host);
    climb();
    fill_front();
  }

 private:
  // A combination to explore.
  struct Start {
    Combination combination;
    const PlannedCandidate* like = nullptr;  // a neighbour whose largest batch is known; valid until the next plan
    bool changes_activations = false;        // of the neighbour
  };
  struct Running {
    Combination combination;
    LargestBatch largest;
  };
  using ChoiceOfDimension = std::pair<size_t, size_t>;

  static double bytes_that_fit(const SearchInput& input) {
    const int64_t capacity = input.cluster.device ? input.cluster.device->memory : input.host_memory.value();
    return static_cast<double>(capacity) / (1 + kMemoryError);
  }

  double samples(size_t batch) const { return static_cast<double>(space_.batches[batch].samples); }

  // Each choice by itself shows whether the model refuses it, and about how much memory it adds to a sample.
  void plan_single_choices() {
    std::vector<Candidate> wanted;
    for_each_choice(space_.config(), [&](size_t dimension, size_t choice) {
      wanted.push_back({with(space_.config(), dimension, choice), space_.config_batch});
    });
    candidates_.plan(wanted);
    const double usual = per_sample(candidates_.planned().front());
    for_each_choice(space_.config(), [&](size_t dimension, size_t choice) {
      const auto* planned = candidates_.find({with(space_.config(), dimension, choice), space_.config_batch});
      if (planned != nullptr) added_per_sample_[{dimension, choice}] = per_sample(*planned) - usual;
    });
  }

  // Calls `visit` for all choices that this combination does not have.
  template <typename Visit>
  void for_each_choice(const Combination& combination, const Visit& visit) const {
    for (size_t dimension = 0; dimension < space_.dimensions.size(); ++dimension) {
      for (size_t choice = 0; choice < space_.dimensions[dimension].choices.size(); ++choice) {
        if (choice != combination[dimension]) visit(dimension, choice);
      }
    }
  }

  bool is_refused_alone(size_t dimension, size_t choice) {
    return candidates_.state(with(space_.config(), dimension, choice)) == CombinationState::kRefused;
  }

  // The memory that a sample adds, at most.
  double per_sample(const PlannedCandidate& planned) const {
    const int64_t least = candidates_.least_bytes(planned.candidate.combination);
    return static_cast<double>(planned.bytes() - least) / samples(planned.candidate.batch);
  }

  std::vector<Start> crossed_combinations() {
    std::vector<Start> all = {Start{space_.config()}};
    for (size_t dimension = 0; dimension < space_.dimensions.size(); ++dimension) {
      if (!space_.dimensions[dimension].crossed) continue;
      const std::vector<Start> before = all;
      for (size_t choice = 1; choice < space_.dimensions[dimension].choices.size(); ++choice) {
        if (is_refused_alone(dimension, choice)) continue;
        for (const Start& start : before) all.push_back(Start{with(start.combination, dimension, choice)});
      }
    }
    return all;
  }

  // Finds the largest batch of each combination: plans one batch of each at a time.
  void explore(const std::vector<Start>& starts) {
    std::vector<Running> running = begin(starts);
    while (!running.empty() && !candidates_.is_cut()) {
      std::vector<Candidate> wanted;
      for (const Running& one : running) wanted.push_back({one.combination, *one.largest.next()});
      candidates_.plan(wanted);
      std::vector<Running> rest;
      for (size_t i = 0; i < running.size(); ++i) {
        const PlannedCandidate* planned = candidates_.find(wanted[i]);
        if (planned == nullptr) continue;  // refused, failed or cut
        tell(*planned, running[i].largest);
        if (running[i].largest.next()) rest.push_back(std::move(running[i]));
      }
      running = std::move(rest);
    }
  }

  std::vector<Running> begin(const std::vector<Start>& starts) {
    std::vector<int64_t> sizes;
    for (const MicroBatch& batch : space_.batches) sizes.push_back(batch.samples);
    std::vector<Running> running;
    for (const Start& start : starts) {
      if (candidates_.state(start.combination) != CombinationState::kOpen) continue;
      if (!explored_.insert(start.combination).second) continue;
      LargestBatch largest(sizes, expected_memory(start));
      for (const PlannedCandidate* planned : candidates_.of(start.combination)) tell(*planned, largest);
      if (largest.next()) running.push_back({start.combination, std::move(largest)});
    }
    return running;
  }

  static void tell(const PlannedCandidate& planned, LargestBatch& largest) {
    largest.tell(planned.candidate.batch, static_cast<double>(planned.bytes()), planned.verdict == Verdict::kFits);
  }

  BatchMemory expected_memory(const Start& start) const {
    const auto least = static_cast<double>(candidates_.least_bytes(start.combination));
    BatchMemory memory{.limit = limit_, .without_samples = least};
    if (start.like == nullptr) {
      memory.first = largest_for(least, expected_per_sample(start.combination));
    } else {
      memory.first = start.like->candidate.batch;
      if (!start.changes_activations) memory.per_sample = planned_per_sample(*start.like);
    }
    return memory;
  }

  // Adds up the changes of all choices.
  double expected_per_sample(const Combination& combination) const {
    const double usual = per_sample(candidates_.planned().front());
    double added = usual;
    for (size_t i = 0; i < combination.size(); ++i) {
      const auto found = added_per_sample_.find({i, combination[i]});
      if (found != added_per_sample_.end()) added += found->second;
    }
    return std::max(added, usual / 64);
  }

  size_t largest_for(double without_samples, double per_sample) const {
    size_t batch = 0;
    while (batch + 1 < space_.batches.size() && without_samples + per_sample * samples(batch + 1) <= limit_) ++batch;
    return batch;
  }

  // Between two planned batches of the same combination.
  std::optional<double> planned_per_sample(const PlannedCandidate& planned) const {
    for (const PlannedCandidate* other : candidates_.of(planned.candidate.combination)) {
      if (other->candidate.batch == planned.candidate.batch) continue;
      const double added = static_cast<double>(other->bytes() - planned.bytes()) /
                           (samples(other->candidate.batch) - samples(planned.candidate.batch));
      if (added > 0) return added;
    }
    return std::nullopt;
  }

  // Goes from the fastest candidates that fit to their neighbours, until those are not faster.
  void climb() {
    double before = 0, now = most_speed();
    while (now > kFaster * before && !candidates_.is_cut()) {
      before = now;
      explore(neighbours());
      now = most_speed();
    }
  }

  // 0 if none fits.
  double most_speed() const {
    double most = 0;
    for (const PlannedCandidate& one : candidates_.planned()) {
      if (one.verdict == Verdict::kFits) most = std::max(most, one.speed);
    }
    return most;
  }

  // The neighbours of the fastest combinations, of which each is expanded once.
  std::vector<Start> neighbours() {
    std::vector<Start> starts;
    for (const size_t index : first_combinations(comparable(), kExpanded, fastest)) {
      const PlannedCandidate& center = candidates_.planned()[index];
      if (!expanded_.insert(center.candidate.combination).second) continue;
      for_each_choice(center.candidate.combination, [&](size_t dimension, size_t choice) {
        if (is_refused_alone(dimension, choice)) return;
        starts.push_back({with(center.candidate.combination, dimension, choice), &center,
                          space_.dimensions[dimension].of_activations});
      });
    }
    return starts;
  }

  // Goes from the candidate that needs the least memory, as `order` compares it, to its best neighbour, until none is
  // better. Its smallest batch is a neighbour, too.
  template <typename Order>
  void descend(const Order& order) {
    std::optional<Candidate> before;
    while (!candidates_.is_cut()) {
      const Candidate center = least(order);
      if (before && before->combination == center.combination && before->batch == center.batch) return;
      std::vector<Candidate> wanted = {{center.combination, 0}};
      for_each_choice(center.combination, [&](size_t dimension, size_t choice) {
        if (!is_refused_alone(dimension, choice)) {
          wanted.push_back({with(center.combination, dimension, choice), center.batch});
        }
      });
      candidates_.plan(wanted);
      before = center;
    }
  }

  // Of those that fit, or of all if none does.
  template <typename Order>
  Candidate least(const Order& order) const {
    return candidates_.planned()[first_combinations(comparable(), 1, order).front()].candidate;
  }

  // Plans the smaller batches of all combinations on the front.
  void fill_front() {
    std::vector<Candidate> wanted;
    for (const size_t index : search_fronts(input_, candidates_).fitting) {
      const Candidate& candidate = candidates_.planned()[index].candidate;
      for (size_t batch = 0; batch < candidate.batch; ++batch) wanted.push_back({candidate.combination, batch});
    }
    candidates_.plan(wanted);
  }

  // Those that fit, or all if none does.
  std::vector<size_t> comparable() const {
    std::vector<size_t> fitting, all;
    for (size_t i = 0; i < candidates_.planned().size(); ++i) {
      all.push_back(i);
      if (candidates_.planned()[i].verdict == Verdict::kFits) fitting.push_back(i);
    }
    return fitting.empty() ? all : fitting;
  }

  // The first candidates in an order, one of each combination.
  template <typename Order>
  std::vector<size_t> first_combinations(std::vector<size_t> indices, size_t count, const Order& order) const {
    const std::vector<PlannedCandidate>& planned = candidates_.planned();
    std::stable_sort(indices.begin(), indices.end(),
                     [&](size_t left, size_t right) { return order(planned[left]) < order(planned[right]); });
    std::vector<size_t> first;
    std::set<Combination> seen;
    for (const size_t index : indices) {
      if (first.size() == count) break;
      if (seen.insert(planned[index].candidate.combination).second) first.push_back(index);
    }
    return first;
  }

  const SearchInput& input_;
  const SearchSpace& space_;
  Candidates& candidates_;
  const double limit_;
  std::map<ChoiceOfDimension, double> added_per_sample_;
  std::set<Combination> explored_;  // up to their largest batch
  std::set<Combination> expanded_;  // to their neighbours
};

FrontTolerance tolerance_for(const SearchInput& input) {
  constexpr int64_t kHost = int64_t{1} << 30;
  return {.speed = kFaster - 1,
          .device = input.cluster.device ? input.cluster.device->memory / 100 : 0,
          .host = input.host_memory ? *input.host_memory / 100 : kHost};
}

FrontPoint point_of(const PlannedCandidate& planned) {
  return {.speed = planned.speed,
          .device = planned.device.value_or(0),
          .host = planned.host,
          .changes = planned.overrides.size()};
}

// The front of those with this verdict that `others` do not beat.
std::vector<size_t> front_of(const std::vector<PlannedCandidate>& planned, Verdict verdict,
                             const std::vector<FrontPoint>& others, const FrontTolerance& tolerance) {
  std::vector<size_t> indices;
  std::vector<FrontPoint> points;
  for (size_t i = 0; i < planned.size(); ++i) {
    if (planned[i].verdict != verdict || is_beaten(point_of(planned[i]), others, tolerance)) continue;
    indices.push_back(i);
    points.push_back(point_of(planned[i]));
  }
  std::vector<size_t> front = pareto_front(points, tolerance);
  for (size_t& index : front) index = indices[index];
  return front;
}

}  // namespace

void search_plans(const SearchInput& input, Candidates& candidates) { PlanSearch(input, candidates).run(); }

SearchFronts search_fronts(const SearchInput& input, const Candidates& candidates) {
  const FrontTolerance tolerance = tolerance_for(input);
  SearchFronts fronts;
  fronts.fitting = front_of(candidates.planned(), Verdict::kFits, {}, tolerance);
  std::vector<FrontPoint> fitting;
  for (const size_t index : fronts.fitting) fitting.push_back(point_of(candidates.planned()[index]));
  fronts.tight = front_of(candidates.planned(), Verdict::kTight, fitting, tolerance);
  return fronts;
}

}  // namespace fsdp::planner
