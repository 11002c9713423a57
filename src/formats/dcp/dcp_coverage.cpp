#include "formats/dcp/dcp_coverage.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <map>

namespace fsdp::formats {
namespace {

using Point = std::vector<int64_t>;

constexpr size_t kMaxSplitDimensions = 6;  // each chunk takes memory for 2 to this power corners
constexpr size_t kMaxCorners = size_t{1} << 22;

bool is_empty(const std::vector<int64_t>& sizes) { return std::find(sizes.begin(), sizes.end(), 0) != sizes.end(); }

// Returns the dimensions that at least one chunk does not cover completely; the others cannot make a difference.
std::vector<size_t> split_dimensions(const Point& shape, const std::vector<DcpChunk>& chunks) {
  std::vector<size_t> dimensions;
  for (size_t dimension = 0; dimension < shape.size(); ++dimension) {
    if (std::any_of(chunks.begin(), chunks.end(), [&](const DcpChunk& chunk) {
          return chunk.sizes[dimension] != shape[dimension] && !is_empty(chunk.sizes);
        })) {
      dimensions.push_back(dimension);
    }
  }
  return dimensions;
}

// Counts how often each element is covered, as the mixed differences over all split dimensions. The differences are
// zero except at the corners of boxes, where each box adds 1 or -1, and they determine the counts. So the chunks cover
// the tensor exactly once if and only if nothing is left after the corners of the tensor are subtracted from those of
// the chunks.
class CoverageSum {
 public:
  explicit CoverageSum(std::vector<size_t> dimensions) : dimensions_(std::move(dimensions)) {}

  void add(const Point& offsets, const Point& sizes, int64_t weight) {
    for (size_t corner = 0; corner >> dimensions_.size() == 0; ++corner) {
      Point point(dimensions_.size());
      int64_t sign = weight;
      for (size_t i = 0; i < point.size(); ++i) {
        const bool at_end = (corner >> i & 1) != 0;
        point[i] = offsets[dimensions_[i]] + (at_end ? sizes[dimensions_[i]] : 0);
        sign = at_end ? -sign : sign;
      }
      corners_[std::move(point)] += sign;
    }
  }

  // No other remaining corner precedes the first one in any dimension, so its value is the excess (or, if negative, the
  // lack) in the element's count.
  bool find_first(Point& element, int64_t& excess) const {
    for (const auto& [point, sum] : corners_) {
      if (sum != 0) {
        for (size_t i = 0; i < point.size(); ++i) element[dimensions_[i]] = point[i];
        excess = sum;
        return true;
      }
    }
    return false;
  }

 private:
  std::vector<size_t> dimensions_;
  std::map<Point, int64_t> corners_;
};

bool holds(const DcpChunk& chunk, const Point& element) {
  for (size_t i = 0; i < element.size(); ++i) {
    if (element[i] < chunk.offsets[i] || element[i] - chunk.offsets[i] >= chunk.sizes[i]) return false;
  }
  return true;
}

std::string describe(const std::vector<DcpChunk>& chunks, const Point& element, int64_t excess) {
  if (excess < 0) return c10::str("no chunk holds element [", c10::Join(", ", element), "]");
  const auto holds_it = [&](const DcpChunk& chunk) { return holds(chunk, element); };
  const auto first = std::find_if(chunks.begin(), chunks.end(), holds_it);
  const auto second = std::find_if(std::next(first), chunks.end(), holds_it);
  return c10::str("chunk [", c10::Join(", ", second->offsets), "] overlaps chunk [", c10::Join(", ", first->offsets),
                  "]: both hold element [", c10::Join(", ", element), "]");
}

}  // namespace

std::optional<std::string> coverage_problem(const std::vector<int64_t>& shape, const std::vector<DcpChunk>& chunks) {
  if (is_empty(shape)) return std::nullopt;
  std::vector<size_t> dimensions = split_dimensions(shape, chunks);
  if (dimensions.size() > kMaxSplitDimensions || chunks.size() + 1 > kMaxCorners >> dimensions.size()) {
    return c10::str(chunks.size(), " chunks that split ", dimensions.size(), " dimensions are more than supported");
  }
  CoverageSum sum(std::move(dimensions));
  sum.add(Point(shape.size(), 0), shape, -1);
  for (const DcpChunk& chunk : chunks) {
    if (!is_empty(chunk.sizes)) sum.add(chunk.offsets, chunk.sizes, 1);
  }
  Point element(shape.size(), 0);
  int64_t excess = 0;
  if (sum.find_first(element, excess)) return describe(chunks, element, excess);
  return std::nullopt;
}

}  // namespace fsdp::formats
