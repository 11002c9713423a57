#include "report_page/page_elements.h"

#include "report_page/page_assets.h"
#include "report_page/page_text.h"

namespace fsdp::trainer {

namespace {

// The head of the page, with a policy that prevents the page from loading or sending anything.
constexpr const char* kHead =
    "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'\">\n"
    "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
    "<meta name=\"color-scheme\" content=\"light dark\">\n";

std::string asset(const char* tag, std::string_view text) {
  return std::string("<") + tag + ">\n" + std::string(text) + "\n</" + tag + ">\n";
}

}  // namespace

std::string element(const std::string& tag, const std::string& text) {
  return "<" + tag + ">" + html_text(text) + "</" + tag + ">";
}

std::string table_html(const Table& table) {
  std::string html = "<div class=\"wide\"><table>\n<thead><tr>";
  for (const std::string& column : table.columns) html += "<th scope=\"col\">" + html_text(column) + "</th>";
  html += "</tr></thead>\n<tbody>\n";
  for (const auto& [name, cells] : table.rows) {
    html += "<tr><th scope=\"row\">" + html_text(name) + "</th>";
    for (const std::string& cell : cells) html += element("td", cell);
    html += "</tr>\n";
  }
  return html + "</tbody>\n</table></div>\n";
}

std::string figure(const std::string& id, const std::string& title, const std::string& summary) {
  return "<figure id=\"" + id + "\"><figcaption>" + html_text(title) +
         "</figcaption><div class=\"legend\"></div><div class=\"plot\" role=\"img\" aria-label=\"" +
         html_text(summary) + "\"></div></figure>\n";
}

std::string whole_page(const std::string& title, const std::string& body, const nlohmann::ordered_json& data,
                       const std::string& maker) {
  return kHead + element("title", title) + "\n" + asset("style", kDygraphsCss) + asset("style", kReportCss) +
         "</head>\n<body>\n<main>\n" + element("h1", title) + "\n" + body +
         "</main>\n<noscript><p>The plots need JavaScript.</p></noscript>\n<footer>Made by " + html_text(maker) +
         ". Plots by dygraphs.</footer>\n<!--\n" + std::string(kDygraphsLicence) +
         "-->\n<script type=\"application/json\" id=\"data\">" + script_json(data) + "</script>\n" +
         asset("script", kDygraphsJs) + asset("script", kReportJs) + "</body>\n</html>\n";
}

}  // namespace fsdp::trainer
