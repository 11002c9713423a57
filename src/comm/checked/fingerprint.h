// The exchange that lets ranks see whether they issue the same collective ([Note: fingerprints] in
// checked_communicator.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/collective_header.h"
#include "comm/staged/staging_pool.h"
#include "fsdp/communicator.h"

namespace fsdp::comm {

// The properties of one collective that ranks compare.
struct Fingerprint {
  uint64_t hash = 0;    // of the identity, the number and the step
  uint64_t number = 0;  // of the collective in its group
  int64_t step = 0;
  std::string description;

  // "all-gather of 'layer.3' (forward, generation 7), 1024 elements of Float, as #41 of its group, at step 2"
  std::string describe() const;
};
Fingerprint fingerprint_of(const CollectiveIdentity& identity, uint64_t number, int64_t step);

class FingerprintExchange {
 public:
  // Issues the exchange over `control`, without blocking. `buffers` must outlive the exchange.
  FingerprintExchange(Communicator& control, StagingPool& buffers, const Fingerprint& own);

  // Waits for all ranks. Returns an error message, the same on every rank, or nothing if all fingerprints are equal.
  // `names`: the numbers of the ranks in errors.
  std::optional<std::string> compare(const std::vector<int>& names);

 private:
  Fingerprint of_rank(int rank) const;

  int size_;
  StagingPool& buffers_;
  at::Tensor buffer_;
  std::unique_ptr<Work> work_;
};

}  // namespace fsdp::comm
