#include "checkpoint/dcp_chunk_runs.h"

#include <algorithm>

namespace fsdp::checkpoint {
namespace {

// Runs of one length at regular places: one for each index of the dimensions before `cut`.
class Runs {
 public:
  Runs(const std::vector<int64_t>& shape, const DcpChunk& chunk) : shape_(shape), chunk_(chunk) {
    size_t whole = shape.size();  // from this dimension on the chunk holds the tensor's whole extent
    while (whole > 0 && chunk.sizes[whole - 1] == shape[whole - 1]) {
      --whole;
    }
    cut_ = whole == 0 ? 0 : whole - 1;
    count_ = product(chunk.sizes, cut_, shape.size());
    begin_ = whole == 0 ? 0 : chunk.offsets[cut_] * product(shape, cut_ + 1, shape.size());
  }

  // Numbers of the runs in rows (indices of the first dimension) that have elements in [begin, end).
  std::pair<int64_t, int64_t> in_range(int64_t begin, int64_t end) const {
    if (cut_ == 0) {
      return {0, 1};
    }
    const int64_t row = product(shape_, 1, shape_.size()), runs = product(chunk_.sizes, 1, cut_);
    const auto clamped = [&](int64_t index) {
      return std::clamp<int64_t>(index - chunk_.offsets[0], 0, chunk_.sizes[0]) * runs;
    };
    return {clamped(begin / row), clamped((end - 1) / row + 1)};
  }

  ChunkRun run(int64_t number) const {
    int64_t in_tensor = begin_, stride = product(shape_, cut_, shape_.size()), left = number;
    for (size_t i = cut_; i-- > 0;) {
      in_tensor += (chunk_.offsets[i] + left % chunk_.sizes[i]) * stride;
      left /= chunk_.sizes[i];
      stride *= shape_[i];
    }
    return {in_tensor, number * count_, count_};
  }

 private:
  static int64_t product(const std::vector<int64_t>& sizes, size_t first, size_t last) {
    int64_t count = 1;
    for (size_t i = first; i < last; ++i) {
      count *= sizes[i];
    }
    return count;
  }

  const std::vector<int64_t>& shape_;
  const DcpChunk& chunk_;
  size_t cut_ = 0;
  int64_t count_ = 1;  // of elements in a run
  int64_t begin_ = 0;  // of the first run, within its index of the dimensions before `cut`
};

}  // namespace

void for_each_run(const std::vector<int64_t>& shape, const DcpChunk& chunk, int64_t begin, int64_t end,
                  const std::function<void(const ChunkRun&)>& visit) {
  if (begin >= end || std::find(chunk.sizes.begin(), chunk.sizes.end(), 0) != chunk.sizes.end()) {
    return;
  }
  const Runs runs(shape, chunk);
  const auto [first, last] = runs.in_range(begin, end);
  for (int64_t number = first; number < last; ++number) {
    const ChunkRun whole = runs.run(number);
    const int64_t from = std::max(begin, whole.in_tensor), until = std::min(end, whole.in_tensor + whole.count);
    if (from < until) {
      visit({from, whole.in_chunk + (from - whole.in_tensor), until - from});
    }
  }
}

}  // namespace fsdp::checkpoint
