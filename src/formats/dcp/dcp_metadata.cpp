#include "formats/dcp/dcp_metadata.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <set>

#include "formats/common/input_file.h"
#include "formats/common/json_text.h"
#include "formats/dcp/dcp_coverage.h"
#include "formats/dcp/dcp_fields.h"
#include "formats/dcp/dcp_globals.h"
#include "formats/pickle/pickle_reader.h"

namespace fsdp::formats {
namespace {

using namespace dcp;

constexpr uint64_t kMaxFileBytes = uint64_t{1} << 30;
constexpr size_t kMaxPathBytes = 4096;  // the system's limit
constexpr int64_t kMaxInt = std::numeric_limits<int64_t>::max();

void check_path(const std::string& path, const Place& place) {
  const auto refuse = [&](const std::string& why) { place.fail("relative_path ", quoted_name(path), " ", why); };
  if (path.empty() || path.find('\0') != std::string::npos) refuse("is not a file name");
  if (path.size() > kMaxPathBytes) refuse(c10::str("is longer than ", kMaxPathBytes, " bytes"));
  if (path.front() == '/') refuse("is absolute");
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view part = std::string_view(path).substr(begin, end - begin);
    if (part.empty() || part == "." || part == "..") refuse("has a part that is empty, \".\" or \"..\"");
    begin = end + 1;
  }
}

DcpLocation parse_location(const PickleValue& value, const Place& place) {
  const Attributes info(value, kStorageInfo, "the storage entry", place);
  DcpLocation location;
  location.path = expect_text(info.get("relative_path"), "relative_path", place);
  check_path(location.path, place);
  location.offset = expect_size(info.get("offset"), "offset", place);
  location.length = expect_size(info.get("length"), "length", place);
  if (location.length > kMaxInt - location.offset) {
    place.fail("offset ", location.offset, " and length ", location.length, " add up to more than 2^63-1");
  }
  if (const PickleValue* transforms = info.find("transform_descriptors");
      transforms != nullptr && !(transforms->kind == Kind::kList && transforms->items.empty())) {
    place.fail("the data are stored through transforms, which are not supported");
  }
  return location;
}

// By name, then by the chunk's offsets, which are unset for bytes.
using Storage = std::map<std::string, std::map<std::optional<Sizes>, DcpLocation>>;

Storage parse_storage(const PickleValue& value, const std::string& source) {
  Storage storage;
  const auto& items = expect(value, Kind::kDict, "storage_data", "a dict", {source}).items;
  for (size_t i = 0; i < items.size(); i += 2) {
    const Place whole{source};
    const Attributes index(*items[i], kMetadataIndex, "a key of storage_data", whole);
    const std::string& name = expect_text(index.get("fqn"), "fqn", whole);
    std::optional<Sizes> offsets;
    if (const PickleValue* offset = index.find("offset")) {
      offsets = parse_sizes(*offset, "the offset of a key of storage_data", {source, &name});
    }
    const Place place{source, &name, offsets ? &*offsets : nullptr};
    if (!storage[name].emplace(offsets, parse_location(*items[i + 1], place)).second) place.fail("two storage entries");
  }
  return storage;
}

class EntryParser {
 public:
  EntryParser(const std::string& source, const std::string& name, const Storage& storage)
      : name_(name), place_{source, &name_} {
    const auto found = storage.find(name);
    locations_ = found == storage.end() ? nullptr : &found->second;
  }

  DcpLocation parse_bytes(const PickleValue& value) const {
    expect_class(value, kBytesStorageMetadata, "the entry", place_);
    return location(std::nullopt, place_);
  }

  DcpTensor parse_tensor(const PickleValue& value) const {
    const Attributes fields(value, kTensorStorageMetadata, "the entry", place_);
    DcpTensor tensor;
    tensor.info.name = name_;
    tensor.info.dtype = parse_dtype(fields.get("properties"));
    tensor.info.shape = parse_sizes(fields.get("size"), "size", place_);
    if (!countable_nbytes(tensor.info.dtype, tensor.info.shape)) {
      place_.fail("shape [", c10::Join(", ", tensor.info.shape), "] has more than 2^63-1 bytes");
    }
    parse_chunks(fields.get("chunks"), tensor);
    if (const auto problem = coverage_problem(tensor.info.shape, tensor.chunks)) {
      place_.fail("shape [", c10::Join(", ", tensor.info.shape), "]: ", *problem);
    }
    return tensor;
  }

 private:
  DcpLocation location(const std::optional<Sizes>& offsets, const Place& place) const {
    if (locations_ != nullptr) {
      if (const auto found = locations_->find(offsets); found != locations_->end()) return found->second;
    }
    place.fail("no storage entry");
  }

  // The tuple holds dtype, layout, requires_grad, memory format and pin_memory.
  c10::ScalarType parse_dtype(const PickleValue& value) const {
    expect_class(value, kTensorProperties, "properties", place_);
    if (value.state == nullptr || value.state->kind != Kind::kTuple || value.state->items.size() != 5) {
      place_.fail("properties are not set from a tuple of 5 (byte ", value.offset, ")");
    }
    const PickleValue& name = expect(*value.state->items[0], Kind::kGlobal, "dtype", "a dtype", place_);
    const auto dtype = dtype_from_global(name.text);
    if (!dtype) place_.fail("dtype ", name.text, " is not a known dtype");
    check_layout(*value.state->items[1]);
    return *dtype;
  }

