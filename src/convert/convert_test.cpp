#include "convert/convert.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <functional>

#include "convert/inspect.h"
#include "formats/dcp/dcp_folder.h"
#include "formats/dcp/dcp_folder_writer.h"
#include "formats/hugging_face/hf_folder.h"
#include "formats/hugging_face/hf_folder_writer.h"
#include "formats/own/checkpoint_folder.h"
#include "formats/own/checkpoint_folder_writer.h"
#include "formats/pickle/pickle_writer.h"
#include "support/faults/error_of.h"
#include "support/files/temporary_folder.h"

namespace fsdp::convert::convert_test {
namespace {

namespace fs = std::filesystem;
using testing::error_of;
using testing::TemporaryFolder;
using namespace formats;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

at::Tensor numbers(const std::vector<int64_t>& shape, c10::ScalarType dtype, int64_t first = 0) {
  const int64_t numel = TensorInfo{"", dtype, shape}.numel();
  return (at::arange(numel, at::kLong) + first).to(dtype).view(shape);
}

// The tensors by their names in a training checkpoint.
const std::map<std::string, at::Tensor>& tensors() {
  static const std::map<std::string, at::Tensor> all{{"model/a.weight", numbers({3, 5}, at::kFloat)},
                                                     {"model/a.bias", numbers({3}, at::kBFloat16)},
                                                     {"model/empty", numbers({0, 2}, at::kFloat)},
                                                     {"model/gain", numbers({}, at::kFloat, 7)},
                                                     {"buffer/count", numbers({}, at::kLong, 9)},
                                                     {"optimizer/a.weight/exp_avg", numbers({3, 5}, at::kFloat, 20)},
                                                     {"optimizer/gain/exp_avg", numbers({}, at::kFloat, 8)}};
  return all;
}

json state() {
  return json::parse(R"({"optimizer": {"leaves": {"a.weight": {"step": 3.0}, "gain": {"step": 4.0}},
    "groups": [{"parameters": ["a.weight", "gain"],
                "options": {"lr": 0.5, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "weight_decay": 0.0,
                            "amsgrad": 0.0, "decoupled_weight_decay": 0.0}},
               {"parameters": ["a.bias", "empty"],
                "options": {"lr": 0.25, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "weight_decay": 0.1,
                            "amsgrad": 0.0, "decoupled_weight_decay": 0.0}}]},
    "user": {"step": 3, "seed": 18, "note": ["x", null, true]}})");
}

class Convert : public ::testing::Test {
 protected:
  Convert() {
    std::vector<TensorInfo> layout;
    for (const auto& [name, tensor] : tensors()) layout.push_back({name, tensor.scalar_type(), tensor.sizes().vec()});
    CheckpointFolderWriter writer(ours(), layout, 40);
    for (const auto& [name, tensor] : tensors()) writer.append(name, tensor.reshape(-1));
    writer.finish(state());
  }
  fs::path ours() const { return folder / "ours"; }
  fs::path to(const fs::path& source, const char* name, FolderKind kind, ConvertOptions options = {}) {
    options.replace = true;
    notes = convert(source, folder / name, kind, options).notes;
    return folder / name;
  }
  // Expects the same bits, numbers, groups and user data as in the original folder of the test.
  void expect_same(const fs::path& path, const json& expected_state = state()) const {
    const CheckpointFolder saved(path);
    ASSERT_EQ(saved.manifest().tensors.size(), tensors().size());
    for (const auto& [name, tensor] : tensors()) {
      const StoredTensor& stored = saved.tensor(name);
      EXPECT_EQ(stored.shape, tensor.sizes().vec()) << name;
      const at::Tensor out = at::empty({stored.numel()}, at::TensorOptions(stored.dtype));
      saved.read(name, 0, stored.numel(), out);
      EXPECT_TRUE(out.equal(tensor.reshape(-1))) << name;
    }
    EXPECT_EQ(saved.manifest().state, expected_state);
  }
  std::string convert_error(const fs::path& source, FolderKind kind, const ConvertOptions& options = {}) {
    const std::string error = error_of([&] { convert(source, folder / "target", kind, options); });
    EXPECT_FALSE(fs::exists(folder / "target"));
    return error;
  }

