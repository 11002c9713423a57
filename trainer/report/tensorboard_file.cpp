#include "report/tensorboard_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <limits>
#include <string_view>
#include <utility>

#include "fsdp/errors.h"
#include "report/crc32c.h"

namespace fsdp::trainer {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kEventsPrefix = "events.out.tfevents.";

// ---------------------------------------------------------------- messages, as Protocol Buffers encode them

std::string little_endian(uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i));
  return text;
}

std::string varint(uint64_t value) {
  std::string text;
  for (; value >= 0x80; value >>= 7) text += static_cast<char>(value | 0x80);
  return text + static_cast<char>(value);
}

enum WireType : uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

std::string field(int number, WireType type) { return varint(static_cast<uint64_t>(number) << 3 | type); }
std::string bytes_field(int number, const std::string& bytes) {
  return field(number, kBytes) + varint(bytes.size()) + bytes;
}

// Field numbers of tensorflow.Event and of the messages in it.
constexpr int kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7;
constexpr int kSummaryValue = 1, kTag = 1, kSimpleValue = 2;
constexpr int kStatus = 1, kStart = 1;

std::string event(int64_t step, const std::string& what) {
  const double now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  return field(kWallTime, kFixed64) + little_endian(std::bit_cast<uint64_t>(now), 8) + field(kStep, kVarint) +
         varint(static_cast<uint64_t>(step)) + what;
}

std::string scalar(const std::string& tag, double value) {
  const auto bits = std::bit_cast<uint32_t>(static_cast<float>(value));
  return bytes_field(kSummaryValue, bytes_field(kTag, tag) + field(kSimpleValue, kFixed32) + little_endian(bits, 4));
}

std::string scalars(const nlohmann::json& line) {
  std::string values;
  for (const auto& [key, value] : line.items()) {
    if (key == "step") continue;
    const double number = value.is_null()      ? std::numeric_limits<double>::quiet_NaN()
                          : value.is_boolean() ? static_cast<double>(value.get<bool>())
                                               : value.get<double>();
    values += scalar(key == "eval_loss" ? "eval/loss" : "train/" + key, number);
  }
  return values;
}

// ---------------------------------------------------------------- records

// Masks the checksum as TFRecord requires, so that the checksum of data that contains checksums is not one of them.
std::string masked_checksum(const std::string& bytes) {
  const uint32_t checksum = crc32c(bytes);
  return little_endian(((checksum >> 15) | (checksum << 17)) + 0xa282ead8, 4);
}

std::string record(const std::string& data) {
  const std::string length = little_endian(data.size(), 8);
  return length + masked_checksum(length) + data + masked_checksum(data);
}

// ---------------------------------------------------------------- names

// Returns the time in the name of an event file, or 0 for other files.
int64_t stamp_of(const std::string& name) {
  if (name.compare(0, kEventsPrefix.size(), kEventsPrefix) != 0) return 0;
  const std::string digits = name.substr(kEventsPrefix.size(), 10);
  int64_t stamp = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), stamp);
  return stamp;
}

// Returns "events.out.tfevents.SECONDS.HOST.PROCESS.0", the form of TensorFlow's own names.
std::string new_name(const fs::path& folder) {
  int64_t stamp = std::time(nullptr);
  for (const auto& entry : fs::directory_iterator(folder)) {
    stamp = std::max(stamp, stamp_of(entry.path().filename().string()) + 1);
  }
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  std::array<char, 400> name{};
  std::snprintf(name.data(), name.size(), "%s%010lld.%s.%d.0", kEventsPrefix.data(), static_cast<long long>(stamp),
                host.data(), static_cast<int>(getpid()));
  return name.data();
}

}  // namespace

TensorBoardFile::TensorBoardFile(const std::string& folder, int64_t step, AppendedFile::Say say) {
  fs::create_directories(folder);
  const std::string path = (fs::path(folder) / new_name(folder)).string();
  const int descriptor = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor < 0) throw FileError(path + ": cannot create the file: " + std::strerror(errno));
  file_ = std::make_unique<AppendedFile>(path, descriptor, std::move(say));
  file_->append(record(event(0, bytes_field(kFileVersion, "brain.Event:2"))));
  file_->append(record(event(step + 1, bytes_field(kSessionLog, field(kStatus, kVarint) + varint(kStart)))));
}

void TensorBoardFile::write(const nlohmann::json& line) {
  file_->append(record(event(line.at("step").get<int64_t>(), bytes_field(kSummary, scalars(line)))));
}

}  // namespace fsdp::trainer
