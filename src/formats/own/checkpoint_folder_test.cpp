#include "formats/own/checkpoint_folder.h"

#include <sys/stat.h>
#include <torch/torch.h>

#include <random>

#include "formats/common/checksum.h"
#include "formats/safetensors/safetensors.h"
#include "formats/safetensors/safetensors_writer.h"
#include "support/faults/error_of.h"
#include "support/faults/faulty_file_system.h"
#include "support/files/temporary_folder.h"

namespace fsdp::formats::checkpoint_folder_test {
namespace {

using fsdp::testing::FaultyFileSystem;
using fsdp::testing::FileFault;
using ::testing::AllOf;
using ::testing::AnyOf;
using testing::error_of;
using ::testing::HasSubstr;
using testing::kNoError;
using testing::TemporaryFolder;

// One rank's part of a tensor.
struct Piece {
  std::string name;
  int64_t begin;
  at::Tensor values;  // 1-D
};

// Writes a rank's file and adds it to the manifest.
void write_rank(const std::filesystem::path& folder, int rank, const std::vector<Piece>& pieces, Manifest& manifest) {
  const std::string name = c10::str("rank-", rank, ".safetensors");
  std::vector<TensorInfo> layout;
  for (const Piece& piece : pieces) {
    layout.push_back({c10::str(piece.name, "@", piece.begin), piece.values.scalar_type(), piece.values.sizes().vec()});
  }
  SafetensorsWriter writer(folder / name, layout);
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Piece& piece = pieces[i];
    writer.write(layout[i].name, piece.values);
    const auto place = writer.place(layout[i].name);
    StoredPart part{piece.begin, piece.begin + piece.values.numel(), manifest.files.size(), place.offset,
                    place.checksums};
    manifest.tensors[piece.name].dtype = piece.values.scalar_type();
    if (part.begin < part.end) manifest.tensors[piece.name].parts.push_back(part);
  }
  writer.finish();
  manifest.files.push_back({name, writer.bytes(), writer.header_bytes(), writer.header_checksum()});
}

// Three files: a large tensor split unevenly over the ranks 2, 0, 1 (in the order of its elements); a small one; an
// empty one; a scalar.
constexpr int64_t kLarge = 700'001;
at::Tensor large() { return torch::arange(kLarge, torch::kFloat32) / 3; }
at::Tensor small() { return torch::arange(21, torch::kFloat32).to(torch::kBFloat16); }

Manifest write_checkpoint(const std::filesystem::path& folder) {
  Manifest manifest;
  const at::Tensor all = large();
  write_rank(folder, 0, {{"model/large", 50'001, all.slice(0, 50'001, 600'000)}, {"model/empty", 0, torch::empty({0})}},
             manifest);
  write_rank(folder, 1, {{"model/large", 600'000, all.slice(0, 600'000)}, {"model/small", 0, small()}}, manifest);
  write_rank(folder, 2, {{"model/large", 0, all.slice(0, 0, 50'001)}, {"step", 0, torch::tensor({7.f})}}, manifest);
  manifest.tensors["model/large"].shape = {kLarge};
  manifest.tensors["model/small"].shape = {3, 7};
  manifest.tensors["model/small"].strides = {1, 3};
  manifest.tensors["model/empty"].shape = {0, 4};
  manifest.state = {{"step", 7}, {"loss", 0.1}};
  write_file(folder / kManifestName, manifest_text(manifest, "test"));
  return manifest;
}

class Checkpoint : public ::testing::Test {
 protected:
  Checkpoint() { manifest = write_checkpoint(folder.path()); }

  std::string bytes_of(const std::string& name) const {
    std::ifstream file(folder / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  // Returns the error of opening and verifying the folder.
  std::string verify() const {
    return error_of([&] { CheckpointFolder(folder.path()).verify(); });
  }
  // Returns the error of writing a manifest that `change` has modified.
  std::string refused(const std::function<void(Manifest&)>& change) const {
    Manifest changed = manifest;
    change(changed);
    return error_of([&] { manifest_text(changed, "M"); });
  }
  nlohmann::json content() const { return nlohmann::json::parse(bytes_of(kManifestName))["content"]; }
  // Returns the error of a manifest with this content and the right checksum, as another program might write it.
  static std::string content_error(const std::string& content) {
    return error_of([&] {
      parse_manifest(
          c10::str("{\"checksum\":\"", checksums_text({checksum_of(content)}), "\",\"content\":", content, "}\n"), "M");
    });
  }
  std::string parsed(const std::function<void(nlohmann::json&)>& change) const {
    nlohmann::json changed = content();
    change(changed);
    return content_error(changed.dump());
  }

  TemporaryFolder folder;
  Manifest manifest;
};

TEST_F(Checkpoint, GivesBackEveryRange) {
  const CheckpointFolder saved(folder.path());
  saved.verify();
  EXPECT_EQ(saved.manifest().state, manifest.state);
  EXPECT_EQ(saved.tensor("model/small").strides, (std::vector<int64_t>{1, 3}));
  const at::Tensor all = large();
  const std::vector<int64_t> cuts{0,       1,       17,      50'000,  50'001,  50'002,
                                  262'144, 312'145, 599'999, 600'000, 600'001, kLarge};
  for (int64_t begin : cuts) {
    for (int64_t end : cuts) {
      if (begin > end) continue;
      at::Tensor out = torch::full({end - begin}, -1.f);
      saved.read("model/large", begin, end, out);
      ASSERT_TRUE(torch::equal(out, all.slice(0, begin, end))) << begin << " " << end;
    }
  }
  at::Tensor out = torch::empty({5}, torch::kBFloat16);
  saved.read("model/small", 4, 9, out);
  EXPECT_TRUE(torch::equal(out, small().slice(0, 4, 9)));
  saved.read("model/empty", 0, 0, torch::empty({0}));
  EXPECT_EQ(SafetensorsFile(folder / "rank-1.safetensors").tensors().size(), 2u);  // other readers can open the files
}

// The manifest is written tensor by tensor, and its text equals that of the JSON library for the whole.
TEST_F(Checkpoint, TheManifestIsOneJsonText) {
  const std::string content = this->content().dump();
  EXPECT_EQ(bytes_of(kManifestName),
            c10::str("{\"checksum\":\"", checksums_text({checksum_of(content)}), "\",\"content\":", content, "}\n"));
}

TEST_F(Checkpoint, RefusesWrongRequests) {
  const CheckpointFolder saved(folder.path());
  EXPECT_THAT(error_of([&] { saved.read("model/medium", 0, 1, torch::empty({1})); }), HasSubstr("\"model/medium\""));
  EXPECT_THAT(error_of([&] { saved.read("model/large", 0, kLarge + 1, torch::empty({kLarge + 1})); }),
              HasSubstr("of 700001"));
  EXPECT_THAT(error_of([&] { saved.read("model/large", 0, 2, torch::empty({1})); }), HasSubstr("2 elements"));
  EXPECT_THAT(error_of([&] { saved.read("model/large", 0, 2, torch::empty({2}, torch::kBFloat16)); }),
              AllOf(HasSubstr("F32"), HasSubstr("BF16"), HasSubstr("cast")));
}

// Every flipped bit is detected. The error names the file and, outside of headers, the tensor.
TEST_F(Checkpoint, FindsEveryFlippedBit) {
  std::mt19937_64 random(5);
  std::map<std::string, std::string> files;
  for (const std::string& name : folder.names()) files[name] = bytes_of(name);
  ASSERT_EQ(files.size(), 4u);
  int named = 0;
  for (int round = 0; round < 10000; ++round) {
    auto file = std::next(files.begin(), static_cast<std::ptrdiff_t>(random() % files.size()));
    const uint64_t at = random() % file->second.size();
    const auto flip = [&](char bits) {
      std::fstream out(folder / file->first, std::ios::in | std::ios::out | std::ios::binary);
      out.seekp(static_cast<std::streamoff>(at));
      out.put(static_cast<char>(file->second[at] ^ bits));
    };
    flip(static_cast<char>(1 << random() % 8));
    const std::string error = verify();
    ASSERT_THAT(error, HasSubstr(file->first)) << "byte " << at;
    named += error.find("tensor \"") != std::string::npos;
    flip(0);
  }
  EXPECT_GT(named, 5000);
  EXPECT_EQ(verify(), kNoError);
}

TEST_F(Checkpoint, FindsFilesThatAreCutMissingSwappedOrTooMany) {
  const auto restore = [&] { write_checkpoint(folder.path()); };
  for (size_t size : {size_t{0}, size_t{7}, bytes_of("rank-0.safetensors").size() - 1}) {
    std::filesystem::resize_file(folder / "rank-0.safetensors", size);
    EXPECT_THAT(verify(), AllOf(HasSubstr("rank-0.safetensors"), HasSubstr(c10::str("has ", size, " bytes"))));
    restore();
  }
  std::filesystem::remove(folder / "rank-2.safetensors");
  EXPECT_THAT(verify(), AllOf(HasSubstr("rank-2.safetensors"), HasSubstr("No such file")));
  std::filesystem::create_symlink(folder / "rank-1.safetensors", folder / "rank-2.safetensors");
  EXPECT_THAT(verify(), AllOf(HasSubstr("rank-2.safetensors"), HasSubstr("not a regular file")));
  std::filesystem::remove(folder / "rank-2.safetensors");
  restore();
  folder.write("rank-3.safetensors", "x");
  EXPECT_THAT(verify(), AllOf(HasSubstr("rank-3.safetensors"), HasSubstr("not in the manifest")));
  std::filesystem::remove(folder / "rank-3.safetensors");
  std::filesystem::remove(folder / kManifestName);
  EXPECT_THAT(verify(), AllOf(HasSubstr("no manifest.json"), HasSubstr("did not finish")));
}

TEST_F(Checkpoint, AFileThatIsCutWhileItIsReadIsAnError) {
  const CheckpointFolder saved(folder.path());
  at::Tensor out = torch::empty({kLarge});
  saved.read("model/large", 0, kLarge, out);
  std::filesystem::resize_file(folder / "rank-0.safetensors", 1000);
  EXPECT_THAT(error_of([&] { saved.read("model/large", 0, kLarge, out); }),
              AllOf(HasSubstr("rank-0.safetensors"), HasSubstr("ends at byte 1000: it was cut short")));
}

// Files with equal sizes and headers: two steps of one run.
TEST_F(Checkpoint, FindsFilesOfAnotherStep) {
  const TemporaryFolder other;
  Manifest later;
  const at::Tensor all = large() + 1;
  write_rank(other.path(), 0,
             {{"model/large", 50'001, all.slice(0, 50'001, 600'000)}, {"model/empty", 0, torch::empty({0})}}, later);
  std::filesystem::rename(other / "rank-0.safetensors", folder / "rank-0.safetensors");
  EXPECT_THAT(verify(), AllOf(HasSubstr("rank-0.safetensors"), HasSubstr("model/large"), HasSubstr("checksum")));
}

TEST_F(Checkpoint, ReadsThroughShortReadsAndNamesErrors) {
  const auto read_all = [&](FaultyFileSystem& faulty) {
    const FileSystemGuard guard(faulty);
    return error_of([&] {
      const CheckpointFolder saved(folder.path());
      at::Tensor out = torch::empty({kLarge});
      saved.read("model/large", 0, kLarge, out);
      EXPECT_TRUE(torch::equal(out, large()));
    });
  };
  FaultyFileSystem sound({});
  EXPECT_EQ(read_all(sound), kNoError);
  for (int64_t call = 1; call <= sound.calls(); ++call) {
    FaultyFileSystem broken({.error = EIO, .first = call}), interrupted({.error = EINTR, .first = call}),
        shorter({.kind = FileFault::Kind::kShort, .first = call});
    EXPECT_THAT(read_all(broken),
                AllOf(HasSubstr("Input/output error"), AnyOf(HasSubstr(".safetensors"), HasSubstr(kManifestName))));
    EXPECT_EQ(read_all(interrupted), kNoError);
    EXPECT_EQ(read_all(shorter), kNoError);
  }
}

TEST_F(Checkpoint, HostileManifestsAreRefused) {
  const auto tensor = [](nlohmann::json& content) -> nlohmann::json& { return content["tensors"]["model/large"]; };
  EXPECT_EQ(parsed([](nlohmann::json&) {}), kNoError);
  for (const char* name : {"../x", "/etc/passwd", "a/b", ".hidden", "", "manifest.json"}) {
    EXPECT_THAT(parsed([&](auto& c) { c["files"][0]["name"] = name; }), HasSubstr("M: file")) << name;
  }
  EXPECT_THAT(parsed([](auto& c) { c["files"][1]["name"] = c["files"][0]["name"]; }), HasSubstr("twice"));
  EXPECT_THAT(parsed([](auto& c) { c["files"][0]["header_bytes"] = c["files"][0]["bytes"].template get<int>() + 1; }),
              HasSubstr("header bytes in a file of"));
  EXPECT_THAT(
      parsed([](auto& c) {
        // A sparse file may have any size, and its header is read into memory.
        c["files"][0]["bytes"] = c["files"][0]["header_bytes"] = int64_t{1} << 40;
      }),
      AllOf(HasSubstr("\"rank-0.safetensors\""), HasSubstr("1099511627776 bytes of header"), HasSubstr("limit")));
  EXPECT_THAT(parsed([&](auto& c) { tensor(c)["parts"][0]["end"] = 49'999; }), HasSubstr("are in no file"));
  EXPECT_THAT(parsed([&](auto& c) { tensor(c)["parts"][1]["begin"] = 50'000; }), HasSubstr("overlap"));
  EXPECT_THAT(parsed([&](auto& c) { tensor(c)["parts"].erase(2); }), HasSubstr("are in no file"));
  EXPECT_THAT(parsed([&](auto& c) { tensor(c)["parts"][0]["file"] = 3; }), HasSubstr("file 3 of 3"));
  EXPECT_THAT(parsed([&](auto& c) { tensor(c)["parts"][0]["offset"] = (uint64_t{1} << 63) - 1; }),
              HasSubstr("not in the data"));
  EXPECT_THAT(parsed([&](auto& c) { tensor(c)["parts"][0]["offset"] = 8; }), HasSubstr("not in the data"));
  EXPECT_THAT(parsed([&](auto& c) { tensor(c)["parts"][0]["checksums"] = ""; }), HasSubstr("0 checksums for 1"));
  EXPECT_THAT(parsed([&](auto& c) { tensor(c)["parts"][0]["checksums"] = "xyz"; }), HasSubstr("hexadecimal"));
  EXPECT_THAT(parsed([&](auto& c) { tensor(c)["shape"] = {int64_t{1} << 62, 16}; }), HasSubstr("2^63-1 bytes"));
  EXPECT_THAT(parsed([&](auto& c) { tensor(c)["shape"] = {-1}; }), HasSubstr("0 to 2^63-1"));
  EXPECT_THAT(parsed([&](auto& c) { tensor(c)["shape"] = 5; }), HasSubstr("list"));
  EXPECT_THAT(parsed([&](auto& c) { tensor(c)["dtype"] = "F7"; }), HasSubstr("not supported"));
  EXPECT_THAT(parsed([&](auto& c) { c["tensors"]["model/small"]["strides"] = {1, 1}; }),
              HasSubstr("leave elements out"));
  EXPECT_THAT(parsed([&](auto& c) { tensor(c)["parts"][0]["begin"] = "0"; }), HasSubstr("integers"));
  EXPECT_THAT(parsed([](auto& c) { c["version"] = 2; }), HasSubstr("newer program"));
  EXPECT_THAT(parsed([](auto& c) { c["version"] = 2, c["tensors"]["model/large"] = 7; }), HasSubstr("newer program"))
      << "a tensor that only the newer program understands";
  EXPECT_THAT(parsed([](auto& c) { c["format"] = "x"; }), HasSubstr("format"));
  EXPECT_THAT(parsed([](auto& c) { c["block_bytes"] = 1; }), HasSubstr("block_bytes"));
  EXPECT_THAT(parsed([](auto& c) { c.erase("tensors"); }), HasSubstr("tensors is missing"));
  EXPECT_THAT(parsed([](auto& c) { c = 3; }), HasSubstr("expected an object"));
}

TEST_F(Checkpoint, NamesThatAreListedTwiceAreRefused) {
  std::string text = content().dump();
  ASSERT_EQ(content_error(text), kNoError);
  text.insert(text.find("\"tensors\":{") + 11, "\"step\":{},");
  EXPECT_THAT(content_error(text), AllOf(HasSubstr("M:1:"), HasSubstr("duplicate key \"step\"")));
}

TEST_F(Checkpoint, StridesAndPartsThatDoNotFitAreRefused) {
  const auto small_error = [&](const char* key, const nlohmann::json& value) {
    return parsed([&](auto& c) { c["tensors"]["model/small"][key] = value; });
  };
  EXPECT_THAT(small_error("strides", {1, 3, 1}), HasSubstr("3 strides for 2 sizes"));
  EXPECT_THAT(small_error("strides", {-1, 3}), HasSubstr("0 to 2^63-1"));
  EXPECT_THAT(small_error("strides", {INT64_MAX, INT64_MAX}), HasSubstr("leave elements out"));
  EXPECT_THAT(small_error("strides", std::vector<int64_t>(65, 1)), HasSubstr("at most 64"));
  EXPECT_THAT(small_error("shape", std::vector<int64_t>(65, 1)), HasSubstr("at most 64"));
  EXPECT_THAT(small_error("parts", nlohmann::json::array()), HasSubstr("elements [0, 21) are in no file"));
  const auto part_error = [&](const char* key, int64_t value) {
    return parsed([&](auto& c) { c["tensors"]["model/small"]["parts"][0][key] = value; });
  };
  EXPECT_THAT(part_error("end", 0), HasSubstr("the tensor has 21"));
  EXPECT_THAT(part_error("end", INT64_MAX), HasSubstr("the tensor has 21"));
  EXPECT_THAT(part_error("begin", INT64_MAX), HasSubstr("are in no file"));
  EXPECT_THAT(part_error("file", INT64_MAX), HasSubstr("of 3"));
  EXPECT_THAT(part_error("offset", INT64_MAX), HasSubstr("not in the data"));
}

// Only regular files of the folder itself are opened, and opening never waits for the writer of a pipe.
TEST_F(Checkpoint, PipesFoldersAndLinksAreRefused) {
  const auto replaced = [&](const std::string& name, const std::function<void(const std::filesystem::path&)>& make) {
    std::filesystem::rename(folder / name, folder / "aside");
    make(folder / name);
    const std::string error = verify();
    std::filesystem::remove(folder / name);
    std::filesystem::rename(folder / "aside", folder / name);
    return error;
  };
  const auto pipe = [](const auto& path) { ASSERT_EQ(mkfifo(path.c_str(), 0600), 0); };
  const auto directory = [](const auto& path) { std::filesystem::create_directory(path); };
  const auto link = [&](const auto& path) { std::filesystem::create_symlink(folder / "aside", path); };
  for (const char* name : {"rank-0.safetensors", kManifestName}) {
    EXPECT_THAT(replaced(name, pipe), AllOf(HasSubstr(name), HasSubstr("not a regular file")));
    EXPECT_THAT(replaced(name, directory), AllOf(HasSubstr(name), HasSubstr("not a regular file")));
  }
  EXPECT_THAT(replaced("rank-0.safetensors", link), HasSubstr("not a regular file"));
  EXPECT_THAT(replaced(kManifestName, link), HasSubstr("manifest.json: cannot be opened: it is a symbolic link"));
  EXPECT_EQ(verify(), kNoError);
}

TEST_F(Checkpoint, AManifestOfManyBytesIsNotRead) {
  std::filesystem::resize_file(folder / kManifestName, (uint64_t{1} << 30) + 1);  // sparse: takes no space
  EXPECT_THAT(verify(), HasSubstr("manifest.json: 1073741825 bytes are more than the limit"));
}

TEST_F(Checkpoint, PartsThatShareBytesAreRefused) {
  EXPECT_THAT(refused([](Manifest& m) { m.tensors["copy"] = m.tensors["model/small"]; }),
              AllOf(HasSubstr("\"copy\""), HasSubstr("share bytes")));
  EXPECT_THAT(refused([](Manifest& m) { m.tensors["model/large"].parts[0].checksums.push_back(1); }),
              HasSubstr("checksums for"));
}

TEST(Checksums, AreThoseOfTheReference) {
  // Expected values of XXH3_64bits in its reference implementation.
  EXPECT_EQ(checksums_text({checksum_of("")}), "2d06800538d394c2");
  BlockChecksums pieces;
  const std::string bytes(kChecksumBlock + 5, 'x');
  for (size_t at = 0; at < bytes.size(); at += 1000) pieces.add(std::string_view(bytes).substr(at, 1000));
  const auto got = pieces.finish();
  ASSERT_EQ(got.size(), 2u);
  EXPECT_EQ(got[0], checksum_of(std::string(kChecksumBlock, 'x')));
  EXPECT_EQ(got[1], checksum_of("xxxxx"));
  std::vector<uint64_t> parsed;
  EXPECT_TRUE(parse_checksums(checksums_text(got), parsed));
  EXPECT_EQ(parsed, got);
  EXPECT_FALSE(parse_checksums("0123456789ABCDEF", parsed));
  EXPECT_FALSE(parse_checksums("01", parsed));
}

}  // namespace
}  // namespace fsdp::formats::checkpoint_folder_test