  TemporaryFolder folder;
  Notes notes;
};

TEST_F(Convert, ToDcpAndBack) {
  for (const bool flat : {false, true}) {
    const fs::path dcp = to(ours(), "dcp", FolderKind::kDcp, {.max_file_bytes = 3000, .flatten_optimizer = flat});
    EXPECT_THAT(notes, ElementsAre(AllOf(HasSubstr("Adam or AdamW"), HasSubstr("maximize=false"))));
    EXPECT_TRUE(fs::exists(dcp / "__0_1.distcp"));
    const DcpFolder saved(dcp);
    EXPECT_EQ(saved.value(flat ? "optim.param_groups.gain.betas" : "optim.param_groups.0.betas"),
              json::parse("[0.9, 0.99]"));
    EXPECT_EQ(saved.tensor("optim.state.gain.step").info.dtype, at::kFloat);
    const auto path = saved.metadata().key_paths.at("optim.state.gain.exp_avg");
    EXPECT_EQ(path.size(), flat ? 2u : 4u);
    json expected = state();
    if (flat) std::reverse(expected["optimizer"]["groups"].begin(), expected["optimizer"]["groups"].end());  // by name
    expect_same(to(dcp, "back", FolderKind::kTraining), expected);
    EXPECT_THAT(notes, Contains("prefix removed from the model's names: model."));
    EXPECT_THAT(notes, Not(Contains(HasSubstr("amsgrad"))));
    fs::remove_all(dcp);
  }
}

TEST_F(Convert, PlainNamesInDcp) {
  const fs::path dcp = to(ours(), "dcp", FolderKind::kDcp, {.target_model_prefix = ""});
  EXPECT_EQ(DcpFolder(dcp).metadata().tensors.count("a.weight"), 1u);
  expect_same(to(dcp, "back", FolderKind::kTraining));
  EXPECT_THAT(notes, Not(Contains(HasSubstr("the model's names"))));
}

TEST_F(Convert, ToHuggingFaceWithAConfig) {
  EXPECT_THAT(convert_error(ours(), FolderKind::kHuggingFace),
              AllOf(HasSubstr("ours/config.json"), HasSubstr("--config")));
  folder.write("config/config.json", R"({"model_type": "x"})");
  folder.write("config/tokenizer.json", "{}");
  const fs::path hf =
      to(ours(), "hf", FolderKind::kHuggingFace, {.max_file_bytes = 40, .config = folder / "config/config.json"});
  EXPECT_THAT(notes,
              UnorderedElementsAre(HasSubstr("left out: the optimizer's state"), HasSubstr("left out: the caller")));
  const HfFolder model(hf);
  EXPECT_EQ(model.tensors().size(), 5u);
  EXPECT_TRUE(model.tensor("a.bias").equal(tensors().at("model/a.bias")));
  EXPECT_TRUE(fs::exists(hf / "tokenizer.json"));
  EXPECT_TRUE(fs::exists(hf / "model.safetensors.index.json"));

  folder.write("hf/notes.txt", "mine");
  folder.write("hf/rows-0-of-1.safetensors", "of embedding tables");
  const fs::path back = to(hf, "back", FolderKind::kTraining, {.source = {.buffers = {"cou*"}}});
  EXPECT_THAT(notes, UnorderedElementsAre("left out: " + (hf / "notes.txt").string(),
                                          "left out: " + (hf / "rows-0-of-1.safetensors").string()));
  const CheckpointFolder saved(back);
  EXPECT_EQ(saved.manifest().tensors.count("buffer/count"), 1u);
  EXPECT_EQ(saved.manifest().tensors.count("model/a.weight"), 1u);
  EXPECT_EQ(saved.manifest().state["user"], json());
  to(back, "hf2", FolderKind::kHuggingFace);  // config.json was copied, too
  EXPECT_EQ(HfFolder(folder / "hf2").config()["model_type"], "x");
}

