#include "formats/own/checkpoint_folder.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>

#include "base/check.h"
#include "formats/common/checksum.h"
#include "formats/common/dtype.h"
#include "formats/common/input_file.h"
#include "formats/common/json_text.h"

namespace fsdp::formats {

namespace fs = std::filesystem;

namespace {

constexpr uint64_t kMaxManifestBytes = uint64_t{1} << 30;

std::string read_manifest(const fs::path& path) {
  FSDP_CHECK_WITH(FileError, fs::exists(fs::symlink_status(path)), path.parent_path().string(), ": holds no ",
                  kManifestName, ": it is not a checkpoint, or its save did not finish");
  return read_file(path, kMaxManifestBytes);
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
    FSDP_CHECK_WITH(FileError, bytes() == stored.bytes, path().string(), ": has ", bytes(),
                    " bytes, the manifest says ", stored.bytes,
                    ": the file is damaged or belongs to another checkpoint");
  }
  void check_header(const StoredFile& stored) const {
    FSDP_CHECK_WITH(
        FileError, checksum_of(read(0, stored.header_bytes)) == stored.header_checksum, path().string(),
        ": its header does not match the checksum in the manifest: the file is damaged or belongs to another "
        "checkpoint");
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
    struct stat status{};
    FSDP_CHECK_WITH(FileError, ::lstat(path.c_str(), &status) == 0, path.string(),
                    ": the manifest lists this file, but it cannot be accessed: ", std::strerror(errno));
    FSDP_CHECK_WITH(FileError, S_ISREG(status.st_mode), path.string(), ": not a regular file");
    FSDP_CHECK_WITH(FileError, static_cast<uint64_t>(status.st_size) == stored.bytes, path.string(), ": has ",
                    status.st_size, " bytes, the manifest says ", stored.bytes,
                    ": the file is damaged or belongs to another checkpoint");
  }
  std::error_code failure;
  for (const auto& entry : fs::directory_iterator(path_, failure)) {
    const std::string name = entry.path().filename().string();
    FSDP_CHECK_WITH(FileError, entry.path().extension() != ".safetensors" || listed.count(name) > 0,
                    entry.path().string(),
                    ": is in the folder, but not in the manifest: files of several checkpoints are mixed");
  }
  FSDP_CHECK_WITH(FileError, !failure, path_.string(), ": cannot be listed: ", failure.message());
}

const StoredTensor& CheckpointFolder::tensor(const std::string& name) const {
  const auto found = manifest_.tensors.find(name);
  FSDP_CHECK_WITH(FileError, found != manifest_.tensors.end(), path_.string(), ": holds no tensor ", quoted_name(name));
  return found->second;
}

const CheckpointFolder::File& CheckpointFolder::file(size_t index) const {
  base::MutexLock lock(mutex_);
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
              " but requested as ", safetensors_dtype(out.scalar_type()), "; values are not cast implicitly");
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
  if (!out.is_cpu()) out.copy_(host);
}

// A block that is wanted completely is read directly into its destination.
void CheckpointFolder::read_part(const std::string& where, const StoredPart& part, const Wanted& wanted) const {
  const File& source = file(part.file);
  std::string aside;
  for (uint64_t i = wanted.first / kChecksumBlock; i * kChecksumBlock < wanted.last; ++i) {
    const uint64_t begin = i * kChecksumBlock, end = std::min<uint64_t>(wanted.part_bytes, begin + kChecksumBlock);
    const bool whole = wanted.to != nullptr && wanted.first <= begin && end <= wanted.last;
    if (!whole) aside.resize(end - begin);
    char* const block = whole ? wanted.to + (begin - wanted.first) : aside.data();
    source.read(part.offset + begin, block, end - begin);
    FSDP_CHECK_WITH(FileError, checksum_of({block, end - begin}) == part.checksums[i], where, ": bytes [",
                    part.offset + begin, ", ", part.offset + end, ") of ", source.path().string(),
                    " do not have the checksum of the manifest: the file is damaged or belongs to another checkpoint");
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
  verify_headers();
}

void CheckpointFolder::verify_headers() const {
  for (size_t i = 0; i < manifest_.files.size(); ++i) file(i);
}

std::string CheckpointFolder::where_of(const std::string& name, const StoredPart& part) const {
  return c10::str(path_.string(), ": tensor ", quoted_name(name), ", elements [", part.begin, ", ", part.end, ")");
}

}  // namespace fsdp::formats
