// Models of tabular data: dense layers in shards, embedding tables split over the ranks.
#pragma once

#include <memory>

#include "models/tabular_model.h"
#include "tasks/split_tables.h"
#include "tasks/trained_kind.h"

namespace fsdp::trainer {

class TrainedTabularModel final : public TrainedKind<models::TabularModel> {
 public:
  // Throws a ConfigError for keys that apply to other kinds of models only.
  TrainedTabularModel(std::shared_ptr<models::TabularModel> model, const Config& config);

  std::unique_ptr<Dataset> open_dataset(const DatasetSpec& spec) const override;
  at::Tensor loss(const Batch& batch) const override;
  SampleWork sample_work(const Batch& batch) const override;
  SeparateParameters* separate_parameters() const override { return tables_.get(); }

 private:
  std::unique_ptr<SplitTables> tables_;
};

}  // namespace fsdp::trainer
