#include "archive_seeds.h"

#include <c10/util/strides.h>

#include "archive_pieces.h"
#include "formats/dcp/dcp_folder.h"
#include "formats/dcp/dcp_metadata_writer.h"
#include "formats/testing/pickles.h"
#include "formats/testing/torch_archive_samples.h"
#include "formats/torch_archive/torch_archive_writer.h"
#include "formats/torch_archive/zip_format.h"
#include "reader_check.h"

namespace fsdp::fuzz {
namespace {

using namespace formats;
using namespace formats::pickled;
using Sizes = std::vector<int64_t>;

const char* const kFirstFile = "__0_0.distcp";
const char* const kSecondFile = "__1_0.distcp";

std::string integers(const Sizes& values) {
  std::vector<std::string> items;
  for (const int64_t value : values) items.push_back(integer(value));
  return tuple(items);
}

// Returns the data.pkl of a tensor. The storage has `storage_numel` elements, or as many bytes if `dtype` is given.
std::string tensor_pickle(const std::string& type, int64_t storage_numel, int64_t offset, const Sizes& sizes,
                          const Sizes& strides, const std::string& dtype = "") {
  const std::string storage =
      persistent_id(tuple({text("storage"), name(dtype.empty() ? "torch" : "torch.storage", type), text("0"),
                           text("cpu"), integer(storage_numel)}));
  std::vector<std::string> arguments{storage,           integer(offset), integers(sizes),
                                     integers(strides), boolean(false),  call(name("collections", "OrderedDict"), {})};
  if (!dtype.empty()) arguments.push_back(name("torch", dtype));
  return file(call(name("torch._utils", dtype.empty() ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3"), arguments));
}

std::string row_major(const std::string& type, const Sizes& sizes) {
  const auto strides = c10::contiguous_strides(sizes);
  return tensor_pickle(type, TensorInfo{"", at::kByte, sizes}.numel(), 0, sizes, {strides.begin(), strides.end()});
}

// Returns a pickle of a list that contains the same list twice, and so on, `times` levels deep. Many levels would take
// much memory: the reader refuses them.
std::string doubled_pickle(char times) {
  std::string opcodes = text("x");
  for (char place = 0; place < times; ++place) opcodes = list({opcodes + "q" + place, std::string("h") + place});
  return file(opcodes);
}

ArchivePieces pieces_of(const char* hex) {
  const TemporaryFolder folder;
  return read_pieces(folder.write("x.pt", from_hex(hex)));
}

std::string written(const std::function<void(OutputFile&)>& write) {
  const TemporaryFolder folder;
  OutputFile file(folder / "x");
  write(file);
  file.commit();
  return read_file(folder / "x", uint64_t{1} << 20);
}

// Returns an archive with a single empty record. The record's offset is in a 64-bit field, and only the directory has
// its sizes.
std::string archive_of_one_record() {
  std::string bytes = written([](OutputFile& file) {
    ZipWriter zip(file, 0);
    zip.add("x", "");
    zip.finish();
  });
  const size_t entry = bytes.find("PK\x01\x02"), end = bytes.find("PK\x05\x06");
  bytes.replace(end + 12, 4, little_endian(end - entry + 12, 4));
  bytes.insert(end, little_endian(zip::kExtra64, 2) + little_endian(8, 2) + little_endian(0, 8));
  for (const size_t flags : {size_t{6}, entry + 8}) bytes.replace(flags, 2, little_endian(zip::kSizesFollowData, 2));
  bytes.replace(entry + 30, 2, little_endian(12, 2));
  return bytes.replace(entry + 42, 4, little_endian(zip::kIn64, 4));
}

DcpLocation whole_file(const std::string& path) { return {path, 0, kArchiveUnit}; }

DcpTensor tensor(const std::string& name, c10::ScalarType dtype, const Sizes& shape, std::vector<DcpChunk> chunks) {
  return {{name, dtype, shape}, std::move(chunks)};
}

// A matrix in two chunks of columns. The second chunk has these sizes in its archive, and is stored transposed.
std::string columns_seed(const Sizes& sizes) {
  const DcpMetadata metadata{
      {{"t", tensor("t", at::kFloat, {2, 6},
                    {{{0, 0}, {2, 3}, whole_file(kFirstFile)}, {{0, 3}, {2, 3}, whole_file(kSecondFile)}})}},
      {},
      {},
      "1.0.0"};
  return join_files({dcp_metadata_text(metadata), row_major("FloatStorage", {2, 3}), std::string(24, '\1'),
                     tensor_pickle("FloatStorage", 7, 1, sizes, {1, 2}), "abcdefghijklmnopqrstuvwxyz01"});
}

// Booleans that are neither 0 nor 1, and values that are not tensors.
std::string values_seed() {
  const DcpMetadata metadata{{{"b", tensor("b", at::kBool, {4}, {{{0}, {4}, whole_file(kFirstFile)}})}},
                             {{"optim.lr", whole_file(kSecondFile)}, {"again", whole_file(kFirstFile)}},
                             {{"optim.lr", {"optim", "lr"}}},
                             "1.0.0"};
  return join_files({dcp_metadata_text(metadata), row_major("BoolStorage", {4}), std::string("\0\1\2\xff", 4),
                     pieces_of(kValueHex).pickle, ""});
}

// Three-dimensional chunks that are all read from one archive, the last one at the offsets `last`, and a tensor without
// elements.
std::string boxes_seed(const Sizes& last) {
  std::vector<DcpChunk> boxes;
  for (const Sizes& offsets : {Sizes{0, 0, 0}, {0, 0, 2}, {0, 3, 0}, last}) {
    boxes.push_back({offsets, {2, 3, 2}, whole_file(kFirstFile)});
  }
  const DcpMetadata metadata{{{"t", tensor("t", at::kFloat8_e4m3fn, {2, 6, 4}, boxes)},
                              {"e", tensor("e", at::kLong, {0, 4}, {{{0, 0}, {0, 4}, whole_file(kSecondFile)}})}},
                             {},
                             {},
                             "1.0.0"};
  return join_files({dcp_metadata_text(metadata),
                     tensor_pickle("UntypedStorage", 12, 0, {2, 3, 2}, {6, 2, 1}, "float8_e4m3fn"), "abcdefghijkl",
                     row_major("LongStorage", {0, 4}), ""});
}

// A file with several archives one after the other, as the writers produce it.
std::string whole_file_seed() {
  DcpMetadata metadata{{}, {}, {}, "1.0.0"};
  const std::string bytes = written([&](OutputFile& file) {
    TorchArchiveWriter archive(file, 0, {"", at::kHalf, {3}});
    archive.append("abcdef");
    const auto middle = static_cast<int64_t>(archive.finish());
    const auto end = static_cast<int64_t>(write_value_archive(file, static_cast<uint64_t>(middle), real(0.5)));
    metadata.tensors.emplace("h", tensor("h", at::kHalf, {3}, {{{0}, {3}, {kFirstFile, 0, middle}}}));
    metadata.bytes.emplace("v", DcpLocation{kFirstFile, middle, end - middle});
  });
  return join_files({dcp_metadata_text(metadata), bytes, "", "", ""});
}

}  // namespace

std::vector<std::string> zip_archive_seeds() {
  const std::string small = written([](OutputFile& file) {
    ZipWriter zip(file, 0);
    zip.add("a/x", "some bytes");
    zip.add("a/y", "");
    zip.finish();
  });
  return {small, archive_of_one_record(), from_hex(kMatrixHex), from_hex(kValueHex)};
}

std::vector<std::string> torch_archive_seeds() {
  std::vector<std::string> seeds;
  const auto add = [&](const ArchivePieces& pieces) {
    seeds.push_back(join_files({pieces.pickle, pieces.storage, pieces.order, pieces.version}));
  };
  for (const char* hex : {kMatrixHex, kTransposedHex, kValueHex}) {
    seeds.push_back(from_hex(hex));
    add(pieces_of(hex));
  }
  add({tensor_pickle("UntypedStorage", 14, 1, {2, 3}, {1, 2}, "uint16"), "abcdefghijklmn"});
  add({tensor_pickle("BoolStorage", 8, 0, {2, 1, 2, 2}, {1, 9, 2, 0}), "abcdefgh"});
  add({row_major("LongStorage", {0, 3}), ""});
  for (const char times : {6, 16}) add({doubled_pickle(times), ""});
  return seeds;
}

// Two seeds are refused: an archive with other sizes than its chunk, and chunks that overlap.
std::vector<std::string> dcp_folder_seeds() {
  return {columns_seed({2, 3}),  columns_seed({3, 2}),  values_seed(),
          boxes_seed({0, 3, 2}), boxes_seed({0, 2, 2}), whole_file_seed()};
}

}  // namespace fsdp::fuzz
