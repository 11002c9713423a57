#include "formats/dcp/dcp_folder.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "formats/common/json_text.h"
#include "formats/dcp/dcp_chunk_runs.h"

namespace fsdp::formats {
namespace {

namespace fs = std::filesystem;

// Returns the file's length. Throws if the file is missing, or reached through a link, which may lead out of the
// folder.
uint64_t checked_length(const fs::path& folder, const std::string& relative) {
  fs::path path = folder;
  struct stat status{};
  for (const fs::path& part : fs::path(relative)) {
    path /= part;
    FSDP_CHECK_WITH(FileError, ::lstat(path.c_str(), &status) == 0, path.string(),
                    ": .metadata names this file, but it cannot be accessed: ", std::strerror(errno));
    FSDP_CHECK_WITH(FileError, !S_ISLNK(status.st_mode), path.string(), ": is a symbolic link, which is not followed");
  }
  FSDP_CHECK_WITH(FileError, S_ISREG(status.st_mode), path.string(), ": not a regular file");
  return static_cast<uint64_t>(status.st_size);
}

class FileLengths {
 public:
  explicit FileLengths(const fs::path& folder) : folder_(folder) {}

  void check(const DcpLocation& location, const std::string& name) {
    const auto [known, is_new] = lengths_.try_emplace(location.path, 0);
    if (is_new) known->second = checked_length(folder_, location.path);
    const auto end = static_cast<uint64_t>(location.offset + location.length);
    FSDP_CHECK_WITH(FileError, end <= known->second, (folder_ / location.path).string(), ": has ", known->second,
                    " bytes, but ", quoted_name(name), " ends at byte ", end,
                    ": it was cut short or belongs to another checkpoint");
  }

