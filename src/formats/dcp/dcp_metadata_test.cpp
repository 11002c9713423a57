#include "formats/dcp/dcp_metadata.h"

#include "formats/testing/dcp_metadata_bytes.h"
#include "formats/testing/dcp_samples.h"
#include "formats/testing/pickles.h"
#include "support/faults/error_of.h"
#include "support/files/temporary_folder.h"

namespace fsdp::formats::dcp_metadata_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using testing::kNoError;
using ::testing::StartsWith;
using testing::TemporaryFolder;

// Returns "[0, 0]+[2, 3] path@offset+length" for each chunk.
std::vector<std::string> shown(const std::vector<DcpChunk>& chunks) {
  std::vector<std::string> texts;
  for (const DcpChunk& chunk : chunks) {
    texts.push_back(c10::str("[", c10::Join(", ", chunk.offsets), "]+[", c10::Join(", ", chunk.sizes), "] ",
                             chunk.location.path, "@", chunk.location.offset, "+", chunk.location.length));
  }
  return texts;
}

template <typename Map>
std::vector<std::string> names(const Map& map) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : map) keys.push_back(key);
  return keys;
}

TEST(DcpMetadata, OfOneProcess) {
  for (const char* hex : {kSingleHex, kSingleProtocol2Hex, kSingleOfPython3112Hex}) {
    const DcpMetadata metadata = parse(from_hex(hex));
    EXPECT_EQ(metadata.version, "1.0.0");
    EXPECT_THAT(names(metadata.tensors), ElementsAre("nest.a.0", "s", "w"));
    EXPECT_THAT(names(metadata.bytes), ElementsAre("nest.a.1", "step"));
    const DcpTensor& w = metadata.tensors.at("w");
    EXPECT_EQ(w.info.name, "w");
    EXPECT_EQ(w.info.dtype, c10::ScalarType::Float);
    EXPECT_EQ(w.info.shape, (Sizes{2, 3}));
    EXPECT_THAT(shown(w.chunks), ElementsAre("[0, 0]+[2, 3] __0_0.distcp@2522+1577"));
    EXPECT_EQ(metadata.tensors.at("s").info.dtype, c10::ScalarType::BFloat16);
    EXPECT_EQ(metadata.tensors.at("s").info.shape, Sizes{});
    EXPECT_THAT(shown(metadata.tensors.at("s").chunks), ElementsAre("[]+[] __0_0.distcp@4099+1577"));
    EXPECT_THAT(shown(metadata.tensors.at("nest.a.0").chunks), ElementsAre("[0, 0]+[0, 2] __0_0.distcp@5676+1513"));
    EXPECT_EQ(metadata.bytes.at("nest.a.1").offset, 1261);
    EXPECT_EQ(metadata.bytes.at("nest.a.1").length, 1261);
    EXPECT_EQ(metadata.bytes.at("step").path, "__0_0.distcp");
    EXPECT_EQ(metadata.key_paths.size(), 5u);
    EXPECT_THAT(metadata.key_paths.at("nest.a.1"), ElementsAre(DcpKey("nest"), DcpKey("a"), DcpKey(int64_t{1})));
  }
}

TEST(DcpMetadata, OfFullyShard) {
  const DcpMetadata metadata = parse(from_hex(kFsdp2Hex));
  EXPECT_THAT(names(metadata.tensors), ElementsAre("model.bias", "model.weight"));
  EXPECT_TRUE(metadata.bytes.empty());
  EXPECT_THAT(shown(metadata.tensors.at("model.weight").chunks),
              ElementsAre("[0, 0]+[2, 2] __0_0.distcp@0+1577", "[2, 0]+[1, 2] __1_0.distcp@0+1577"));
  EXPECT_THAT(shown(metadata.tensors.at("model.bias").chunks),
              ElementsAre("[0]+[2] __0_0.distcp@1577+1577", "[2]+[1] __1_0.distcp@1577+1577"));
  EXPECT_THAT(metadata.key_paths.at("model.bias"), ElementsAre(DcpKey("model"), DcpKey("bias")));
}

