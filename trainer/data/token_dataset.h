// Samples of equal length, cut from a sequence of tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/dataset_spec.h"
#include "data/token_source.h"

namespace fsdp::trainer {

// Samples for causal language models. Sample i is tokens [i*L, (i+1)*L) of the source; tokens after the last complete
// sample are ignored. Inputs and labels are the same tokens; all but the first are predicted.
class TokenDataset : public Dataset {
 public:
  // Throws an error if the source has less than one sample.
  TokenDataset(std::unique_ptr<TokenSource> source, int64_t sequence_length);

  std::string name() const override { return source_->name(); }
  int64_t size() const override { return source_->size() / sequence_length_; }
  std::string sample_text() const override;
  std::string remark() const override { return source_->remark(); }
  Batch batch(const std::vector<int64_t>& indices) const override;
  int64_t predictions(int64_t /*index*/) const override { return sequence_length_ - 1; }

 private:
  std::unique_ptr<TokenSource> source_;
  int64_t sequence_length_;
};

// Samples for sequence-to-sequence models. Sample i starts at token i*(S+T): S tokens of the source (the inputs), then
// T tokens of the target (the labels). Padding is masked in the source and not predicted in the target.
class TokenPairDataset : public Dataset {
 public:
  struct Lengths {
    int64_t source = 0;
    int64_t target = 0;
  };
  // `padding`: the token id of padding; nothing: there is no padding. Throws an error if the source has less than one
  // sample. Reading throws an error for a sample whose source or target consists of padding only.
  TokenPairDataset(std::unique_ptr<TokenSource> source, const Lengths& lengths, std::optional<int64_t> padding);

  std::string name() const override { return source_->name(); }
  int64_t size() const override { return source_->size() / sample_length(); }
  std::string sample_text() const override;
  std::string remark() const override { return source_->remark(); }
  Batch batch(const std::vector<int64_t>& indices) const override;
  int64_t predictions(int64_t index) const override;

 private:
  int64_t sample_length() const { return lengths_.source + lengths_.target; }
  [[noreturn]] void refuse(int64_t index, const char* part) const;

  std::unique_ptr<TokenSource> source_;
  Lengths lengths_;
  std::optional<int64_t> padding_;
};

// Opens the source that `spec` names, for samples of `sample_length` tokens below vocab_size.
std::unique_ptr<TokenSource> open_tokens(const DatasetSpec& spec, int64_t sample_length, int64_t vocab_size);

}  // namespace fsdp::trainer
