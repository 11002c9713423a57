// How the parameters of a unit are dealt to the ranks of a shard group.
#pragma once

#include <cstdint>

namespace fsdp {

enum class ShardCut : uint8_t {
  // The parameters are concatenated and cut into equal chunks, wherever that falls (FSDP paper, section 3.2.1). At most
  // one element of padding a rank; collectives write to the parameters themselves.
  kFlat,
  // Each parameter is cut into whole rows as torch.chunk cuts its first dimension, in the way of DTensor's Shard(0) and
  // of PyTorch's FSDP2; or into slices of another dimension (Options::shard_dim). The parts may differ by rows, and be
  // empty. A parameter whose rows the ranks do not divide takes padding of up to one row a rank. There still is one
  // collective for each unit. Gathered parameters take one more copy, and memory for it, unless the ranks share memory.
  // Where they do, each rank writes its part for each gather, and its shards are in memory of its own.
  kRows,
};

// "flat", "rows"
const char* to_string(ShardCut cut);

}  // namespace fsdp