TEST(DcpMetadata, OfMeshesWithUnevenAndEmptyShards) {
  const DcpMetadata metadata = parse(from_hex(kMeshHex));
  EXPECT_THAT(names(metadata.tensors), ElementsAre("e", "g", "h", "p", "s", "z"));
  EXPECT_THAT(names(metadata.bytes), ElementsAre("n"));
  EXPECT_THAT(shown(metadata.tensors.at("e").chunks),
              ElementsAre("[0, 0]+[1, 2] __0_0.distcp@0+1577", "[1, 0]+[1, 2] __1_0.distcp@0+1577",
                          "[2, 0]+[0, 2] __2_0.distcp@0+1513"));
  EXPECT_THAT(shown(metadata.tensors.at("g").chunks),
              ElementsAre("[0, 0]+[2, 3] __0_0.distcp@1577+1577", "[0, 3]+[2, 2] __1_0.distcp@1577+1577",
                          "[2, 0]+[1, 3] __2_0.distcp@1513+1577", "[2, 3]+[1, 2] __3_0.distcp@1261+1577"));
  EXPECT_EQ(metadata.tensors.at("s").chunks.size(), 4u);
  EXPECT_EQ(metadata.tensors.at("p").info.dtype, c10::ScalarType::Char);
  EXPECT_THAT(shown(metadata.tensors.at("z").chunks), ElementsAre("[0, 0]+[0, 2] __3_0.distcp@5992+1513"));
}

TEST(DcpMetadata, OfAFolder) {
  const TemporaryFolder folder;
  EXPECT_THAT(error_of([&] { read_dcp_metadata(folder.path()); }),
              AllOf(HasSubstr("/.metadata: "), HasSubstr("No such file")));
  folder.write(".metadata", from_hex(kFsdp2Hex));
  EXPECT_EQ(read_dcp_metadata(folder.path()).tensors.size(), 2u);
  folder.write(".metadata", "{}");
  EXPECT_THAT(error_of([&] { read_dcp_metadata(folder.path()); }), HasSubstr("/.metadata: byte 0: not a pickle"));
  std::filesystem::resize_file(folder / ".metadata", (uint64_t{1} << 30) + 1);  // sparse: takes no space
  EXPECT_THAT(error_of([&] { read_dcp_metadata(folder.path()); }),
              HasSubstr("/.metadata: 1073741825 bytes are more than the limit of 1073741824"));
}

TEST(DcpMetadataDamaged, CutAnywhere) {
  for (const char* hex : {kSingleHex, kSingleProtocol2Hex, kSingleOfPython3112Hex, kFsdp2Hex, kMeshHex}) {
    const std::string good = from_hex(hex);
    for (size_t length = 0; length < good.size(); ++length) {
      EXPECT_THAT(parse_error(good.substr(0, length)), StartsWith("x/.metadata: byte ")) << length;
    }
    EXPECT_THAT(parse_error(good + "."), HasSubstr("1 more bytes follow"));
  }
}

TEST(DcpMetadataDamaged, AnyByteChanged) {
  for (const char* hex : {kSingleHex, kSingleProtocol2Hex, kSingleOfPython3112Hex, kFsdp2Hex, kMeshHex}) {
    const std::string good = from_hex(hex);
    for (size_t at = 0; at < good.size(); ++at) {
      for (const int flipped : {0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0xff}) {
        std::string bad = good;
        bad[at] = static_cast<char>(bad[at] ^ flipped);
        parse_error(bad);
      }
    }
  }
}

