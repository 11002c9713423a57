#include "formats/safetensors/safetensors.h"

#include <sys/stat.h>
#include <torch/torch.h>

#include "formats/testing/safetensors_bytes.h"
#include "support/faults/error_of.h"
#include "support/files/temporary_folder.h"

namespace fsdp::formats::safetensors_test {
namespace {

using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;
using testing::kNoError;
using ::testing::Not;
using testing::TemporaryFolder;

// Two tensors of 12 and 2 bytes.
const char* const kGoodHeader =
    R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,12]},"b":{"dtype":"U8","shape":[2,1],"data_offsets":[12,14]}})";
const std::string kGoodData("\0\0\x80\x3f\0\0\0\x40\0\0\x40\x40\x07\x08", 14);  // 1, 2, 3; 7, 8

std::string open_error(const std::string& bytes) {
  const TemporaryFolder folder;
  const auto path = folder.write("x.safetensors", bytes);
  const std::string error = error_of([&] { SafetensorsFile file(path); });
  if (error != kNoError) {
    EXPECT_THAT(error, HasSubstr("x.safetensors"));
  }
  return error;
}

std::string header_error(const std::string& header, size_t data_bytes) {
  return open_error(safetensors_bytes(header, std::string(data_bytes, '\0')));
}

// Returns the error of a file with one tensor "t" described by `fields`.
std::string tensor_error(const std::string& fields, size_t data_bytes) {
  const std::string error = header_error(R"({"t":)" + fields + "}", data_bytes);
  if (error != kNoError) {
    EXPECT_THAT(error, HasSubstr("\"t\""));
  }
  return error;
}

std::string with_length(uint64_t length, const std::string& rest) {
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + rest;
}

TEST(Safetensors, ReadsTensorsLazilyAsViews) {
  const TemporaryFolder folder;
  const SafetensorsFile file(
      folder.write("x", safetensors_bytes(std::string(kGoodHeader) + std::string(2, ' '), kGoodData)));
  ASSERT_EQ(file.tensors().size(), 2u);
  EXPECT_EQ(file.tensors()[0].name, "a");
  EXPECT_TRUE(torch::equal(file.tensor("a"), torch::tensor({1.0f, 2.0f, 3.0f})));
  EXPECT_TRUE(torch::equal(file.tensor("b"), torch::tensor({7, 8}, torch::kUInt8).view({2, 1})));
  EXPECT_EQ(file.tensor("b").const_data_ptr(), file.tensor("b").const_data_ptr());  // no copy
  EXPECT_THAT(error_of([&] { file.tensor("c"); }), HasSubstr("holds no tensor \"c\""));
}

TEST(Safetensors, ViewsOutliveTheFileObject) {
  const TemporaryFolder folder;
  const auto path = folder.write("x", safetensors_bytes(kGoodHeader, kGoodData));
  const at::Tensor tensor = SafetensorsFile(path).tensor("b");
  std::filesystem::remove(path);
  EXPECT_EQ(tensor[1].item<int>(), 8);
}

TEST(Safetensors, MisalignedDataAreRead) {
  for (int padding = 0; padding < 8; ++padding) {
    const TemporaryFolder folder;
    const std::string header = R"({"a":{"dtype":"F64","shape":[],"data_offsets":[0,8]}})" + std::string(padding, ' ');
    const double value = 0.1;
    std::string data(8, '\0');
    std::memcpy(data.data(), &value, 8);
    const SafetensorsFile file(folder.write("x", safetensors_bytes(header, data)));
    EXPECT_EQ(file.tensor("a").item<double>(), 0.1);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(file.tensor("a").const_data_ptr()) % 8, 0u);
    at::Tensor out = torch::zeros(1);
    file.read_range("a", 0, 1, out);
    EXPECT_EQ(out.item<float>(), 0.1f);
  }
}

TEST(Safetensors, AnyByteButZeroIsTrue) {
  const TemporaryFolder folder;
  const SafetensorsFile file(folder.write(
      "x",
      safetensors_bytes(R"({"a":{"dtype":"BOOL","shape":[3],"data_offsets":[0,3]}})", std::string("\0\x01\xff", 3))));
  EXPECT_TRUE(torch::equal(file.tensor("a"), torch::tensor({false, true, true})));
  EXPECT_EQ(file.tensor("a").sum().item<int>(), 2);
}