 private:
  const fs::path& folder_;
  std::map<std::string, uint64_t> lengths_;
};

void check_files(const fs::path& folder, const DcpMetadata& metadata) {
  FileLengths files(folder);
  for (const auto& [name, tensor] : metadata.tensors) {
    for (const DcpChunk& chunk : tensor.chunks) files.check(chunk.location, name);
  }
  for (const auto& [name, location] : metadata.bytes) files.check(location, name);
}

// Any byte but 0 means true; a bool with a value other than 0 and 1 is undefined behavior.
void normalize_bools(char* bytes, int64_t count) {
  std::transform(bytes, bytes + count, bytes, [](char byte) { return static_cast<char>(byte != 0); });
}

}  // namespace

DcpFolder::DcpFolder(fs::path path) : path_(std::move(path)), metadata_(read_dcp_metadata(path_)) {
  check_files(path_, metadata_);
}

const DcpTensor& DcpFolder::tensor(const std::string& name) const {
  const auto found = metadata_.tensors.find(name);
  FSDP_CHECK_WITH(FileError, found != metadata_.tensors.end(), path_.string(), ": holds no tensor ", quoted_name(name));
  return found->second;
}

const DcpLocation& DcpFolder::location(const std::string& name) const {
  const auto found = metadata_.bytes.find(name);
  FSDP_CHECK_WITH(FileError, found != metadata_.bytes.end(), path_.string(), ": holds no value ", quoted_name(name));
  return found->second;
}

const InputFile& DcpFolder::file(const std::string& name) const {
  base::MutexLock lock(mutex_);
  auto& known = files_[name];
  if (!known) known = std::make_unique<InputFile>(path_ / name);
  return *known;
}

TorchArchive DcpFolder::archive(const DcpLocation& location, const std::string& where) const {
  return {file(location.path), static_cast<uint64_t>(location.offset), static_cast<uint64_t>(location.length), where};
}

StoredArray DcpFolder::array(const TorchArchive& archive, const DcpTensor& tensor, const DcpChunk& chunk) const {
  StoredArray array = parse_array(archive.value(), archive.zip().source());
  FSDP_CHECK_WITH(FileError, array.dtype == tensor.info.dtype && array.sizes == chunk.sizes, archive.zip().source(),
                  ": the archive is ", c10::toString(array.dtype), " [", c10::Join(", ", array.sizes),
                  "], but .metadata says ", c10::toString(tensor.info.dtype), " [", c10::Join(", ", chunk.sizes), "]");
  return array;
}

void DcpFolder::read(const std::string& name, int64_t begin, int64_t end, at::Tensor out) const {
  const DcpTensor& stored = tensor(name);
  const std::string where = path_.string() + ": tensor " + quoted_name(name);
  TORCH_CHECK(0 <= begin && begin <= end && end <= stored.info.numel(), where, ": elements [", begin, ", ", end,
              ") of ", stored.info.numel());
  TORCH_CHECK(out.dim() == 1 && out.numel() == end - begin && out.is_contiguous(), where,
              ": out must be 1-D, contiguous and of ", end - begin, " elements, is of shape ", out.sizes());
  TORCH_CHECK(out.scalar_type() == stored.info.dtype, where, ": is stored as ", c10::toString(stored.info.dtype),
              " but requested as ", c10::toString(out.scalar_type()), "; values are not cast implicitly");
  const at::NoGradGuard no_grad;
  const at::Tensor host = out.is_cpu() ? out : at::empty(out.sizes(), at::TensorOptions(stored.info.dtype));
  char* const bytes = static_cast<char*>(host.mutable_data_ptr());
  for (const DcpChunk& chunk : stored.chunks) read_chunk(stored, chunk, begin, end, bytes);
  if (stored.info.dtype == c10::ScalarType::Bool) normalize_bools(bytes, end - begin);
  if (!out.is_cpu()) out.copy_(host);
}

void DcpFolder::read_chunk(const DcpTensor& tensor, const DcpChunk& chunk, int64_t begin, int64_t end, char* to) const {
  const auto size = static_cast<size_t>(c10::elementSize(tensor.info.dtype));
  int64_t first = -1, last = -1;  // positions of elements in the chunk
  for_each_run(tensor.info.shape, chunk, begin, end, [&](const ChunkRun& run) {
    first = first < 0 ? run.in_chunk : first;
    last = run.in_chunk + run.count;
  });
  if (first < 0) return;
  const TorchArchive source = archive(chunk.location, where_of(tensor, chunk));
  const StoredArray stored = array(source, tensor, chunk);
  const ZipRecord& storage = source.storage(stored);
  const InputFile& in = source.zip().file();
  std::string block(static_cast<size_t>(last - first) * size, '\0');
  source.read(stored, first, last, block.data(), is_verified(storage, in));
  note_verified(storage, in);
  for_each_run(tensor.info.shape, chunk, begin, end, [&](const ChunkRun& run) {
    std::memcpy(to + static_cast<size_t>(run.in_tensor - begin) * size,
                block.data() + static_cast<size_t>(run.in_chunk - first) * size, static_cast<size_t>(run.count) * size);
  });
}

nlohmann::json DcpFolder::value(const std::string& name) const {
  const DcpLocation& place = location(name);
  return archive(place, where_of(name, place)).plain_value();
}

void DcpFolder::verify(const DcpTensor& tensor, const DcpChunk& chunk) const {
  const TorchArchive source = archive(chunk.location, where_of(tensor, chunk));
  source.zip().verify(source.storage(array(source, tensor, chunk)));
}

void DcpFolder::verify_value(const std::string& name) const {
  const DcpLocation& place = location(name);
  const ZipArchive zip(file(place.path), static_cast<uint64_t>(place.offset), static_cast<uint64_t>(place.length),
                       where_of(name, place));
  for (const ZipRecord& record : zip.records()) zip.verify(record);
}

std::string DcpFolder::where_of(const std::string& name, const DcpLocation& location) const {
  return c10::str((path_ / location.path).string(), ": ", quoted_name(name));
}

std::string DcpFolder::where_of(const DcpTensor& tensor, const DcpChunk& chunk) const {
  return c10::str(where_of(tensor.info.name, chunk.location), ", chunk [", c10::Join(", ", chunk.offsets), "]");
}

bool DcpFolder::is_verified(const ZipRecord& record, const InputFile& file) const {
  base::MutexLock lock(mutex_);
  return verified_.contains({&file, record.offset});
}

void DcpFolder::note_verified(const ZipRecord& record, const InputFile& file) const {
  base::MutexLock lock(mutex_);
  verified_.insert({&file, record.offset});
}

}  // namespace fsdp::formats
