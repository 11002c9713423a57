#include "checkpoint/checkpoint_folder.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>

#include "checkpoint/checksum.h"
#include "checkpoint/dtype.h"
#include "checkpoint/file_system.h"
#include "checkpoint/json_text.h"

namespace fsdp::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr uint64_t kMaxManifestBytes = uint64_t{1} << 30;

// A regular file, open for reading.
class InputFile {
 public:
  explicit InputFile(const fs::path& path) : path_(path) {
    // Without O_NONBLOCK a named pipe would be waited for.
    constexpr int kFlags = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
    file_ = uninterrupted([&] { return file_system().open(path.c_str(), kFlags, 0); });
    TORCH_CHECK(file_ >= 0, path.string(),
                ": cannot be opened: ", errno == ELOOP ? "it is a symbolic link" : std::strerror(errno));
    struct stat status {};
    if (::fstat(file_, &status) != 0 || !S_ISREG(status.st_mode)) {
      file_system().close(file_);
      TORCH_CHECK(false, path.string(), ": not a regular file");
    }
    bytes_ = static_cast<uint64_t>(status.st_size);
  }
  ~InputFile() { file_system().close(file_); }
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const fs::path& path() const { return path_; }
  uint64_t bytes() const { return bytes_; }

  void read(uint64_t offset, char* to, size_t bytes) const {
    while (bytes > 0) {
      const ssize_t done =
          uninterrupted([&] { return file_system().pread(file_, to, bytes, static_cast<off_t>(offset)); });
      TORCH_CHECK(done >= 0, path_.string(), ": reading failed: ", std::strerror(errno));
      TORCH_CHECK(done > 0, path_.string(), ": ends at byte ", offset, ": it was cut short");
      to += done;
      offset += static_cast<uint64_t>(done);
      bytes -= static_cast<size_t>(done);
    }
  }

 private:
  fs::path path_;
  int file_ = -1;
  uint64_t bytes_ = 0;
};

std::string read_manifest(const fs::path& path) {
  TORCH_CHECK(fs::exists(fs::symlink_status(path)), path.parent_path().string(), ": holds no ", kManifestName,
              ": it is no checkpoint, or one whose save was not finished");
  const InputFile file(path);
  TORCH_CHECK(file.bytes() <= kMaxManifestBytes, path.string(), ": ", file.bytes(),
              " bytes are more than the limit of ", kMaxManifestBytes);
  std::string text(file.bytes(), '\0');
  file.read(0, text.data(), text.size());
  return text;
}

}  // namespace

class CheckpointFolder::File : public InputFile {
 public:
  File(const fs::path& path, const StoredFile& stored) : InputFile(path) {
    check_size(stored);
    check_header(stored);
  }

 private:
  void check_size(const StoredFile& stored) const {
    TORCH_CHECK(bytes() == stored.bytes, path().string(), ": has ", bytes(), " bytes, the manifest says ", stored.bytes,
                ": the file is damaged, or of another checkpoint");
  }
  void check_header(const StoredFile& stored) const {
    std::string header(stored.header_bytes, '\0');
    read(0, header.data(), header.size());
    TORCH_CHECK(
        checksum_of(header) == stored.header_checksum, path().string(),
        ": its header does not have the checksum of the manifest: the file is damaged, or of another checkpoint");
  }
};

CheckpointFolder::CheckpointFolder(fs::path path)
    : path_(std::move(path)),
      manifest_(parse_manifest(read_manifest(path_ / kManifestName), (path_ / kManifestName).string())),
      files_(manifest_.files.size()) {
  check_files();
}

CheckpointFolder::~CheckpointFolder() = default;

void CheckpointFolder::check_files() const {
  std::set<std::string> listed;
  for (const StoredFile& stored : manifest_.files) {
    listed.insert(stored.name);
    const fs::path path = path_ / stored.name;
    struct stat status {};
    TORCH_CHECK(::lstat(path.c_str(), &status) == 0, path.string(),
                ": the manifest lists this file, but: ", std::strerror(errno));
    TORCH_CHECK(S_ISREG(status.st_mode), path.string(), ": not a regular file");
    TORCH_CHECK(static_cast<uint64_t>(status.st_size) == stored.bytes, path.string(), ": has ", status.st_size,
                " bytes, the manifest says ", stored.bytes, ": the file is damaged, or of another checkpoint");
  }
  std::error_code failure;
  for (const auto& entry : fs::directory_iterator(path_, failure)) {
    const std::string name = entry.path().filename().string();
    TORCH_CHECK(entry.path().extension() != ".safetensors" || listed.count(name) > 0, entry.path().string(),
                ": is in the folder, but not in the manifest: files of several checkpoints are mixed");
  }
  TORCH_CHECK(!failure, path_.string(), ": cannot be listed: ", failure.message());
}

