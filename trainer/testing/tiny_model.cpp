#include "testing/tiny_model.h"

#include <ATen/Context.h>

#include <filesystem>
#include <fstream>

#include "formats/safetensors/safetensors_writer.h"
#include "models/pretrained.h"
#include "models/registry.h"

namespace fsdp::trainer {

std::shared_ptr<models::PretrainedModel> make_tiny_model(const nlohmann::json& config, uint64_t seed) {
  at::manual_seed(seed);
  auto model = models::make_uninitialized<models::PretrainedModel>(config, at::kFloat);
  model->initialize();
  return model;
}

void write_tiny_model(const std::string& folder, const nlohmann::json& config, uint64_t seed,
                      const std::function<std::string(const std::string&)>& stored_name) {
  const std::filesystem::path path(folder);
  std::filesystem::create_directories(path);
  std::ofstream(path / "config.json") << config.dump(2);
  std::ofstream(path / "tokenizer.json") << "{\"version\": \"1.0\"}";
  const auto model = make_tiny_model(config, seed);
  const auto tensors = models::checkpoint_tensors(*model);
  auto stored = tensors;
  for (auto& info : stored) info.name = stored_name(info.name);
  formats::SafetensorsWriter writer(path / "model.safetensors", stored);
  const auto parameters = model->named_parameters(), buffers = model->named_buffers();
  for (const auto& info : tensors) {
    const at::Tensor* parameter = parameters.find(info.name);
    writer.write(stored_name(info.name), parameter ? parameter->detach() : buffers[info.name]);
  }
  writer.finish();
}

}  // namespace fsdp::trainer
