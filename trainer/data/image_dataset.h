// Images and their classes.
#pragma once

#include <cstdint>
#include <memory>

#include "data/dataset.h"
#include "data/dataset_spec.h"

namespace fsdp::trainer {

struct ImageShape {
  int64_t channels = 0;
  int64_t height = 0;
  int64_t width = 0;
};

// Opens a safetensors file with a tensor "images", [N, channels, height, width], and a tensor "labels", [N], of
// integers. Images of uint8 are divided by 255, images of floating point are used unchanged. Inputs are fp32. Errors
// name the file and the expectation: the file is not a safetensors file or lacks a tensor, tensors have other shapes or
// dtypes, images do not have `channels` channels or (unless `size` is 0) `size` rows and columns, or a label is not in
// 0 to classes - 1. The file is memory-mapped.
std::unique_ptr<Dataset> open_image_file(const std::string& path, int64_t channels, int64_t size, int64_t classes);

// Makes random pixels in [0, 1) and random classes, which depend only on the specification's seed and role and on the
// sample's number.
std::unique_ptr<Dataset> make_dummy_images(const DatasetSpec& spec, const ImageShape& shape, int64_t classes);

}  // namespace fsdp::trainer