const StoredTensor& CheckpointFolder::tensor(const std::string& name) const {
  const auto found = manifest_.tensors.find(name);
  TORCH_CHECK(found != manifest_.tensors.end(), path_.string(), ": holds no tensor ", quoted_name(name));
  return found->second;
}

const CheckpointFolder::File& CheckpointFolder::file(size_t index) const {
  std::lock_guard lock(mutex_);
  if (!files_[index]) {
    files_[index] = std::make_unique<File>(path_ / manifest_.files[index].name, manifest_.files[index]);
  }
  return *files_[index];
}

void CheckpointFolder::read(const std::string& name, int64_t begin, int64_t end, at::Tensor out) const {
  const StoredTensor& stored = tensor(name);
  const std::string where = path_.string() + ": tensor " + quoted_name(name);
  TORCH_CHECK(0 <= begin && begin <= end && end <= stored.numel(), where, ": elements [", begin, ", ", end, ") of ",
              stored.numel());
  TORCH_CHECK(out.dim() == 1 && out.numel() == end - begin && out.is_contiguous(), where,
              ": out must be 1-D, contiguous "
              "and of ",
              end - begin, " elements, is of shape ", out.sizes());
  TORCH_CHECK(out.scalar_type() == stored.dtype, where, ": is stored as ", safetensors_dtype(stored.dtype),
              " but wanted as ", safetensors_dtype(out.scalar_type()), "; nothing is cast in silence");
  const at::NoGradGuard no_grad;
  const at::Tensor host = out.is_cpu() ? out : at::empty(out.sizes(), at::TensorOptions(stored.dtype));
  char* const bytes = static_cast<char*>(host.mutable_data_ptr());
  const auto size = static_cast<uint64_t>(c10::elementSize(stored.dtype));
  for (const StoredPart& part : stored.parts) {
    const int64_t first = std::max(begin, part.begin), last = std::min(end, part.end);
    if (first < last) {
      read_part(where_of(name, part), part,
                {static_cast<uint64_t>(part.end - part.begin) * size, static_cast<uint64_t>(first - part.begin) * size,
                 static_cast<uint64_t>(last - part.begin) * size, bytes + static_cast<uint64_t>(first - begin) * size});
    }
  }
  if (!out.is_cpu()) {
    out.copy_(host);
  }
}

// A block that is wanted whole is read to its place.
void CheckpointFolder::read_part(const std::string& where, const StoredPart& part, const Wanted& wanted) const {
  const File& source = file(part.file);
  std::string aside;
  for (uint64_t i = wanted.first / kChecksumBlock; i * kChecksumBlock < wanted.last; ++i) {
    const uint64_t begin = i * kChecksumBlock, end = std::min<uint64_t>(wanted.part_bytes, begin + kChecksumBlock);
    const bool whole = wanted.to != nullptr && wanted.first <= begin && end <= wanted.last;
    if (!whole) {
      aside.resize(end - begin);
    }
    char* const block = whole ? wanted.to + (begin - wanted.first) : aside.data();
    source.read(part.offset + begin, block, end - begin);
    TORCH_CHECK(checksum_of({block, end - begin}) == part.checksums[i], where, ": bytes [", part.offset + begin, ", ",
                part.offset + end, ") of ", source.path().string(),
                " do not have the checksum of the manifest: the file is damaged, or of another checkpoint");
    if (!whole && wanted.to != nullptr) {
      const uint64_t from = std::max(begin, wanted.first), until = std::min(end, wanted.last);
      std::memcpy(wanted.to + (from - wanted.first), block + (from - begin), until - from);
    }
  }
}

void CheckpointFolder::verify() const {
  for (const auto& [name, stored] : manifest_.tensors) {
    for (const StoredPart& part : stored.parts) {
      const auto bytes = static_cast<uint64_t>(part.end - part.begin) * c10::elementSize(stored.dtype);
      read_part(where_of(name, part), part, {bytes, 0, bytes, nullptr});
    }
  }
  for (size_t i = 0; i < manifest_.files.size(); ++i) {
    file(i);
  }
}

std::string CheckpointFolder::where_of(const std::string& name, const StoredPart& part) const {
  return c10::str(path_.string(), ": tensor ", quoted_name(name), ", elements [", part.begin, ", ", part.end, ")");
}

}  // namespace fsdp::checkpoint
