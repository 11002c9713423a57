// The config's keys `dataset` and `eval_dataset`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace fsdp::trainer {

enum class DatasetRole : uint8_t { kTrain, kEval };

// Which data set is to be opened: "dummy", "dummy:N", a file.
struct DatasetSpec {
  std::string text;
  DatasetRole role = DatasetRole::kTrain;
  uint64_t seed = 0;  // of dummy data, which differ between the roles

  bool is_dummy() const;
  // The number of samples that "dummy" or "dummy:N" asks for; nothing when it is something else. More than
  // `most` are an error.
  std::optional<int64_t> dummy_samples(int64_t most) const;
  // Throws a ConfigError that names key and text.
  [[noreturn]] void refuse(const std::string& why) const;
  // Of the random numbers of dummy data.
  uint64_t stream() const { return static_cast<uint64_t>(role); }
};

}  // namespace fsdp::trainer
