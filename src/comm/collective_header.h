// What a rank tells the others about a collective before any data may flow: its identity.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/collective_shapes.h"
#include "fsdp/communicator.h"

namespace fsdp {

// Everything that must be equal on all ranks, except `numel` where sizes may differ (has_equal_sizes).
struct CollectiveIdentity {
  CollectiveKind kind = CollectiveKind::kAllGather;
  CollectiveId id;
  // Of the larger of the tensors; what this rank sends (bytes, elements) for a gather of bytes and an all-to-all.
  int64_t numel = 0;
  at::ScalarType dtype = at::kByte;
  at::ScalarType output_dtype = at::kByte;
  double scale = 1.0;
  uint32_t flag_words = 0;
  int root = 0;           // of a broadcast
  int shared_buffer = 0;  // in which the inputs of an all-gather lie, counted from 1 (Communicator::shared_buffer)

  // "all-gather of 'layer.3' (forward, generation 7), 1024 elements of Float"
  std::string describe() const;
  // Equal for equal identities, else different but for chance.
  uint64_t hash() const;
};

// The header as it travels: a fixed number of bytes, which flags fit into up to kInlineFlagWords.
constexpr int64_t kHeaderBytes = 512;
constexpr uint32_t kInlineFlagWords = 24;

struct Header {
  uint64_t sequence = 0;
  uint64_t identity_hash = 0;
  std::string description;
  int64_t numel = 0;
  std::vector<uint64_t> flags;  // the first kInlineFlagWords
};

void write_header(char* bytes, uint64_t sequence, const CollectiveIdentity& identity, const uint64_t* flags);
// Throws if the bytes are not a header of this version of the library.
Header read_header(const char* bytes);

// Tags of messages. A header is found by the sequence number alone. A payload is found by the sequence
// number, the identity, the step and its size, so that what belongs to another collective or has another size is
// never received into this one's memory.
int header_tag(uint64_t sequence);
int payload_tag(uint64_t sequence, uint64_t identity_hash, int step, uint64_t bytes);

}  // namespace fsdp
