// The config's keys `dataset` and `eval_dataset`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace fsdp::trainer {

enum class DatasetRole : uint8_t { kTrain, kEval };

// Names the data set to open: "dummy", "dummy:N" or a file.
struct DatasetSpec {
  std::string text;
  DatasetRole role = DatasetRole::kTrain;
  uint64_t seed = 0;  // of dummy data, which differs between the roles

  bool is_dummy() const;
  // Returns the number of samples that "dummy" or "dummy:N" asks for, or nothing for other texts. More than `most`
  // samples are an error.
  std::optional<int64_t> dummy_samples(int64_t most) const;
  // Throws a ConfigError that names the key and the text.
  [[noreturn]] void refuse(const std::string& why) const;
  // Returns the stream of the random numbers of dummy data.
  uint64_t stream() const { return static_cast<uint64_t>(role); }
};

}  // namespace fsdp::trainer