TEST(DcpMetadataMalformed, SizesAndOffsets) {
  EXPECT_THAT(boxes_error({4}, {{{0}, {5}}}), HasSubstr("chunk [0]: sizes [5] reach beyond the shape [4]"));
  EXPECT_THAT(boxes_error({4}, {{{5}, {0}}}), HasSubstr("reach beyond"));
  EXPECT_THAT(boxes_error({4}, {{{1}, {INT64_MAX}}}), HasSubstr("reach beyond"));
  EXPECT_THAT(boxes_error({4}, {{{0}, {-4}}}), HasSubstr("chunk [0]: sizes is negative: -4"));
  EXPECT_THAT(boxes_error({4}, {{{-1}, {5}}}), HasSubstr("is negative: -1"));
  EXPECT_THAT(boxes_error({-4}, {{{0}, {4}}}), HasSubstr("size is negative: -4"));
  EXPECT_THAT(boxes_error({4, 6}, {{{0}, {4}}}), HasSubstr("do not have the 2 dimensions"));
  EXPECT_THAT(boxes_error({INT64_MAX}, {{{0}, {INT64_MAX}}}), HasSubstr("has more than 2^63-1 bytes"));
  EXPECT_THAT(boxes_error({0, INT64_MAX, 2}, {}), HasSubstr("has more than 2^63-1 bytes"));
  EXPECT_THAT(boxes_error(std::vector<int64_t>(65, 1), {}), HasSubstr("65 dimensions"));
}

TEST(DcpMetadataMalformed, Paths) {
  for (const std::string path : {"/etc/passwd", "../x", "a/../../x", "..", ".", "a/..", "", "a//b", "a/", "./a"}) {
    EXPECT_THAT(tensor_error({.path = path}), AllOf(HasSubstr("chunk [0, 0]: "), HasSubstr("relative_path "))) << path;
  }
  EXPECT_THAT(tensor_error({.path = std::string("a\0b", 3)}), HasSubstr("is not a file name"));
  EXPECT_EQ(tensor_error({.path = "a/b..c/.d"}), kNoError);
}

// Shared values of a pickle are not copied without limit: the result's size is proportional to the file's.
TEST(DcpMetadataHostile, SharedValues) {
  EXPECT_EQ(tensor_error({.path = std::string(4096, 'p')}), kNoError);
  EXPECT_THAT(tensor_error({.path = std::string(4097, 'p')}), HasSubstr("is longer than 4096 bytes"));
  const OneTensor repeated{.boxes = {{{0, 0}, {4, 6}}, {{4, 0}, {0, 6}}, {{4, 0}, {0, 6}}}};
  const OneTensor all{.more_storage = {{OneTensor::index("u", {0, 0}), repeated.info()},
                                       {OneTensor::index("u", {4, 0}), repeated.info()}},
                      .more_entries = {{text("u"), repeated.entry()}}};
  EXPECT_THAT(shown(parse(all.bytes()).tensors.at("u").chunks),
              ElementsAre("[0, 0]+[4, 6] __0_0.distcp@0+100", "[4, 0]+[0, 6] __0_0.distcp@0+100"));
}

TEST(DcpMetadataMalformed, Locations) {
  EXPECT_THAT(tensor_error({.offset = -1}), HasSubstr("chunk [0, 0]: offset is negative"));
  EXPECT_THAT(tensor_error({.length = -1}), HasSubstr("chunk [0, 0]: length is negative"));
  EXPECT_THAT(tensor_error({.offset = INT64_MAX, .length = 1}), HasSubstr("add up to more than 2^63-1"));
  EXPECT_EQ(tensor_error({.offset = INT64_MAX - 1, .length = 1}), kNoError);
  EXPECT_EQ(tensor_error({.more_info = {{text("transform_descriptors"), none()}}}), kNoError);
  EXPECT_THAT(tensor_error({.more_info = {{text("transform_descriptors"), list({text("zstd")})}}}),
              HasSubstr("transforms"));
  EXPECT_THAT(tensor_error({.more_info = {{text("offset"), integer(1)}}}), HasSubstr("the attribute \"offset\" twice"));
  EXPECT_THAT(tensor_error({.boxes = {{{0, 0}, {2, 6}}, {{2, 0}, {2, 6}}}, .unstored = 1}),
              HasSubstr("chunk [2, 0]: no storage entry"));
  OneTensor twice;
  twice.more_storage = {{OneTensor::index("t", {0, 0}), twice.info()}};
  EXPECT_THAT(tensor_error(twice), HasSubstr("chunk [0, 0]: two storage entries"));
  twice.more_storage = {{OneTensor::index("other", {0, 0}), twice.info()}};
  EXPECT_EQ(tensor_error(twice), kNoError);
}

