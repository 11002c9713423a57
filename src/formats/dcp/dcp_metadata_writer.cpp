#include "formats/dcp/dcp_metadata_writer.h"

#include <algorithm>
#include <iterator>

#include "formats/dcp/dcp_globals.h"
#include "formats/pickle/pickle_writer.h"
#include "formats/pickle/shared_pickle.h"

namespace fsdp::formats {
namespace {

using namespace pickled;

const std::string kModule = "torch.distributed.checkpoint.metadata";

std::string size_opcodes(const std::vector<int64_t>& sizes) {
  std::vector<std::string> items;
  std::transform(sizes.begin(), sizes.end(), std::back_inserter(items), integer);
  return call(name("torch", "Size"), {tuple(items)});
}

std::string attributes(const std::string& type, const Items& fields) {
  return object(name(kModule, type), dict(fields));
}

std::string index_opcodes(const std::string& fqn, const std::string& offset, const std::string& number) {
  return attributes("MetadataIndex", {{text("fqn"), text(fqn)}, {text("offset"), offset}, {text("index"), number}});
}

std::string location_opcodes(const DcpLocation& location) {
  return object(name("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
                dict({{text("relative_path"), text(location.path)},
                      {text("offset"), integer(location.offset)},
                      {text("length"), integer(location.length)}}));
}

std::string properties_opcodes(c10::ScalarType dtype) {
  return object(name(kModule, "TensorProperties"),
                tuple({name("torch", dcp::dtype_name(dtype)),
                       call(name("torch.serialization", "_get_layout"), {text("torch.strided")}), boolean(false),
                       call(name(kModule, "_MEM_FORMAT_ENCODING"), {integer(0)}), boolean(false)}));
}

std::string tensor_opcodes(const DcpTensor& tensor) {
  std::vector<std::string> chunks;
  for (const DcpChunk& chunk : tensor.chunks) {
    chunks.push_back(attributes("ChunkStorageMetadata", {{text("offsets"), size_opcodes(chunk.offsets)},
                                                         {text("sizes"), size_opcodes(chunk.sizes)}}));
  }
  return attributes("TensorStorageMetadata", {{text("properties"), properties_opcodes(tensor.info.dtype)},
                                              {text("size"), size_opcodes(tensor.info.shape)},
                                              {text("chunks"), list(chunks)}});
}

std::string path_opcodes(const std::vector<DcpKey>& path) {
  std::vector<std::string> keys;
  for (const DcpKey& key : path) {
    keys.push_back(key.index() == 0 ? text(std::get<std::string>(key)) : integer(std::get<int64_t>(key)));
  }
  return tuple(keys);
}

// The entries of Metadata.state_dict_metadata.
void add_entries(SharedPickle& pickle, const DcpMetadata& metadata) {
  for (const auto& [fqn, tensor] : metadata.tensors) pickle.add(text(fqn) + tensor_opcodes(tensor));
  for (const auto& [key, location] : metadata.bytes) {
    pickle.add(text(key) + call(name(kModule, "BytesStorageMetadata"), {}));
  }
}

void add_key_paths(SharedPickle& pickle, const DcpMetadata& metadata) {
  for (const auto& [key, path] : metadata.key_paths) pickle.add(text(key) + path_opcodes(path));
}

// The entries of Metadata.storage_data.
void add_locations(SharedPickle& pickle, const DcpMetadata& metadata) {
  for (const auto& [fqn, tensor] : metadata.tensors) {
    for (size_t i = 0; i < tensor.chunks.size(); ++i) {
      const DcpChunk& chunk = tensor.chunks[i];
      pickle.add(index_opcodes(fqn, size_opcodes(chunk.offsets), integer(static_cast<int64_t>(i))) +
                 location_opcodes(chunk.location));
    }
  }
  for (const auto& [key, location] : metadata.bytes) {
    pickle.add(index_opcodes(key, none(), none()) + location_opcodes(location));
  }
}

}  // namespace

std::string dcp_metadata_text(const DcpMetadata& metadata) {
  SharedPickle pickle;
  const auto add_dict = [&](const char* attribute, const auto& add_items) {
    pickle.add(text(attribute) + begin_dict());
    add_items(pickle, metadata);
    pickle.add(end_dict());
  };
  pickle.add(begin_object(name(kModule, "Metadata")) + begin_dict());
  add_dict("state_dict_metadata", add_entries);
  add_dict("planner_data", add_key_paths);
  add_dict("storage_data", add_locations);
  pickle.add(text("storage_meta") + none() + text("version") + text(metadata.version) + end_dict() + end_object());
  return std::move(pickle).finish();
}

}  // namespace fsdp::formats
