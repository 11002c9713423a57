#include "formats/safetensors/safetensors.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "formats/common/json_text.h"
#include "formats/safetensors/safetensors_header.h"

namespace fsdp::formats {

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : file_(MappedFile::open(path)) {
  SafetensorsHeader header = parse_safetensors_header(file_->bytes(), path.string());
  for (auto& entry : header.entries) {
    index_.emplace(entry.info.name, tensors_.size());
    offsets_.push_back(header.data_start + entry.begin);
    tensors_.push_back(std::move(entry.info));
  }
  metadata_ = std::move(header.metadata);
}

size_t SafetensorsFile::position(const std::string& name) const {
  const auto found = index_.find(name);
  FSDP_CHECK_WITH(FileError, found != index_.end(), path().string(), ": holds no tensor ", quoted_name(name));
  return found->second;
}

const TensorInfo& SafetensorsFile::info(const std::string& name) const { return tensors_[position(name)]; }

at::Tensor SafetensorsFile::tensor(const std::string& name) const {
  const size_t at = position(name);
  return view(at, 0, tensors_[at].numel()).view(tensors_[at].shape);
}

// Returns elements [begin, end) of a tensor as a 1-D tensor: a view of the mapped file if its bytes can be used
// directly, otherwise a copy.
at::Tensor SafetensorsFile::view(size_t position, int64_t begin, int64_t end) const {
  const c10::ScalarType dtype = tensors_[position].dtype;
  const size_t element_size = c10::elementSize(dtype);
  const char* data = file_->bytes().data() + offsets_[position] + static_cast<size_t>(begin) * element_size;
  const int64_t count = end - begin;
  if (dtype == c10::ScalarType::Bool) {  // any byte but 0 means true; bools other than 0 and 1 are undefined behavior
    return at::from_blob(const_cast<char*>(data), {count}, at::TensorOptions(at::kByte)).ne(0);
  }
  if (reinterpret_cast<uintptr_t>(data) % element_size == 0) {
    return at::from_blob(const_cast<char*>(data), {count}, [file = file_](void*) {}, at::TensorOptions(dtype));
  }
  at::Tensor copy = at::empty({count}, at::TensorOptions(dtype));
  if (count > 0) std::memcpy(copy.mutable_data_ptr(), data, static_cast<size_t>(count) * element_size);
  return copy;
}

void SafetensorsFile::read_range(const std::string& name, int64_t begin, int64_t end, at::Tensor out) const {
  const size_t at = position(name);
  TORCH_CHECK(0 <= begin && begin <= end && end <= tensors_[at].numel(), path().string(), ": elements [", begin, ", ",
              end, ") of tensor ", quoted_name(name), ", which has ", tensors_[at].numel());
  TORCH_CHECK(out.dim() == 1 && out.numel() == end - begin && out.is_contiguous(), "read_range of ", quoted_name(name),
              ": out must be 1-D, contiguous and of ", end - begin, " elements, is of shape ", out.sizes());
  const at::NoGradGuard no_grad;
  // Copying in blocks limits the memory that misaligned data need.
  constexpr int64_t kBlock = int64_t{1} << 20;
  for (int64_t first = begin; first < end; first += kBlock) {
    const int64_t last = std::min(end, first + kBlock);
    out.narrow(0, first - begin, last - first).copy_(view(at, first, last));
  }
}

}  // namespace fsdp::formats
