// Formats text for the page.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace fsdp::trainer {

// Escapes text for the content of an element and for a quoted attribute.
std::string html_text(std::string_view text);

// Formats JSON for a <script> element of type application/json, so that no part of it ends the element.
std::string script_json(const nlohmann::ordered_json& data);

// Formats a number: "3.217", "0.00005", "1.2e+09"; "not finite" for NaN and infinities.
std::string number_text(double value);
// Formats a number of bytes: "512 B", "1.50 GiB".
std::string bytes_text(double bytes);

}  // namespace fsdp::trainer
