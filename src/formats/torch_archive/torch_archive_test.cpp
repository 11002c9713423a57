#include "formats/torch_archive/torch_archive.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "formats/testing/pickles.h"
#include "formats/testing/torch_archive_samples.h"
#include "formats/torch_archive/torch_archive_writer.h"
#include "support/faults/error_of.h"
#include "support/files/temporary_folder.h"

namespace fsdp::formats::torch_archive_test {
namespace {

using testing::error_of;
using testing::kNoError;
using testing::TemporaryFolder;
using namespace pickled;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class TorchArchives : public ::testing::Test {
 protected:
  // Opens an archive that is a file of its own.
  TorchArchive open(const std::string& bytes) {
    folder.write("archive", bytes);
    file = std::make_unique<InputFile>(folder / "archive");
    return {*file, 0, bytes.size(), "A"};
  }
  at::Tensor read(const std::string& bytes) {
    const TorchArchive archive = open(bytes);
    const StoredArray array = parse_array(archive.value(), "A");
    const at::Tensor out = at::empty(array.sizes, at::TensorOptions(array.dtype));
    archive.read(array, 0, array.numel(), static_cast<char*>(out.mutable_data_ptr()), false);
    return out;
  }
  std::string read_error(const std::string& bytes) {
    return error_of([&] { read(bytes); });
  }
  json value(const std::string& bytes) { return open(bytes).plain_value(); }

  std::string written(const std::function<uint64_t(OutputFile&)>& write) {
    OutputFile target(folder / "written");
    const uint64_t end = write(target);
    target.commit();
    std::string bytes = read_file(folder / "written", 1 << 20);
    EXPECT_EQ(bytes.size(), end);
    return bytes;
  }
  // Returns an archive with these records under "archive/".
  std::string archive_of(const std::vector<std::pair<std::string, std::string>>& records) {
    return written([&](OutputFile& target) {
      ZipWriter zip(target, 0);
      for (const auto& [name, bytes] : records) zip.add("archive/" + name, bytes);
      return zip.finish();
    });
  }
  std::string value_archive(const std::string& opcodes) {
    return written([&](OutputFile& target) { return write_value_archive(target, 0, opcodes); });
  }

  TemporaryFolder folder;
  std::unique_ptr<InputFile> file;
};

// A tensor's archive whose parts can all be replaced.
struct Parts {
  std::string type = name("torch", "FloatStorage");
  int64_t storage_numel = 6;
  std::string storage = std::string(24, '\0');
  int64_t offset = 0;
  std::string sizes = tuple({integer(2), integer(3)});
  std::string strides = tuple({integer(3), integer(1)});
  std::string rebuild = name("torch._utils", "_rebuild_tensor_v2");
  std::string order = "little";
  std::string version = "3\n";

