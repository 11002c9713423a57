#include "state/split_tensors.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <iterator>
#include <set>

#include "formats/common/tensor_info.h"
#include "state/held_part.h"
#include "state/saved_optimizer.h"
#include "state/unsharded_tensors.h"

namespace fsdp::state {

namespace {

std::set<std::string> names_of_model(const TrainingState& state) {
  std::set<std::string> names;
  for (const HeldPart& part : held_parts(state.parts)) names.insert(part.names.begin(), part.names.end());
  for (const auto& [name, tensor] : unsharded_tensors(state.parts)) names.insert(name);
  return names;
}

bool is_part(const at::Tensor& rows, int64_t begin, at::IntArrayRef sizes) {
  return rows.dim() >= 1 && rows.dim() == static_cast<int64_t>(sizes.size()) &&
         rows.sizes().slice(1) == sizes.slice(1) && begin >= 0 && begin <= sizes[0] - rows.size(0);
}

void check_rows(const SplitTensor& tensor) {
  const std::string which = "split tensor '" + full_name(tensor) + "'";
  TORCH_CHECK(!tensor.name.empty(), which, ": has no name");
  TORCH_CHECK(tensor.state.find('/') == std::string::npos, which, ": its state's name has a slash");
  TORCH_CHECK(tensor.rows.defined() && tensor.rows.is_contiguous(), which, ": rows must be a contiguous tensor");
  const at::IntArrayRef sizes = tensor.sizes;
  TORCH_CHECK(is_part(tensor.rows, tensor.begin, sizes), which, ": rows of sizes ", tensor.rows.sizes(), " from row ",
              tensor.begin, " on do not fit into a tensor of sizes ", sizes);
  TORCH_CHECK(formats::countable_nbytes(tensor.rows.scalar_type(), tensor.sizes), which, ": sizes ", sizes,
              " have more than 2^63-1 bytes");
}

std::vector<SplitTensor> selected(const std::vector<SplitTensor>& split, bool states) {
  std::vector<SplitTensor> result;
  std::copy_if(split.begin(), split.end(), std::back_inserter(result),
               [&](const SplitTensor& tensor) { return tensor.state.empty() != states; });
  return result;
}

}  // namespace

void check_split_tensors(const TrainingState& state) {
  if (state.split.empty()) return;
  std::set<std::string> taken = names_of_model(state), split;
  for (const SplitTensor& tensor : state.split) {
    check_rows(tensor);
    TORCH_CHECK(taken.insert(full_name(tensor)).second, "split tensor '", full_name(tensor),
                "': a parameter, a buffer or another split tensor has this name");
    if (tensor.state.empty()) split.insert(tensor.name);
  }
  for (const SplitTensor& tensor : state.split) {
    TORCH_CHECK(split.count(tensor.name) > 0, "split tensor '", full_name(tensor), "' is state of '", tensor.name,
                "', which is not among the split tensors");
  }
}

std::vector<SplitTensor> without_state(const std::vector<SplitTensor>& split) { return selected(split, false); }

std::vector<SplitTensor> with_state(const std::vector<SplitTensor>& split) { return selected(split, true); }

std::string full_name(const SplitTensor& tensor) {
  return tensor.state.empty() ? tensor.name : state_name(tensor.name, tensor.state);
}

std::pair<int64_t, int64_t> held_elements(const SplitTensor& tensor) {
  const int64_t width = c10::multiply_integers(tensor.rows.sizes().slice(1));
  return {tensor.begin * width, tensor.begin * width + tensor.rows.numel()};
}

}  // namespace fsdp::state
