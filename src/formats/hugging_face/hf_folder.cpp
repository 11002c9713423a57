#include "formats/hugging_face/hf_folder.h"

#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "formats/common/json_text.h"
#include "formats/hugging_face/hf_index.h"

namespace fsdp::formats {
namespace {

namespace fs = std::filesystem;

std::string shape_text(const std::vector<int64_t>& shape) { return c10::str("[", c10::Join(", ", shape), "]"); }

// Collects the lines of an error message, which shows only the first 10.
class Problems {
 public:
  void add(const std::string& line) {
    constexpr int kMaxShown = 10;
    if (++count_ <= kMaxShown) text_ += "\n  " + line;
  }
  int count() const { return count_; }
  std::string text() const { return count_ <= 10 ? text_ : c10::str(text_, "\n  and ", count_ - 10, " more"); }

 private:
  int count_ = 0;
  std::string text_;
};

// Throws unless the index and the shard list the same tensors.
void check_listed(const SafetensorsFile& shard, const std::vector<std::string>& listed, const fs::path& index) {
  for (const std::string& name : listed) {
    FSDP_CHECK_WITH(FileError, shard.contains(name), shard.path().string(), ": holds no tensor ", quoted_name(name),
                    ", although ", index.string(), " lists it there");
  }
  const std::unordered_set<std::string> names(listed.begin(), listed.end());
  for (const TensorInfo& info : shard.tensors()) {
    FSDP_CHECK_WITH(FileError, names.count(info.name) != 0, shard.path().string(), ": holds tensor ",
                    quoted_name(info.name), ", which ", index.string(), " does not list there");
  }
}

}  // namespace

HfFolder::HfFolder(fs::path path) : path_(std::move(path)) {
  std::error_code ignored;
  FSDP_CHECK_WITH(FileError, fs::is_directory(path_, ignored), path_.string(),
                  ": no such folder; expected a Hugging Face model folder with config.json and model.safetensors");
  config_ = read_json_file(path_ / "config.json");
  FSDP_CHECK_WITH(FileError, config_.is_object(), (path_ / "config.json").string(), ": expected a JSON object, got ",
                  json_text(config_));
  const fs::path single = path_ / "model.safetensors";
  const fs::path index = path_ / "model.safetensors.index.json";
  if (fs::exists(single, ignored)) {  // takes precedence, as in transformers
    open_single_file(single);
  } else if (fs::exists(index, ignored)) {
    open_shards(index);
  } else {
    FSDP_CHECK_WITH(
        FileError, false, path_.string(), ": neither model.safetensors nor model.safetensors.index.json is there",
        fs::exists(path_ / "pytorch_model.bin", ignored) || fs::exists(path_ / "pytorch_model.bin.index.json", ignored)
            ? "; pickled pytorch_model.bin files are not read: save the model as safetensors"
            : "");
  }
}

void HfFolder::open_single_file(const fs::path& file) { add_file(SafetensorsFile(file)); }

void HfFolder::open_shards(const fs::path& index) {
  for (const auto& [shard, listed] : read_shard_index(index)) {
    SafetensorsFile file(path_ / shard);
    for (const TensorInfo& info : file.tensors()) {
      const auto known = index_.find(info.name);
      FSDP_CHECK_WITH(FileError, known == index_.end(), file.path().string(), ": tensor ", quoted_name(info.name),
                      " is also in ", known == index_.end() ? "" : files_[known->second.file].path().string());
    }
    check_listed(file, listed, index);
    add_file(std::move(file));
  }
}

void HfFolder::add_file(SafetensorsFile file) {
  for (const TensorInfo& info : file.tensors()) {
    index_.emplace(info.name, Place{files_.size(), tensors_.size()});
    tensors_.push_back(info);
  }
  files_.push_back(std::move(file));
}

const TensorInfo* HfFolder::find(const std::string& name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second.tensor];
}

const SafetensorsFile& HfFolder::file_of(const std::string& name) const {
  const auto found = index_.find(name);
  FSDP_CHECK_WITH(FileError, found != index_.end(), path_.string(), ": holds no tensor ", quoted_name(name));
  return files_[found->second.file];
}

const fs::path& HfFolder::file(const std::string& name) const { return file_of(name).path(); }

at::Tensor HfFolder::tensor(const std::string& name) const { return file_of(name).tensor(name); }

void HfFolder::read_range(const std::string& name, int64_t begin, int64_t end, at::Tensor out) const {
  file_of(name).read_range(name, begin, end, std::move(out));
}

void HfFolder::check_tensors(const std::vector<TensorInfo>& expected,
                             const std::function<bool(const std::string&)>& ignore_extra) const {
  Problems problems;
  std::unordered_set<std::string> names;
  for (const TensorInfo& wanted : expected) {
    names.insert(wanted.name);
    const TensorInfo* stored = find(wanted.name);
    if (stored == nullptr) {
      problems.add(c10::str("missing tensor ", quoted_name(wanted.name), " of shape ", shape_text(wanted.shape)));
    } else if (stored->shape != wanted.shape) {
      problems.add(c10::str("tensor ", quoted_name(wanted.name), " has shape ", shape_text(stored->shape),
                            ", expected ", shape_text(wanted.shape)));
    }
  }
  for (const TensorInfo& stored : tensors_) {
    if (names.count(stored.name) == 0 && !(ignore_extra && ignore_extra(stored.name))) {
      problems.add(c10::str("extra tensor ", quoted_name(stored.name), ", which the model that config.json describes ",
                            "does not have"));
    }
  }
  FSDP_CHECK_WITH(FileError, problems.count() == 0, path_.string(),
                  ": the tensors do not fit the model:", problems.text());
}

}  // namespace fsdp::formats
