// A tensor in an archive of torch.save: a storage, and where in it the elements lie.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/pickle_reader.h"

namespace fsdp::checkpoint {

struct StoredArray {
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;  // of elements; not negative
  int64_t offset = 0;            // of the first element in the storage, in elements
  int64_t storage_numel = 0;     // in elements of the dtype
  std::string storage;           // its name among the archive's storages

  int64_t numel() const;
  // Do the elements lie in the order of their indices, without holes? True where there are none.
  bool is_row_major() const;
};

// From what data.pkl says. Errors, which begin with `source`: a value that is no tensor; one that reaches beyond its
// storage; one with more elements than its storage.
StoredArray parse_array(const PickleValue& value, const std::string& source);

}  // namespace fsdp::checkpoint
