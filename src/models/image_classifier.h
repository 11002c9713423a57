// Models that classify images.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "models/pretrained_model.h"

namespace fsdp::models {

struct ImageClassifierOutput {
  at::Tensor loss;    // scalar fp32 (fp64 for fp64 logits), mean over the images; undefined without labels
  at::Tensor logits;  // [batch, classes]
};

class ImageClassifier : public PretrainedModel {
 public:
  using PretrainedModel::PretrainedModel;

  // pixel_values: [batch, channels, height, width] in the dtype of the parameters. labels: [batch] int64 from 0 to
  // classes - 1, or undefined; -100 is ignored. In training mode, batch norms use the statistics of the batch and
  // update the running statistics with them; evaluation uses the running statistics. A recomputation does not update
  // them.
  virtual ImageClassifierOutput forward(const at::Tensor& pixel_values, const at::Tensor& labels = {}) = 0;

  virtual int64_t num_classes() const = 0;
  virtual int64_t channels() const = 0;
  // Height and width that images must have, or nothing if any size is accepted.
  virtual std::optional<int64_t> image_size() const = 0;
  // Floating point operations of the forward and backward of one image, recomputation not counted: those of
  // convolutions, linear layers and attention.
  virtual double flops_per_image(int64_t height, int64_t width) const = 0;
  // FLOPs of one image that activation checkpointing, as currently set, computes again.
  virtual double recomputed_flops_per_image(int64_t height, int64_t width) const = 0;
};

// As make_causal_lm, for image classifiers; running statistics are also of `dtype`. If transformers does not have the
// model, its FQNs are specific to this library.
std::shared_ptr<ImageClassifier> make_image_classifier(const nlohmann::json& config, c10::ScalarType dtype,
                                                       c10::Device device);

// Throws unless pixel_values is [batch, `channels`, height, width] and labels, if defined, are [batch]. `model` is the
// name used in the error.
void check_images(const char* model, const at::Tensor& pixel_values, const at::Tensor& labels, int64_t channels);

// Returns the logits and, if labels are defined, their mean_cross_entropy.
ImageClassifierOutput with_class_loss(const at::Tensor& logits, const at::Tensor& labels);

}  // namespace fsdp::models
