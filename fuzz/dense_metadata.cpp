#include "dense_metadata.h"

#include <functional>
#include <map>

#include "formats/testing/pickles.h"

namespace fsdp::fuzz {
namespace {

using namespace formats::pickled;

// Returns the opcodes that make a value at its first use, and opcodes that take it from the memo at later uses.
class Sharing {
 public:
  std::string operator()(const std::string& what, const std::function<std::string()>& opcodes) {
    if (const auto found = places_.find(what); found != places_.end()) return "j" + little_endian(found->second, 4);
    const std::string made = opcodes();  // may put parts of the value into the memo
    places_.emplace(what, places_.size());
    return made + "\x94";
  }
  std::string text_of(const std::string& value) {
    return (*this)("text " + value, [&] { return text(value); });
  }
  std::string type(const std::string& module, const std::string& name) {
    return (*this)("type " + name, [&] { return formats::pickled::name(module, name); });
  }
  // Returns a torch.Size that contains `size` sixty-four times.
  std::string sizes(int64_t size) {
    return (*this)("sizes " + std::to_string(size), [&] {
      const std::string callable = type("torch", "Size");
      return call(callable, {tuple(std::vector<std::string>(64, integer(size)))});
    });
  }

 private:
  std::map<std::string, size_t> places_;
};

const std::string kModule = "torch.distributed.checkpoint.metadata";

// Returns an object with the attributes `items`. They are made after the class, in the order in which the pickle
// contains them.
std::string attributes(Sharing& share, const std::string& module, const std::string& type,
                       const std::vector<std::pair<std::string, std::function<std::string()>>>& items) {
  const std::string callable = share.type(module, type);
  Items made;
  for (const auto& [key, value] : items) {
    const std::string name = share.text_of(key);
    made.emplace_back(name, value());
  }
  return object(callable, dict(made));
}

std::string properties() {
  return object(
      name(kModule, "TensorProperties"),
      tuple({name("torch", "float32"), call(name("torch.serialization", "_get_layout"), {text("torch.strided")}),
             "\x89", call(name(kModule, "_MEM_FORMAT_ENCODING"), {integer(0)}), "\x89"}));
}

std::string entry(Sharing& share) {
  const auto chunk = [&] {
    return attributes(share, kModule, "ChunkStorageMetadata",
                      {{"offsets", [&] { return share.sizes(0); }}, {"sizes", [&] { return share.sizes(1); }}});
  };
  return attributes(share, kModule, "TensorStorageMetadata",
                    {{"properties", [&] { return properties(); }},
                     {"size", [&] { return share.sizes(1); }},
                     {"chunks", [&] { return list({chunk()}); }}});
}

std::string place(Sharing& share, size_t path_bytes) {
  return attributes(share, "torch.distributed.checkpoint.filesystem", "_StorageInfo",
                    {{"relative_path", [&] { return text(std::string(path_bytes, 'p')); }},
                     {"offset", [] { return integer(0); }},
                     {"length", [] { return integer(4); }}});
}

}  // namespace

std::string dense_metadata(int names, size_t path_bytes) {
  Sharing share;
  const auto each_name = [&](const std::function<std::pair<std::string, std::string>(const std::string&)>& item) {
    Items items;
    for (int i = 0; i < names; ++i) items.push_back(item(std::to_string(i)));
    return dict(items);
  };
  const auto entries = [&] {
    return each_name([&](const std::string& name) {
      const std::string key = share.text_of(name);
      return std::pair(key, share("entry", [&] { return entry(share); }));
    });
  };
  const auto storage = [&] {
    return each_name([&](const std::string& name) {
      const std::string index =
          attributes(share, kModule, "MetadataIndex",
                     {{"fqn", [&] { return share.text_of(name); }}, {"offset", [&] { return share.sizes(0); }}});
      return std::pair(index, share("place", [&] { return place(share, path_bytes); }));
    });
  };
  return file(attributes(share, kModule, "Metadata", {{"state_dict_metadata", entries}, {"storage_data", storage}}));
}

}  // namespace fsdp::fuzz
