// Sentences of errors about numbers that do not fit the ranks.
#pragma once

#include <cstdint>
#include <string>

#include "config/config.h"
#include "config/errors.h"

namespace fsdp::trainer {

// Returns the divisors of `number` from `first` to `last`, as in "1, 2, 4".
std::string divisors(int64_t number, int64_t first, int64_t last);

// Returns the error that `value` does not fit the strategy on `ranks` ranks, with the accepted values.
ConfigError not_fitting(const std::string& key, int64_t value, const ShardingConfig& sharding, int64_t ranks,
                        const std::string& accepted);

}  // namespace fsdp::trainer
