#include "planner/ranks/planned_peers.h"

#include <c10/util/StringUtil.h>

#include <algorithm>

namespace fsdp::planner {
namespace {

// The store refuses values of many MiB.
constexpr size_t kBytesOfPart = size_t{4} << 20;

std::string name_of_part(const std::string& name, size_t part) { return c10::str(name, ", part ", part); }

std::vector<uint8_t> part_of(const std::string& bytes, size_t part) {
  const size_t begin = part * kBytesOfPart, end = std::min(bytes.size(), begin + kBytesOfPart);
  return {bytes.data() + begin, bytes.data() + end};
}

}  // namespace

std::vector<std::string> PlannedPeers::gather(const std::string& own) {
  const int64_t number = gathers_++;
  const auto name = [&](int index) { return c10::str("gather ", number, " of ", index); };
  post(name(index_), own);
  std::vector<std::string> all;
  for (int index = 0; index < count_; ++index) all.push_back(index == index_ ? own : take(name(index)));
  return all;
}

void PlannedPeers::leave() {
  const auto name = [](int index) { return c10::str("end of ", index); };
  if (index_ != 0) return post(name(index_), "");
  for (int index = 1; index < count_; ++index) take(name(index));
}

void PlannedPeers::post(const std::string& name, const std::string& bytes) {
  const size_t parts = (bytes.size() + kBytesOfPart - 1) / kBytesOfPart;
  for (size_t part = 0; part < parts; ++part) store_->set(name_of_part(name, part), part_of(bytes, part));
  store_->set(name, std::to_string(parts));
}

std::string PlannedPeers::take(const std::string& name) {
  const size_t parts = std::stoul(store_->get_to_str(name));
  std::string bytes;
  for (size_t part = 0; part < parts; ++part) {
    const std::vector<uint8_t> more = store_->get(name_of_part(name, part));
    bytes.append(more.begin(), more.end());
  }
  return bytes;
}

}  // namespace fsdp::planner
