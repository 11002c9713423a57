// Files of the page, embedded when the program is built: the files in report_page/page, and the files of dygraphs.
#pragma once

#include <string_view>

namespace fsdp::trainer {

extern const std::string_view kReportCss;
extern const std::string_view kReportJs;
extern const std::string_view kDygraphsCss;
extern const std::string_view kDygraphsJs;
extern const std::string_view kDygraphsLicence;

}  // namespace fsdp::trainer
