#include "loop/exchange.h"

#include <c10/util/Exception.h>

#include <cstring>

namespace fsdp::trainer {

std::vector<std::vector<double>> gather_values(Communicator& communicator, const std::vector<double>& values,
                                               const CollectiveId& id) {
  const size_t size = values.size() * sizeof(double);
  const std::string mine(reinterpret_cast<const char*>(values.data()), size);
  std::vector<std::vector<double>> all;
  for (const std::string& bytes : communicator.all_gather_bytes(mine, id)) {
    TORCH_CHECK(bytes.size() == size, "rank ", all.size(), " sent ", bytes.size(), " bytes for \"", id.name,
                "\" instead of ", size);
    all.emplace_back(values.size());
    std::memcpy(all.back().data(), bytes.data(), size);
  }
  return all;
}

}  // namespace fsdp::trainer
