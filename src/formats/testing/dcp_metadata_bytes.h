// Hand-made .metadata files with arbitrary contents, and the errors that they cause.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "formats/dcp/dcp_metadata.h"
#include "formats/testing/pickles.h"
#include "support/faults/error_of.h"

namespace fsdp::formats {

using testing::error_of;
using testing::kNoError;
using namespace pickled;
using Sizes = std::vector<int64_t>;

inline DcpMetadata parse(const std::string& bytes) { return parse_dcp_metadata(bytes, "x/.metadata"); }

inline std::string parse_error(const std::string& bytes) {
  const std::string error = error_of([&] { parse(bytes); });
  if (error != kNoError) {
    EXPECT_THAT(error, ::testing::StartsWith("x/.metadata: "));
  }
  return error;
}

inline const std::string kModule = "torch.distributed.checkpoint.metadata";

inline std::string sizes(const Sizes& values) {
  std::vector<std::string> items;
  for (const int64_t value : values) items.push_back(integer(value));
  return call(pickled::name("torch", "Size"), {tuple(items)});
}

inline std::string attributes(const std::string& type, const Items& items) {
  return object(pickled::name(kModule, type), dict(items));
}

struct Box {
  Sizes offsets;
  Sizes sizes;
};

// A .metadata file of one tensor "t", every part of which can be replaced.
struct OneTensor {
  Sizes shape{4, 6};
  std::vector<Box> boxes{{{0, 0}, {4, 6}}};
  std::string dtype = pickled::name("torch", "float32");
  std::string layout = call(pickled::name("torch.serialization", "_get_layout"), {text("torch.strided")});
  std::string path = "__0_0.distcp";
  int64_t offset = 0;
  int64_t length = 100;
  Items more_info = {};     // attributes of the storage entry
  Items more_storage = {};  // entries of storage_data
  Items more_entries = {};  // entries of state_dict_metadata
  size_t unstored = SIZE_MAX;
  std::string planner_data = none();

  static std::string index(const std::string& fqn, const Sizes& offsets) {
    return attributes("MetadataIndex", {{text("fqn"), text(fqn)}, {text("offset"), sizes(offsets)}});
  }
  std::string info() const {
    Items items{
        {text("relative_path"), text(path)}, {text("offset"), integer(offset)}, {text("length"), integer(length)}};
    items.insert(items.end(), more_info.begin(), more_info.end());
    return object(pickled::name("torch.distributed.checkpoint.filesystem", "_StorageInfo"), dict(items));
  }
  std::string entry() const {
    std::vector<std::string> chunks;
    for (const Box& box : boxes) {
      chunks.push_back(attributes("ChunkStorageMetadata",
                                  {{text("offsets"), sizes(box.offsets)}, {text("sizes"), sizes(box.sizes)}}));
    }
    const std::string format = call(pickled::name(kModule, "_MEM_FORMAT_ENCODING"), {integer(0)});
    return attributes("TensorStorageMetadata",
                      {{text("properties"), object(pickled::name(kModule, "TensorProperties"),
                                                   tuple({dtype, layout, "\x89", format, "\x89"}))},
                       {text("size"), sizes(shape)},
                       {text("chunks"), list(chunks)}});
  }
  std::string bytes() const {
    Items storage;
    for (size_t i = 0; i < boxes.size(); ++i) {
      if (i != unstored) storage.emplace_back(index("t", boxes[i].offsets), info());
    }
    storage.insert(storage.end(), more_storage.begin(), more_storage.end());
    Items entries{{text("t"), entry()}};
    entries.insert(entries.end(), more_entries.begin(), more_entries.end());
    return file(attributes("Metadata", {{text("state_dict_metadata"), dict(entries)},
                                        {text("planner_data"), planner_data},
                                        {text("storage_data"), dict(storage)}}));
  }
};

inline std::string tensor_error(const OneTensor& tensor) {
  const std::string error = parse_error(tensor.bytes());
  if (error != kNoError) {
    EXPECT_THAT(error, ::testing::StartsWith("x/.metadata: \"t\": "));
  }
  return error;
}

inline std::string boxes_error(const Sizes& shape, const std::vector<Box>& boxes) {
  return tensor_error({.shape = shape, .boxes = boxes});
}

}  // namespace fsdp::formats
