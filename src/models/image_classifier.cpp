#include "models/image_classifier.h"

#include <c10/util/Exception.h>

#include "models/loss.h"

namespace fsdp::models {

void check_images(const char* model, const at::Tensor& pixel_values, const at::Tensor& labels, int64_t channels) {
  TORCH_CHECK(pixel_values.dim() == 4 && pixel_values.size(1) == channels, model, ": pixel_values must be [batch, ",
              channels, ", height, width], is of shape ", pixel_values.sizes());
  TORCH_CHECK(!labels.defined() || labels.sizes() == pixel_values.sizes().slice(0, 1), model, ": labels are of shape ",
              labels.sizes(), "; for ", pixel_values.size(0), " images they must be [", pixel_values.size(0), "]");
}

ImageClassifierOutput with_class_loss(const at::Tensor& logits, const at::Tensor& labels) {
  return {.loss = labels.defined() ? mean_cross_entropy(logits, labels) : at::Tensor(), .logits = logits};
}

}  // namespace fsdp::models