TEST(Safetensors, ReadRangeConvertsAndChecksItsArguments) {
  const TemporaryFolder folder;
  const SafetensorsFile file(folder.write("x", safetensors_bytes(kGoodHeader, kGoodData)));
  at::Tensor out = torch::zeros({2}, torch::kFloat64);
  file.read_range("a", 1, 3, out);
  EXPECT_TRUE(torch::equal(out, torch::tensor({2.0, 3.0}, torch::kFloat64)));
  file.read_range("a", 3, 3, out.narrow(0, 0, 0));  // a rank without elements
  EXPECT_THAT(error_of([&] { file.read_range("a", 2, 4, out); }), HasSubstr("[2, 4)"));
  EXPECT_THAT(error_of([&] { file.read_range("a", -1, 1, out); }), HasSubstr("[-1, 1)"));
  EXPECT_THAT(error_of([&] { file.read_range("a", 0, 3, out); }), HasSubstr("of 3 elements"));
  EXPECT_THAT(error_of([&] { file.read_range("a", 0, 1, out.slice(0, 0, 2, 2).expand({1, 1})); }), HasSubstr("1-D"));
}

TEST(Safetensors, ReadRangeWritesIntoALeafThatRequiresGrad) {
  const TemporaryFolder folder;
  const SafetensorsFile file(folder.write("x", safetensors_bytes(kGoodHeader, kGoodData)));
  at::Tensor parameter = torch::zeros({3}, torch::requires_grad());
  file.read_range("a", 0, 3, parameter);
  EXPECT_EQ(parameter[2].item<float>(), 3.0f);
  EXPECT_TRUE(parameter.is_leaf());
}

TEST(Safetensors, MetadataAndEmptyTensors) {
  const TemporaryFolder folder;
  const SafetensorsFile file(folder.write(
      "x", safetensors_bytes(
               R"({"__metadata__":{"format":"pt"},"e":{"dtype":"F32","shape":[0,3],"data_offsets":[0,0]}})", "")));
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(file.tensor("e").sizes(), (std::vector<int64_t>{0, 3}));
}

TEST(Safetensors, NoTensorsAtAll) { EXPECT_EQ(open_error(safetensors_bytes("{}", "")), kNoError); }

TEST(SafetensorsMalformed, HeaderLength) {
  EXPECT_THAT(open_error(""), HasSubstr("only 0 bytes"));
  EXPECT_THAT(open_error("1234567"), HasSubstr("only 7 bytes"));
  EXPECT_THAT(open_error(with_length(0, "{}")), HasSubstr("header length 0"));
  EXPECT_THAT(open_error(with_length(3, "{}")), AllOf(HasSubstr("header length 3"), HasSubstr("truncated")));
  EXPECT_THAT(open_error(with_length(100'000'001, "{}")), HasSubstr("exceeds the limit of 100000000"));
  EXPECT_THAT(open_error(with_length(UINT64_MAX, "{}")), HasSubstr("exceeds the limit"));
  EXPECT_THAT(open_error(with_length(UINT64_MAX - 7, "{}")), HasSubstr("exceeds the limit"));
}

TEST(SafetensorsMalformed, NotAFile) {
  const TemporaryFolder folder;
  EXPECT_THAT(error_of([&] { SafetensorsFile file(folder / "missing"); }), HasSubstr("No such file"));
  EXPECT_THAT(error_of([&] { SafetensorsFile file(folder.path()); }), HasSubstr("not a regular file"));
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(error_of([&] { SafetensorsFile file(folder / "pipe"); }), HasSubstr("not a regular file"));
}

