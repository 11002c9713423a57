// Models that say which class an image is of.
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

  // pixel_values: [batch, channels, height, width] of the dtype of the parameters. labels: [batch] int64 from 0 to
  // classes - 1, or undefined; -100 is ignored. In training mode batch norms take their statistics from the batch and
  // add them to the running ones, of which evaluation takes them; a recomputation adds nothing.
  virtual ImageClassifierOutput forward(const at::Tensor& pixel_values, const at::Tensor& labels = {}) = 0;

  virtual int64_t num_classes() const = 0;
  virtual int64_t channels() const = 0;
  // Height and width that images must have; nothing: any.
  virtual std::optional<int64_t> image_size() const = 0;
  // Floating point operations of one image's forward and backward, recomputation not counted: those of convolutions,
  // linear layers and attention.
  virtual double flops_per_image(int64_t height, int64_t width) const = 0;
  // Of what activation checkpointing, as it is set, computes once more.
  virtual double recomputed_flops_per_image(int64_t height, int64_t width) const = 0;
};

// As make_causal_lm, for image classifiers; running statistics are of `dtype`, too. FQNs of a model that transformers
// does not have are our own.
std::shared_ptr<ImageClassifier> make_image_classifier(const nlohmann::json& config, c10::ScalarType dtype,
                                                       c10::Device device);

// Throws unless pixel_values is [batch, `channels`, height, width] and labels, if defined, [batch]. `model` is for the
// error.
void check_images(const char* model, const at::Tensor& pixel_values, const at::Tensor& labels, int64_t channels);

// The logits, and if there are labels their mean_cross_entropy.
ImageClassifierOutput with_class_loss(const at::Tensor& logits, const at::Tensor& labels);

}  // namespace fsdp::models
