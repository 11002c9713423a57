// Names of what is to be loaded, after renaming.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "fsdp/load_report.h"

namespace fsdp {

struct GivenName {
  std::string name;   // here
  std::string given;  // in what is loaded
};

class NameMap {
 public:
  // Two that get one name are an error that names them.
  NameMap(const std::set<std::string>& given, const Rename& rename);

  // What is given under these names, in their order; it is expected then.
  std::vector<GivenName> find(const std::vector<std::string>& names);
  // Names of what nobody has asked for.
  std::vector<GivenName> unexpected() const;

 private:
  std::map<std::string, std::string> given_;  // by name here
  std::set<std::string> expected_;
};

// Says that values under a further name of a shared parameter are not those under its first.
Mismatch other_values(const std::string& name, const std::string& first);

// Adds a name to what is loaded.
void note_loaded(LoadReport& report, const std::string& name, const GivenName& found);

}  // namespace fsdp
