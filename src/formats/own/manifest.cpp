#include "formats/own/manifest.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <limits>
#include <set>
#include <tuple>

#include "base/check.h"
#include "formats/common/checksum.h"
#include "formats/common/dtype.h"
#include "formats/common/json_text.h"
#include "formats/safetensors/safetensors_header.h"

namespace fsdp::formats {
namespace {

using nlohmann::json;

constexpr const char* kFormat = "fsdp.cpp checkpoint";
constexpr const char* kTensors = "tensors";
constexpr int kVersion = 1;
constexpr std::string_view kBefore = "{\"checksum\":\"", kBetween = "\",\"content\":", kAfter = "}\n";
constexpr size_t kDigits = 16;

// ---------------------------------------------------------------- writing

json to_json(const StoredFile& file) {
  return {{"name", file.name},
          {"bytes", file.bytes},
          {"header_bytes", file.header_bytes},
          {"header_checksum", checksums_text({file.header_checksum})}};
}

json to_json(const StoredPart& part) {
  return {{"begin", part.begin},
          {"end", part.end},
          {"file", part.file},
          {"offset", part.offset},
          {"checksums", checksums_text(part.checksums)}};
}

json to_json(const StoredTensor& tensor) {
  json parts = json::array();
  for (const StoredPart& part : tensor.parts) parts.push_back(to_json(part));
  json fields{{"dtype", safetensors_dtype(tensor.dtype)}, {"shape", tensor.shape}, {"parts", std::move(parts)}};
  if (!tensor.strides.empty()) fields["strides"] = tensor.strides;
  return fields;
}

// Returns the text of an object with the members `others` and "tensors", built one tensor at a time, identical to that
// of json::dump.
std::string text_with_tensors(json others, const std::map<std::string, StoredTensor>& tensors) {
  others[kTensors] = nullptr;  // at its place in the order of keys
  std::string text = "{";
  const auto add_key = [&text](const std::string& key) {
    text += text.back() == '{' ? "" : ",";
    text += json(key).dump() + ":";
  };
  for (const auto& [key, value] : others.items()) {
    add_key(key);
    if (key != kTensors) {
      text += value.dump();
      continue;
    }
    text += '{';
    for (const auto& [name, tensor] : tensors) {
      add_key(name);
      text += to_json(tensor).dump();
    }
    text += '}';
  }
  return text + "}";
}

// ---------------------------------------------------------------- reading

// Describes a position for an error. Evaluated only when an error occurs, because there may be a million positions.
using Where = std::function<std::string()>;

// An object of the manifest, whose errors include its position.
class Fields {
 public:
  Fields(const json& fields, Where where) : fields_(fields), where_(std::move(where)) {
    FSDP_CHECK_WITH(FileError, fields.is_object(), where_(), ": expected an object, got ", json_text(fields));
  }

  std::string where() const { return where_(); }
  bool has(const char* key) const { return fields_.contains(key); }
  const json& at(const char* key) const {
    const auto found = fields_.find(key);
    FSDP_CHECK_WITH(FileError, found != fields_.end(), where_(), ": ", key, " is missing");
    return *found;
  }
  const std::string& string(const char* key) const {
    const json& value = at(key);
    FSDP_CHECK_WITH(FileError, value.is_string(), where_(), ": ", key, " must be a string, got ", json_text(value));
    return value.get_ref<const std::string&>();
  }
  uint64_t size(const char* key) const { return size_of(at(key), key); }
  std::vector<int64_t> sizes(const char* key) const {
    const json& value = at(key);
    FSDP_CHECK_WITH(FileError, value.is_array() && value.size() <= kMaxTensorRank, where_(), ": ", key,
                    " must be a list of at most ", kMaxTensorRank, " integers, got ", json_text(value));
    std::vector<int64_t> sizes;
    for (const json& element : value) sizes.push_back(static_cast<int64_t>(size_of(element, key)));
    return sizes;
  }
  const json& list(const char* key) const {
    const json& value = at(key);
    FSDP_CHECK_WITH(FileError, value.is_array(), where_(), ": ", key, " must be a list, got ", json_text(value));
    return value;
  }
  std::vector<uint64_t> checksums(const char* key) const {
    std::vector<uint64_t> checksums;
    FSDP_CHECK_WITH(FileError, parse_checksums(string(key), checksums), where_(), ": ", key, " must be ", kDigits,
                    " hexadecimal digits for each block, got ", json_text(at(key)));
    return checksums;
  }

