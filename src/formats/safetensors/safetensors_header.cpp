#include "formats/safetensors/safetensors_header.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "formats/common/dtype.h"
#include "formats/common/json_text.h"

namespace fsdp::formats {
namespace {

using nlohmann::json;
using TensorEntry = SafetensorsHeader::Entry;

constexpr uint64_t kMaxBytes = std::numeric_limits<int64_t>::max();

uint64_t header_length(std::string_view file, const std::string& source) {
  uint64_t length = 0;
  FSDP_CHECK_WITH(FileError, file.size() >= sizeof(length), source, ": only ", file.size(),
                  " bytes, too short for the 8-byte header length of a safetensors file");
  std::memcpy(&length, file.data(),
              sizeof(length));  // little endian, like every platform that LibTorch runs on
  FSDP_CHECK_WITH(FileError, length > 0, source, ": header length 0; a safetensors header holds at least \"{}\"");
  FSDP_CHECK_WITH(FileError, length <= kMaxHeaderBytes, source, ": header length ", length, " exceeds the limit of ",
                  kMaxHeaderBytes, " bytes: not a safetensors file, or a damaged one");
  FSDP_CHECK_WITH(FileError, length <= file.size() - sizeof(length), source, ": header length ", length, " but only ",
                  file.size() - sizeof(length), " bytes follow it: truncated file");
  return length;
}

// Parses one tensor's description; errors name the tensor.
class EntryParser {
 public:
  EntryParser(const std::string& source, const std::string& name)
      : where_(source + ": tensor " + quoted_name(name)), name_(name) {}

  TensorEntry parse(const json& fields) const {
    FSDP_CHECK_WITH(FileError, fields.is_object(), where_,
                    ": expected an object with dtype, shape and data_offsets, got ", json_text(fields));
    TensorEntry entry;
    entry.info.name = name_;
    entry.info.dtype = parse_dtype(field(fields, "dtype"));
    entry.info.shape = parse_shape(field(fields, "shape"));
    parse_offsets(field(fields, "data_offsets"), entry);
    check_size(entry);
    return entry;
  }

 private:
  const json& field(const json& fields, const char* key) const {
    const auto found = fields.find(key);
    FSDP_CHECK_WITH(FileError, found != fields.end(), where_, ": ", key, " is missing");
    return *found;
  }

  c10::ScalarType parse_dtype(const json& value) const {
    FSDP_CHECK_WITH(FileError, value.is_string(), where_, ": dtype must be a string, got ", json_text(value));
    const auto dtype = dtype_from_safetensors(value.get_ref<const std::string&>());
    FSDP_CHECK_WITH(FileError, dtype.has_value(), where_, ": dtype ", json_text(value),
                    " is not supported; supported are ", supported_safetensors_dtypes());
    return *dtype;
  }

  uint64_t parse_size(const json& value, const char* key) const {
    FSDP_CHECK_WITH(FileError, value.is_number_unsigned() && value.get<uint64_t>() <= kMaxBytes, where_, ": ", key,
                    " must hold integers from 0 to 2^63-1, got ", json_text(value));
    return value.get<uint64_t>();
  }

  std::vector<int64_t> parse_shape(const json& value) const {
    FSDP_CHECK_WITH(FileError, value.is_array(), where_, ": shape must be an array of integers, got ",
                    json_text(value));
    FSDP_CHECK_WITH(FileError, value.size() <= kMaxTensorRank, where_, ": shape has ", value.size(),
                    " dimensions; at most ", kMaxTensorRank, " are supported");
    std::vector<int64_t> shape;
    for (const json& size : value) shape.push_back(static_cast<int64_t>(parse_size(size, "shape")));
    return shape;
  }

