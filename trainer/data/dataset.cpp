#include "data/dataset.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <charconv>
#include <limits>
#include <optional>

#include "config/errors.h"

namespace fsdp::trainer {

namespace {

constexpr int64_t kDummySamples = 1024;
constexpr const char* kDummy = "dummy";

const char* key_of(DatasetRole role) { return role == DatasetRole::kTrain ? "dataset" : "eval_dataset"; }

[[noreturn]] void refuse(const std::string& spec, DatasetRole role, const std::string& why) {
  throw ConfigError(c10::str("key \"", key_of(role), "\": \"", spec, "\" ", why));
}

// The number of samples that "dummy" or "dummy:N" asks for; nothing when `spec` is something else.
std::optional<int64_t> dummy_samples(const std::string& spec, DatasetRole role) {
  if (spec == kDummy) return kDummySamples;
  const std::string prefix = std::string(kDummy) + ":";
  if (!spec.starts_with(prefix)) return std::nullopt;
  int64_t samples = 0;
  const char* begin = spec.data() + prefix.size();
  const char* end = spec.data() + spec.size();
  const auto [stop, error] = std::from_chars(begin, end, samples);
  if (error != std::errc() || stop != end || samples <= 0) {
    refuse(spec, role, "must be dummy:N with a whole number N > 0 of samples");
  }
  return samples;
}

}  // namespace

Dataset::Dataset(std::unique_ptr<TokenSource> source, int64_t sequence_length)
    : source_(std::move(source)), sequence_length_(sequence_length) {
  TORCH_CHECK(size() > 0, name(), ": holds ", source_->size(),
              " tokens, not one sample of max_seq_length = ", sequence_length);
}

at::Tensor Dataset::batch(const std::vector<int64_t>& indices) const {
  at::Tensor tokens = at::empty({static_cast<int64_t>(indices.size()), sequence_length_}, at::kLong);
  auto* out = tokens.mutable_data_ptr<int64_t>();
  for (int64_t index : indices) {
    TORCH_INTERNAL_ASSERT(index >= 0 && index < size());
    source_->read(index * sequence_length_, sequence_length_, out);
    out += sequence_length_;
  }
  return tokens;
}

Dataset open_dataset(const std::string& spec, DatasetRole role, int64_t sequence_length, int64_t vocab_size,
                     uint64_t seed) {
  if (const auto samples = dummy_samples(spec, role)) {
    if (*samples > std::numeric_limits<int64_t>::max() / sequence_length) {
      refuse(spec, role, "asks for too many samples");
    }
    return {make_dummy_tokens(spec, *samples * sequence_length, vocab_size, seed, static_cast<uint64_t>(role)),
            sequence_length};
  }
  return {open_token_file(spec, vocab_size), sequence_length};
}

}  // namespace fsdp::trainer
