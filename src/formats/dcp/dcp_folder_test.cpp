#include "formats/dcp/dcp_folder.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/dcp/dcp_chunk_runs.h"
#include "formats/dcp/dcp_folder_writer.h"
#include "formats/dcp/dcp_metadata_writer.h"
#include "formats/pickle/pickle_writer.h"
#include "formats/testing/dcp_metadata_bytes.h"
#include "formats/testing/torch_archive_samples.h"
#include "support/faults/error_of.h"
#include "support/faults/faulty_file_system.h"
#include "support/files/temporary_folder.h"

namespace fsdp::formats::dcp_folder_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using testing::error_of;
using testing::FaultyFileSystem;
using testing::FileFault;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kNoError;
using testing::TemporaryFolder;

using Sizes = std::vector<int64_t>;

at::Tensor numbers(const Sizes& shape, c10::ScalarType dtype) {
  return at::arange(TensorInfo{"", dtype, shape}.numel(), at::kLong).to(dtype).view(shape);
}

const std::vector<std::pair<std::string, at::Tensor>>& sample() {
  static const std::vector<std::pair<std::string, at::Tensor>> tensors{
      {"cube", numbers({5, 3, 7}, at::kFloat)},
      {"half", numbers({4, 6}, at::kHalf)},
      {"wide", numbers({1, 40}, at::kBFloat16)},
      {"long", numbers({11}, at::kLong)},
      {"scalar", numbers({}, at::kDouble)},
      {"none", numbers({0, 4}, at::kFloat)},
      {"flags", numbers({9}, at::kLong).remainder(2).to(at::kBool)}};
  return tensors;
}

void write_sample(const fs::path& target, const DcpFolderWriterOptions& options, int64_t step) {
  DcpFolderWriter writer(target, options);
  for (const auto& [name, tensor] : sample()) {
    writer.begin({name, tensor.scalar_type(), tensor.sizes().vec()}, {name});
    for (int64_t at = 0; at < tensor.numel(); at += step) writer.append(tensor.reshape(-1).slice(0, at, at + step));
  }
  writer.add_value("optim.0.lr", {"optim", int64_t{0}, "lr"}, pickled::real(0.125));
  writer.finish();
}

at::Tensor read(const DcpFolder& folder, const std::string& name, int64_t begin, int64_t end) {
  at::Tensor out = at::empty({end - begin}, at::TensorOptions(folder.tensor(name).info.dtype));
  folder.read(name, begin, end, out);
  return out;
}

at::Tensor whole(const DcpFolder& folder, const std::string& name) {
  const TensorInfo& info = folder.tensor(name).info;
  return read(folder, name, 0, info.numel()).view(info.shape);
}

std::vector<std::string> cut(const Sizes& shape, int64_t max_bytes) {
  std::vector<std::string> boxes;
  for (const DcpChunk& chunk : cut_into_chunks({"", at::kFloat, shape}, max_bytes)) {
    boxes.push_back(c10::str("[", c10::Join(",", chunk.offsets), "]+[", c10::Join(",", chunk.sizes), "]"));
  }
  return boxes;
}

TEST(DcpChunks, AreRangesOfAtMostSoManyBytes) {
  EXPECT_THAT(cut({}, 1), ElementsAre("[]+[]"));
  EXPECT_THAT(cut({0, 5}, 4), ElementsAre("[0,0]+[0,5]"));
  EXPECT_THAT(cut({2, 3}, 24), ElementsAre("[0,0]+[2,3]"));
  EXPECT_THAT(cut({3, 2}, 16), ElementsAre("[0,0]+[2,2]", "[2,0]+[1,2]"));
  EXPECT_THAT(cut({2, 3}, 8), ElementsAre("[0,0]+[1,2]", "[0,2]+[1,1]", "[1,0]+[1,2]", "[1,2]+[1,1]"));
  EXPECT_THAT(cut({2}, 1), ElementsAre("[0]+[1]", "[1]+[1]"));
}

std::vector<std::string> runs(const Sizes& shape, const Sizes& offsets, const Sizes& sizes, int64_t begin,
                              int64_t end) {
  std::vector<std::string> shown;
  for_each_run(shape, {offsets, sizes, {}}, begin, end, [&](const ChunkRun& run) {
    shown.push_back(c10::str(run.in_tensor, "<-", run.in_chunk, "x", run.count));
  });
  return shown;
}

