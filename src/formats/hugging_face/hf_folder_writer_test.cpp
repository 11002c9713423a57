#include "formats/hugging_face/hf_folder_writer.h"

#include <signal.h>
#include <sys/resource.h>
#include <torch/torch.h>

#include "formats/common/json_text.h"
#include "formats/hugging_face/hf_folder.h"
#include "support/faults/error_of.h"
#include "support/files/temporary_folder.h"

namespace fsdp::formats::hf_folder_writer_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::TemporaryFolder;
using ::testing::UnorderedElementsAre;

const nlohmann::json kConfig{{"model_type", "llama"}, {"torch_dtype", "float16"}};

std::vector<TensorInfo> layout() {
  std::vector<TensorInfo> tensors;
  for (int i = 0; i < 5; ++i) {
    tensors.push_back({c10::str("t", i), torch::kFloat32, {i + 1, 10}});  // 40, 80, … 200 bytes
  }
  return tensors;
}

void write_all(HfFolderWriter& writer) {
  for (const TensorInfo& tensor : layout()) {
    writer.write(tensor.name, torch::full(tensor.shape, static_cast<float>(tensor.shape[0])));
  }
}

TEST(HfFolderWriter, OneFile) {
  const TemporaryFolder folder;
  HfFolderWriter writer(folder / "model", kConfig, layout());
  write_all(writer);
  EXPECT_FALSE(std::filesystem::exists(folder / "model"));
  writer.finish();
  EXPECT_THAT(folder.names(), ElementsAre("model"));
  const HfFolder saved(folder / "model");
  saved.check_tensors(layout());
  EXPECT_EQ(saved.tensor("t3").sum().item<float>(), 160);
  EXPECT_EQ(saved.config()["torch_dtype"], "float32");
  EXPECT_FALSE(saved.config().contains("dtype"));
  EXPECT_EQ(SafetensorsFile(folder / "model/model.safetensors").metadata().at("format"), "pt");
}

TEST(HfFolderWriter, ShardsHoldAtMostTheirSize) {
  const TemporaryFolder folder;
  HfFolderWriter writer(folder / "model", kConfig, layout(), {.max_shard_size = 130, .tokenizer_source = {}});
  write_all(writer);
  writer.finish();
  // 40 + 80 | 120 | 160 | 200: the last two exceed the shard size.
  const auto index = read_json_file(folder / "model/model.safetensors.index.json");
  EXPECT_EQ(index["metadata"]["total_size"], 600);
  EXPECT_EQ(index["weight_map"]["t1"], "model-00001-of-00004.safetensors");
  EXPECT_EQ(index["weight_map"]["t4"], "model-00004-of-00004.safetensors");
  const HfFolder saved(folder / "model");
  saved.check_tensors(layout());
  EXPECT_EQ(saved.tensor("t4").sum().item<float>(), 250);
}

TEST(HfFolderWriter, ConfigKeepsItsSpellingOfTheDtype) {
  const TemporaryFolder folder;
  const std::vector<TensorInfo> tensors{{"a", torch::kBFloat16, {1}}};
  const auto saved_config = [&](const nlohmann::json& config) {
    HfFolderWriter writer(folder / "model", config, tensors);
    writer.write("a", torch::ones({1}));
    writer.finish();
    return read_json_file(folder / "model/config.json");
  };
  EXPECT_EQ(saved_config({{"x", 1}}), (nlohmann::json{{"x", 1}, {"torch_dtype", "bfloat16"}}));
  EXPECT_EQ(saved_config({{"dtype", "float32"}}), (nlohmann::json{{"dtype", "bfloat16"}}));
  EXPECT_EQ(saved_config({{"dtype", "float32"}, {"torch_dtype", "float32"}}),
            (nlohmann::json{{"dtype", "bfloat16"}, {"torch_dtype", "bfloat16"}}));
}

TEST(HfFolderWriter, CopiesTheTokenizer) {
  const TemporaryFolder source, folder;
  for (const char* name :
       {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.json", "vocab.txt", "merges.txt",
        "tokenizer.model", "generation_config.json", "chat_template.jinja", "chat_template.json", "added_tokens.json",
        "config.json", "README.md", "optimizer.pt"}) {
    source.write(name, std::string("contents of ") + name);
  }
  HfFolderWriter writer(folder / "model", kConfig, layout(), {.tokenizer_source = source.path()});
  write_all(writer);
  writer.finish();
  const TemporaryFolder& written = folder;
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(written / "model")) {
    names.push_back(entry.path().filename());
  }
  EXPECT_THAT(names, UnorderedElementsAre("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
                                          "vocab.json", "vocab.txt", "merges.txt", "tokenizer.model",
                                          "generation_config.json", "chat_template.jinja", "chat_template.json",
                                          "added_tokens.json", "config.json", "model.safetensors"));
  EXPECT_EQ(read_json_file(folder / "model/config.json")["model_type"], "llama");
}

