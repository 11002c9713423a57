// Loading on all ranks: the ranks first agree on what fits, then each rank reads its part.
#pragma once

#include <memory>
#include <string>

#include "state/agreed_report.h"

namespace fsdp::state {

class Loader {
 public:
  virtual ~Loader() = default;
  // Reports what fits on this rank.
  virtual LoadReport match() = 0;
  // Reads the tensors named in `agreed.loaded`.
  virtual void load(const LoadReport& agreed) = 0;
};

// Runs `make` on each rank. If it throws on any rank, all ranks throw. `part`: see agree. Collective.
inline LoadReport load_together(const Exchange& exchange, const std::string& name, bool strict,
                                const std::function<std::unique_ptr<Loader>()>& make, const std::string& part = "") {
  std::unique_ptr<Loader> loader;
  const LoadReport report = agree(
      exchange, name, strict,
      [&] {
        loader = make();
        return loader->match();
      },
      part);
  loader->load(report);
  return report;
}

}  // namespace fsdp::state
