#include "models/image_config.h"

#include <c10/util/StringUtil.h>

namespace fsdp::models {

int64_t parse_num_labels(const ConfigReader& config) {
  config.choice("problem_type", "", {"single_label_classification"});
  config.refuse_quantized();
  const nlohmann::json& names = config.at("id2label");
  if (!names.is_null() && !names.is_object()) config.refuse("id2label", "an object of at least 2 classes");
  const auto named = static_cast<int64_t>(names.size());
  const int64_t classes = config.positive_integer("num_labels", names.is_null() ? 2 : named);
  if (!names.is_null() && classes != named) {
    config.refuse("num_labels", c10::str("the number of classes in id2label, ", named));
  }
  if (classes < 2) config.refuse(names.is_null() ? "num_labels" : "id2label", "at least 2 classes");
  return classes;
}

}  // namespace fsdp::models