// A tensor that is stored transposed, in parts of two files.
TEST_F(Convert, TensorsInOtherOrders) {
  const at::Tensor values = numbers({4, 6}, at::kFloat);
  fs::create_directory(folder / "strided");
  Manifest manifest;
  for (int rank = 0; rank < 2; ++rank) {
    const std::string name = rank_file_name(rank, 2);
    SafetensorsWriter writer(folder / "strided" / name, {{"part", at::kFloat, {12}}});
    writer.write("part", values.t().reshape(-1).slice(0, rank * 12, rank * 12 + 12));
    RankFile file{{name, 0, 0, 0}, {{"model/w", {at::kFloat, {4, 6}, {1, 4}, {}}}}};
    const auto place = writer.place("part");
    file.tensors.at("model/w").parts.push_back({rank * 12, rank * 12 + 12, 0, place.offset, place.checksums});
    file.file = {name, writer.bytes(), writer.header_bytes(), writer.header_checksum()};
    writer.finish();
    add_rank_file(std::move(file), manifest);
  }
  folder.write("strided/manifest.json", manifest_text(manifest, "M"));
  const DcpFolder dcp(to(folder / "strided", "dcp", FolderKind::kDcp));
  const at::Tensor out = at::empty({24}, at::kFloat);
  dcp.read("model.w", 0, 24, out);
  EXPECT_TRUE(out.view({4, 6}).equal(values));
}

TEST_F(Convert, OptimizersThatAreNone) {
  const auto error_with = [&](const std::function<void(json&)>& change) {
    json changed = state();
    change(changed["optimizer"]);
    CheckpointFolderWriter writer(folder / "odd", {}, 40);
    writer.finish(changed);
    return convert_error(folder / "odd", FolderKind::kDcp);
  };
  EXPECT_THAT(error_with([](json& o) { o["leaves"]["gain"]["step"] = "x"; }), HasSubstr("an object of numbers"));
  EXPECT_THAT(error_with([](json& o) { o["leaves"] = 3; }), HasSubstr("an object of numbers"));
  EXPECT_THAT(error_with([](json& o) { o["groups"] = 3; }), HasSubstr("expected a list"));
  EXPECT_THAT(error_with([](json& o) { o["groups"][1]["parameters"] = {"a.bias", 3}; }), HasSubstr("a list of names"));
  EXPECT_THAT(error_with([](json& o) { o["groups"][1]["parameters"] = {3, 4}; }),
              AllOf(HasSubstr("numbers the parameters"), HasSubstr("get_optimizer_state_dict")));
  EXPECT_THAT(error_with([](json& o) { o.erase("groups"); }), HasSubstr("expected leaves and groups"));
}

// ---------------------------------------------------------------- layouts of torch.distributed.checkpoint

struct Entry {
  std::vector<DcpKey> path;
  std::string opcodes;  // empty: a tensor of two elements
};

class DcpLayouts : public Convert {
 protected:
  fs::path dcp(const std::vector<Entry>& entries) {
    DcpFolderWriter writer(folder / "dcp");
    for (const Entry& entry : entries) {
      std::vector<std::string> keys;
      for (const DcpKey& key : entry.path) {
        keys.push_back(key.index() == 0 ? std::get<std::string>(key) : std::to_string(std::get<int64_t>(key)));
      }
      const std::string name = c10::Join(".", keys);
      if (!entry.opcodes.empty()) {
        writer.add_value(name, entry.path, entry.opcodes);
      } else {
        writer.begin({name, at::kFloat, {2}}, entry.path);
        writer.append(numbers({2}, at::kFloat));
      }
    }
    writer.finish();
    return folder / "dcp";
  }
  std::vector<std::string> names(const std::vector<Entry>& entries, const SourceOptions& options = {}) {
    std::vector<std::string> names;
    const auto source = open_source(dcp(entries), options, notes = {});
    for (const StateTensor& tensor : source->contents().tensors) names.push_back(tensor.fqn + "|" + tensor.state);
    groups = source->contents().groups;
    return names;
  }
  json groups;
};