  void parse_offsets(const json& value, TensorEntry& entry) const {
    FSDP_CHECK_WITH(FileError, value.is_array() && value.size() == 2, where_,
                    ": data_offsets must be an array of two integers [begin, end], got ", json_text(value));
    entry.begin = parse_size(value[0], "data_offsets");
    entry.end = parse_size(value[1], "data_offsets");
    FSDP_CHECK_WITH(FileError, entry.begin <= entry.end, where_, ": data_offsets [", entry.begin, ", ", entry.end,
                    "] end before they begin");
  }

  void check_size(const TensorEntry& entry) const {
    const auto bytes = countable_nbytes(entry.info.dtype, entry.info.shape);
    FSDP_CHECK_WITH(FileError, bytes, where_, ": shape [", c10::Join(", ", entry.info.shape),
                    "] has more than 2^63-1 bytes");
    FSDP_CHECK_WITH(FileError, entry.end - entry.begin == static_cast<uint64_t>(*bytes), where_, ": shape [",
                    c10::Join(", ", entry.info.shape), "] of ", safetensors_dtype(entry.info.dtype), " takes ", *bytes,
                    " bytes, but data_offsets [", entry.begin, ", ", entry.end, "] hold ", entry.end - entry.begin);
  }

  std::string where_;
  const std::string& name_;
};

std::map<std::string, std::string> parse_metadata(const json& value, const std::string& source) {
  FSDP_CHECK_WITH(FileError, value.is_object(), source, ": __metadata__ must be an object of strings, got ",
                  json_text(value));
  std::map<std::string, std::string> metadata;
  for (const auto& [key, text] : value.items()) {
    FSDP_CHECK_WITH(FileError, text.is_string(), source, ": __metadata__ ", quoted_name(key), " must be a string, got ",
                    json_text(text));
    metadata.emplace(key, text.get_ref<const std::string&>());
  }
  return metadata;
}

// The tensors must cover the data section exactly, so that no byte is read twice and none is hidden.
void check_coverage(const std::vector<TensorEntry>& entries, uint64_t data_bytes, const std::string& source) {
  uint64_t covered = 0;
  const std::string* previous = nullptr;
  for (const TensorEntry& entry : entries) {
    const std::string& name = entry.info.name;
    FSDP_CHECK_WITH(FileError, entry.begin >= covered, source, ": tensor ", quoted_name(name), " begins at byte ",
                    entry.begin, " of the data and overlaps tensor ", previous ? quoted_name(*previous) : "",
                    ", which ends at ", covered);
    FSDP_CHECK_WITH(FileError, entry.begin == covered, source, ": bytes [", covered, ", ", entry.begin,
                    ") of the data, before tensor ", quoted_name(name), ", belong to no tensor");
    FSDP_CHECK_WITH(FileError, entry.end <= data_bytes, source, ": tensor ", quoted_name(name), " ends at byte ",
                    entry.end, " of the data, but the file holds ", data_bytes, ": truncated file");
    covered = entry.end;
    previous = &name;
  }
  FSDP_CHECK_WITH(FileError, covered == data_bytes, source, ": the last ", data_bytes - covered,
                  " bytes of the file belong to no tensor");
}

}  // namespace

SafetensorsHeader parse_safetensors_header(std::string_view file, const std::string& source) {
  const uint64_t length = header_length(file, source);
  const std::string_view text = file.substr(sizeof(length), length);
  FSDP_CHECK_WITH(FileError, text.front() == '{', source, ": the header must start with '{', not with byte ",
                  static_cast<int>(static_cast<unsigned char>(text.front())));
  SafetensorsHeader header;
  header.data_start = sizeof(length) + length;
  const json content = parse_json(text, source + " (header)");
  for (const auto& [name, fields] : content.items()) {
    if (name == "__metadata__") {
      header.metadata = parse_metadata(fields, source);
    } else {
      header.entries.push_back(EntryParser(source, name).parse(fields));
    }
  }
  std::sort(header.entries.begin(), header.entries.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::tie(a.begin, a.end, a.info.name) < std::tie(b.begin, b.end, b.info.name);
  });
  check_coverage(header.entries, file.size() - header.data_start, source);
  return header;
}

}  // namespace fsdp::formats
