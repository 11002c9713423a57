#include "state/agreed_report.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "fsdp/errors.h"

namespace fsdp::state {

namespace {

using nlohmann::json;

std::string text_of(const LoadReport& report) {
  json mismatched = json::array();
  for (const Mismatch& entry : report.mismatched) mismatched.push_back({entry.name, entry.given, entry.expected});
  return json{{"loaded", report.loaded},
              {"renamed", report.renamed},
              {"missing", report.missing},
              {"unexpected", report.unexpected},
              {"mismatched", mismatched}}
      .dump();
}

// Collects the reports of all ranks.
class Merged {
 public:
  void add(const std::string& text) {
    const json report = json::parse(text);
    const auto names = [&](const char* key) { return report.at(key).get<std::vector<std::string>>(); };
    for (const std::string& name : names("loaded")) ++loaded_[name];
    for (const std::string& name : names("missing")) missing_.insert(name);
    for (const std::string& name : names("unexpected")) unexpected_.insert(name);
    for (const json& entry : report.at("mismatched")) {
      mismatched_.emplace(entry.at(0), Mismatch{entry.at(0), entry.at(1), entry.at(2)});
    }
    renamed_.merge(report.at("renamed").get<std::map<std::string, std::string>>());
    ++ranks_;
  }

  LoadReport report() const {
    LoadReport report;
    for (const auto& [name, ranks] : loaded_) {
      if (ranks == ranks_) report.loaded.push_back(name);
    }
    for (const std::string& name : report.loaded) {
      if (const auto found = renamed_.find(name); found != renamed_.end()) report.renamed.insert(*found);
    }
    report.missing.assign(missing_.begin(), missing_.end());
    report.unexpected.assign(unexpected_.begin(), unexpected_.end());
    for (const auto& [name, entry] : mismatched_) report.mismatched.push_back(entry);
    return report;
  }

 private:
  int ranks_ = 0;
  std::map<std::string, int> loaded_;
  std::map<std::string, std::string> renamed_;
  std::set<std::string> missing_, unexpected_;
  std::map<std::string, Mismatch> mismatched_;
};

}  // namespace

void append(LoadReport from, LoadReport& to) {
  const auto move_all = [](auto& some, auto& all) {
    all.insert(all.end(), std::make_move_iterator(some.begin()), std::make_move_iterator(some.end()));
  };
  move_all(from.loaded, to.loaded);
  move_all(from.missing, to.missing);
  move_all(from.unexpected, to.unexpected);
  move_all(from.mismatched, to.mismatched);
  to.renamed.merge(from.renamed);
}

LoadReport agree(const Exchange& exchange, const std::string& name, bool strict,
                 const std::function<LoadReport()>& match) {
  Merged merged;
  for (const std::string& text : together(exchange, name, [&] { return text_of(match()); })) merged.add(text);
  LoadReport report = merged.report();
  if (strict && !report.complete()) {
    throw ErrorOfAllRanks({__func__, __FILE__, __LINE__},
                          c10::str(name, " failed: it does not fit this model:", report.text()));
  }
  return report;
}

}  // namespace fsdp::state
