// Options and results of loading state into a sharded model, for state dicts and checkpoints.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace fsdp {

// Maps a name in the loaded data to the name in this model or optimizer. Two names must not map to the same name.
using Rename = std::function<std::string(const std::string& name)>;
// Renames according to the map; names that the map does not contain are unchanged.
Rename rename_by(std::map<std::string, std::string> names);
// Replaces the prefix `from` of names by `to`; names without this prefix are unchanged. replace_prefix("module.", "")
// removes the prefix of DistributedDataParallel; replace_prefix("", "encoder.") places a model below another one.
Rename replace_prefix(std::string from, std::string to);

struct LoadOptions {
  // true: if anything is missing, unexpected or mismatched (LoadReport), throws one error that lists all of it, before
  // anything is changed. false: such names are skipped and reported.
  bool strict = true;
  Rename rename = {};  // empty: names are unchanged
  // false: options of the optimizer's parameter groups are unchanged, however the parameters were grouped. The saved
  // options must still be valid for this optimizer.
  bool optimizer_options = true;
};

// A tensor or value that exists on both sides, but does not fit.
struct Mismatch {
  std::string name;
  std::string given;     // "F32 [3, 5]"
  std::string expected;  // "BF16 [3, 5]": values are never cast silently
};

// Result of loading. Names are those of this model, after renaming. The same on all ranks: if one rank cannot load a
// name, no rank loads it.
struct LoadReport {
  std::vector<std::string> loaded;
  std::map<std::string, std::string> renamed;  // loaded names: name here -> name in the loaded data
  // In the model, but not in the loaded data: keeps its values.
  std::vector<std::string> missing;
  // In the loaded data, but not in the model: skipped.
  std::vector<std::string> unexpected;
  // Another shape or dtype, or not all of the elements that a rank needs: skipped, keeps its values.
  std::vector<Mismatch> mismatched;

  // Whether everything was loaded.
  bool complete() const { return missing.empty() && unexpected.empty() && mismatched.empty(); }
  // Lists everything missing, unexpected and mismatched, one on each line.
  std::string text() const;
};

}  // namespace fsdp
