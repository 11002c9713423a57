#include "comm/collective_header.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "comm/collective_shapes.h"
#include "comm/failure.h"

namespace fsdp::comm {
namespace {

constexpr uint32_t kMagic = 0xF5D90001;  // the low half counts versions of the format
constexpr size_t kHeaderDescriptionBytes = 276;
// Half of the tags are for collectives, half for messages between two ranks; half of each for payloads. Messages have
// receipts, which take half of the tags for their headers.
constexpr int kMessageBit = 1 << 30;
constexpr int kPayloadBit = 1 << 29;
constexpr int kReceiptBit = 1 << 28;

struct WireHeader {
  uint32_t magic;
  uint32_t flag_words;
  uint64_t sequence;
  uint64_t identity_hash;
  int64_t numel;
  uint64_t flags[kInlineFlagWords];
  uint32_t description_length;
  char description[kHeaderDescriptionBytes];
  char padding[8];
};
static_assert(sizeof(WireHeader) == kHeaderBytes);

// The finaliser of SplitMix64: every bit of the input changes about half of the output.
uint64_t mix(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
  return value ^ (value >> 31);
}

uint64_t combine(uint64_t hash, uint64_t value) { return mix(hash + 0x9e3779b97f4a7c15ULL + mix(value)); }

uint64_t hash_of(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325ULL;  // FNV-1a
  for (const unsigned char byte : text) hash = (hash ^ byte) * 0x100000001b3ULL;
  return hash;
}

}  // namespace

std::string CollectiveIdentity::describe() const {
  auto text = fsdp::comm::describe(to_string(kind), id);
  if (kind == CollectiveKind::kGatherBytes) return text;
  if (kind == CollectiveKind::kMessage) {
    return text +
           c10::str(", ", dtype, " of sizes ", at::IntArrayRef(sizes), ", from rank ", root, " to rank ", receiver);
  }
  text += c10::str(", ", numel, " elements of ", dtype);
  if (output_dtype != dtype) text += c10::str(" into ", output_dtype);
  if (scale != 1.0) text += c10::str(", scale ", scale);
  if (kind == CollectiveKind::kBroadcast) text += c10::str(", from rank ", root);
  if (shared_buffer > 0) text += c10::str(", slices of shared buffer ", shared_buffer);
  if (flag_words > 0 && kind != CollectiveKind::kAllToAll) text += c10::str(", ", flag_words, " words of flags");
  return text;
}

uint64_t CollectiveIdentity::hash() const {
  uint64_t hash = combine(hash_of(id.name), id.generation);
  hash = combine(hash, static_cast<uint64_t>(id.pass) << 8 | static_cast<uint64_t>(kind));
  hash = combine(hash, static_cast<uint64_t>(dtype) << 8 | static_cast<uint64_t>(output_dtype));
  hash = combine(hash, std::bit_cast<uint64_t>(scale));
  hash = combine(hash, flag_words);
  hash = combine(hash, static_cast<uint64_t>(root) << 32 | static_cast<uint64_t>(shared_buffer));
  hash = combine(hash, static_cast<uint64_t>(receiver));
  for (const int64_t size : sizes) hash = combine(hash, static_cast<uint64_t>(size));
  return has_equal_sizes(kind) ? combine(hash, static_cast<uint64_t>(numel)) : hash;
}

void write_header(char* bytes, uint64_t sequence, const CollectiveIdentity& identity, const uint64_t* flags) {
  WireHeader wire{};
  wire.magic = kMagic;
  wire.flag_words = identity.flag_words;
  wire.sequence = sequence;
  wire.identity_hash = identity.hash();
  wire.numel = identity.numel;
  if (flags != nullptr) std::copy_n(flags, std::min(identity.flag_words, kInlineFlagWords), wire.flags);
  const auto description = identity.describe();
  wire.description_length = static_cast<uint32_t>(std::min(description.size(), kHeaderDescriptionBytes));
  std::memcpy(wire.description, description.data(), wire.description_length);
  std::memcpy(bytes, &wire, sizeof(wire));
}

Header read_header(const char* bytes) {
  WireHeader wire;
  std::memcpy(&wire, bytes, sizeof(wire));
  if (wire.magic != kMagic) {
    Failure{Failure::Kind::kRanksDiffer,
            c10::str("the ranks run different versions of this library (format ", kMagic, " and ", wire.magic, ")")}
        .raise();
  }
  Header header;
  header.sequence = wire.sequence;
  header.identity_hash = wire.identity_hash;
  header.numel = wire.numel;
  header.description.assign(wire.description, std::min<size_t>(wire.description_length, kHeaderDescriptionBytes));
  header.flags.assign(wire.flags, wire.flags + std::min(wire.flag_words, kInlineFlagWords));
  return header;
}

int header_tag(uint64_t sequence) { return static_cast<int>(sequence % kPayloadBit); }

int payload_tag(uint64_t sequence, uint64_t identity_hash, int step, uint64_t bytes) {
  const uint64_t hash = combine(combine(combine(identity_hash, sequence), static_cast<uint64_t>(step)), bytes);
  return kPayloadBit | static_cast<int>(hash % kPayloadBit);
}

int message_header_tag(uint64_t number) { return kMessageBit | static_cast<int>(number % kReceiptBit); }
int message_receipt_tag(uint64_t number) { return kReceiptBit | message_header_tag(number); }

int message_payload_tag(uint64_t number, uint64_t identity_hash) {
  const uint64_t hash = combine(identity_hash, number);
  return kMessageBit | kPayloadBit | static_cast<int>(hash % (kTagLimit - (kMessageBit | kPayloadBit)));
}

}  // namespace fsdp::comm
