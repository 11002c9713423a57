#include "formats/safetensors/safetensors_writer.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "formats/common/dtype.h"
#include "formats/common/json_text.h"

namespace fsdp::formats {
namespace {

// Sorts tensors by decreasing element size, so that each is aligned for its dtype, and otherwise keeps the given order.
std::vector<TensorInfo> aligned_layout(std::vector<TensorInfo> tensors) {
  std::stable_sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return c10::elementSize(a.dtype) > c10::elementSize(b.dtype);
  });
  return tensors;
}

// Returns the 8-byte length and the header, padded with spaces to a multiple of 8 bytes. Names are known to be unique,
// so entries are appended: assigning to a key of an ordered object searches all of its keys.
std::string encode_header(const std::vector<TensorInfo>& tensors, const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  auto& entries = header.get_ref<nlohmann::ordered_json::object_t&>();
  entries.reserve(entries.size() + tensors.size());
  int64_t offset = 0;
  for (const TensorInfo& tensor : tensors) {
    const int64_t end = offset + tensor.nbytes();
    entries.emplace_back(tensor.name, nlohmann::ordered_json{{"dtype", safetensors_dtype(tensor.dtype)},
                                                             {"shape", tensor.shape},
                                                             {"data_offsets", {offset, end}}});
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  std::string encoded(sizeof(length), '\0');
  std::memcpy(encoded.data(), &length, sizeof(length));
  return encoded + text;
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(std::filesystem::path path, const std::vector<TensorInfo>& tensors,
                                     const std::map<std::string, std::string>& metadata)
    : file_(std::move(path)) {
  std::vector<TensorInfo> layout = aligned_layout(tensors);
  for (const TensorInfo& tensor : layout) {
    TORCH_CHECK(tensor.name != "__metadata__" && index_.emplace(tensor.name, index_.size()).second,
                file_.target().string(), ": tensor name ", quoted_name(tensor.name), " is reserved or occurs twice");
  }
  const std::string header = encode_header(layout, metadata);
  uint64_t offset = header.size();
  for (TensorInfo& tensor : layout) {
    const auto bytes = static_cast<uint64_t>(tensor.nbytes());
    slots_.push_back({std::move(tensor), offset});
    offset += bytes;
  }
  bytes_ = offset;
  header_bytes_ = header.size();
  header_checksum_ = checksum_of(header);
  file_.reserve(bytes_);
  file_.write(0, header);
}

SafetensorsWriter::Slot& SafetensorsWriter::slot(const std::string& name) {
  const auto found = index_.find(name);
  TORCH_CHECK(found != index_.end(), file_.target().string(), ": tensor ", quoted_name(name),
              " is not in the layout of this file");
  return slots_[found->second];
}

void SafetensorsWriter::write(const std::string& name, const at::Tensor& tensor) {
  Slot& target = slot(name);
  TORCH_CHECK(target.written < 0, file_.target().string(), ": tensor ", quoted_name(name), " was written twice");
  TORCH_CHECK(tensor.sizes() == c10::IntArrayRef(target.info.shape), file_.target().string(), ": tensor ",
              quoted_name(name), " has shape ", tensor.sizes(), ", the layout says ",
              c10::IntArrayRef(target.info.shape));
  const at::NoGradGuard no_grad;
  write_values(target, tensor.detach().contiguous().view(-1));
}

void SafetensorsWriter::append(const std::string& name, const at::Tensor& values) {
  Slot& target = slot(name);
  const int64_t left = target.info.numel() - std::max<int64_t>(target.written, 0);
  TORCH_CHECK(values.dim() == 1 && values.numel() <= left, file_.target().string(), ": tensor ", quoted_name(name),
              ": a piece of shape ", values.sizes(), "; it must be 1-D, and ", left, " elements are left");
  const at::NoGradGuard no_grad;
  write_values(target, values.detach());
}

// Converts and writes in blocks, so that a large tensor is never in memory twice.
void SafetensorsWriter::write_values(Slot& slot, const at::Tensor& flat) {
  if (slot.written < 0) {
    slot.written = 0;
    slot.running = std::make_unique<BlockChecksums>();
  }
  constexpr int64_t kBlock = int64_t{4} << 20;
  for (int64_t first = 0; first < flat.numel(); first += kBlock) {
    const int64_t count = std::min(kBlock, flat.numel() - first);
    const at::Tensor block =
        flat.narrow(0, first, count).to(at::TensorOptions().dtype(slot.info.dtype).device(at::kCPU)).contiguous();
    const std::string_view bytes(static_cast<const char*>(block.const_data_ptr()), block.nbytes());
    slot.running->add(bytes);
    file_.write(slot.offset + static_cast<uint64_t>(slot.written) * c10::elementSize(slot.info.dtype), bytes);
    slot.written += count;
  }
  if (slot.is_complete() && slot.running) {
    slot.checksums = slot.running->finish();
    slot.running.reset();
  }
}

SafetensorsWriter::Place SafetensorsWriter::place(const std::string& name) const {
  const auto found = index_.find(name);
  TORCH_CHECK(found != index_.end() && slots_[found->second].is_complete(), file_.target().string(), ": tensor ",
              quoted_name(name), " was not written");
  return {slots_[found->second].offset, slots_[found->second].checksums};
}

void SafetensorsWriter::finish() {
  for (const Slot& slot : slots_) {
    TORCH_CHECK(slot.is_complete(), file_.target().string(), ": tensor ", quoted_name(slot.info.name),
                " of the layout was ", slot.written < 0 ? "never written" : "not written completely");
  }
  file_.commit();
}

}  // namespace fsdp::formats
