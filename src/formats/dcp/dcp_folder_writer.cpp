#include "formats/dcp/dcp_folder_writer.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <string_view>

#include "formats/common/json_text.h"
#include "formats/dcp/dcp_metadata_writer.h"

namespace fsdp::formats {
namespace {

constexpr const char* kVersion = "1.0.0";  // the format of torch 2.13

// Names files as rank 0 of torch.distributed.checkpoint does.
std::string file_name(int number) { return c10::str("__0_", number, ".distcp"); }

int64_t product(const std::vector<int64_t>& sizes, size_t first) {
  int64_t count = 1;
  for (size_t i = first; i < sizes.size(); ++i) count *= sizes[i];
  return count;
}

// Advances the indices of the dimensions before `cut`; returns false after the last ones.
bool advance(std::vector<int64_t>& index, const std::vector<int64_t>& shape, size_t cut) {
  for (size_t i = cut; i-- > 0;) {
    if (++index[i] < shape[i]) return true;
    index[i] = 0;
  }
  return false;
}

}  // namespace

std::vector<DcpChunk> cut_into_chunks(const TensorInfo& info, int64_t max_bytes) {
  const auto element = static_cast<int64_t>(c10::elementSize(info.dtype));
  const std::vector<int64_t> origin(info.shape.size(), 0);
  if (info.nbytes() <= std::max(max_bytes, element)) return {{origin, info.shape, {}}};
  size_t cut = 0;  // the dimension that is cut; each index of the dimensions before it gets its own chunks
  while (cut + 1 < info.shape.size() && product(info.shape, cut + 1) * element > max_bytes) ++cut;
  const int64_t step = std::max<int64_t>(1, max_bytes / (product(info.shape, cut + 1) * element));
  std::vector<DcpChunk> chunks;
  std::vector<int64_t> index = origin;
  do {
    for (int64_t at = 0; at < info.shape[cut]; at += step) {
      DcpChunk chunk{index, info.shape, {}};
      std::fill_n(chunk.sizes.begin(), cut, 1);
      chunk.offsets[cut] = at;
      chunk.sizes[cut] = std::min(step, info.shape[cut] - at);
      chunks.push_back(std::move(chunk));
    }
  } while (advance(index, info.shape, cut));
  return chunks;
}

DcpFolderWriter::DcpFolderWriter(const std::filesystem::path& target, const DcpFolderWriterOptions& options)
    : folder_(target), options_(options) {
  TORCH_CHECK(options.max_file_bytes > 0 && options.max_chunk_bytes > 0, target.string(),
              ": max_file_bytes and max_chunk_bytes must be positive, are ", options.max_file_bytes, " and ",
              options.max_chunk_bytes);
  check_replaceable(folder_.target(), ".metadata", "a checkpoint of torch.distributed.checkpoint");
  metadata_.version = kVersion;
}

void DcpFolderWriter::add_name(const std::string& name, const std::vector<DcpKey>& key_path) {
  check_complete();
  TORCH_CHECK(metadata_.key_paths.emplace(name, key_path).second, folder_.target().string(), ": ", quoted_name(name),
              " occurs twice");
}

void DcpFolderWriter::check_complete() const {
  TORCH_CHECK(!archive_, folder_.target().string(), ": tensor ", quoted_name(tensor_ ? tensor_->info.name : ""),
              " was not written completely");
}

OutputFile& DcpFolderWriter::file() {
  if (file_ && end_ >= static_cast<uint64_t>(options_.max_file_bytes)) {
    file_->commit();
    file_.reset();
  }
  if (!file_) {
    file_ = std::make_unique<OutputFile>(folder_.path() / file_name(files_++));
    end_ = 0;
  }
  return *file_;
}

DcpLocation DcpFolderWriter::stored_until(uint64_t end) {
  const uint64_t begin = std::exchange(end_, end);
  return {file_name(files_ - 1), static_cast<int64_t>(begin), static_cast<int64_t>(end - begin)};
}

void DcpFolderWriter::begin(const TensorInfo& info, const std::vector<DcpKey>& key_path) {
  add_name(info.name, key_path);
  tensor_ = &metadata_.tensors.emplace(info.name, DcpTensor{info, cut_into_chunks(info, options_.max_chunk_bytes)})
                 .first->second;
  chunk_ = 0;
  next_chunk();
}

// Begins the next chunk that has elements; finishes empty chunks on the way.
void DcpFolderWriter::next_chunk() {
  for (; chunk_ < tensor_->chunks.size(); end_chunk()) {
    const TensorInfo info{"", tensor_->info.dtype, tensor_->chunks[chunk_].sizes};
    OutputFile& target = file();
    archive_.emplace(target, end_, info);
    left_ = info.nbytes();
    if (left_ > 0) return;
  }
}

void DcpFolderWriter::end_chunk() {
  tensor_->chunks[chunk_++].location = stored_until(archive_->finish());
  archive_.reset();
}

void DcpFolderWriter::append(const at::Tensor& values) {
  TORCH_CHECK(tensor_ != nullptr && values.dim() == 1 && values.scalar_type() == tensor_->info.dtype,
              folder_.target().string(), ": append needs a 1-D tensor of the dtype of the tensor that was begun");
  const at::Tensor host = values.detach().to(at::kCPU).contiguous();
  std::string_view bytes(static_cast<const char*>(host.const_data_ptr()), host.nbytes());
  while (!bytes.empty()) {
    TORCH_CHECK(archive_, folder_.target().string(), ": tensor ", quoted_name(tensor_->info.name),
                " got more elements than its shape has");
    const size_t count = std::min(bytes.size(), static_cast<size_t>(left_));
    archive_->append(bytes.substr(0, count));
    bytes.remove_prefix(count);
    left_ -= static_cast<int64_t>(count);
    if (left_ == 0) {
      end_chunk();
      next_chunk();
    }
  }
}

void DcpFolderWriter::add_value(const std::string& name, const std::vector<DcpKey>& key_path,
                                const std::string& opcodes) {
  add_name(name, key_path);
  OutputFile& target = file();
  metadata_.bytes.emplace(name, stored_until(write_value_archive(target, end_, opcodes)));
}

void DcpFolderWriter::finish() {
  check_complete();
  if (file_) file_->commit();
  write_file(folder_.path() / ".metadata", dcp_metadata_text(metadata_));
  folder_.commit();
}

}  // namespace fsdp::formats
