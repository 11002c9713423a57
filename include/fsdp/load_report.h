// What loading state into a sharded model takes, and what it tells: for state dicts and checkpoints.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace fsdp {

// The name here of what has this name in what is loaded. Two names must not become one.
using Rename = std::function<std::string(const std::string& name)>;
// As the map says; names that it does not have stay.
Rename rename_by(std::map<std::string, std::string> names);
// Names that begin with `from` begin with `to` instead; the others stay. replace_prefix("module.", "") takes away what
// DistributedDataParallel adds, replace_prefix("", "encoder.") puts a model below another.
Rename replace_prefix(std::string from, std::string to);

struct LoadOptions {
  // true: what is missing, unexpected or mismatched (LoadReport) is one error that lists all of it, before anything was
  // changed. false: it is skipped, and reported.
  bool strict = true;
  Rename rename = {};  // empty: names stay
  // false: options of the optimizer's parameter groups stay as they are, however the parameters were grouped; what was
  // saved must still be options that this optimizer can have.
  bool optimizer_options = true;
};

// Something that is there, but does not fit.
struct Mismatch {
  std::string name;
  std::string given;     // "F32 [3, 5]"
  std::string expected;  // "BF16 [3, 5]": nothing is cast in silence
};

// Names are those here, after renaming. The same on all ranks: what one of them cannot load, none does.
struct LoadReport {
  std::vector<std::string> loaded;
  std::map<std::string, std::string> renamed;  // of what was loaded: name here, name that it had
  // Of the model, but not in what is loaded: keeps the values that it has.
  std::vector<std::string> missing;
  // In what is loaded, but not of the model: skipped.
  std::vector<std::string> unexpected;
  // Of another shape or dtype, or not all of the elements that a rank needs: skipped, keeps the values that it has.
  std::vector<Mismatch> mismatched;

  // Whether everything was loaded.
  bool complete() const { return missing.empty() && unexpected.empty() && mismatched.empty(); }
  // What is missing, unexpected and mismatched, a line each.
  std::string text() const;
};

}  // namespace fsdp
