// Rows of numbers and categories, each row of one of two classes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/dataset_spec.h"

namespace fsdp::trainer {

struct TabularShape {
  int64_t numeric = 0;              // numeric features of a sample
  std::vector<int64_t> table_rows;  // for each categorical feature, whose ids are 0 to this - 1

  int64_t categorical() const { return static_cast<int64_t>(table_rows.size()); }
};

// Opens a safetensors file with the tensors "numeric", [N, shape.numeric], floating point and finite in fp32;
// "categorical", [N, shape.categorical()], integers, each a row of its feature's table; and "labels", [N], integers 0
// or 1. Batches contain them as fp32, int64 and int64. Errors name file, tensor, sample and feature, and the
// expectation: the file is not a safetensors file or lacks a tensor, or tensors have other shapes, dtypes or values.
// The file is memory-mapped and read once.
std::unique_ptr<Dataset> open_tabular_file(const std::string& path, const TabularShape& shape);

// Makes random numbers in [0, 1), ids and classes, which depend only on the specification's seed and role and on the
// sample's number.
std::unique_ptr<Dataset> make_dummy_table(const DatasetSpec& spec, const TabularShape& shape);

}  // namespace fsdp::trainer
