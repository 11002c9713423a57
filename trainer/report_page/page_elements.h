// The elements of pages.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "report_page/comparison.h"

namespace fsdp::trainer {

// Returns an element with this text, which is escaped.
std::string element(const std::string& tag, const std::string& text);

std::string table_html(const Table& table);

// Returns the place of a plot, which the script draws. `summary` describes it for readers who cannot see it.
std::string figure(const std::string& id, const std::string& title, const std::string& summary);

// Returns a page that needs no other file. `body`: HTML after the heading. `data`: for the script (page/report.js).
// `maker`: the command that made it.
std::string whole_page(const std::string& title, const std::string& body, const nlohmann::ordered_json& data,
                       const std::string& maker);

}  // namespace fsdp::trainer
