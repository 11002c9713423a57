#include <set>

#include "planner/paper/paper_document.h"
#include "planner/report/plan_tables.h"
#include "report_page/page_elements.h"
#include "report_page/page_text.h"

namespace fsdp::planner {
namespace {

using nlohmann::ordered_json;
using trainer::element;
using trainer::Table;

std::string member(const ordered_json& object, const char* key) { return object.at(key).get<std::string>(); }

Table checks_table(const ordered_json& checks) {
  Table table{.columns = {"Statement", "", "Planned", "Accepted", "Paper's text"}, .rows = {}};
  for (const ordered_json& check : checks) {
    table.rows.push_back(
        {member(check, "what"),
         {member(check, "agreement"), member(check, "planned"), member(check, "accepted"), member(check, "paper")}});
  }
  return table;
}

Table volumes_table(const ordered_json& volumes) {
  Table table{.columns = {"Strategy", "GPUs", "Bytes", "Paper's formula", "Schedule's formula", "Planned", ""},
              .rows = {}};
  const auto with_bytes = [](const std::string& formula, const ordered_json& bytes) {
    return formula + " = " + grouped_digits(bytes.get<int64_t>());
  };
  for (const ordered_json& volume : volumes) {
    const bool corrected = volume.contains("schedule_formula");
    table.rows.push_back(
        {member(volume, "strategy"),
         {volume.at("gpus").dump(), member(volume, "sent"),
          with_bytes(member(volume, "formula"), volume.at("formula_bytes")),
          corrected ? with_bytes(member(volume, "schedule_formula"), volume.at("schedule_bytes")) : "the same",
          grouped_digits(volume.at("planned_bytes").get<int64_t>()),
          volume.at("exact").get<bool>() ? "exact" : "differs"}});
  }
  return table;
}

// As plot_json, with names and an axis of its own.
ordered_json plot_of(const ordered_json& figure) {
  ordered_json plot = {{"id", figure.at("id")}, {"unit", ""}, {"from_zero", true}, {"x", figure.at("x")}};
  plot["runs"] = ordered_json::array();
  plot["curves"] = ordered_json::array();
  for (const ordered_json& curve : figure.at("curves")) {
    ordered_json xs = ordered_json::array(), ys = ordered_json::array();
    for (const ordered_json& point : curve.at("points")) {
      xs.push_back(point.at(0));
      ys.push_back(point.at(1));
    }
    plot["curves"].push_back(
        {{"run", plot["runs"].size()}, {"as_dots", curve.at("stated")}, {"steps", xs}, {"values", ys}});
    plot["runs"].push_back(curve.at("name"));
  }
  return plot;
}

// "even inputs: 12.3 at 24 to 45.6 at 30."
std::string summary_of(const ordered_json& figure) {
  std::string text = member(figure, "title") + ".";
  for (const ordered_json& curve : figure.at("curves")) {
    const ordered_json& points = curve.at("points");
    if (points.empty()) continue;
    const auto at = [&](const ordered_json& point) {
      return trainer::number_text(point.at(1).get<double>()) + " at " + point.at(0).dump();
    };
    text += " " + member(curve, "name") + ": " + at(points.front()) + " to " + at(points.back()) + ".";
  }
  return text;
}

// "7(b)" of the figure "7b"
std::string name_of(const ordered_json& figure) {
  const auto id = member(figure, "id");
  return id.substr(0, 1) + "(" + id.substr(1) + ")";
}

ordered_json checks_beside(const ordered_json& figure, const ordered_json& checks) {
  ordered_json beside = ordered_json::array();
  for (const ordered_json& check : checks) {
    if (member(check, "figure") == name_of(figure)) beside.push_back(check);
  }
  return beside;
}

std::string figure_section(const ordered_json& figure, const ordered_json& checks) {
  return "<section>" + element("h2", "Figure " + name_of(figure)) + "\n" +
         trainer::figure("plot-" + member(figure, "id"), member(figure, "title"), summary_of(figure)) +
         table_html(checks_table(checks_beside(figure, checks))) + "</section>\n";
}

// Statements whose figure is not drawn.
std::string other_section(const ordered_json& document) {
  std::set<std::string> drawn;
  for (const ordered_json& figure : document.at("figures")) drawn.insert(name_of(figure));
  std::string html = "<section>" + element("h2", "Not drawn") + "\n";
  for (const ordered_json& check : document.at("checks")) {
    if (drawn.count(member(check, "figure"))) continue;
    html += element("p", member(check, "figure") + ", " + member(check, "what") + ": " + member(check, "planned"));
  }
  return html + "</section>\n";
}

std::string introduction(const ordered_json& document) {
  return "<section>" +
         element("p",
                 "From " + document.at("plans").dump() +
                     " plans: hosts of 8 A100 with 80 GB and a network of 2 Tbit/s each. Nothing is measured, and no "
                     "point of the paper's plots was read: dots are numbers of its text.") +
         element("p",
                 "The speedup of up to 5 times in figure 6(c) is out of scope. It comes from the way in which FSDP1 "
                 "frees memory that another stream still uses; buffers of fsdp.cpp return to their own stream, so that "
                 "plans have no such fragmentation, and no slow backward on 128 GPUs either.") +
         "</section>\n";
}

std::string volumes_section(const ordered_json& document) {
  return "<section>" + element("h2", "Bytes that each rank sends in a step") +
         element("p",
                 "T5-2B in bf16. M: bytes of all parameters; W: GPUs; G: GPUs of a host; K: bytes of the units that a "
                 "step gathers once, since they are still gathered when backward begins.") +
         table_html(volumes_table(document.at("volumes"))) + "</section>\n";
}

}  // namespace

std::string paper_page(const ordered_json& document) {
  ordered_json data = {
      {"runs", ordered_json::array()}, {"plots", ordered_json::array()}, {"steps", ordered_json::array()}};
  std::string body = introduction(document);
  for (const ordered_json& figure : document.at("figures")) {
    data["plots"].push_back(plot_of(figure));
    body += figure_section(figure, document.at("checks"));
  }
  body += other_section(document) + volumes_section(document);
  return trainer::whole_page("The figures of the FSDP paper, planned", body, data, "fsdp plan --paper");
}

}  // namespace fsdp::planner
