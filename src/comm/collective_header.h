// The identity of a collective, and the header that carries it to the other ranks before any data may flow.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "comm/collective_shapes.h"
#include "fsdp/communicator.h"

namespace fsdp::comm {

// The properties of a collective that must be equal on all ranks, except `numel` if sizes may differ (has_equal_sizes).
struct CollectiveIdentity {
  CollectiveKind kind = CollectiveKind::kAllGather;
  CollectiveId id;
  // Elements of the larger tensor. For a gather of bytes and an all-to-all: the bytes or elements that this rank sends.
  int64_t numel = 0;
  at::ScalarType dtype = at::kByte;
  at::ScalarType output_dtype = at::kByte;
  double scale = 1.0;
  uint32_t flag_words = 0;
  int root = 0;                     // of a broadcast; the sender of a message, as errors name it
  int receiver = 0;                 // of a message, as errors name it
  std::vector<int64_t> sizes = {};  // of a message's tensor
  int shared_buffer = 0;            // contains an all-gather's inputs, counted from 1 (MemorySharing::buffer)

  // "all-gather of 'layer.3' (forward, generation 7), 1024 elements of Float"
  // "message of 'stage 1' (forward, generation 7), Float of sizes [4, 256], from rank 0 to rank 1"
  std::string describe() const;
  // Returns equal hashes for equal identities, and different hashes for different ones, except by chance.
  uint64_t hash() const;
};

// The fixed size of a header in a message. It contains up to kInlineFlagWords words of flags.
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

// Tags of the transport's messages, all below kTagLimit. A header is matched by the sequence number alone. A payload is
// matched by the sequence number, the identity, the step and its size, so that a payload of another collective or of
// another size is never received into this one's memory.
constexpr int kTagLimit = std::numeric_limits<int>::max() - 7;
int header_tag(uint64_t sequence);
int payload_tag(uint64_t sequence, uint64_t identity_hash, int step, uint64_t bytes);
// The same for a message between two ranks (CollectiveKind::kMessage), the `number`-th from one of them to the other,
// and for its receipt. All differ from the tags of collectives.
int message_header_tag(uint64_t number);
int message_receipt_tag(uint64_t number);
int message_payload_tag(uint64_t number, uint64_t identity_hash);

}  // namespace fsdp::comm
