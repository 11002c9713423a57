#include "data/image_dataset.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <limits>

#include "base/check.h"
#include "data/dummy_numbers.h"
#include "data/sample_tensors.h"
#include "formats/common/tensor_info.h"
#include "formats/safetensors/safetensors.h"

namespace fsdp::trainer {

namespace {

// The common part of file data and dummy data.
class ImageDataset : public Dataset {
 public:
  ImageDataset(std::string name, int64_t size, const ImageShape& shape)
      : name_(std::move(name)), size_(size), shape_(shape) {}

  std::string name() const override { return name_; }
  int64_t size() const override { return size_; }
  std::string sample_text() const override {
    return c10::str("an image of ", shape_.channels, "x", shape_.height, "x", shape_.width);
  }
  int64_t predictions(int64_t /*index*/) const override { return 1; }
  Batch batch(const std::vector<int64_t>& indices) const override;

 protected:
  // Writes sample `index`: its pixels, [channels, height, width] fp32, and its class.
  virtual void read(int64_t index, at::Tensor pixels, int64_t& label) const = 0;
  const ImageShape& shape() const { return shape_; }

 private:
  std::string name_;
  int64_t size_;
  ImageShape shape_;
};

Batch ImageDataset::batch(const std::vector<int64_t>& indices) const {
  const auto count = static_cast<int64_t>(indices.size());
  at::Tensor images = at::empty({count, shape_.channels, shape_.height, shape_.width}, at::kFloat);
  at::Tensor labels = at::empty({count}, at::kLong);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t index = indices[static_cast<size_t>(i)];
    TORCH_INTERNAL_ASSERT(index >= 0 && index < size_);
    read(index, images[i], labels.mutable_data_ptr<int64_t>()[i]);
  }
  return {.inputs = images, .labels = labels};
}

class ImageFile : public ImageDataset {
 public:
  ImageFile(const std::string& path, const ImageShape& shape, at::Tensor images, const at::Tensor& labels)
      : ImageDataset(path, images.size(0), shape), images_(std::move(images)), labels_(labels.to(at::kLong)) {}

 protected:
  void read(int64_t index, at::Tensor pixels, int64_t& label) const override {
    pixels.copy_(images_[index]);
    if (images_.scalar_type() == at::kByte) pixels.div_(255);
    label = labels_.const_data_ptr<int64_t>()[index];
  }

 private:
  at::Tensor images_, labels_;
};

class DummyImages : public ImageDataset {
 public:
  DummyImages(const DatasetSpec& spec, int64_t size, const ImageShape& shape, int64_t classes)
      : ImageDataset(spec.text, size, shape), classes_(classes), numbers_(spec.seed, spec.stream()) {}

 protected:
  void read(int64_t index, at::Tensor pixels, int64_t& label) const override {
    const auto values = static_cast<uint64_t>(pixels.numel());
    uint64_t position = static_cast<uint64_t>(index) * (values + 1);
    label = numbers_.below(static_cast<uint64_t>(classes_), position);
    auto* out = pixels.mutable_data_ptr<float>();
    for (uint64_t i = 0; i < values; ++i) out[i] = numbers_.fraction(++position);
  }

 private:
  int64_t classes_;
  DummyNumbers numbers_;
};

at::Tensor images_in(const formats::SafetensorsFile& file, int64_t channels, int64_t size) {
  const std::string wanted = size > 0 ? std::to_string(size) : "any height";
  const std::string expected = c10::str("[N, ", channels, ", ", wanted, ", ", size > 0 ? wanted : "any width",
                                        "] with N > 0, of uint8 or floating point");
  at::Tensor images = tensor_in(file, "images", expected);
  const bool fits = images.dim() == 4 && images.numel() > 0 && images.size(1) == channels &&
                    (size == 0 || (images.size(2) == size && images.size(3) == size)) &&
                    (images.scalar_type() == at::kByte || images.is_floating_point());
  FSDP_CHECK_WITH(FileError, fits, file.path().string(), ": tensor \"images\" is ", images.sizes(), " of ",
                  images.scalar_type(), "; for this model it must be ", expected);
  return images;
}

}  // namespace

std::unique_ptr<Dataset> open_image_file(const std::string& path, int64_t channels, int64_t size, int64_t classes) {
  const formats::SafetensorsFile file(path);
  const at::Tensor images = images_in(file, channels, size);
  return std::make_unique<ImageFile>(path, ImageShape{channels, images.size(2), images.size(3)}, images,
                                     labels_in(file, images.size(0), classes));
}

std::unique_ptr<Dataset> make_dummy_images(const DatasetSpec& spec, const ImageShape& shape, int64_t classes) {
  const auto nbytes = formats::countable_nbytes(at::kFloat, {shape.channels, shape.height, shape.width});
  if (!nbytes) spec.refuse("cannot be generated: images of this size are too large");
  const int64_t most = std::numeric_limits<int64_t>::max() / (*nbytes + 1);
  return std::make_unique<DummyImages>(spec, spec.dummy_samples(most).value(), shape, classes);
}

}  // namespace fsdp::trainer
