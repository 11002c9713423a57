// Loading on all ranks: first they agree on what fits, then each reads it.
#pragma once

#include <memory>
#include <string>

#include "state/agreed_report.h"

namespace fsdp {

class Loader {
 public:
  virtual ~Loader() = default;
  // What fits on this rank.
  virtual LoadReport match() = 0;
  // Reads what is named in `agreed.loaded`.
  virtual void load(const LoadReport& agreed) = 0;
};

// `make` is run on each rank, and its error is one of all. Collective.
inline LoadReport load_together(const Exchange& exchange, const std::string& name, bool strict,
                                const std::function<std::unique_ptr<Loader>()>& make) {
  std::unique_ptr<Loader> loader;
  const LoadReport report = agree(exchange, name, strict, [&] {
    loader = make();
    return loader->match();
  });
  loader->load(report);
  return report;
}

}  // namespace fsdp