 private:
  uint64_t size_of(const json& value, const char* key) const {
    FSDP_CHECK_WITH(FileError,
                    value.is_number_unsigned() && value.get<uint64_t>() <= std::numeric_limits<int64_t>::max(),
                    where_(), ": ", key, " must hold integers from 0 to 2^63-1, got ", json_text(value));
    return value.get<uint64_t>();
  }

  const json& fields_;
  Where where_;
};

StoredFile parse_file(const Fields& fields) {
  StoredFile file{fields.string("name"), fields.size("bytes"), fields.size("header_bytes"), 0};
  const std::vector<uint64_t> checksum = fields.checksums("header_checksum");
  FSDP_CHECK_WITH(FileError, checksum.size() == 1, fields.where(), ": header_checksum must be one checksum");
  file.header_checksum = checksum.front();
  return file;
}

StoredPart parse_part(const Fields& fields) {
  return {static_cast<int64_t>(fields.size("begin")), static_cast<int64_t>(fields.size("end")),
          static_cast<size_t>(fields.size("file")), fields.size("offset"), fields.checksums("checksums")};
}

StoredTensor parse_tensor(const Fields& fields) {
  StoredTensor tensor;
  const auto dtype = dtype_from_safetensors(fields.string("dtype"));
  FSDP_CHECK_WITH(FileError, dtype.has_value(), fields.where(), ": dtype ", json_text(fields.at("dtype")),
                  " is not supported; supported are ", supported_safetensors_dtypes());
  tensor.dtype = *dtype;
  tensor.shape = fields.sizes("shape");
  if (fields.has("strides")) tensor.strides = fields.sizes("strides");
  const Where where = [&] { return c10::str(fields.where(), ", part ", tensor.parts.size()); };
  for (const json& part : fields.list("parts")) tensor.parts.push_back(parse_part(Fields(part, where)));
  return tensor;
}

// Reads the tensors while the text is being parsed. Holds back their first error until the rest of the text is parsed,
// because the rest may show that another program wrote it.
class TensorReader : public MemberReader {
 public:
  explicit TensorReader(const std::string& source) : source_(source) {}

  bool begin(const std::string& key) override {
    const auto [entry, is_new] = tensors_.try_emplace(key);
    entry_ = entry;
    return is_new;
  }
  void end(json value) override {
    if (!error_) {
      try {
        entry_->second =
            parse_tensor(Fields(value, [this] { return source_ + ": tensor " + quoted_name(entry_->first); }));
      } catch (...) {
        error_ = std::current_exception();
      }
    }
  }

  // Returns the tensors. `fields`: the member from which they were read.
  std::map<std::string, StoredTensor> take(const json& fields) {
    FSDP_CHECK_WITH(FileError, fields.is_object(), source_, ": tensors: expected an object, got ", json_text(fields));
    if (error_) std::rethrow_exception(error_);
    return std::move(tensors_);
  }