TEST(HfFolderWriter, AnUnfinishedFolderLeavesNothing) {
  const TemporaryFolder folder;
  {
    HfFolderWriter writer(folder / "model", kConfig, layout());
    writer.write("t0", torch::ones({1, 10}));
    EXPECT_THAT(error_of([&] { writer.finish(); }), HasSubstr("\"t1\" of the layout was never written"));
  }
  EXPECT_THAT(folder.names(), IsEmpty());
}

TEST(HfFolderWriter, AnOldFolderIsReplacedOnlyAtTheEnd) {
  const TemporaryFolder folder;
  folder.write("model/config.json", "{}");
  folder.write("model/model-00001-of-00002.safetensors", "old");
  {
    HfFolderWriter unfinished(folder / "model/", kConfig, layout());
    write_all(unfinished);
  }
  EXPECT_TRUE(std::filesystem::exists(folder / "model/model-00001-of-00002.safetensors"));
  HfFolderWriter writer(folder / "model/", kConfig, layout());
  write_all(writer);
  writer.finish();
  EXPECT_FALSE(std::filesystem::exists(folder / "model/model-00001-of-00002.safetensors"));
  HfFolder(folder / "model").check_tensors(layout());
  EXPECT_THAT(folder.names(), ElementsAre("model"));
}

TEST(HfFolderWriter, AModelCanBeSavedOverItself) {
  const TemporaryFolder folder;
  const auto save = [&](const std::function<at::Tensor(const TensorInfo&)>& value) {
    HfFolderWriter writer(folder / "model", kConfig, layout());
    for (const TensorInfo& tensor : layout()) writer.write(tensor.name, value(tensor));
    writer.finish();
  };
  save([](const TensorInfo& tensor) { return torch::ones(tensor.shape); });
  const HfFolder old(folder / "model");
  save([&](const TensorInfo& tensor) { return old.tensor(tensor.name) + 1; });
  EXPECT_EQ(old.tensor("t0").sum().item<float>(), 10);
  EXPECT_EQ(HfFolder(folder / "model").tensor("t0").sum().item<float>(), 20);
}

TEST(HfFolderWriter, OtherFoldersAndFilesAreNotReplaced) {
  const TemporaryFolder folder;
  folder.write("home/letter.txt", "dear");
  folder.write("file", "x");
  const auto open = [&](const char* name) {
    return error_of([&] { HfFolderWriter writer(folder / name, kConfig, layout()); });
  };
  EXPECT_THAT(open("home"), HasSubstr("is not a model folder"));
  EXPECT_THAT(open("file"), HasSubstr("exists and is not a folder"));
  EXPECT_THAT(folder.names(), UnorderedElementsAre("home", "file"));
}

TEST(HfFolderWriter, ALinkStaysALink) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "real");
  std::filesystem::create_directory_symlink("real", folder / "link");
  HfFolderWriter writer(folder / "link", kConfig, layout());
  write_all(writer);
  writer.finish();
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "link"));
  HfFolder(folder / "real").check_tensors(layout());
}

TEST(HfFolderWriter, AFullDisk) {
  const TemporaryFolder folder;
  folder.write("model/config.json", "{}");
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const rlimit limited{512, before.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &limited);
  const std::string error = error_of([&] { HfFolderWriter writer(folder / "model", kConfig, layout()); });
  ::setrlimit(RLIMIT_FSIZE, &before);
  ::signal(SIGXFSZ, handler);
  EXPECT_THAT(error, AllOf(HasSubstr("model.safetensors"), HasSubstr("File too large")));
  EXPECT_THAT(folder.names(), ElementsAre("model"));
  EXPECT_EQ(std::filesystem::file_size(folder / "model/config.json"), 2u);
}

TEST(HfFolderWriter, WrongUseIsAnError) {
  const TemporaryFolder folder;
  EXPECT_THAT(error_of([&] { HfFolderWriter writer(folder / "model", {}, layout()); }), HasSubstr("JSON object"));
  EXPECT_THAT(error_of([&] {
                HfFolderWriter writer(folder / "model", kConfig, layout(),
                                      {.max_shard_size = 0, .tokenizer_source = {}});
              }),
              HasSubstr("max_shard_size is 0"));
  EXPECT_THAT(error_of([&] {
                HfFolderWriter writer(folder / "model", kConfig, layout(), {.tokenizer_source = folder / "none"});
              }),
              HasSubstr("none"));
  HfFolderWriter writer(folder / "model", kConfig, layout());
  EXPECT_THAT(error_of([&] { writer.write("other", torch::ones({1})); }), HasSubstr("\"other\""));
  // A tensor that occurs twice, in different files.
  EXPECT_THAT(error_of([&] {
                HfFolderWriter twice(folder / "twice", kConfig,
                                     {{"a", torch::kFloat32, {9}}, {"a", torch::kFloat32, {9}}},
                                     {.max_shard_size = 36, .tokenizer_source = {}});
              }),
              HasSubstr("\"a\" occurs twice"));
}

}  // namespace
}  // namespace fsdp::formats::hf_folder_writer_test