  std::vector<std::pair<std::string, std::string>> records() const {
    const std::string id = tuple({text("storage"), type, text("0"), text("cpu"), integer(storage_numel)});
    return {{"data.pkl", pickled::file(call(rebuild, {persistent_id(id), integer(offset), sizes, strides,
                                                      boolean(false), call(name("collections", "OrderedDict"), {})}))},
            {"byteorder", order},
            {"data/0", storage},
            {"version", version}};
  }
};

TEST_F(TorchArchives, TensorsThatTorchWrote) {
  EXPECT_TRUE(read(from_hex(kMatrixHex)).equal(at::arange(6, at::kFloat).view({2, 3}) + 0.5));
  EXPECT_TRUE(read(from_hex(kTransposedHex)).equal(at::arange(6, at::kBFloat16).view({2, 3}).t()));
  const TorchArchive archive = open(from_hex(kTransposedHex));
  const StoredArray array = parse_array(archive.value(), "A");
  EXPECT_FALSE(array.is_row_major());
  std::array<c10::BFloat16, 2> part{};
  archive.read(array, 1, 3, reinterpret_cast<char*>(part.data()), true);
  EXPECT_EQ(part[0], 3);
  EXPECT_EQ(part[1], 1);
}

TEST_F(TorchArchives, ValuesThatTorchWrote) {
  EXPECT_EQ(value(from_hex(kValueHex)), json::parse(R"({"lr": 1e-3, "betas": [0.9, 0.999], "step": 7,
      "big": -1099511627776, "on": true, "none": null, "names": ["a.b", "é"], "size": [2, 3], "nested": {"k": []}})"));
  EXPECT_THAT(error_of([&] { value(from_hex(kMatrixHex)); }),
              AllOf(StartsWith("A: "), HasSubstr("_rebuild_tensor_v2 (byte"), HasSubstr("is not a number")));
  EXPECT_THAT(read_error(from_hex(kValueHex)), HasSubstr("not an object of class torch._utils._rebuild_tensor_v2"));
}

// A few bytes state that a list contains the same list twice, and so on.
TEST_F(TorchArchives, ValuesThatSharingMakesLarge) {
  const auto doubled = [&](int times, std::string opcodes) {
    for (char place = 0; place < times; ++place) opcodes = list({opcodes + "q" + place, std::string("h") + place});
    return value_archive(opcodes);
  };
  EXPECT_EQ(value(doubled(1, text("x"))), json::parse(R"(["x", "x"])"));
  EXPECT_THAT(error_of([&] { value(doubled(20, text("x"))); }), AllOf(StartsWith("A: "), HasSubstr("shared values")));
  EXPECT_THAT(error_of([&] { value(doubled(9, text(std::string(100'000, 'x')))); }), HasSubstr("shared values"));
}

TEST_F(TorchArchives, CutAnywhere) {
  const std::string bytes = from_hex(kMatrixHex);
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_THAT(read_error(bytes.substr(0, length)), StartsWith("A: ")) << length;
  }
}

// The tensor is unchanged, or there is an error.
TEST_F(TorchArchives, AnyByteChanged) {
  const std::string bytes = from_hex(kMatrixHex);
  const at::Tensor matrix = read(bytes);
  size_t noticed = 0;
  for (size_t at = 0; at < bytes.size(); ++at) {
    std::string changed = bytes;
    changed[at] = static_cast<char>(changed[at] ^ (1 << (at % 8)));
    const std::string what = error_of([&] { EXPECT_TRUE(read(changed).equal(matrix)) << at; });
    noticed += what == kNoError ? 0 : 1;
  }
  EXPECT_GT(noticed, 600u);  // of 1577 bytes, most of which are padding
}

TEST_F(TorchArchives, HostileTensors) {
  const auto error = [&](const Parts& parts) { return read_error(archive_of(parts.records())); };
  constexpr int64_t kHuge = int64_t{1} << 62;
  EXPECT_EQ(error({}), kNoError);
  EXPECT_THAT(error({.offset = 1}), HasSubstr("from element 1 on reach beyond the storage, which has 6"));
  EXPECT_THAT(error({.offset = -1}), HasSubstr("is negative"));
  EXPECT_THAT(error({.strides = tuple({integer(4), integer(1)})}), HasSubstr("reach beyond the storage"));
  EXPECT_THAT(error({.strides = tuple({integer(-3), integer(1)})}), HasSubstr("negative"));
  EXPECT_THAT(error({.strides = tuple({integer(kHuge), integer(kHuge)})}), HasSubstr("reach beyond"));
  EXPECT_THAT(error({.strides = tuple({integer(3)})}), HasSubstr("do not describe a tensor"));
  EXPECT_THAT(error({.sizes = tuple({integer(kHuge), integer(kHuge)})}), HasSubstr("do not describe a tensor"));
  EXPECT_THAT(error({.sizes = tuple({integer(1 << 20), integer(3)}), .strides = tuple({integer(0), integer(1)})}),
              HasSubstr("more elements than in the storage"));
  EXPECT_THAT(error({.sizes = text("x")}), HasSubstr("sizes is not a tuple"));
  EXPECT_THAT(error({.storage_numel = kHuge}), HasSubstr("has 24 bytes, but its storage"));
  EXPECT_THAT(error({.storage = "short"}), HasSubstr("has 5 bytes"));
  EXPECT_THAT(error({.type = name("torch", "float32")}), HasSubstr("torch.float32 is no storage"));
  EXPECT_THAT(error({.type = name("torch.storage", "UntypedStorage")}), HasSubstr("is no storage"));
  EXPECT_THAT(error({.order = "big"}), HasSubstr("byte order \"big\""));
  EXPECT_THAT(error({.version = "9\n"}), HasSubstr("version"));
  EXPECT_THAT(error({.rebuild = name("torch", "Size")}), HasSubstr("_rebuild_tensor_v2"));
}

TEST_F(TorchArchives, WithoutElementsAnyStridesAreInOrder) {
  const Parts parts{.storage_numel = 0,
                    .storage = "",
                    .sizes = tuple({integer(0), integer(3)}),
                    .strides = tuple({integer(3), integer(2)})};
  EXPECT_TRUE(parse_array(open(archive_of(parts.records())).value(), "A").is_row_major());
  EXPECT_EQ(read(archive_of(parts.records())).numel(), 0);
}

// A byte other than 0 and 1 is not a valid bool, but means true: it is copied unchanged, in any order.
TEST_F(TorchArchives, BytesOfBoolsAreCopied) {
  const std::string stored = "\x01\x02\x40\xff\x80\x04";
  Parts parts{.type = name("torch", "BoolStorage"), .storage = stored};
  const auto bytes = [&] {
    const at::Tensor out = read(archive_of(parts.records()));
    return std::string(static_cast<const char*>(out.const_data_ptr()), out.nbytes());
  };
  EXPECT_EQ(bytes(), stored);
  parts.strides = tuple({integer(1), integer(2)});
  EXPECT_EQ(bytes(), "\x01\x40\x80\x02\xff\x04");
}

TEST_F(TorchArchives, ForeignGlobalsAndMissingRecords) {
  EXPECT_THAT(error_of([&] { open(value_archive(call(name("os", "system"), {text("true")}))); }),
              AllOf(HasSubstr("A: data.pkl: byte 2: "), HasSubstr("os.system is not allowed")));
  EXPECT_THAT(error_of([&] { value(value_archive(name("torch", "float32"))); }), HasSubstr("torch.float32 (byte 2)"));
  EXPECT_THAT(error_of([&] { value(value_archive(dict({{integer(1), none()}}))); }), HasSubstr("is not a string"));
  std::vector<std::pair<std::string, std::string>> records = Parts().records();
  records.erase(records.begin() + 2);
  EXPECT_THAT(read_error(archive_of(records)), HasSubstr("holds no record \"archive/data/0\""));
  records.pop_back();
  EXPECT_THAT(read_error(archive_of(records)), HasSubstr("version \"\""));
  records.erase(records.begin());
  EXPECT_THAT(read_error(archive_of(records)), HasSubstr("no data.pkl"));
}

TEST_F(TorchArchives, WrittenOnesAreReadBack) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kLong, at::kBool, at::kDouble}) {
    for (const std::vector<int64_t>& shape : {std::vector<int64_t>{}, {0, 3}, {5}, {2, 3, 4}}) {
      const TensorInfo info{"", dtype, shape};
      const at::Tensor values = at::arange(info.numel(), at::kFloat).to(dtype).view(shape);
      const std::string bytes = written([&](OutputFile& target) {
        TorchArchiveWriter writer(target, 0, info);
        const std::string_view all(static_cast<const char*>(values.const_data_ptr()), values.nbytes());
        writer.append(all.substr(0, all.size() / 2));
        writer.append(all.substr(all.size() / 2));
        return writer.finish();
      });
      EXPECT_TRUE(read(bytes).equal(values)) << c10::toString(dtype) << values.sizes();
    }
  }
  const at::Tensor eighth = at::arange(5, at::kFloat).to(at::kFloat8_e4m3fn);  // in an untyped storage
  const std::string bytes = written([&](OutputFile& target) {
    TorchArchiveWriter writer(target, 0, {"", at::kFloat8_e4m3fn, {5}});
    writer.append({static_cast<const char*>(eighth.const_data_ptr()), eighth.nbytes()});
    return writer.finish();
  });
  EXPECT_TRUE(read(bytes).to(at::kFloat).equal(at::arange(5, at::kFloat)));
  const json all =
      json::parse(R"({"a": [1, -2, 3000000000, 1.5, "é", true, null, {}, []], "b": 18446744073709551615})");
  json small = all;
  small.erase("b");
  EXPECT_EQ(value(value_archive(value_of(small))), small);
  EXPECT_THAT(error_of([&] { value(value_archive(value_of(all))); }), HasSubstr("9 bytes"));
}

}  // namespace
}  // namespace fsdp::formats::torch_archive_test
