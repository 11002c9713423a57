#include "data/token_dataset.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "models/loss.h"

namespace fsdp::trainer {

namespace {

// Returns the samples at `indices`, one per row.
at::Tensor read_samples(const TokenSource& source, const std::vector<int64_t>& indices, int64_t length) {
  at::Tensor tokens = at::empty({static_cast<int64_t>(indices.size()), length}, at::kLong);
  auto* out = tokens.mutable_data_ptr<int64_t>();
  for (int64_t index : indices) {
    TORCH_INTERNAL_ASSERT(index >= 0 && (index + 1) * length <= source.size());
    source.read(index * length, length, out);
    out += length;
  }
  return tokens;
}

}  // namespace

TokenDataset::TokenDataset(std::unique_ptr<TokenSource> source, int64_t sequence_length)
    : source_(std::move(source)), sequence_length_(sequence_length) {
  FSDP_CHECK_WITH(FileError, size() > 0, name(), ": holds ", source_->size(),
                  " tokens, less than one sample of max_seq_length = ", sequence_length);
}

std::string TokenDataset::sample_text() const { return c10::str(sequence_length_, " tokens"); }

Batch TokenDataset::batch(const std::vector<int64_t>& indices) const {
  const at::Tensor tokens = read_samples(*source_, indices, sequence_length_);
  return {.inputs = tokens, .labels = tokens};
}

TokenPairDataset::TokenPairDataset(std::unique_ptr<TokenSource> source, const Lengths& lengths,
                                   std::optional<int64_t> padding)
    : source_(std::move(source)), lengths_(lengths), padding_(padding) {
  FSDP_CHECK_WITH(FileError, size() > 0, name(), ": holds ", source_->size(), " tokens, less than one sample of ",
                  sample_text());
}

std::string TokenPairDataset::sample_text() const {
  return c10::str("max_seq_length = ", lengths_.source, " tokens of a source and max_target_length = ", lengths_.target,
                  " of a target");
}

void TokenPairDataset::refuse(int64_t index, const char* part) const {
  FSDP_CHECK_WITH(FileError, false, name(), ": sample ", index, " (from token ", index * sample_length(), "): its ",
                  part, " is nothing but padding, token id ", *padding_, "; remove the sample from the file");
}

int64_t TokenPairDataset::predictions(int64_t index) const {
  std::vector<int64_t> target(static_cast<size_t>(lengths_.target));
  source_->read(index * sample_length() + lengths_.source, lengths_.target, target.data());
  const auto padded = padding_ ? std::count(target.begin(), target.end(), *padding_) : 0;
  if (padded == lengths_.target) refuse(index, "target");
  return lengths_.target - padded;
}

Batch TokenPairDataset::batch(const std::vector<int64_t>& indices) const {
  const at::Tensor samples = read_samples(*source_, indices, sample_length());
  const at::Tensor source = samples.narrow(1, 0, lengths_.source);
  at::Tensor target = samples.narrow(1, lengths_.source, lengths_.target);
  if (!padding_) return {.inputs = source, .labels = target};
  // Masks even if no source is padded, so that the loss of a sample does not depend on the other samples of its batch.
  const at::Tensor mask = source.ne(*padding_), used = mask.any(/*dim=*/1);
  for (size_t i = 0; i < indices.size(); ++i) {
    if (!used[static_cast<int64_t>(i)].item<bool>()) refuse(indices[i], "source");
  }
  return {.inputs = source,
          .labels = target.masked_fill(target.eq(*padding_), models::kIgnoredLabel),
          .attention_mask = mask};
}

std::unique_ptr<TokenSource> open_tokens(const DatasetSpec& spec, int64_t sample_length, int64_t vocab_size) {
  if (const auto samples = spec.dummy_samples(std::numeric_limits<int64_t>::max() / sample_length)) {
    return make_dummy_tokens(spec.text, *samples * sample_length, vocab_size, spec.seed, spec.stream());
  }
  return open_token_file(spec.text, vocab_size);
}

}  // namespace fsdp::trainer
