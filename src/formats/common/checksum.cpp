#include "formats/common/checksum.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <new>

namespace fsdp::formats {

namespace {

constexpr size_t kDigits = 16;

XXH3_state_t* state_of(void* state) { return static_cast<XXH3_state_t*>(state); }

}  // namespace

uint64_t checksum_of(std::string_view bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

std::string checksums_text(const std::vector<uint64_t>& checksums) {
  constexpr const char* kHex = "0123456789abcdef";
  std::string text;
  text.reserve(checksums.size() * kDigits);
  for (uint64_t checksum : checksums) {
    for (int shift = 60; shift >= 0; shift -= 4) text += kHex[(checksum >> shift) & 15];
  }
  return text;
}

bool parse_checksums(std::string_view text, std::vector<uint64_t>& checksums) {
  const bool lower_case = std::all_of(text.begin(), text.end(), [](char digit) {
    return (digit >= '0' && digit <= '9') || (digit >= 'a' && digit <= 'f');
  });
  if (!lower_case || text.size() % kDigits != 0) return false;
  checksums.clear();
  for (size_t at = 0; at < text.size(); at += kDigits) {
    std::from_chars(text.data() + at, text.data() + at + kDigits, checksums.emplace_back(), 16);
  }
  return true;
}

BlockChecksums::BlockChecksums() : state_(XXH3_createState()) {
  if (!state_) throw std::bad_alloc();
  XXH3_64bits_reset(state_of(state_));
}

BlockChecksums::~BlockChecksums() { XXH3_freeState(state_of(state_)); }

void BlockChecksums::add(std::string_view bytes) {
  while (!bytes.empty()) {
    const size_t taken = std::min(bytes.size(), kChecksumBlock - in_block_);
    XXH3_64bits_update(state_of(state_), bytes.data(), taken);
    in_block_ += taken;
    bytes.remove_prefix(taken);
    if (in_block_ == kChecksumBlock) end_block();
  }
}

std::vector<uint64_t> BlockChecksums::finish() {
  if (in_block_ > 0) end_block();
  return std::move(checksums_);
}

void BlockChecksums::end_block() {
  checksums_.push_back(XXH3_64bits_digest(state_of(state_)));
  XXH3_64bits_reset(state_of(state_));
  in_block_ = 0;
}

}  // namespace fsdp::formats
