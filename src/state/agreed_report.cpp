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

std::string text_of(const LoadReport& report, const std::string& part) {
  json mismatched = json::array();
  for (const Mismatch& entry : report.mismatched) mismatched.push_back({entry.name, entry.given, entry.expected});
  return json{{"part", part},
              {"loaded", report.loaded},
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
    Part& part = parts_[report.at("part").get<std::string>()];
    ++part.ranks;
    const std::vector<std::string> loaded = names("loaded");  // twice if two stages of a rank have it
    for (const std::string& name : std::set<std::string>(loaded.begin(), loaded.end())) ++part.loaded[name];
    for (const std::string& name : names("missing")) missing_.insert(name);
    for (const std::string& name : names("unexpected")) part.unexpected.insert(name);
    for (const json& entry : report.at("mismatched")) {
      mismatched_.emplace(entry.at(0), Mismatch{entry.at(0), entry.at(1), entry.at(2)});
    }
    renamed_.merge(report.at("renamed").get<std::map<std::string, std::string>>());
  }

  LoadReport report() const {
    LoadReport report;
    const std::set<std::string> names = loaded();
    report.loaded.assign(names.begin(), names.end());
    for (const std::string& name : report.loaded) {
      if (const auto found = renamed_.find(name); found != renamed_.end()) report.renamed.insert(*found);
    }
    report.missing.assign(missing_.begin(), missing_.end());
    report.unexpected = unexpected();
    for (const auto& [name, entry] : mismatched_) report.mismatched.push_back(entry);
    return report;
  }

 private:
  // The ranks that hold the same part of the model.
  struct Part {
    int ranks = 0;
    std::map<std::string, int> loaded{};  // by name, the ranks that can load it
    std::set<std::string> unexpected{};
  };

  std::set<std::string> loaded() const {
    std::set<std::string> names;
    for (const auto& [text, part] : parts_) {
      for (const auto& [name, ranks] : part.loaded) names.insert(name);
    }
    std::erase_if(names, [this](const std::string& name) { return !can_be_loaded(name); });
    return names;
  }

  bool can_be_loaded(const std::string& name) const {
    const bool by_all = std::all_of(parts_.begin(), parts_.end(), [&](const auto& entry) {
      const auto found = entry.second.loaded.find(name);
      return found == entry.second.loaded.end() || found->second == entry.second.ranks;
    });
    return by_all && missing_.count(name) == 0 && mismatched_.count(name) == 0;
  }

  std::vector<std::string> unexpected() const {
    std::vector<std::string> names;
    const std::set<std::string>& first = parts_.begin()->second.unexpected;
    std::copy_if(first.begin(), first.end(), std::back_inserter(names), [this](const std::string& name) {
      return std::all_of(parts_.begin(), parts_.end(),
                         [&](const auto& entry) { return entry.second.unexpected.count(name) > 0; });
    });
    return names;
  }

  std::map<std::string, Part> parts_;
  std::map<std::string, std::string> renamed_;
  std::set<std::string> missing_;
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
                 const std::function<LoadReport()>& match, const std::string& part) {
  Merged merged;
  for (const std::string& text : together(exchange, name, [&] { return text_of(match(), part); })) merged.add(text);
  LoadReport report = merged.report();
  if (strict && !report.complete()) {
    throw ErrorOfAllRanks({__func__, __FILE__, __LINE__},
                          c10::str(name, " failed: it does not fit this model:", report.text()));
  }
  return report;
}

}  // namespace fsdp::state
