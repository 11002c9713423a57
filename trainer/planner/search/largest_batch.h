// The search for the largest micro-batch that fits, with few plans.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace fsdp::planner {

// What is known of a run's memory before its first plan.
struct BatchMemory {
  double limit = 0;                       // bytes that fit
  size_t first = 0;                       // the index of the size to plan first
  double without_samples = 0;             // bytes that the run needs at least, whatever its batch
  std::optional<double> per_sample = {};  // bytes that a sample adds, as planned with other choices
};

// Narrows down the largest of ascending sizes that fits, given that memory does not shrink as sizes grow. It guesses
// along a line through the sizes that are known, and halves the range where guesses do not help. A size is taken not to
// fit without a plan if the line through two sizes that fit, or `per_sample` from one of them on, says that it needs a
// tenth more than fits.
class LargestBatch {
 public:
  LargestBatch(std::vector<int64_t> sizes, const BatchMemory& memory);

  // Returns the index of the size to plan next; nothing once the largest size that fits is known, or none fits.
  std::optional<size_t> next() const;
  // Tells what the plan of this size needs.
  void tell(size_t index, double bytes, bool fits);
  // The largest size that is known to fit.
  std::optional<size_t> largest() const;

 private:
  struct Point {
    double size = 0;
    double bytes = 0;
  };
  static double slope_between(const Point& one, const Point& other);
  double slope() const;
  double estimate(int64_t size) const;
  size_t guess() const;
  bool is_hopeless(size_t index) const;

  std::vector<int64_t> sizes_;
  BatchMemory memory_;
  size_t fitting_ = 0;         // so many sizes fit
  size_t unfitting_;           // from this index on, none fits
  std::vector<Point> points_;  // in the order of tell()
};

}  // namespace fsdp::planner