TEST(DcpMetadataMalformed, Dtypes) {
  EXPECT_THAT(parse_error(OneTensor{.dtype = pickled::name("torch", "qint8")}.bytes()),
              HasSubstr("torch.qint8 is not allowed"));
  EXPECT_THAT(tensor_error({.dtype = pickled::name("torch", "Size")}), HasSubstr("torch.Size is not a known dtype"));
  EXPECT_THAT(tensor_error({.dtype = text("torch.float32")}), HasSubstr("dtype is not a dtype"));
  const std::string sparse = call(pickled::name("torch.serialization", "_get_layout"), {text("torch.sparse_coo")});
  EXPECT_THAT(tensor_error({.layout = sparse}), HasSubstr("layout is not torch.strided"));
  EXPECT_EQ(parse(OneTensor{.dtype = pickled::name("torch", "float8_e4m3fn")}.bytes()).tensors.at("t").info.dtype,
            c10::ScalarType::Float8_e4m3fn);
}

TEST(DcpMetadataMalformed, Entries) {
  EXPECT_THAT(tensor_error({.more_entries = {{text("t"), OneTensor{}.entry()}}}), HasSubstr("described twice"));
  const std::string bytes = pickled::name(kModule, "BytesStorageMetadata") + ")\x81";
  EXPECT_THAT(tensor_error({.more_entries = {{text("t"), bytes}}}), HasSubstr("described twice"));
  EXPECT_THAT(parse_error(OneTensor{.more_entries = {{text("b"), bytes}}}.bytes()),
              HasSubstr("\"b\": no storage entry"));
  EXPECT_THAT(parse_error(OneTensor{.more_entries = {{text("b"), none()}}}.bytes()),
              HasSubstr("\"b\": the entry is not an object of class"));
  EXPECT_THAT(parse_error(OneTensor{.more_entries = {{none(), bytes}}}.bytes()), HasSubstr("is not a string"));
  EXPECT_THAT(parse_error(file(dict({}))), HasSubstr("the file's value is not an object of class"));
  EXPECT_THAT(parse_error(file(attributes("Metadata", {}))), HasSubstr("has no storage_data"));
  EXPECT_THAT(parse_error(file(object(pickled::name(kModule, "Metadata"), none()))), HasSubstr("named attributes"));
}

TEST(DcpMetadataMalformed, PlannerData) {
  EXPECT_EQ(tensor_error({.planner_data = dict({{text("t.-1"), tuple({text("t"), integer(-1)})}})}), kNoError);
  EXPECT_THAT(parse_error(OneTensor{.planner_data = list({})}.bytes()), HasSubstr("planner_data is not a dict"));
  EXPECT_THAT(tensor_error({.planner_data = dict({{text("t"), list({})}})}), HasSubstr("is not a tuple"));
  EXPECT_THAT(tensor_error({.planner_data = dict({{text("t"), tuple({none()})}})}), HasSubstr("is not a string"));
  EXPECT_THAT(tensor_error({.planner_data = dict({{text("t"), tuple({text("tt")})}})}),
              HasSubstr("longer than the name"));
  EXPECT_THAT(tensor_error({.planner_data = dict({{text("t"), tuple({integer(1), integer(1), integer(1)})}})}),
              HasSubstr("longer than the name"));
  EXPECT_THAT(tensor_error({.planner_data = dict({{text("t"), tuple({})}, {text("t"), tuple({})}})}),
              HasSubstr("twice in planner_data"));
}

TEST(DcpMetadataMalformed, ForeignGlobals) {
  const std::string call_system = call(pickled::name("os", "system"), {text("true")});
  EXPECT_THAT(parse_error(OneTensor{.planner_data = call_system}.bytes()),
              AllOf(StartsWith("x/.metadata: byte "), HasSubstr("os.system is not allowed")));
  EXPECT_THAT(parse_error(OneTensor{.planner_data = pickled::name("torch", "load")}.bytes()),
              HasSubstr("torch.load is not allowed"));
}

}  // namespace
}  // namespace fsdp::formats::dcp_metadata_test
