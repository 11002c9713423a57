#include "data/tabular_dataset.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/tensor.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <limits>
#include <utility>

#include "base/check.h"
#include "data/dummy_numbers.h"
#include "data/sample_tensors.h"
#include "formats/safetensors/safetensors.h"

namespace fsdp::trainer {

namespace {

constexpr int64_t kSamplesAtATime = 1 << 16;  // samples checked in one piece

// The common part of file data and dummy data.
class TabularDataset : public Dataset {
 public:
  TabularDataset(std::string name, int64_t size, TabularShape shape)
      : name_(std::move(name)), size_(size), shape_(std::move(shape)) {}

  std::string name() const override { return name_; }
  int64_t size() const override { return size_; }
  std::string sample_text() const override {
    return c10::str(shape_.numeric, " numbers and ", shape_.categorical(), " categories");
  }
  int64_t predictions(int64_t /*index*/) const override { return 1; }
  Batch batch(const std::vector<int64_t>& indices) const override;

 protected:
  // Writes sample `index`: [numeric] fp32, [categorical] int64, and its class.
  virtual void read(int64_t index, at::Tensor numeric, at::Tensor categorical, int64_t& label) const = 0;
  const TabularShape& shape() const { return shape_; }

 private:
  std::string name_;
  int64_t size_;
  TabularShape shape_;
};

Batch TabularDataset::batch(const std::vector<int64_t>& indices) const {
  const auto count = static_cast<int64_t>(indices.size());
  Batch batch{.inputs = at::empty({count, shape_.numeric}, at::kFloat),
              .labels = at::empty({count}, at::kLong),
              .categorical = at::empty({count, shape_.categorical()}, at::kLong)};
  auto* labels = batch.labels.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < count; ++i) {
    const int64_t index = indices[static_cast<size_t>(i)];
    TORCH_INTERNAL_ASSERT(index >= 0 && index < size_);
    read(index, batch.inputs[i], batch.categorical[i], labels[i]);
  }
  return batch;
}

struct ParsedTable {
  at::Tensor numeric, categorical, labels;
};

class TabularFile : public TabularDataset {
 public:
  TabularFile(const std::string& path, const TabularShape& shape, ParsedTable table)
      : TabularDataset(path, table.numeric.size(0), shape), table_(std::move(table)) {
    table_.labels = table_.labels.to(at::kLong);
  }

 protected:
  void read(int64_t index, at::Tensor numeric, at::Tensor categorical, int64_t& label) const override {
    numeric.copy_(table_.numeric[index]);
    categorical.copy_(table_.categorical[index]);
    label = table_.labels.const_data_ptr<int64_t>()[index];
  }

 private:
  ParsedTable table_;
};

class DummyTable : public TabularDataset {
 public:
  DummyTable(const DatasetSpec& spec, int64_t size, const TabularShape& shape)
      : TabularDataset(spec.text, size, shape), numbers_(spec.seed, spec.stream()) {}

 protected:
  void read(int64_t index, at::Tensor numeric, at::Tensor categorical, int64_t& label) const override {
    const auto values = static_cast<uint64_t>(shape().numeric + shape().categorical() + 1);
    uint64_t position = static_cast<uint64_t>(index) * values;
    auto* fractions = numeric.mutable_data_ptr<float>();
    for (int64_t i = 0; i < shape().numeric; ++i) fractions[i] = numbers_.fraction(position++);
    auto* ids = categorical.mutable_data_ptr<int64_t>();
    for (const int64_t rows : shape().table_rows) *ids++ = numbers_.below(static_cast<uint64_t>(rows), position++);
    label = numbers_.below(2, position);
  }

