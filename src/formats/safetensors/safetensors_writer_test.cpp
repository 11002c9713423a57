#include "formats/safetensors/safetensors_writer.h"

#include <signal.h>
#include <sys/resource.h>
#include <torch/torch.h>

#include "formats/common/input_file.h"
#include "formats/safetensors/safetensors.h"
#include "support/faults/error_of.h"
#include "support/files/temporary_folder.h"

namespace fsdp::formats::safetensors_writer_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::TemporaryFolder;

// Limits the size of this process's files to `bytes`, which simulates a full disk.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    handler_ = ::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limited{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limited);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    ::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  sighandler_t handler_;
};

TEST(SafetensorsWriter, RoundTripOfEveryDtype) {
  const TemporaryFolder folder;
  torch::manual_seed(1);
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  std::vector<TensorInfo> layout;
  for (auto dtype : {torch::kBool, torch::kUInt8, torch::kInt8, torch::kInt16, torch::kBFloat16, torch::kHalf,
                     torch::kInt32, torch::kFloat32, torch::kInt64, torch::kFloat64}) {
    tensors.emplace_back(c10::str("odd ", dtype, " \"name\"\n"), (torch::randn({3, 5}) * 9).to(dtype));
    layout.push_back({tensors.back().first, dtype, {3, 5}});
  }
  layout.push_back({"scalar", torch::kFloat32, {}});
  layout.push_back({"empty", torch::kFloat32, {0, 4}});
  SafetensorsWriter writer(folder / "x", layout, {{"format", "pt"}});
  for (auto it = tensors.rbegin(); it != tensors.rend(); ++it) {  // not in file order
    writer.write(it->first, it->second);
  }
  writer.write("scalar", torch::tensor(2.5f));
  writer.write("empty", torch::empty({0, 4}));
  writer.finish();
  const SafetensorsFile file(folder / "x");
  EXPECT_EQ(file.tensors().size(), 12u);
  EXPECT_EQ(file.metadata().at("format"), "pt");
  for (const auto& [name, tensor] : tensors) {
    EXPECT_TRUE(torch::equal(file.tensor(name), tensor)) << name;
    EXPECT_EQ(file.tensor(name).dtype(), tensor.dtype());
  }
  EXPECT_EQ(file.tensor("scalar").item<float>(), 2.5f);
  EXPECT_THAT(folder.names(), ElementsAre("x"));
}

TEST(SafetensorsWriter, TensorsAreAligned) {
  const TemporaryFolder folder;
  SafetensorsWriter writer(folder / "x", {{"a", torch::kBFloat16, {3}}, {"b", torch::kFloat64, {1}}});
  writer.write("a", torch::ones({3}));
  writer.write("b", torch::ones({1}));
  writer.finish();
  const SafetensorsFile file(folder / "x");
  // A view of the map is aligned like the file: two calls return the same address, which copies would not.
  const at::Tensor first = file.tensor("b");
  EXPECT_EQ(first.const_data_ptr(), file.tensor("b").const_data_ptr());
}

TEST(SafetensorsWriter, ConvertsStridesAndDtypesInBlocks) {
  const TemporaryFolder folder;
  const int64_t rows = 3000, columns = 3001;  // more than one block
  const at::Tensor values = torch::arange(rows * columns, torch::kFloat64).view({columns, rows}).t();
  SafetensorsWriter writer(folder / "x", {{"a", torch::kFloat32, {rows, columns}}});
  writer.write("a", values.clone(torch::MemoryFormat::Preserve).requires_grad_());
  writer.finish();
  EXPECT_TRUE(torch::equal(SafetensorsFile(folder / "x").tensor("a"), values.to(torch::kFloat32)));
}

TEST(SafetensorsWriter, NothingUnderTheNameBeforeFinish) {
  const TemporaryFolder folder;
  folder.write("x", "old");
  {
    SafetensorsWriter writer(folder / "x", {{"a", torch::kFloat32, {2}}});
    writer.write("a", torch::ones({2}));
    EXPECT_EQ(std::filesystem::file_size(folder / "x"), 3u);
  }
  EXPECT_THAT(folder.names(), ElementsAre("x"));
  EXPECT_EQ(std::filesystem::file_size(folder / "x"), 3u);
}

