#include "tasks/trained_tabular_model.h"

#include <utility>

#include "data/tabular_dataset.h"

namespace fsdp::trainer {

namespace {

constexpr const char* kKind = "a model of tabular data";

}  // namespace

TrainedTabularModel::TrainedTabularModel(std::shared_ptr<models::TabularModel> model, const Config& config)
    : TrainedKind(std::move(model)), tables_(std::make_unique<SplitTables>(this->model(), config)) {
  refuse_keys_of_language_models(config, kKind);
  refuse_unless_null("image_size", config, kKind);
}

std::unique_ptr<Dataset> TrainedTabularModel::open_dataset(const DatasetSpec& spec) const {
  const TabularShape shape{model().num_numeric_features(), model().tables().rows};
  return spec.is_dummy() ? make_dummy_table(spec, shape) : open_tabular_file(spec.text, shape);
}

at::Tensor TrainedTabularModel::loss(const Batch& batch) const {
  return model().forward(batch.inputs, batch.categorical, batch.labels).loss;
}

SampleWork TrainedTabularModel::sample_work(const Batch& /*batch*/) const {
  return {.flops = model().flops_per_sample(), .recomputed_flops = model().recomputed_flops_per_sample()};
}

}  // namespace fsdp::trainer