 private:
  const std::string& source_;
  std::map<std::string, StoredTensor> tensors_;
  std::map<std::string, StoredTensor>::iterator entry_;
  std::exception_ptr error_;
};

// ---------------------------------------------------------------- checks

void check_file(const StoredFile& file, std::set<std::string>& names, const std::string& source) {
  const std::string where = source + ": file " + quoted_name(file.name);
  const bool plain = !file.name.empty() && file.name.size() < 256 && file.name.front() != '.' &&
                     file.name.find('/') == std::string::npos && file.name.find('\0') == std::string::npos;
  FSDP_CHECK_WITH(FileError, plain, where,
                  ": must be the name of a file in the checkpoint's folder, without '/' and without a leading dot");
  FSDP_CHECK_WITH(FileError, file.name != kManifestName && names.insert(file.name).second, where, ": is listed twice");
  FSDP_CHECK_WITH(FileError, file.header_bytes <= file.bytes, where, ": ", file.header_bytes,
                  " header bytes in a file of ", file.bytes);
  constexpr uint64_t kLimit = sizeof(uint64_t) + kMaxHeaderBytes;
  FSDP_CHECK_WITH(FileError, file.header_bytes <= kLimit, where, ": ", file.header_bytes,
                  " bytes of header are more than the limit of ", kLimit);
}

// Throws unless the strides are those of a dense tensor: each element has its own place and no place is left out.
void check_strides(const StoredTensor& tensor, const Where& where) {
  if (tensor.strides.empty()) return;
  FSDP_CHECK_WITH(FileError, tensor.strides.size() == tensor.shape.size(), where(), ": ", tensor.strides.size(),
                  " strides for ", tensor.shape.size(), " sizes");
  std::vector<std::pair<int64_t, int64_t>> dimensions;  // stride, size
  for (size_t i = 0; i < tensor.shape.size(); ++i) {
    if (tensor.shape[i] != 1) dimensions.emplace_back(tensor.strides[i], tensor.shape[i]);
  }
  std::sort(dimensions.begin(), dimensions.end());
  int64_t expected = 1;
  for (const auto& [stride, size] : dimensions) {
    FSDP_CHECK_WITH(FileError, stride == expected, where(), ": strides [", c10::Join(", ", tensor.strides),
                    "] of shape [", c10::Join(", ", tensor.shape), "] leave elements out or share them");
    expected *= size;
  }
}

// The position of a part's bytes in its file.
struct Extent {
  size_t file;
  uint64_t begin, end;
  const std::string* tensor;
};

void check_parts(const std::string& name, const StoredTensor& tensor, const Manifest& manifest,
                 std::vector<Extent>& extents, const Where& where) {
  FSDP_CHECK_WITH(FileError, countable_nbytes(tensor.dtype, tensor.shape), where(), ": shape [",
                  c10::Join(", ", tensor.shape), "] has more than 2^63-1 bytes");
  check_strides(tensor, where);
  int64_t covered = 0;
  for (const StoredPart& part : tensor.parts) {
    const Where which = [&] { return c10::str(where(), ", elements [", part.begin, ", ", part.end, ")"); };
    FSDP_CHECK_WITH(FileError, part.begin >= covered, which(), ": overlap the previous part, which ends at ", covered);
    FSDP_CHECK_WITH(FileError, part.begin == covered, which(), ": elements [", covered, ", ", part.begin,
                    ") before them are in no file");
    FSDP_CHECK_WITH(FileError, part.begin < part.end && part.end <= tensor.numel(), which(), ": the tensor has ",
                    tensor.numel());
    FSDP_CHECK_WITH(FileError, part.file < manifest.files.size(), which(), ": file ", part.file, " of ",
                    manifest.files.size());
    const StoredFile& file = manifest.files[part.file];
    const uint64_t bytes = static_cast<uint64_t>(part.end - part.begin) * c10::elementSize(tensor.dtype);
    FSDP_CHECK_WITH(FileError,
                    part.offset >= file.header_bytes && part.offset <= file.bytes && bytes <= file.bytes - part.offset,
                    which(), ": bytes ", part.offset, " + ", bytes, " are not in the data of ", quoted_name(file.name),
                    ", which are [", file.header_bytes, ", ", file.bytes, ")");
    FSDP_CHECK_WITH(FileError, part.checksums.size() == checksum_blocks(bytes), which(), ": ", part.checksums.size(),
                    " checksums for ", checksum_blocks(bytes), " blocks");
    extents.push_back({part.file, part.offset, part.offset + bytes, &name});
    covered = part.end;
  }
  FSDP_CHECK_WITH(FileError, covered == tensor.numel(), where(), ": elements [", covered, ", ", tensor.numel(),
                  ") are in no file");
}

void check_extents(std::vector<Extent> extents, const Manifest& manifest, const std::string& source) {
  std::sort(extents.begin(), extents.end(),
            [](const Extent& a, const Extent& b) { return std::tie(a.file, a.begin) < std::tie(b.file, b.begin); });
  for (size_t i = 1; i < extents.size(); ++i) {
    const Extent &a = extents[i - 1], &b = extents[i];
    FSDP_CHECK_WITH(FileError, a.file != b.file || a.end <= b.begin, source, ": tensors ", quoted_name(*a.tensor),
                    " and ", quoted_name(*b.tensor), " share bytes of ", quoted_name(manifest.files[a.file].name));
  }
}

void check(const Manifest& manifest, const std::string& source) {
  std::set<std::string> names;
  for (const StoredFile& file : manifest.files) check_file(file, names, source);
  std::vector<Extent> extents;
  for (const auto& [name, tensor] : manifest.tensors) {
    check_parts(name, tensor, manifest, extents,
                [&, &name = name] { return source + ": tensor " + quoted_name(name); });
  }
  check_extents(std::move(extents), manifest, source);
}

// Returns the text of `content`, after verifying its checksum.
std::string_view checked_content(std::string_view text, const std::string& source) {
  const size_t begin = kBefore.size() + kDigits + kBetween.size();
  const bool framed = text.size() >= begin + kAfter.size() && text.substr(0, kBefore.size()) == kBefore &&
                      text.substr(kBefore.size() + kDigits, kBetween.size()) == kBetween &&
                      text.substr(text.size() - kAfter.size()) == kAfter;
  FSDP_CHECK_WITH(FileError, framed, source,
                  ": is not the manifest of a checkpoint, or is damaged: it must begin with ", kBefore,
                  " and end with a brace and a line feed");
  const std::string_view content = text.substr(begin, text.size() - begin - kAfter.size());
  std::vector<uint64_t> checksum;
  FSDP_CHECK_WITH(
      FileError,
      parse_checksums(text.substr(kBefore.size(), kDigits), checksum) && checksum.front() == checksum_of(content),
      source, ": the content does not match the checksum in the file: the file is damaged");
  return content;
}

}  // namespace

std::string rank_file_text(const RankFile& file) {
  return text_with_tensors({{"file", to_json(file.file)}}, file.tensors);
}

RankFile parse_rank_file(std::string_view text, const std::string& source) {
  TensorReader tensors(source);
  const json content = parse_json(text, source, kTensors, tensors);
  const Fields fields(content, [&] { return source; });
  return {parse_file(Fields(fields.at("file"), [&] { return source + ": file"; })), tensors.take(fields.at(kTensors))};
}

void add_rank_file(RankFile added, Manifest& manifest) {
  for (auto& [name, tensor] : added.tensors) {
    StoredTensor& known =
        manifest.tensors.try_emplace(name, StoredTensor{tensor.dtype, tensor.shape, tensor.strides, {}}).first->second;
    TORCH_CHECK(known.dtype == tensor.dtype && known.shape == tensor.shape && known.strides == tensor.strides,
                "tensor ", quoted_name(name), ": ranks differ in its dtype, shape or strides");
    for (StoredPart& part : tensor.parts) {
      part.file = manifest.files.size();
      known.parts.push_back(std::move(part));
    }
  }
  manifest.files.push_back(std::move(added.file));
}

std::string manifest_text(Manifest manifest, const std::string& source) {
  for (auto& [name, tensor] : manifest.tensors) {
    std::sort(tensor.parts.begin(), tensor.parts.end(),
              [](const StoredPart& a, const StoredPart& b) { return a.begin < b.begin; });
  }
  check(manifest, source);
  json files = json::array();
  for (const StoredFile& file : manifest.files) files.push_back(to_json(file));
  const std::string content = text_with_tensors({{"format", kFormat},
                                                 {"version", kVersion},
                                                 {"block_bytes", kChecksumBlock},
                                                 {"files", std::move(files)},
                                                 {"state", std::move(manifest.state)}},
                                                manifest.tensors);
  return c10::str(kBefore, checksums_text({checksum_of(content)}), kBetween, content, kAfter);
}

Manifest parse_manifest(std::string_view text, const std::string& source) {
  TensorReader tensors(source);
  json content = parse_json(checked_content(text, source), source, kTensors, tensors);
  const Fields fields(content, [&] { return source; });
  FSDP_CHECK_WITH(FileError, fields.string("format") == kFormat, source, ": format is ", json_text(fields.at("format")),
                  ", not \"", kFormat, "\"");
  FSDP_CHECK_WITH(FileError, fields.size("version") == kVersion, source, ": version ", fields.size("version"),
                  " of the format was written by a newer program; this one reads ", kVersion);
  FSDP_CHECK_WITH(FileError, fields.size("block_bytes") == kChecksumBlock, source, ": block_bytes is ",
                  fields.size("block_bytes"), ", must be ", kChecksumBlock);
  Manifest manifest;
  for (const json& file : fields.list("files")) {
    const Where where = [&] { return c10::str(source, ": file ", manifest.files.size()); };
    manifest.files.push_back(parse_file(Fields(file, where)));
  }
  manifest.tensors = tensors.take(fields.at(kTensors));
  fields.at("state");
  manifest.state = std::move(content["state"]);
  check(manifest, source);
  return manifest;
}

}  // namespace fsdp::formats