TEST(SafetensorsMalformed, HeaderText) {
  EXPECT_THAT(header_error(" {}", 0), HasSubstr("must start with '{'"));
  EXPECT_THAT(header_error("\xef\xbb\xbf{}", 0), HasSubstr("must start with '{'"));
  EXPECT_THAT(header_error("[]", 0), HasSubstr("must start with '{'"));
  EXPECT_THAT(header_error("{", 0), HasSubstr("(header):1:"));
  EXPECT_THAT(header_error("{}x", 0), HasSubstr("(header):1:3"));
  EXPECT_THAT(header_error("{\"\xff\":1}", 0), HasSubstr("UTF-8"));
  EXPECT_THAT(header_error("{\"t\":" + std::string(100'000, '['), 0), HasSubstr("nested deeper"));
  EXPECT_THAT(header_error("{\"t\":{\"dtype\":\"\xc3\"}}", 1), HasSubstr("UTF-8"));
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += R"({"t":)";
  EXPECT_THAT(header_error(objects, 0), HasSubstr("nested deeper"));
  EXPECT_THAT(header_error(R"({"t":1})", 0), HasSubstr("expected an object"));
}

TEST(SafetensorsMalformed, DuplicateNames) {
  const std::string t = R"("t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
  EXPECT_THAT(header_error("{" + t + "," + t + "}", 1), HasSubstr("duplicate key \"t\""));
  EXPECT_THAT(header_error(R"({"t":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}})", 1),
              HasSubstr("duplicate key \"dtype\""));
}

TEST(SafetensorsMalformed, Dtype) {
  EXPECT_THAT(tensor_error(R"({"dtype":"F31","shape":[1],"data_offsets":[0,4]})", 4),
              AllOf(HasSubstr("\"F31\""), HasSubstr("BF16")));
  EXPECT_THAT(tensor_error(R"({"dtype":4,"shape":[1],"data_offsets":[0,4]})", 4), HasSubstr("must be a string"));
  EXPECT_THAT(tensor_error(R"({"shape":[1],"data_offsets":[0,4]})", 4), HasSubstr("dtype is missing"));
}

TEST(SafetensorsMalformed, Shape) {
  EXPECT_THAT(tensor_error(R"({"dtype":"U8","shape":[-1],"data_offsets":[0,1]})", 1), HasSubstr("got -1"));
  EXPECT_THAT(tensor_error(R"({"dtype":"U8","shape":[1.0],"data_offsets":[0,1]})", 1), HasSubstr("got 1.0"));
  EXPECT_THAT(tensor_error(R"({"dtype":"U8","shape":["1"],"data_offsets":[0,1]})", 1), HasSubstr("got \"1\""));
  EXPECT_THAT(tensor_error(R"({"dtype":"U8","shape":1,"data_offsets":[0,1]})", 1), HasSubstr("must be an array"));
  EXPECT_THAT(tensor_error(R"({"dtype":"U8","data_offsets":[0,1]})", 1), HasSubstr("shape is missing"));
  EXPECT_THAT(tensor_error(R"({"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,1]})", 1),
              HasSubstr("2^63-1"));
  EXPECT_THAT(tensor_error(R"({"dtype":"U8","shape":[18446744073709551616],"data_offsets":[0,1]})", 1),
              HasSubstr("2^63-1"));
  std::string ones = "1";
  for (int i = 1; i < 65; ++i) ones += ",1";
  EXPECT_THAT(tensor_error(R"({"dtype":"U8","shape":[)" + ones + R"(],"data_offsets":[0,1]})", 1),
              HasSubstr("65 dimensions"));
}

TEST(SafetensorsMalformed, SizeOverflow) {
  // 2^32 * 2^32 = 0 modulo 2^64
  EXPECT_THAT(tensor_error(R"({"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]})", 0),
              HasSubstr("more than 2^63-1 bytes"));
  EXPECT_THAT(tensor_error(R"({"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0]})", 0),
              HasSubstr("more than 2^63-1 bytes"));
  // The strides would overflow, although the tensor has no elements.
  EXPECT_THAT(tensor_error(R"({"dtype":"U8","shape":[0,4294967296,4294967296],"data_offsets":[0,0]})", 0),
              HasSubstr("more than 2^63-1 bytes"));
}

