#include "planner/report/text_row.h"

#include <iomanip>
#include <sstream>

namespace fsdp::planner {

std::string row(int indent, const std::string& name, const std::string& figure, const std::string& remark) {
  constexpr int kName = 38, kFigure = 12;
  std::ostringstream out;
  out << std::string(static_cast<size_t>(indent), ' ') << std::left << std::setw(kName - indent) << name << std::right
      << std::setw(kFigure) << figure << (remark.empty() ? "" : "   ") << remark << "\n";
  return out.str();
}

}  // namespace fsdp::planner
