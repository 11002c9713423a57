// Rows of numbers and categories, each of one of two classes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/dataset_spec.h"

namespace fsdp::trainer {

struct TabularShape {
  int64_t numeric = 0;              // numbers in a sample
  std::vector<int64_t> table_rows;  // of each categorical feature: its ids are from 0 to this - 1

  int64_t categorical() const { return static_cast<int64_t>(table_rows.size()); }
};

// A safetensors file with tensors "numeric", [N, shape.numeric], floating and finite in fp32; "categorical", [N,
// shape.categorical()], of integers, each a row of its feature's table; and "labels", [N], of integers 0 and 1. In
// batches they are fp32, int64 and int64. A file that is no safetensors file or lacks a tensor, tensors of other shapes
// or dtypes, and values that are none of these are errors that name file, tensor, sample and feature, and what was
// expected. The file is memory-mapped and read once.
std::unique_ptr<Dataset> open_tabular_file(const std::string& path, const TabularShape& shape);

// Random numbers in [0, 1), ids and classes: a function of the specification's seed and role, and of the sample's
// number.
std::unique_ptr<Dataset> make_dummy_table(const DatasetSpec& spec, const TabularShape& shape);

}  // namespace fsdp::trainer