TEST(SafetensorsWriter, WrongUseIsAnError) {
  const TemporaryFolder folder;
  SafetensorsWriter writer(folder / "x", {{"a", torch::kFloat32, {2}}, {"b", torch::kFloat32, {2}}});
  EXPECT_THAT(error_of([&] { writer.write("c", torch::ones({2})); }), HasSubstr("\"c\""));
  EXPECT_THAT(error_of([&] { writer.write("a", torch::ones({1, 2})); }), HasSubstr("[1, 2]"));
  writer.write("a", torch::ones({2}));
  EXPECT_THAT(error_of([&] { writer.write("a", torch::ones({2})); }), HasSubstr("written twice"));
  EXPECT_THAT(error_of([&] { writer.finish(); }), HasSubstr("\"b\" of the layout was never written"));
  EXPECT_THAT(error_of([&] {
                SafetensorsWriter twice(folder / "y", {{"a", torch::kFloat32, {2}}, {"a", torch::kFloat32, {2}}});
              }),
              HasSubstr("occurs twice"));
  EXPECT_THAT(error_of([&] { SafetensorsWriter complex(folder / "y", {{"a", torch::kComplexFloat, {2}}}); }),
              HasSubstr("ComplexFloat"));
}

TEST(SafetensorsWriter, AFullDiskIsKnownBeforeTheFirstTensor) {
  const TemporaryFolder folder;
  const FileSizeLimit limit(1 << 16);
  const std::string error =
      error_of([&] { SafetensorsWriter writer(folder / "x.safetensors", {{"a", torch::kFloat32, {1 << 20}}}); });
  EXPECT_THAT(error, AllOf(HasSubstr("x.safetensors"), HasSubstr("File too large")));
  EXPECT_THAT(folder.names(), IsEmpty());
}

TEST(OutputFile, AFailedWriteNamesTheFileAndLeavesNothing) {
  const TemporaryFolder folder;
  folder.write("x", "old");
  OutputFile file(folder / "x");
  const FileSizeLimit limit(1 << 12);
  EXPECT_THAT(error_of([&] { file.write(0, std::string(1 << 13, 'x')); }),
              AllOf(HasSubstr("/x: writing failed: File too large"), HasSubstr("nothing was left behind")));
  EXPECT_THAT(folder.names(), ElementsAre("x"));
  EXPECT_THAT(error_of([&] { file.commit(); }), HasSubstr("no longer open"));
  EXPECT_EQ(std::filesystem::file_size(folder / "x"), 3u);
}

TEST(OutputFile, AMissingFolderIsNamed) {
  const TemporaryFolder folder;
  EXPECT_THAT(error_of([&] { OutputFile file(folder / "none/x"); }),
              AllOf(HasSubstr("none/x"), HasSubstr("No such file or directory")));
}

TEST(SafetensorsWriter, PiecesAreTheWholeTensor) {
  const TemporaryFolder folder;
  const std::vector<TensorInfo> layout{
      {"a", torch::kBFloat16, {700, 900}}, {"b", torch::kInt64, {7}}, {"none", torch::kFloat, {0}}};
  const at::Tensor a = torch::arange(630'000.0f).view({700, 900}), b = torch::arange(7);
  SafetensorsWriter whole(folder / "whole", layout), pieces(folder / "pieces", layout);
  whole.write("a", a);
  whole.write("b", b);
  whole.write("none", torch::empty({0}));
  for (int64_t at = 0; at < a.numel(); at += 200'001) {
    pieces.append("a", a.view(-1).slice(0, at, at + 200'001));
    if (at == 0) pieces.append("b", b.slice(0, 0, 3));
  }
  EXPECT_THAT(error_of([&] { pieces.append("a", torch::zeros({1})); }),
              AllOf(HasSubstr("\"a\""), HasSubstr("0 elements are left")));
  EXPECT_THAT(error_of([&] { pieces.append("b", torch::zeros({2, 2})); }), HasSubstr("must be 1-D"));
  EXPECT_THAT(error_of([&] { pieces.place("b"); }), HasSubstr("was not written"));
  EXPECT_THAT(error_of([&] { pieces.finish(); }), AllOf(HasSubstr("\"b\""), HasSubstr("not written completely")));
  pieces.append("b", b.slice(0, 3));
  EXPECT_THAT(error_of([&] { pieces.finish(); }), AllOf(HasSubstr("\"none\""), HasSubstr("never written")));
  pieces.append("none", torch::empty({0}));
  EXPECT_EQ(pieces.place("a").checksums, whole.place("a").checksums);
  pieces.finish();
  whole.finish();
  EXPECT_EQ(read_file(folder / "pieces", 1 << 22), read_file(folder / "whole", 1 << 22));
}

}  // namespace
}  // namespace fsdp::formats::safetensors_writer_test
