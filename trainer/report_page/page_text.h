// Text of the page.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace fsdp::trainer {

// For the content of an element and for an attribute in quotes.
std::string html_text(std::string_view text);

// For a <script> element of type application/json: nothing in it ends the element.
std::string script_json(const nlohmann::ordered_json& data);

// "3.217", "0.00005", "1.2e+09"; "not finite" for NaN and infinities.
std::string number_text(double value);
// "512 B", "1.50 GiB".
std::string bytes_text(double bytes);

}  // namespace fsdp::trainer
