#include "convert/inspect.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <map>

#include "convert/folder_kind.h"
#include "convert/slices.h"
#include "formats/common/input_file.h"
#include "formats/dcp/dcp_folder.h"
#include "formats/dcp/dcp_globals.h"
#include "formats/hugging_face/hf_folder.h"
#include "formats/own/checkpoint_folder.h"

namespace fsdp::convert {
namespace {

namespace fs = std::filesystem;
using formats::CheckpointFolder;
using formats::DcpFolder;
using formats::HfFolder;
using formats::TensorInfo;
using nlohmann::json;

// Collects the description of a folder.
class Description {
 public:
  Description(const fs::path& folder, FolderKind kind) {
    all_ = {{"folder", folder.string()}, {"kind", kind_name(kind)}, {"bytes", 0}};
    all_["tensors"] = json::array();
    all_["files"] = json::array();
  }

  void add_tensor(const TensorInfo& info) {
    all_["tensors"].push_back({{"name", info.name},
                               {"dtype", formats::dcp::dtype_name(info.dtype)},
                               {"shape", info.shape},
                               {"bytes", info.nbytes()},
                               {"parts", json::array()}});
    all_["bytes"] = all_["bytes"].get<int64_t>() + info.nbytes();
  }
  // Adds a part of the tensor that was added last.
  void add_part(const std::string& file, int64_t bytes) {
    all_["tensors"].back()["parts"].push_back({{"file", file}, {"bytes", bytes}});
  }
  void add_file(const std::string& name, uint64_t bytes) {
    all_["files"].push_back({{"name", name}, {"bytes", bytes}});
  }
  json& operator[](const char* key) { return all_[key]; }
  json take() { return std::move(all_); }

 private:
  json all_;
};

void describe_folder(const HfFolder& folder, Description& said) {
  std::map<std::string, TensorInfo> tensors;
  std::map<std::string, uint64_t> files;
  for (const TensorInfo& info : folder.tensors()) tensors.emplace(info.name, info);
  for (const auto& [name, info] : tensors) {
    const fs::path& file = folder.file(name);
    files.emplace(file.filename().string(), fs::file_size(file));
    said.add_tensor(info);
    said.add_part(file.filename().string(), info.nbytes());
  }
  for (const auto& [name, bytes] : files) said.add_file(name, bytes);
}

void describe_folder(const CheckpointFolder& folder, Description& said) {
  const formats::Manifest& manifest = folder.manifest();
  for (const auto& [name, tensor] : manifest.tensors) {
    said.add_tensor({name, tensor.dtype, tensor.shape});
    for (const formats::StoredPart& part : tensor.parts) {
      said.add_part(manifest.files[part.file].name,
                    (part.end - part.begin) * static_cast<int64_t>(c10::elementSize(tensor.dtype)));
    }
  }
  for (const formats::StoredFile& file : manifest.files) said.add_file(file.name, file.bytes);
  if (manifest.state.is_object()) {
    if (manifest.state.contains("user")) said["user"] = manifest.state["user"];
    const json optimizer = manifest.state.value("optimizer", json::object());
    if (optimizer.is_object() && optimizer.contains("groups")) said["groups"] = optimizer["groups"];
  }
}

// Returns a value, or the reason that it is not plain data.
json value_or_reason(const DcpFolder& folder, const std::string& name) {
  try {
    return folder.value(name);
  } catch (const c10::Error& error) {
    return {{"cannot be shown", error.what_without_backtrace()}};
  }
}

void describe_folder(const DcpFolder& folder, Description& said) {
  std::map<std::string, uint64_t> files;
  const auto add_file = [&](const formats::DcpLocation& location) {
    files.emplace(location.path, fs::file_size(folder.path() / location.path));
  };
  for (const auto& [name, tensor] : folder.metadata().tensors) {
    said.add_tensor(tensor.info);
    for (const formats::DcpChunk& chunk : tensor.chunks) {
      said.add_part(chunk.location.path, TensorInfo{"", tensor.info.dtype, chunk.sizes}.nbytes());
      add_file(chunk.location);
    }
  }
  for (const auto& [name, location] : folder.metadata().bytes) {
    said["values"][name] = value_or_reason(folder, name);
    add_file(location);
  }
  for (const auto& [name, bytes] : files) said.add_file(name, bytes);
}

// ---------------------------------------------------------------- checks

class Problems {
 public:
  // Records the error that `check` throws, unless it equals the previous one.
  template <typename Check>
  void note(const Check& check) {
    try {
      check();
    } catch (const c10::Error& error) {
      const std::string line = error.what_without_backtrace();
      if (lines_.empty() || lines_.back() != line) lines_.push_back(line);
    }
  }
  std::vector<std::string> take() { return std::move(lines_); }

 private:
  std::vector<std::string> lines_;
};

void check_folder(const HfFolder& folder, Problems& found) {
  std::map<fs::path, bool> files;
  for (const TensorInfo& info : folder.tensors()) files[folder.file(info.name)] = true;
  for (const auto& [path, is_listed] : files) {
    found.note([&, path = path] {
      const formats::InputFile file(fs::canonical(path));
      for (uint64_t at = 0; at < file.bytes(); at += kSliceBytes) {
        file.read(at, std::min<uint64_t>(kSliceBytes, file.bytes() - at));
      }
    });
  }
}

void check_folder(const CheckpointFolder& folder, Problems& found) {
  for (const auto& [name, tensor] : folder.manifest().tensors) {
    const int64_t step = kSliceBytes / static_cast<int64_t>(c10::elementSize(tensor.dtype));
    for (const formats::StoredPart& part : tensor.parts) {
      for (int64_t begin = part.begin; begin < part.end; begin += step) {
        found.note([&, name = name, &tensor = tensor] {
          const int64_t end = std::min(part.end, begin + step);
          folder.read(name, begin, end, at::empty({end - begin}, at::TensorOptions(tensor.dtype)));
        });
      }
    }
  }
  found.note([&] { folder.verify_headers(); });
}

void check_folder(const DcpFolder& folder, Problems& found) {
  for (const auto& [name, tensor] : folder.metadata().tensors) {
    for (const formats::DcpChunk& chunk : tensor.chunks) {
      found.note([&, &tensor = tensor] { folder.verify(tensor, chunk); });
    }
  }
  for (const auto& [name, location] : folder.metadata().bytes) {
    found.note([&, name = name] { folder.verify_value(name); });
  }
}

// Calls `visit` with the folder's reader.
template <typename Visit>
void with_folder(const fs::path& folder, const Visit& visit) {
  switch (kind_of(folder)) {
    case FolderKind::kHuggingFace:
      return visit(HfFolder(folder));
    case FolderKind::kTraining:
      return visit(CheckpointFolder(folder));
    case FolderKind::kDcp:
      return visit(DcpFolder(folder));
  }
}

}  // namespace

json describe(const fs::path& folder) {
  Description said(folder, kind_of(folder));
  with_folder(folder, [&](const auto& reader) { describe_folder(reader, said); });
  return said.take();
}

std::vector<std::string> problems(const fs::path& folder) {
  Problems found;
  found.note([&] { with_folder(folder, [&](const auto& reader) { check_folder(reader, found); }); });
  return found.take();
}

Inspection inspect(const fs::path& folder) {
  Description said(folder, kind_of(folder));
  Problems found;
  with_folder(folder, [&](const auto& reader) {
    describe_folder(reader, said);
    found.note([&] { check_folder(reader, found); });
  });
  return {said.take(), found.take()};
}

}  // namespace fsdp::convert