TEST(SafetensorsMalformed, Offsets) {
  EXPECT_THAT(tensor_error(R"({"dtype":"U8","shape":[1],"data_offsets":[1,0]})", 1),
              HasSubstr("end before they begin"));
  EXPECT_THAT(tensor_error(R"({"dtype":"U8","shape":[1],"data_offsets":[0]})", 1), HasSubstr("two integers"));
  EXPECT_THAT(tensor_error(R"({"dtype":"U8","shape":[1],"data_offsets":[0,1,2]})", 1), HasSubstr("two integers"));
  EXPECT_THAT(tensor_error(R"({"dtype":"U8","shape":[1],"data_offsets":[-1,0]})", 1), HasSubstr("got -1"));
  EXPECT_THAT(tensor_error(R"({"dtype":"U8","shape":[1],"data_offsets":[0.0,1]})", 1), HasSubstr("got 0.0"));
  EXPECT_THAT(tensor_error(R"({"dtype":"U8","shape":[1]})", 1), HasSubstr("data_offsets is missing"));
  EXPECT_THAT(tensor_error(R"({"dtype":"U8","shape":[2],"data_offsets":[0,2]})", 1), HasSubstr("truncated"));
  EXPECT_THAT(tensor_error(R"({"dtype":"F32","shape":[2],"data_offsets":[0,4]})", 4), HasSubstr("takes 8 bytes"));
  EXPECT_THAT(tensor_error(R"({"dtype":"U8","shape":[1],"data_offsets":[9223372036854775806,9223372036854775807]})", 1),
              HasSubstr("belong to no tensor"));
}

TEST(SafetensorsMalformed, OverlapsAndHoles) {
  const auto two = [](const std::string& a, const std::string& b) {
    return R"({"a":{"dtype":"U8","shape":[2],"data_offsets":)" + a +
           R"(},"b":{"dtype":"U8","shape":[2],"data_offsets":)" + b + "}}";
  };
  EXPECT_EQ(header_error(two("[2,4]", "[0,2]"), 4), kNoError);
  EXPECT_THAT(header_error(two("[0,2]", "[1,3]"), 3),
              AllOf(HasSubstr("overlaps"), HasSubstr("\"a\""), HasSubstr("\"b\"")));
  EXPECT_THAT(header_error(two("[0,2]", "[0,2]"), 2), HasSubstr("overlaps"));
  EXPECT_THAT(header_error(two("[0,2]", "[3,5]"), 5), AllOf(HasSubstr("belong to no tensor"), HasSubstr("\"b\"")));
  EXPECT_THAT(header_error(two("[1,3]", "[3,5]"), 5), HasSubstr("belong to no tensor"));
  EXPECT_THAT(header_error(two("[0,2]", "[2,4]"), 5), HasSubstr("last 1 bytes"));
  EXPECT_THAT(header_error("{}", 1), HasSubstr("last 1 bytes"));
}

TEST(SafetensorsMalformed, Metadata) {
  EXPECT_THAT(header_error(R"({"__metadata__":{"a":1}})", 0), HasSubstr("__metadata__ \"a\" must be a string, got 1"));
  EXPECT_THAT(header_error(R"({"__metadata__":[]})", 0), HasSubstr("must be an object of strings"));
  EXPECT_THAT(header_error(R"({"__metadata__":{"a":"1","a":"2"}})", 0), HasSubstr("duplicate key"));
}

// Each damaged byte causes an error or a harmless difference, but never a crash or a read outside of the file.
TEST(SafetensorsMalformed, EverySingleDamagedByte) {
  const std::string good = safetensors_bytes(kGoodHeader, kGoodData);
  const TemporaryFolder folder;
  int refused = 0;
  for (size_t i = 0; i < good.size(); ++i) {
    for (int value : {0x00, 0x20, 0x2d, 0x39, 0x5d, 0x7b, 0x7f, 0x80, 0xff}) {
      std::string bad = good;
      bad[i] = static_cast<char>(value);
      const auto path = folder.write("x", bad);
      refused += error_of([&] {
                   const SafetensorsFile file(path);
                   for (const auto& info : file.tensors()) file.tensor(info.name).to(torch::kFloat64).sum();
                 }) != kNoError;
    }
  }
  EXPECT_GT(refused, 500);
}

TEST(SafetensorsMalformed, EveryTruncation) {
  const std::string good = safetensors_bytes(kGoodHeader, kGoodData);
  EXPECT_EQ(open_error(good), kNoError);
  for (size_t length = 0; length < good.size(); ++length)
    EXPECT_NE(open_error(good.substr(0, length)), kNoError) << length;
}

}  // namespace
}  // namespace fsdp::formats::safetensors_test
