#include "planner/search/largest_batch.h"

#include <algorithm>
#include <utility>

namespace fsdp::planner {
namespace {

// So many guesses are made before the range is halved.
constexpr size_t kGuesses = 4;
constexpr double kHopeless = 1.1;

}  // namespace

LargestBatch::LargestBatch(std::vector<int64_t> sizes, const BatchMemory& memory)
    : sizes_(std::move(sizes)), memory_(memory), unfitting_(sizes_.size()) {}

std::optional<size_t> LargestBatch::next() const {
  if (fitting_ >= unfitting_ || is_hopeless(fitting_)) return std::nullopt;
  if (points_.size() >= kGuesses) return fitting_ + (unfitting_ - fitting_) / 2;
  return std::clamp(points_.empty() ? memory_.first : guess(), fitting_, unfitting_ - 1);
}

void LargestBatch::tell(size_t index, double bytes, bool fits) {
  points_.push_back({static_cast<double>(sizes_.at(index)), bytes});
  if (fits) {
    fitting_ = std::max(fitting_, index + 1);
  } else {
    unfitting_ = std::min(unfitting_, index);
  }
}

std::optional<size_t> LargestBatch::largest() const {
  return fitting_ == 0 ? std::nullopt : std::optional<size_t>(fitting_ - 1);
}

double LargestBatch::slope_between(const Point& one, const Point& other) {
  return std::max((other.bytes - one.bytes) / (other.size - one.size), 0.0);
}

// Bytes for each sample: along the line through the last two plans, or through the only one and the least memory.
double LargestBatch::slope() const {
  const Point& last = points_.back();
  if (points_.size() == 1 && memory_.per_sample) return *memory_.per_sample;
  return slope_between(points_.size() > 1 ? points_[points_.size() - 2] : Point{0, memory_.without_samples}, last);
}

double LargestBatch::estimate(int64_t size) const {
  return points_.back().bytes + slope() * (static_cast<double>(size) - points_.back().size);
}

// The largest size whose estimate fits, or else the first.
size_t LargestBatch::guess() const {
  const auto end =
      std::partition_point(sizes_.begin(), sizes_.end(), [&](int64_t size) { return estimate(size) <= memory_.limit; });
  return end == sizes_.begin() ? 0 : static_cast<size_t>(end - sizes_.begin()) - 1;
}

// Only continues lines through sizes that fit: memory may rise more steeply from there on, but hardly less.
bool LargestBatch::is_hopeless(size_t index) const {
  std::vector<Point> fitting;
  for (const Point& point : points_) {
    if (index > 0 && point.size <= static_cast<double>(sizes_[index - 1])) fitting.push_back(point);
  }
  std::sort(fitting.begin(), fitting.end(),
            [](const Point& left, const Point& right) { return left.size > right.size; });
  if (fitting.empty() || (fitting.size() == 1 && !memory_.per_sample)) return false;
  const Point& last = fitting.front();
  const double slope = fitting.size() == 1 ? *memory_.per_sample : slope_between(fitting[1], last);
  return last.bytes + slope * (static_cast<double>(sizes_[index]) - last.size) > kHopeless * memory_.limit;
}

}  // namespace fsdp::planner