TEST_F(DcpLayouts, PrefixesOfTheModel) {
  EXPECT_THAT(names({{{"model.w"}, ""}, {{"model.v"}, ""}}), ElementsAre("model.v|", "model.w|"));
  EXPECT_THAT(names({{{"model", "model.w"}, ""}}), ElementsAre("model.w|"));
  EXPECT_THAT(names({{{"app", "model", "w"}, ""}, {{"ema", "w"}, ""}}), ElementsAre("w|"));
  EXPECT_THAT(notes, UnorderedElementsAre("prefix removed from the model's names: app.model.",
                                          HasSubstr("left out: tensor ema.w")));
  const std::vector<Entry> two{{{"teacher", "w"}, ""}, {{"student", "w"}, ""}};
  EXPECT_THAT(error_of([&] { names(two); }),
              AllOf(HasSubstr("\"student.\", \"teacher.\""), HasSubstr("--model-prefix")));
  EXPECT_THAT(names(two, {.model_prefix = "student"}), ElementsAre("w|"));
  EXPECT_THAT(names(two, {.model_prefix = ""}), ElementsAre("student.w|", "teacher.w|"));
}

TEST_F(DcpLayouts, ParameterGroups) {
  const std::string lr = pickled::real(0.5), none = pickled::none();
  const auto params = [](const std::vector<std::string>& names) { return pickled::value_of(json(names)); };
  EXPECT_THAT(names({{{"model", "w"}, ""},
                     {{"optim", "state", "w", "momentum_buffer"}, ""},
                     {{"optim", "param_groups", int64_t{0}, "lr"}, lr},
                     {{"optim", "param_groups", int64_t{0}, "dampening"}, pickled::integer(0)},
                     {{"optim", "param_groups", int64_t{0}, "nesterov"}, pickled::boolean(true)},
                     {{"optim", "param_groups", int64_t{0}, "foreach"}, none},
                     {{"optim", "param_groups", int64_t{0}, "maximize"}, pickled::boolean(true)},
                     {{"optim", "param_groups", int64_t{0}, "params"}, params({"w"})}}),
              ElementsAre("w|", "w|momentum_buffer"));
  EXPECT_EQ(groups,
            json::parse(R"([{"parameters": ["w"], "options": {"lr": 0.5, "dampening": 0.0, "nesterov": 1.0}}])"));
  EXPECT_THAT(notes, Contains(HasSubstr("left out: option maximize=true")));
  EXPECT_THAT(notes, Not(Contains(HasSubstr("foreach"))));
  const std::vector<Entry> two{
      {{"model", "w"}, ""}, {{"a", "param_groups.w.lr"}, lr}, {{"b", "param_groups.w.lr"}, lr}};
  EXPECT_THAT(error_of([&] { names(two); }), AllOf(HasSubstr("\"a.\", \"b.\""), HasSubstr("--optimizer-prefix")));
  names(two, {.model_prefix = "model", .optimizer_prefix = "b"});
  EXPECT_EQ(groups, json::parse(R"([{"parameters": ["w"], "options": {"lr": 0.5}}])"));
  EXPECT_THAT(notes, Contains("left out: value a.param_groups.w.lr"));
}

