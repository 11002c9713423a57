#include "planner/report/text_row.h"

#include <iomanip>
#include <sstream>

namespace fsdp::planner {

std::string fixed_text(double value, int digits) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(digits) << value;
  const bool is_zero = text.str().find_first_not_of("-0.") == std::string::npos;
  return is_zero && text.str().front() == '-' ? text.str().substr(1) : text.str();
}

std::string row(int indent, const std::string& name, const std::string& figure, const std::string& remark) {
  constexpr int kName = 38, kFigure = 12;
  std::ostringstream out;
  out << std::string(static_cast<size_t>(indent), ' ') << std::left << std::setw(kName - indent) << name << std::right
      << std::setw(kFigure) << figure << (remark.empty() ? "" : "   ") << remark << "\n";
  return out.str();
}

}  // namespace fsdp::planner