 private:
  DummyNumbers numbers_;
};

// Returns a matrix [N, features] with N > 0.
at::Tensor matrix_in(const formats::SafetensorsFile& file, const std::string& name, int64_t features,
                     bool is_floating) {
  const std::string expected =
      c10::str("[N, ", features, "] with N > 0, of ", is_floating ? "floating point" : "integers");
  at::Tensor matrix = tensor_in(file, name, expected);
  const at::ScalarType dtype = matrix.scalar_type();
  const bool fits = matrix.dim() == 2 && matrix.size(0) > 0 && matrix.size(1) == features &&
                    (is_floating ? c10::isFloatingType(dtype) : c10::isIntegralType(dtype, false));
  FSDP_CHECK_WITH(FileError, fits, file.path().string(), ": tensor \"", name, "\" is ", matrix.sizes(), " of ", dtype,
                  "; for this model it must be ", expected);
  return matrix;
}

// Calls refuse(sample, feature) for the first element for which wrong(part) is true; a part is a range of samples of
// `matrix`.
template <typename Wrong, typename Refuse>
void check_elements(const at::Tensor& matrix, const Wrong& wrong, const Refuse& refuse) {
  for (int64_t begin = 0; begin < matrix.size(0); begin += kSamplesAtATime) {
    const at::Tensor where = wrong(matrix.slice(0, begin, begin + kSamplesAtATime)).nonzero();
    if (where.size(0) > 0) refuse(begin + where[0][0].item<int64_t>(), where[0][1].item<int64_t>());
  }
}

at::Tensor numbers_in(const formats::SafetensorsFile& file, int64_t features) {
  at::Tensor numbers = matrix_in(file, "numeric", features, true);
  check_elements(
      numbers, [](const at::Tensor& part) { return at::isfinite(part.to(at::kFloat)).logical_not(); },
      [&](int64_t sample, int64_t feature) {
        FSDP_CHECK_WITH(FileError, false, file.path().string(), ": tensor \"numeric\": feature ", feature,
                        " of sample ", sample, " is ", numbers[sample][feature].item<double>(),
                        "; it must be finite in fp32");
      });
  return numbers;
}

at::Tensor ids_in(const formats::SafetensorsFile& file, const std::vector<int64_t>& table_rows) {
  at::Tensor ids = matrix_in(file, "categorical", static_cast<int64_t>(table_rows.size()), false);
  const at::Tensor rows = at::tensor(table_rows, at::kLong);
  check_elements(
      ids,
      [&](const at::Tensor& part) {
        const at::Tensor wide = part.to(at::kLong);
        return (wide < 0).logical_or(wide >= rows);
      },
      [&](int64_t sample, int64_t feature) {
        FSDP_CHECK_WITH(FileError, false, file.path().string(), ": tensor \"categorical\": id ",
                        ids[sample][feature].item<int64_t>(), " of feature ", feature, " of sample ", sample,
                        " is not a row of its table; it must be from 0 to ",
                        table_rows[static_cast<size_t>(feature)] - 1);
      });
  return ids;
}

}  // namespace

std::unique_ptr<Dataset> open_tabular_file(const std::string& path, const TabularShape& shape) {
  const formats::SafetensorsFile file(path);
  ParsedTable table;
  table.numeric = numbers_in(file, shape.numeric);
  table.categorical = ids_in(file, shape.table_rows);
  const int64_t samples = table.numeric.size(0);
  FSDP_CHECK_WITH(FileError, table.categorical.size(0) == samples, path, ": tensor \"categorical\" has ",
                  table.categorical.size(0), " samples; it must have as many as \"numeric\", ", samples);
  table.labels = labels_in(file, samples, 2);
  return std::make_unique<TabularFile>(path, shape, std::move(table));
}

std::unique_ptr<Dataset> make_dummy_table(const DatasetSpec& spec, const TabularShape& shape) {
  const int64_t most = std::numeric_limits<int64_t>::max() / (shape.numeric + shape.categorical() + 1);
  return std::make_unique<DummyTable>(spec, spec.dummy_samples(most).value(), shape);
}

}  // namespace fsdp::trainer