TEST(DcpChunks, RunsOfElements) {
  EXPECT_THAT(runs({}, {}, {}, 0, 1), ElementsAre("0<-0x1"));
  EXPECT_THAT(runs({4, 6}, {0, 0}, {4, 6}, 5, 9), ElementsAre("5<-5x4"));
  EXPECT_THAT(runs({4, 6}, {1, 0}, {2, 6}, 0, 24), ElementsAre("6<-0x12"));
  EXPECT_THAT(runs({4, 6}, {1, 2}, {2, 3}, 0, 24), ElementsAre("8<-0x3", "14<-3x3"));
  EXPECT_THAT(runs({4, 6}, {1, 2}, {2, 3}, 9, 15), ElementsAre("9<-1x2", "14<-3x1"));
  EXPECT_THAT(runs({2, 3, 2}, {0, 1, 0}, {2, 2, 2}, 0, 12), ElementsAre("2<-0x4", "8<-4x4"));
  EXPECT_THAT(runs({2, 2, 3}, {0, 0, 1}, {2, 2, 1}, 2, 12), ElementsAre("4<-1x1", "7<-2x1", "10<-3x1"));
  EXPECT_THAT(
      runs({1, int64_t{1} << 40, 2}, {0, 0, 1}, {1, int64_t{1} << 40, 1}, int64_t{1} << 39, (int64_t{1} << 39) + 3),
      ElementsAre("549755813889<-274877906944x1"));
  EXPECT_THAT(runs({4, 6}, {1, 2}, {0, 3}, 0, 24), ElementsAre());
  EXPECT_THAT(runs({4, 6}, {1, 2}, {2, 3}, 7, 7), ElementsAre());
}

class Dcp : public ::testing::Test {
 protected:
  TemporaryFolder folder;
};

