#include "formats/hugging_face/hf_folder.h"

#include <torch/torch.h>

#include "formats/safetensors/safetensors_writer.h"
#include "support/faults/error_of.h"
#include "support/files/temporary_folder.h"

namespace fsdp::formats::hf_folder_test {
namespace {

using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;
using testing::kNoError;
using ::testing::Not;
using testing::TemporaryFolder;

void save(const std::filesystem::path& path, const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
  std::vector<TensorInfo> layout;
  for (const auto& [name, tensor] : tensors) layout.push_back({name, tensor.scalar_type(), tensor.sizes().vec()});
  std::filesystem::create_directories(path.parent_path());
  SafetensorsWriter writer(path, layout);
  for (const auto& [name, tensor] : tensors) writer.write(name, tensor);
  writer.finish();
}

// A folder with the tensors "a" = 1…6 and "b" in two shards.
class HfFolderTest : public ::testing::Test {
 protected:
  HfFolderTest() {
    folder_.write("config.json", R"({"model_type": "llama"})");
    save(folder_ / "one.safetensors", {{"a", torch::arange(1, 7, torch::kFloat32).view({2, 3})}});
    save(folder_ / "two.safetensors", {{"b", torch::ones({2}, torch::kBFloat16)}});
    write_index({{"a", "one.safetensors"}, {"b", "two.safetensors"}});
  }

  void write_index(const nlohmann::json& weight_map) {
    folder_.write("model.safetensors.index.json", nlohmann::json{{"weight_map", weight_map}}.dump());
  }
  std::string open_error() {
    return error_of([&] { HfFolder folder(folder_.path()); });
  }

