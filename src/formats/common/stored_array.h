// A tensor in an archive of torch.save: a storage, and the positions of the elements in it.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <vector>

#include "formats/pickle/pickle_reader.h"

namespace fsdp::formats {

struct StoredArray {
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;  // of elements; not negative
  int64_t offset = 0;            // of the first element in the storage, in elements
  int64_t storage_numel = 0;     // in elements of the dtype
  std::string storage;           // its name in the archive's list of storages

  int64_t numel() const;
  // Whether the elements lie in row-major order of their indices, without holes. True if there are no elements.
  bool is_row_major() const;
};

// Parses the array that data.pkl describes. Errors, which begin with `source`: a value that is not a tensor, a tensor
// that reaches beyond its storage, a tensor with more elements than its storage.
StoredArray parse_array(const PickleValue& value, const std::string& source);

}  // namespace fsdp::formats