TEST_F(Dcp, WrittenFoldersAreReadBack) {
  for (const int64_t max_chunk : {int64_t{1} << 30, int64_t{40}, int64_t{1}}) {
    for (const int64_t step : {1000, 3}) {
      const fs::path target = folder / "checkpoint";
      write_sample(target, {.max_file_bytes = 5'000, .max_chunk_bytes = max_chunk}, step);
      const DcpFolder saved(target);
      for (const auto& [name, tensor] : sample()) {
        EXPECT_TRUE(whole(saved, name).equal(tensor)) << name << " " << max_chunk;
      }
      EXPECT_EQ(saved.value("optim.0.lr"), 0.125);
      EXPECT_EQ(saved.metadata().key_paths.at("optim.0.lr"), (std::vector<DcpKey>{"optim", int64_t{0}, "lr"}));
      EXPECT_EQ(saved.metadata().version, "1.0.0");
    }
  }
  EXPECT_TRUE(fs::exists(folder / "checkpoint/__0_1.distcp"));
}

TEST_F(Dcp, AnyRangeOfElements) {
  write_sample(folder / "checkpoint", {.max_chunk_bytes = 40}, 1000);
  const DcpFolder saved(folder / "checkpoint");
  const at::Tensor cube = sample()[0].second.reshape(-1);
  for (int64_t begin = 0; begin <= 105; begin += 7) {
    for (int64_t end = begin; end <= 105; end += 5) {
      EXPECT_TRUE(read(saved, "cube", begin, end).equal(cube.slice(0, begin, end))) << begin << " " << end;
    }
  }
  EXPECT_THAT(error_of([&] { read(saved, "cube", 3, 106); }),
              AllOf(HasSubstr("\"cube\""), HasSubstr("[3, 106) of 105")));
  EXPECT_THAT(error_of([&] { read(saved, "optim.0.lr", 0, 1); }), HasSubstr("holds no tensor \"optim.0.lr\""));
  EXPECT_THAT(error_of([&] { saved.value("cube"); }), HasSubstr("holds no value \"cube\""));
  EXPECT_THAT(error_of([&] { saved.read("cube", 0, 1, at::empty({1}, at::kHalf)); }), HasSubstr("values are not cast"));
}

// Chunks of columns, one of which is stored transposed.
TEST_F(Dcp, ChunksAndStoragesInOtherOrders) {
  const std::string matrix = from_hex(kMatrixHex);
  folder.write("x", matrix + matrix);
  DcpTensor tensor{{"t", at::kFloat, {2, 6}}, {}};
  const auto length = static_cast<int64_t>(matrix.size());
  tensor.chunks.push_back({{0, 3}, {2, 3}, {"x", 0, length}});
  tensor.chunks.push_back({{0, 0}, {2, 3}, {"x", length, length}});
  folder.write("y/z", from_hex(kTransposedHex));
  DcpTensor transposed{{"u", at::kBFloat16, {3, 2}}, {}};
  transposed.chunks.push_back({{0, 0}, {3, 2}, {"y/z", 0, static_cast<int64_t>(from_hex(kTransposedHex).size())}});
  DcpMetadata metadata{{{"t", tensor}, {"u", transposed}}, {}, {}, "1"};
  folder.write(".metadata", dcp_metadata_text(metadata));
  const DcpFolder saved(folder.path());
  const at::Tensor half = numbers({2, 3}, at::kFloat) + 0.5;
  EXPECT_TRUE(whole(saved, "t").equal(at::cat({half, half}, 1)));
  EXPECT_TRUE(read(saved, "t", 2, 9).equal(at::cat({half, half}, 1).reshape(-1).slice(0, 2, 9)));
  EXPECT_TRUE(whole(saved, "u").equal(numbers({2, 3}, at::kBFloat16).t()));
}

TEST_F(Dcp, MetadataIsReadBack) {
  const DcpMetadata metadata = parse(OneTensor().bytes());
  const DcpMetadata again = parse(dcp_metadata_text(metadata));
  EXPECT_EQ(again.tensors.at("t").info.shape, (Sizes{4, 6}));
  EXPECT_EQ(again.tensors.at("t").chunks[0].location.length, 100);
  EXPECT_EQ(dcp_metadata_text(again), dcp_metadata_text(metadata));
}

class DamagedDcp : public Dcp {
 protected:
  DamagedDcp() { write_sample(folder.path() / "saved", {.max_chunk_bytes = 100}, 1000); }
  fs::path path() const { return folder / "saved"; }
  fs::path data() const { return path() / "__0_0.distcp"; }
  // Reads and checks everything.
  std::string error() const {
    return error_of([&] {
      const DcpFolder saved(path());
      for (const auto& [name, tensor] : saved.metadata().tensors) {
        whole(saved, name);
        for (const DcpChunk& chunk : tensor.chunks) saved.verify(tensor, chunk);
      }
      for (const auto& [name, location] : saved.metadata().bytes) saved.verify_value(name), saved.value(name);
    });
  }
};

TEST_F(DamagedDcp, FilesThatAreCutMissingOrLinks) {
  EXPECT_EQ(error(), kNoError);
  const auto bytes = fs::file_size(data());
  fs::resize_file(data(), bytes - 1);
  EXPECT_THAT(error(),
              AllOf(HasSubstr("__0_0.distcp: has "), HasSubstr("\"optim.0.lr\" ends at byte"), HasSubstr("cut short")));
  fs::rename(data(), folder / "elsewhere");
  EXPECT_THAT(error(), AllOf(HasSubstr("__0_0.distcp"), HasSubstr("No such file")));
  fs::create_symlink(folder / "elsewhere", data());
  EXPECT_THAT(error(), AllOf(HasSubstr("__0_0.distcp"), HasSubstr("symbolic link")));
  fs::remove(data());
  fs::create_directory(data());
  EXPECT_THAT(error(), AllOf(HasSubstr("__0_0.distcp"), HasSubstr("not a regular file")));
}

TEST_F(DamagedDcp, LinksOnTheWay) {
  DcpMetadata metadata = read_dcp_metadata(path());
  fs::create_directory(folder / "outside");
  fs::rename(data(), folder / "outside/x");
  fs::create_directory_symlink(folder / "outside", path() / "sub");
  for (auto& [name, tensor] : metadata.tensors) {
    for (DcpChunk& chunk : tensor.chunks) chunk.location.path = "sub/x";
  }
  metadata.bytes.clear();
  folder.write("saved/.metadata", dcp_metadata_text(metadata));
  EXPECT_THAT(error(), AllOf(HasSubstr("saved/sub: is a symbolic link")));
}

TEST_F(DamagedDcp, AFileThatIsCutWhileItIsRead) {
  const DcpFolder saved(path());
  EXPECT_TRUE(whole(saved, "cube").equal(sample()[0].second));
  fs::resize_file(data(), 100);
  EXPECT_THAT(error_of([&] { whole(saved, "half"); }), AllOf(HasSubstr("__0_0.distcp"), HasSubstr("cut short")));
}

// Every damaged byte is detected, or changes nothing that is read: padding, versions and times.
TEST_F(DamagedDcp, AnyByteOfAChunkChanged) {
  const std::string sound = read_file(data(), 1 << 20);
  const DcpTensor half = read_dcp_metadata(path()).tensors.at("half");
  const DcpLocation& location = half.chunks[0].location;
  size_t noticed = 0;
  for (int64_t at = location.offset; at < location.offset + location.length; ++at) {
    std::string changed = sound;
    changed[static_cast<size_t>(at)] = static_cast<char>(changed[static_cast<size_t>(at)] ^ (1 << (at % 8)));
    folder.write("saved/__0_0.distcp", changed);
    const std::string what = error_of([&] {
      const DcpFolder saved(path());
      EXPECT_TRUE(whole(saved, "half").equal(sample()[1].second)) << at;
    });
    EXPECT_THAT(what, AnyOf(kNoError, AllOf(HasSubstr("__0_0.distcp: \"half\", chunk [0, 0]")))) << at;
    noticed += what == kNoError ? 0 : 1;
  }
  EXPECT_GT(noticed, 400u);
}

TEST_F(DamagedDcp, ArchivesOfOtherTensors) {
  DcpMetadata metadata = read_dcp_metadata(path());
  metadata.tensors.at("half").chunks[0].location = metadata.tensors.at("long").chunks[0].location;
  folder.write("saved/.metadata", dcp_metadata_text(metadata));
  EXPECT_THAT(error(),
              AllOf(HasSubstr("\"half\""), HasSubstr("the archive is Long [11], but .metadata says Half [4, 6]")));
  metadata.tensors.at("half").chunks[0].location.length = 5;
  folder.write("saved/.metadata", dcp_metadata_text(metadata));
  EXPECT_THAT(error(), AllOf(HasSubstr("\"half\""), HasSubstr("has no zip end record")));
}

TEST_F(DamagedDcp, ReadsThroughShortReadsAndNamesErrors) {
  const auto read_all = [&](FaultyFileSystem& faulty) {
    const FileSystemGuard guard(faulty);
    return error();
  };
  FaultyFileSystem sound({});
  EXPECT_EQ(read_all(sound), kNoError);
  for (int64_t call = 1; call <= sound.calls(); call += 5) {
    FaultyFileSystem broken({.error = EIO, .first = call}), shorter({.kind = FileFault::Kind::kShort, .first = call});
    EXPECT_THAT(read_all(broken),
                AllOf(HasSubstr("Input/output error"), AnyOf(HasSubstr(".distcp"), HasSubstr(".metadata"))));
    EXPECT_EQ(read_all(shorter), kNoError);
  }
}

TEST_F(Dcp, WritersMistakesAndFullDisksLeaveNothing) {
  const fs::path target = folder / "new";
  {
    DcpFolderWriter writer(target);
    writer.begin({"a", at::kFloat, {3}}, {"a"});
    writer.append(at::arange(2, at::kFloat));
    EXPECT_THAT(error_of([&] { writer.begin({"b", at::kFloat, {3}}, {"b"}); }), HasSubstr("\"a\" was not written"));
    EXPECT_THAT(error_of([&] { writer.finish(); }), HasSubstr("\"a\" was not written"));
    EXPECT_THAT(error_of([&] { writer.append(at::arange(2, at::kFloat)); }), HasSubstr("more elements"));
    EXPECT_THAT(error_of([&] { writer.begin({"a", at::kFloat, {3}}, {"a"}); }), HasSubstr("\"a\" occurs twice"));
  }
  FaultyFileSystem counted({});
  {
    const FileSystemGuard guard(counted);
    write_sample(target, {.max_chunk_bytes = 100}, 1000);
    fs::remove_all(target);
  }
  for (int64_t call = 1; call <= counted.calls(); call += 3) {
    FaultyFileSystem full({.error = ENOSPC, .first = call, .lasts = true});
    {
      const FileSystemGuard guard(full);
      EXPECT_THAT(error_of([&] { write_sample(target, {.max_chunk_bytes = 100}, 1000); }), HasSubstr("No space left"));
    }
    // Complete if all but the last sync was done.
    EXPECT_TRUE(!fs::exists(target) || whole(DcpFolder(target), "cube").equal(sample()[0].second)) << call;
    fs::remove_all(target);
    EXPECT_THAT(folder.names(), IsEmpty()) << call;
  }
  folder.write("taken/notes.txt", "mine");
  EXPECT_THAT(error_of([&] { DcpFolderWriter(folder / "taken"); }), HasSubstr("holds no .metadata"));
}

}  // namespace
}  // namespace fsdp::formats::dcp_folder_test
