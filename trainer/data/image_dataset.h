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

// A safetensors file with a tensor "images", [N, channels, height, width], and a tensor "labels", [N], of integers.
// Images are of uint8, which are divided by 255, or floating point, which are taken as they are. Inputs are fp32. A
// file that is no safetensors file or lacks a tensor, tensors of other shapes or dtypes, images that do not have
// `channels` channels or (unless 0) `size` rows and columns, and a label that is not from 0 to classes - 1 are errors
// that name the file and what was expected. The file is memory-mapped.
std::unique_ptr<Dataset> open_image_file(const std::string& path, int64_t channels, int64_t size, int64_t classes);

// Random pixels in [0, 1) and classes: a function of the specification's seed and role, and of the sample's number.
std::unique_ptr<Dataset> make_dummy_images(const DatasetSpec& spec, const ImageShape& shape, int64_t classes);

}  // namespace fsdp::trainer
