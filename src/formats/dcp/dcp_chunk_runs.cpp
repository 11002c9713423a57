#include "formats/dcp/dcp_chunk_runs.h"

#include <algorithm>
#include <cstddef>

namespace fsdp::formats {
namespace {

// Runs of equal length at regular positions: one for each index of the dimensions before `cut`.
class Runs {
 public:
  Runs(const std::vector<int64_t>& shape, const DcpChunk& chunk) : shape_(shape), chunk_(chunk) {
    size_t whole = shape.size();  // from this dimension on, the chunk has the tensor's full extent
    while (whole > 0 && chunk.sizes[whole - 1] == shape[whole - 1]) --whole;
    cut_ = whole == 0 ? 0 : whole - 1;
    length_ = product(chunk.sizes, cut_, shape.size());
    begin_ = whole == 0 ? 0 : chunk.offsets[cut_] * product(shape, cut_ + 1, shape.size());
  }

  int64_t count() const { return product(chunk_.sizes, 0, cut_); }

  // Returns the number of the first run that has elements at or after `place` in the tensor, or the count of runs if
  // none has. Runs are sorted by their places.
  int64_t first_behind(int64_t place) const {
    int64_t first = 0, last = count();
    while (first < last) {
      const int64_t middle = first + (last - first) / 2;
      if (run(middle).in_tensor + length_ > place) {
        last = middle;
      } else {
        first = middle + 1;
      }
    }
    return first;
  }

  ChunkRun run(int64_t number) const {
    int64_t in_tensor = begin_, stride = product(shape_, cut_, shape_.size()), left = number;
    for (size_t i = cut_; i-- > 0;) {
      in_tensor += (chunk_.offsets[i] + left % chunk_.sizes[i]) * stride;
      left /= chunk_.sizes[i];
      stride *= shape_[i];
    }
    return {in_tensor, number * length_, length_};
  }

 private:
  static int64_t product(const std::vector<int64_t>& sizes, size_t first, size_t last) {
    int64_t count = 1;
    for (size_t i = first; i < last; ++i) count *= sizes[i];
    return count;
  }

  const std::vector<int64_t>& shape_;
  const DcpChunk& chunk_;
  size_t cut_ = 0;
  int64_t length_ = 1;  // of a run, in elements
  int64_t begin_ = 0;   // of the first run, within its index of the dimensions before `cut`
};

}  // namespace

void for_each_run(const std::vector<int64_t>& shape, const DcpChunk& chunk, int64_t begin, int64_t end,
                  const std::function<void(const ChunkRun&)>& visit) {
  if (begin >= end || std::find(chunk.sizes.begin(), chunk.sizes.end(), 0) != chunk.sizes.end()) return;
  const Runs runs(shape, chunk);
  for (int64_t number = runs.first_behind(begin); number < runs.count(); ++number) {
    const ChunkRun whole = runs.run(number);
    if (whole.in_tensor >= end) return;
    const int64_t from = std::max(begin, whole.in_tensor), until = std::min(end, whole.in_tensor + whole.count);
    visit({from, whole.in_chunk + (from - whole.in_tensor), until - from});
  }
}

}  // namespace fsdp::formats
