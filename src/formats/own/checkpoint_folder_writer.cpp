#include "formats/own/checkpoint_folder_writer.h"

#include <c10/util/Exception.h>

#include <array>
#include <cstdio>
#include <utility>

#include "formats/common/json_text.h"
#include "formats/common/output_file.h"
#include "formats/own/manifest.h"

namespace fsdp::formats {
namespace {

RankFile rank_file(const std::string& name, const SafetensorsWriter& writer, const std::vector<TensorInfo>& tensors) {
  RankFile file;
  file.file = {name, writer.bytes(), writer.header_bytes(), writer.header_checksum()};
  for (const TensorInfo& tensor : tensors) {
    StoredTensor stored{tensor.dtype, tensor.shape, {}, {}};
    if (tensor.numel() > 0) {
      SafetensorsWriter::Place place = writer.place(tensor.name);
      stored.parts.push_back({0, tensor.numel(), 0, place.offset, std::move(place.checksums)});
    }
    file.tensors.emplace(tensor.name, std::move(stored));
  }
  return file;
}

}  // namespace

std::string rank_file_name(int rank, int count) {
  std::array<char, 64> name{};
  std::snprintf(name.data(), name.size(), "rank-%05d-of-%05d.safetensors", rank, count);
  return name.data();
}

CheckpointFolderWriter::CheckpointFolderWriter(const std::filesystem::path& target,
                                               const std::vector<TensorInfo>& tensors, int64_t max_file_bytes)
    : folder_(target) {
  TORCH_CHECK(max_file_bytes > 0, target.string(), ": max_file_bytes is ", max_file_bytes, "; it must be positive");
  check_replaceable(folder_.target(), kManifestName, "a checkpoint");
  auto lists = split_into_files(tensors, max_file_bytes);
  for (size_t i = 0; i < lists.size(); ++i) {
    const std::string name = rank_file_name(static_cast<int>(i), static_cast<int>(lists.size()));
    auto writer = std::make_unique<SafetensorsWriter>(folder_.path() / name, lists[i]);
    for (const TensorInfo& tensor : lists[i]) {
      TORCH_CHECK(files_by_name_.emplace(tensor.name, writer.get()).second, folder_.target().string(), ": tensor ",
                  quoted_name(tensor.name), " occurs twice");
    }
    files_.push_back({name, std::move(lists[i]), std::move(writer)});
  }
}

void CheckpointFolderWriter::append(const std::string& name, const at::Tensor& values) {
  const auto found = files_by_name_.find(name);
  TORCH_CHECK(found != files_by_name_.end(), folder_.target().string(), ": tensor ", quoted_name(name),
              " was not announced to the writer");
  found->second->append(name, values);
}

void CheckpointFolderWriter::finish(const nlohmann::json& state) {
  Manifest manifest;
  for (const File& file : files_) {
    file.writer->finish();
    add_rank_file(rank_file(file.name, *file.writer, file.tensors), manifest);
  }
  manifest.state = state;
  const std::filesystem::path path = folder_.path() / kManifestName;
  write_file(path, manifest_text(std::move(manifest), path.string()));
  folder_.commit();
}

}  // namespace fsdp::formats
