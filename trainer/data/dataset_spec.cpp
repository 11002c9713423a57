#include "data/dataset_spec.h"

#include <c10/util/StringUtil.h>

#include <charconv>
#include <string_view>

#include "config/errors.h"

namespace fsdp::trainer {

namespace {

constexpr int64_t kDummySamples = 1024;
constexpr std::string_view kDummy = "dummy", kDummyOf = "dummy:";

}  // namespace

bool DatasetSpec::is_dummy() const { return text == kDummy || text.starts_with(kDummyOf); }

std::optional<int64_t> DatasetSpec::dummy_samples(int64_t most) const {
  if (!is_dummy()) return std::nullopt;
  if (text == kDummy) return kDummySamples;
  int64_t samples = 0;
  const char* begin = text.data() + kDummyOf.size();
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(begin, end, samples);
  if (error != std::errc() || stop != end || samples <= 0) {
    refuse("must be dummy:N with a whole number N > 0 of samples");
  }
  if (samples > most) refuse("asks for too many samples");
  return samples;
}

void DatasetSpec::refuse(const std::string& why) const {
  const char* key = role == DatasetRole::kTrain ? "dataset" : "eval_dataset";
  throw ConfigError(c10::str("key \"", key, "\": \"", text, "\" ", why));
}

}  // namespace fsdp::trainer
