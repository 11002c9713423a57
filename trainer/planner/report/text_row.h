// Numbers, and rows of tables, that a plan prints.
#pragma once

#include <string>

namespace fsdp::planner {

// "12.5"
std::string fixed_text(double value, int digits);

// A name, a figure that ends in the same column in all rows, and a remark.
std::string row(int indent, const std::string& name, const std::string& figure, const std::string& remark = "");

}  // namespace fsdp::planner
