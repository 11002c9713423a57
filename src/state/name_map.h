// Names of the given tensors, after renaming.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "fsdp/load_report.h"

namespace fsdp::state {

struct GivenName {
  std::string name;   // in this model
  std::string given;  // in the source
};

class NameMap {
 public:
  // Two given names that are renamed to the same name are an error that names them.
  NameMap(const std::set<std::string>& given, const Rename& rename);

  // Returns the given names that match `names`, in their order, and marks `names` as expected.
  std::vector<GivenName> find(const std::vector<std::string>& names);
  // Returns the names that no find() asked for.
  std::vector<GivenName> unexpected() const;

 private:
  std::map<std::string, std::string> given_;  // by the name in this model
  std::set<std::string> expected_;
};

// The mismatch that the values under a further name of a shared parameter differ from the values under its first name.
Mismatch other_values(const std::string& name, const std::string& first);

// Adds a name to the loaded names.
void note_loaded(LoadReport& report, const std::string& name, const GivenName& found);

}  // namespace fsdp::state
