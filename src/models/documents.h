// The documents in a batch of token sequences, for attention that does not reach beyond a document.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace fsdp::models {

// The documents of each sequence of a batch, one after the other. A token attends to those before it in its document,
// and positions are counted from the beginning of the document: each document is computed as if it were alone. Cheap to
// copy.
class Documents {
 public:
  // Each sequence is one document, of whatever length.
  Documents() = default;
  // lengths: of the documents of each sequence, all greater than 0.
  explicit Documents(std::vector<std::vector<int64_t>> lengths);

  // A document ends with one of the tokens `ends`, or with its sequence. input_ids: [batch, sequence] int64, whose
  // values are copied to the host if they are elsewhere. Throws if they have none (the meta device).
  static Documents ending_with(const std::vector<int64_t>& ends, const at::Tensor& input_ids);

  // Whether each sequence is one document.
  bool are_sequences() const { return lengths_ == nullptr; }
  // Not if are_sequences().
  const std::vector<std::vector<int64_t>>& lengths() const { return *lengths_; }
  // Returns the length of the longest one in sequences of this length.
  int64_t longest(int64_t sequence) const;
  // Returns the position of each token in its document: [batch, sequence] int64. Not if are_sequences().
  at::Tensor positions(at::Device device) const;

 private:
  std::shared_ptr<const std::vector<std::vector<int64_t>>> lengths_;  // null if each sequence is one document
};

// From now on, Documents::ending_with divides each sequence in this process into documents of this length, the last of
// which may be shorter, whatever the tokens are; 0: by the tokens. For processes that compute sizes and times without
// values, as `fsdp plan` does. May be called from any thread.
void assume_document_length(int64_t length);

}  // namespace fsdp::models
