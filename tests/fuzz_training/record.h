// What a run has shown: tensors by name, whole or the part that a rank holds.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace fsdp::fuzz {

struct Seen {
  torch::Tensor value;  // undefined: there was none, such as no gradient
  // Which elements of the whole these are, in the order in which they lie in memory; unset: all.
  struct Part {
    int64_t begin = 0;
    int64_t end = 0;
    std::vector<int64_t> strides{};  // of the whole
  };
  std::optional<Part> part;
  int64_t order = 0;
};

class Record {
 public:
  // The last value counts where a name comes again.
  void add(const std::string& name, const torch::Tensor& value);
  void add_part(const std::string& name, const torch::Tensor& value, const Seen::Part& part);
  const std::map<std::string, Seen>& seen() const { return seen_; }

 private:
  std::map<std::string, Seen> seen_;
};

struct Difference {
  std::string name;  // of the tensor: "step 1: gradient of layer0.weight"
  int64_t rank = 0;
  std::string text;  // the values
};

// The earliest difference between what a rank has seen and what it should have seen, which is in `of_rank` or, where
// all ranks see the same, in `of_all`. Values differ when they are further apart than `tolerance`, and `tolerance`
// times the largest value.
std::optional<Difference> first_difference(const Record& got, int64_t rank, const Record& of_rank, const Record& of_all,
                                           double tolerance);

}  // namespace fsdp::fuzz