// torch before 2.7 did not write decoupled_weight_decay.
TEST_F(DcpLayouts, GroupsOfAdamThatDoNotSayAll) {
  const std::string lr = pickled::real(0.5);
  const std::string betas = pickled::tuple({pickled::real(0.5), pickled::real(0.25)});
  names({{{"model", "w"}, ""}, {{"optim", "param_groups.w.lr"}, lr}, {{"optim", "param_groups.w.betas"}, betas}});
  EXPECT_EQ(groups, json::parse(R"([{"parameters": ["w"], "options": {"lr": 0.5, "beta1": 0.5, "beta2": 0.25,
                                     "amsgrad": 0.0, "decoupled_weight_decay": 1.0}}])"));
  EXPECT_THAT(notes, Contains(HasSubstr("have no decoupled_weight_decay: assumed to be true")));
  names({{{"model", "w"}, ""},
         {{"optim", "param_groups.w.lr"}, lr},
         {{"optim", "param_groups.w.betas"}, betas},
         {{"optim", "param_groups.w.amsgrad"}, pickled::boolean(true)},
         {{"optim", "param_groups.w.decoupled_weight_decay"}, pickled::boolean(false)}});
  EXPECT_EQ(groups[0]["options"]["amsgrad"], 1.0);
  EXPECT_EQ(groups[0]["options"]["decoupled_weight_decay"], 0.0);
  EXPECT_THAT(notes, Not(Contains(HasSubstr("assumed to be"))));
}

TEST_F(DcpLayouts, ValuesThatAreNoPlainData) {
  const std::string foreign = pickled::call(pickled::name("os", "system"), {pickled::text("true")});
  const std::vector<Entry> entries{{{"model", "w"}, ""}, {{"extra"}, foreign}};
  EXPECT_THAT(names(entries), ElementsAre("w|"));
  EXPECT_THAT(notes, Contains("left out: value extra"));
  const json said = describe(folder / "dcp");
  EXPECT_THAT(said["values"]["extra"].dump(), AllOf(HasSubstr("cannot be shown"), HasSubstr("os.system")));
  EXPECT_THAT(problems(folder / "dcp"), IsEmpty());
  EXPECT_THAT(error_of([&] { names({{{"model", "w"}, ""}, {{"user"}, foreign}}); }),
              AllOf(HasSubstr("\"user\""), HasSubstr("os.system is not allowed")));
}

// ---------------------------------------------------------------- inspect

TEST_F(Convert, Inspect) {
  const json said = describe(ours());
  EXPECT_EQ(said["kind"], "training checkpoint");
  EXPECT_EQ(said["tensors"].size(), 7u);
  EXPECT_EQ(said["bytes"], 60 + 6 + 0 + 4 + 8 + 60 + 4);
  EXPECT_EQ(said["user"], state()["user"]);
  EXPECT_EQ(said["groups"], state()["optimizer"]["groups"]);
  EXPECT_EQ(said["tensors"][1], json::parse(R"({"name": "model/a.bias", "dtype": "bfloat16", "shape": [3], "bytes": 6,
      "parts": [{"file": ")" + rank_file_name(0, 5) +
                                            R"(", "bytes": 6}]})"));
  const json dcp = describe(to(ours(), "dcp", FolderKind::kDcp));
  EXPECT_EQ(dcp["kind"], "checkpoint of torch.distributed.checkpoint");
  EXPECT_EQ(dcp["values"]["optim.param_groups.1.lr"], 0.25);
  EXPECT_EQ(dcp["values"]["user"], state()["user"]);
  EXPECT_THAT(error_of([&] { describe(folder / "none"); }), HasSubstr("no such folder"));
  EXPECT_THAT(error_of([&] { describe(folder.path()); }), HasSubstr("holds no model.safetensors"));
  folder.write("dcp/manifest.json", "");
  EXPECT_THAT(error_of([&] { describe(folder / "dcp"); }), HasSubstr("two checkpoints are mixed"));
}

void flip_byte(const fs::path& path, int64_t at) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(at);
  const char byte = static_cast<char>(file.get());
  file.seekp(at);
  file.put(static_cast<char>(byte ^ 1));
}