  TemporaryFolder folder_;
};

TEST_F(HfFolderTest, ReadsShards) {
  const HfFolder folder(folder_.path());
  EXPECT_EQ(folder.config()["model_type"], "llama");
  EXPECT_EQ(folder.tensors().size(), 2u);
  EXPECT_EQ(folder.find("a")->shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(folder.find("c"), nullptr);
  EXPECT_EQ(folder.tensor("b").dtype(), torch::kBFloat16);
  at::Tensor out = torch::zeros({3}, torch::kBFloat16);
  folder.read_range("a", 2, 5, out);
  EXPECT_TRUE(torch::equal(out, torch::tensor({3, 4, 5}, torch::kBFloat16)));
  EXPECT_THAT(error_of([&] { folder.tensor("c"); }), HasSubstr("no tensor \"c\""));
}

TEST_F(HfFolderTest, ASingleFileTakesPrecedence) {
  save(folder_ / "model.safetensors", {{"c", torch::ones({1})}});
  const HfFolder folder(folder_.path());
  EXPECT_EQ(folder.tensors().size(), 1u);
  EXPECT_NE(folder.find("c"), nullptr);
}

TEST_F(HfFolderTest, MissingFiles) {
  EXPECT_THAT(error_of([&] { HfFolder folder(folder_ / "none"); }),
              AllOf(HasSubstr("none"), HasSubstr("no such folder")));
  std::filesystem::remove(folder_ / "two.safetensors");
  EXPECT_THAT(open_error(), AllOf(HasSubstr("index.json"), HasSubstr("two.safetensors"), HasSubstr("No such file")));
  std::filesystem::remove(folder_ / "model.safetensors.index.json");
  EXPECT_THAT(open_error(), AllOf(HasSubstr("neither model.safetensors nor"), Not(HasSubstr("pytorch_model.bin"))));
  folder_.write("pytorch_model.bin", "");
  EXPECT_THAT(open_error(), HasSubstr("pytorch_model.bin"));
  std::filesystem::remove(folder_ / "config.json");
  EXPECT_THAT(open_error(), HasSubstr("config.json"));
}

TEST_F(HfFolderTest, MalformedConfig) {
  folder_.write("config.json", "{\n\"a\": tru\n}");
  EXPECT_THAT(open_error(), HasSubstr("config.json:2:"));
  folder_.write("config.json", "{\"a\": 1, \"a\": 1}");
  EXPECT_THAT(open_error(), HasSubstr("duplicate key \"a\""));
  folder_.write("config.json", "[]");
  EXPECT_THAT(open_error(), HasSubstr("expected a JSON object"));
}

TEST_F(HfFolderTest, MalformedIndex) {
  folder_.write("model.safetensors.index.json", "{");
  EXPECT_THAT(open_error(), HasSubstr("index.json:1:"));
  folder_.write("model.safetensors.index.json", "{}");
  EXPECT_THAT(open_error(), HasSubstr("weight_map"));
  write_index({{"a", 1}});
  EXPECT_THAT(open_error(), AllOf(HasSubstr("\"a\""), HasSubstr("file name")));
  write_index(nlohmann::json::object());
  EXPECT_THAT(open_error(), HasSubstr("empty"));
  folder_.write("model.safetensors.index.json", R"({"weight_map":{"a":"one.safetensors","a":"two.safetensors"}})");
  EXPECT_THAT(open_error(), HasSubstr("duplicate key \"a\""));
}

TEST_F(HfFolderTest, AnIndexThatPointsOutside) {
  const TemporaryFolder outside;
  save(outside / "x.safetensors", {{"a", torch::ones({2, 3})}});
  const std::string relative = "../" + outside.path().filename().string() + "/x.safetensors";
  for (const std::string& path :
       {relative, "sub/../" + relative, (outside / "x.safetensors").string(), std::string("..")}) {
    write_index({{"a", path}, {"b", "two.safetensors"}});
    EXPECT_THAT(open_error(), AllOf(HasSubstr("index.json"), HasSubstr("must lie in the folder"))) << path;
  }
  std::filesystem::create_symlink(outside / "x.safetensors", folder_ / "link.safetensors");
  write_index({{"a", "link.safetensors"}, {"b", "two.safetensors"}});
  EXPECT_THAT(open_error(), AllOf(HasSubstr("link.safetensors"), HasSubstr("outside")));
  std::filesystem::create_directory_symlink(outside.path(), folder_ / "sub");
  write_index({{"a", "sub/x.safetensors"}, {"b", "two.safetensors"}});
  EXPECT_THAT(open_error(), HasSubstr("outside"));
  write_index({{"a", std::string("one.safetensors\0x", 17)}, {"b", "two.safetensors"}});
  EXPECT_THAT(open_error(), HasSubstr("no file name"));
  write_index({{"a", ""}});
  EXPECT_THAT(open_error(), HasSubstr("no file name"));
}

TEST_F(HfFolderTest, LinksInsideAreFollowed) {
  std::filesystem::create_directory(folder_ / "sub");
  std::filesystem::rename(folder_ / "one.safetensors", folder_ / "sub/one.safetensors");
  std::filesystem::create_symlink("sub/one.safetensors", folder_ / "link.safetensors");
  write_index({{"a", "link.safetensors"}, {"b", "two.safetensors"}});
  EXPECT_EQ(open_error(), kNoError);
}

TEST_F(HfFolderTest, SnapshotsOfTheHuggingFaceCache) {
  const TemporaryFolder cache;
  const auto snapshot = cache / "models--x--y/snapshots/0123";
  std::filesystem::create_directories(snapshot);
  std::filesystem::create_directories(cache / "models--x--y/blobs");
  for (const char* name : {"config.json", "model.safetensors.index.json", "one.safetensors", "two.safetensors"}) {
    std::filesystem::copy(folder_ / name, cache / "models--x--y/blobs" / (std::string("hash-") + name));
    std::filesystem::create_symlink(std::string("../../blobs/hash-") + name, snapshot / name);
  }
  const HfFolder folder(snapshot);
  EXPECT_EQ(folder.tensors().size(), 2u);
}

TEST_F(HfFolderTest, IndexAndShardsDisagree) {
  write_index({{"a", "one.safetensors"}, {"b", "one.safetensors"}});
  EXPECT_THAT(open_error(), AllOf(HasSubstr("one.safetensors: holds no tensor \"b\""), HasSubstr("index.json")));
  save(folder_ / "two.safetensors", {{"b", torch::ones({2})}, {"c", torch::ones({2})}});
  write_index({{"a", "one.safetensors"}, {"b", "two.safetensors"}});
  EXPECT_THAT(open_error(), AllOf(HasSubstr("two.safetensors: holds tensor \"c\""), HasSubstr("does not list")));
  save(folder_ / "two.safetensors", {{"b", torch::ones({2})}, {"a", torch::ones({2, 3})}});
  EXPECT_THAT(open_error(), AllOf(HasSubstr("two.safetensors: tensor \"a\" is also in"), HasSubstr("one.safetensors")));
}

TEST_F(HfFolderTest, CheckTensorsNamesMisfits) {
  const HfFolder folder(folder_.path());
  const TensorInfo a{"a", torch::kFloat32, {2, 3}}, b{"b", torch::kFloat32, {2}};
  folder.check_tensors({a, b});
  EXPECT_THAT(error_of([&] { folder.check_tensors({a, b, {"c", torch::kFloat32, {7}}}); }),
              AllOf(HasSubstr("missing tensor \"c\" of shape [7]"), Not(HasSubstr("\"a\""))));
  EXPECT_THAT(error_of([&] { folder.check_tensors({{"a", torch::kFloat32, {3, 2}}, b}); }),
              HasSubstr("tensor \"a\" has shape [2, 3], expected [3, 2]"));
  EXPECT_THAT(error_of([&] { folder.check_tensors({a}); }), HasSubstr("extra tensor \"b\""));
  folder.check_tensors({a}, [](const std::string& name) { return name == "b"; });
  std::vector<TensorInfo> many;
  for (int i = 0; i < 100; ++i) many.push_back({c10::str("layer.", i), torch::kFloat32, {1}});
  EXPECT_THAT(error_of([&] { folder.check_tensors(many); }), HasSubstr("and 92 more"));
}

}  // namespace
}  // namespace fsdp::formats::hf_folder_test
