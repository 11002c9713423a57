#include "models/documents.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <utility>

namespace fsdp::models {
namespace {

// `tokens`: of one sequence, [length] on the host.
std::vector<int64_t> lengths_of(const int64_t* tokens, int64_t length, const std::vector<int64_t>& ends) {
  std::vector<int64_t> lengths;
  int64_t begin = 0;
  for (int64_t i = 0; i < length; ++i) {
    if (i + 1 < length && std::find(ends.begin(), ends.end(), tokens[i]) == ends.end()) continue;
    lengths.push_back(i + 1 - begin);
    begin = i + 1;
  }
  return lengths;
}

std::atomic<int64_t> assumed_length = 0;

std::vector<int64_t> lengths_of_assumed(int64_t sequence, int64_t length) {
  std::vector<int64_t> lengths(static_cast<size_t>(sequence / length), length);
  if (sequence % length > 0) lengths.push_back(sequence % length);
  return lengths;
}

}  // namespace

void assume_document_length(int64_t length) { assumed_length = length; }

Documents::Documents(std::vector<std::vector<int64_t>> lengths) {
  const bool any = std::any_of(lengths.begin(), lengths.end(), [](const auto& of_one) { return of_one.size() > 1; });
  if (any) lengths_ = std::make_shared<const std::vector<std::vector<int64_t>>>(std::move(lengths));
}

Documents Documents::ending_with(const std::vector<int64_t>& ends, const at::Tensor& input_ids) {
  TORCH_CHECK(!input_ids.is_meta(), "attention by document needs the values of input_ids, which has none");
  TORCH_CHECK(input_ids.dim() == 2 && input_ids.scalar_type() == at::kLong,
              "attention by document: input_ids must be [batch, sequence] int64, is of shape ", input_ids.sizes(),
              " and dtype ", input_ids.scalar_type());
  const at::Tensor tokens = input_ids.cpu().contiguous();
  const int64_t sequence = tokens.size(1);
  const int64_t assumed = assumed_length;
  std::vector<std::vector<int64_t>> lengths;
  for (int64_t i = 0; i < tokens.size(0); ++i) {
    lengths.push_back(assumed > 0 ? lengths_of_assumed(sequence, assumed)
                                  : lengths_of(tokens.const_data_ptr<int64_t>() + i * sequence, sequence, ends));
  }
  return Documents(std::move(lengths));
}

int64_t Documents::longest(int64_t sequence) const {
  if (are_sequences()) return sequence;
  int64_t longest = 0;
  for (const std::vector<int64_t>& of_one : lengths()) {
    longest = std::max(longest, *std::max_element(of_one.begin(), of_one.end()));
  }
  return longest;
}

at::Tensor Documents::positions(at::Device device) const {
  std::vector<at::Tensor> sequences;
  for (const std::vector<int64_t>& of_one : lengths()) {
    std::vector<at::Tensor> documents;
    for (const int64_t length : of_one) documents.push_back(at::arange(length, at::kLong));
    sequences.push_back(at::cat(documents));
  }
  return at::stack(sequences).to(device);
}

}  // namespace fsdp::models