TEST_F(Convert, ProblemsAreAllNamed) {
  EXPECT_THAT(problems(ours()), IsEmpty());
  const CheckpointFolder sound(ours());
  for (const char* name : {"model/a.weight", "optimizer/a.weight/exp_avg"}) {
    const StoredPart& part = sound.tensor(name).parts[0];
    flip_byte(ours() / sound.manifest().files[part.file].name, static_cast<int64_t>(part.offset) + 1);
  }
  EXPECT_THAT(problems(ours()),
              ElementsAre(AllOf(HasSubstr("\"model/a.weight\""), HasSubstr("checksum"), HasSubstr(".safetensors")),
                          AllOf(HasSubstr("\"optimizer/a.weight/exp_avg\""), HasSubstr("checksum"))));
  EXPECT_THAT(convert_error(ours(), FolderKind::kDcp), AllOf(HasSubstr("\"model/a.weight\""), HasSubstr("checksum")));
}

TEST_F(Convert, ProblemsOfDcp) {
  const fs::path dcp = to(ours(), "dcp", FolderKind::kDcp);
  EXPECT_THAT(problems(dcp), IsEmpty());
  const DcpFolder sound(dcp);
  for (const char* name : {"model.a.weight", "optim.state.a.weight.exp_avg"}) {
    const DcpLocation& place = sound.tensor(name).chunks[0].location;
    const std::string bytes = read_file(dcp / place.path, 1 << 20);
    const size_t at = bytes.find("archive/data/0", static_cast<size_t>(place.offset));
    flip_byte(dcp / place.path, static_cast<int64_t>(at) + 70);  // a byte of the data, which begin in the next 64 bytes
  }
  EXPECT_THAT(problems(dcp),
              ElementsAre(AllOf(HasSubstr("__0_0.distcp: \"model.a.weight\", chunk [0, 0]"), HasSubstr("CRC-32")),
                          AllOf(HasSubstr("\"optim.state.a.weight.exp_avg\""), HasSubstr("CRC-32"))));
  fs::resize_file(dcp / "__0_0.distcp", 1000);
  EXPECT_THAT(problems(dcp), ElementsAre(AllOf(HasSubstr("__0_0.distcp: has 1000 bytes"), HasSubstr("cut short"))));
}

TEST_F(Convert, ReplacesAFolderOnlyWhenToldTo) {
  folder.write("config.json", R"({"model_type": "x"})");
  for (const FolderKind kind : {FolderKind::kHuggingFace, FolderKind::kTraining, FolderKind::kDcp}) {
    ConvertOptions options;
    if (kind == FolderKind::kHuggingFace) options.config = folder / "config.json";
    const fs::path target = folder / ("target" + std::to_string(static_cast<int>(kind)));
    fs::create_directory(target);  // an empty folder may be replaced
    convert(ours(), target, kind, options);
    std::ofstream(target / "mine") << "mine";
    EXPECT_THAT(error_of([&] { convert(ours(), target, kind, options); }),
                AllOf(HasSubstr(target.string()), HasSubstr(kind_name(kind)), HasSubstr("--force")));
    EXPECT_TRUE(fs::exists(target / "mine"));
    options.replace = true;
    convert(ours(), target, kind, options);
    EXPECT_FALSE(fs::exists(target / "mine"));
  }
}

TEST_F(Convert, RefusesToOverwriteOthersFiles) {
  EXPECT_THAT(error_of([&] { convert(ours(), ours(), FolderKind::kTraining); }), HasSubstr("is the source itself"));
  folder.write("taken/x", "mine");
  EXPECT_THAT(error_of([&] { convert(ours(), folder / "taken", FolderKind::kDcp); }), HasSubstr("holds no .metadata"));
  EXPECT_THAT(error_of([&] { convert(ours(), folder / "taken", FolderKind::kTraining); }),
              HasSubstr("holds no manifest.json"));
}

}  // namespace
}  // namespace fsdp::convert::convert_test