  void check_layout(const PickleValue& value) const {
    expect_class(value, kGetLayout, "layout", place_);
    const auto& arguments = value.arguments->items;
    if (arguments.size() != 1 || expect_text(*arguments[0], "layout", place_) != "torch.strided") {
      place_.fail("layout is not torch.strided, the only one supported");
    }
  }

  // A pickle can repeat a chunk without elements at no cost, so each such chunk is kept once.
  void parse_chunks(const PickleValue& value, DcpTensor& tensor) const {
    std::set<Sizes> empty;  // offsets of chunks without elements
    for (const PickleValue* item : expect(value, Kind::kList, "chunks", "a list", place_).items) {
      DcpChunk chunk = parse_chunk(*item, tensor.info.shape);
      const bool is_empty = std::find(chunk.sizes.begin(), chunk.sizes.end(), 0) != chunk.sizes.end();
      if (!is_empty || empty.insert(chunk.offsets).second) tensor.chunks.push_back(std::move(chunk));
    }
  }

  DcpChunk parse_chunk(const PickleValue& value, const Sizes& shape) const {
    const Attributes fields(value, kChunkStorageMetadata, "a chunk", place_);
    DcpChunk chunk;
    chunk.offsets = parse_sizes(fields.get("offsets"), "offsets of a chunk", place_);
    const Place place{place_.source, &name_, &chunk.offsets};
    chunk.sizes = parse_sizes(fields.get("sizes"), "sizes", place);
    if (chunk.offsets.size() != shape.size() || chunk.sizes.size() != shape.size()) {
      place.fail("offsets and sizes do not have the ", shape.size(), " dimensions of the tensor");
    }
    for (size_t i = 0; i < shape.size(); ++i) {
      if (chunk.offsets[i] > shape[i] || chunk.sizes[i] > shape[i] - chunk.offsets[i]) {
        place.fail("sizes [", c10::Join(", ", chunk.sizes), "] reach beyond the shape [", c10::Join(", ", shape), "]");
      }
    }
    chunk.location = location(chunk.offsets, place);
    return chunk;
  }

  const std::string& name_;
  Place place_;
  const std::map<std::optional<Sizes>, DcpLocation>* locations_ = nullptr;
};

void parse_entries(const PickleValue& value, const Storage& storage, const std::string& source, DcpMetadata& metadata) {
  const Place whole{source};
  const auto& items = expect(value, Kind::kDict, "state_dict_metadata", "a dict", whole).items;
  for (size_t i = 0; i < items.size(); i += 2) {
    const std::string& name = expect_text(*items[i], "a name in state_dict_metadata", whole);
    const Place place{source, &name};
    if (metadata.tensors.contains(name) || metadata.bytes.contains(name)) place.fail("described twice");
    const EntryParser parser(source, name, storage);
    if (items[i + 1]->kind == Kind::kObject && items[i + 1]->text == kBytesStorageMetadata) {
      metadata.bytes.emplace(name, parser.parse_bytes(*items[i + 1]));
    } else {
      metadata.tensors.emplace(name, parser.parse_tensor(*items[i + 1]));
    }
  }
}

// The keys joined by dots form the name, so the path is not longer than the name, even if the pickle shares its keys.
std::vector<DcpKey> parse_key_path(const PickleValue& value, const std::string& name, const Place& place) {
  std::vector<DcpKey> path;
  size_t length = 0;
  for (const PickleValue* key : expect(value, Kind::kTuple, "the path in planner_data", "a tuple", place).items) {
    if (key->kind == Kind::kInt) {
      path.emplace_back(key->integer);
      length += 2;
    } else {
      path.emplace_back(expect_text(*key, "a key in planner_data", place));
      length += key->text.size() + 1;
    }
    if (length > name.size() + 1) place.fail("the path in planner_data is longer than the name");
  }
  return path;
}

void parse_key_paths(const PickleValue& value, const std::string& source, DcpMetadata& metadata) {
  const Place whole{source};
  const auto& items = expect(value, Kind::kDict, "planner_data", "a dict", whole).items;
  for (size_t i = 0; i < items.size(); i += 2) {
    const std::string& name = expect_text(*items[i], "a name in planner_data", whole);
    const Place place{source, &name};
    auto path = parse_key_path(*items[i + 1], name, place);
    if (!metadata.key_paths.emplace(name, std::move(path)).second) place.fail("twice in planner_data");
  }
}

}  // namespace

DcpMetadata parse_dcp_metadata(std::string_view file, const std::string& source) {
  const PickleTree tree = read_pickle(file, source, globals());
  const Place whole{source};
  const Attributes fields(tree.root(), kMetadata, "the file's value", whole);
  DcpMetadata metadata;
  const Storage storage = parse_storage(fields.get("storage_data"), source);
  parse_entries(fields.get("state_dict_metadata"), storage, source, metadata);
  if (const PickleValue* planner_data = fields.find("planner_data")) parse_key_paths(*planner_data, source, metadata);
  if (const PickleValue* version = fields.find("version")) metadata.version = expect_text(*version, "version", whole);
  return metadata;
}

DcpMetadata read_dcp_metadata(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / ".metadata";
  return parse_dcp_metadata(read_file(path, kMaxFileBytes), path.string());
}

}  // namespace fsdp::formats
