#include "config/refusals.h"

#include <c10/util/StringUtil.h>

#include "config/config_names.h"

namespace fsdp::trainer {

std::string divisors(int64_t number, int64_t first, int64_t last) {
  std::string list;
  for (int64_t d = first; d <= last; ++d) {
    if (number % d == 0) list += c10::str(list.empty() ? "" : ", ", d);
  }
  return list;
}

ConfigError not_fitting(const std::string& key, int64_t value, const ShardingConfig& sharding, int64_t ranks,
                        const std::string& accepted) {
  return ConfigError(c10::str("key \"", key, "\": ", value, " does not fit sharding_strategy \"",
                              config_name(sharding.strategy), "\" on ", ranks, " rank(s); accepted: ", accepted));
}

}  // namespace fsdp::trainer
