// The tensors that a run has produced, by name: whole tensors, or the part that a rank holds.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace fsdp::fuzz {

struct Seen {
  torch::Tensor value;  // undefined if there was none, such as no gradient
  // The range of elements of the whole tensor that `value` contains, in memory order. Unset: all elements.
  struct Part {
    int64_t begin = 0;
    int64_t end = 0;
    std::vector<int64_t> strides{};  // strides of the whole tensor
  };
  std::optional<Part> part;
  int64_t order = 0;
};

class Record {
 public:
  // If a name is added again, the last value counts.
  void add(const std::string& name, const torch::Tensor& value);
  void add_part(const std::string& name, const torch::Tensor& value, const Seen::Part& part);
  const std::map<std::string, Seen>& seen() const { return seen_; }

 private:
  std::map<std::string, Seen> seen_;
};

struct Difference {
  std::string name;  // name of the tensor: "step 1: gradient of layer0.weight"
  int64_t rank = 0;
  std::string text;  // the values
};

// Returns the earliest difference between a rank's record and the expected one. A tensor's expected value is in
// `of_rank`, or in `of_all` if it is the same on all ranks. Values differ if their distance exceeds `tolerance` times
// the largest value, or `tolerance` if that is more.
std::optional<Difference> first_difference(const Record& got, int64_t rank, const Record& of_rank, const Record& of_all,
                                           double tolerance);

}  // namespace fsdp::fuzz
