#include "commands/schedule_drawing.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <vector>

namespace fsdp::trainer {
namespace {

using Kind = PipelineActionKind;

bool has_several_stages(const PipelineSchedule& schedule) { return schedule.stages() > schedule.ranks(); }

std::string label_of(const PipelineAction& action, bool with_stage) {
  const std::string text = to_string(action);
  return with_stage ? text : text.substr(std::to_string(action.stage).size());
}

double shortest_pass(const PipelineSimulation& simulation) {
  double shortest = std::numeric_limits<double>::infinity();
  for (const auto& passes : simulation.of_rank) {
    for (const SimulatedPass& pass : passes) {
      if (pass.end > pass.begin) shortest = std::min(shortest, pass.end - pass.begin);
    }
  }
  return std::isfinite(shortest) ? shortest : 1;
}

// Returns the characters that the longest label needs, with a bar in front of it.
size_t column_width(const PipelineSimulation& simulation, bool with_stage) {
  size_t longest = 0;
  for (const auto& passes : simulation.of_rank) {
    for (const SimulatedPass& pass : passes) longest = std::max(longest, label_of(pass.action, with_stage).size());
  }
  return longest + 1;
}

}  // namespace

std::string schedule_text(const PipelineSchedule& schedule, const PipelineSimulation& simulation) {
  const bool with_stage = has_several_stages(schedule);
  const double column = static_cast<double>(column_width(simulation, with_stage)) / shortest_pass(simulation);
  std::string text;
  for (size_t rank = 0; rank < simulation.of_rank.size(); ++rank) {
    std::string line = "rank " + std::to_string(rank) + " ";
    const size_t start = line.size();
    for (const SimulatedPass& pass : simulation.of_rank[rank]) {
      const auto begin = start + static_cast<size_t>(std::lround(pass.begin * column));
      const auto end = start + static_cast<size_t>(std::lround(pass.end * column));
      if (begin == end) continue;
      line.resize(end + 1, ' ');
      const std::string label = "|" + label_of(pass.action, with_stage);
      line.replace(begin, label.size(), label);
      line[end] = '|';
    }
    text += line + "\n";
  }
  return text;
}

// ---------------------------------------------------------------- picture

namespace {

struct Colour {
  Kind kind;
  const char* name;
  const char* fill;
};
// Readable with dark text; told apart without red and green.
constexpr Colour kColours[] = {{Kind::kForward, "forward (F)", "#9ecae9"},
                               {Kind::kBackward, "backward (B)", "#ffbf79"},
                               {Kind::kInputGradient, "input gradient (I)", "#ffd8a8"},
                               {Kind::kWeightGradient, "weight gradient (W)", "#c9a6d9"}};

constexpr double kRow = 26, kLeft = 58, kTop = 34, kWidth = 900;

std::string formatted(const char* format, double a, double b, double c = 0, double d = 0) {
  char text[200];
  std::snprintf(text, sizeof(text), format, a, b, c, d);
  return text;
}

std::string text_at(double x, double y, const std::string& text, const char* more = "") {
  return formatted("<text x=\"%.1f\" y=\"%.1f\"", x, y) + more + ">" + text + "</text>\n";
}

// Further stages of a rank are paler.
std::string rectangle(const SimulatedPass& pass, const char* fill, double x, double y, double width, int place) {
  return formatted("<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"", x, y, width, kRow - 4) + " fill=\"" +
         fill + "\" fill-opacity=\"" +
         (place == 0   ? "1"
          : place == 1 ? "0.65"
                       : "0.4") +
         "\" stroke=\"#444\" stroke-width=\"0.5\"><title>" + to_string(pass.action) + "</title></rect>\n";
}

// The place of a stage among those of its rank.
int place_of(const PipelineSchedule& schedule, int stage) {
  const auto& ranks = schedule.rank_of_stage;
  return static_cast<int>(std::count(ranks.begin(), ranks.begin() + stage, ranks[static_cast<size_t>(stage)]));
}

std::string legend(const PipelineSimulation& simulation, bool several_stages, double y) {
  std::string text;
  double x = kLeft;
  for (const Colour& colour : kColours) {
    const bool used = std::any_of(simulation.of_rank.begin(), simulation.of_rank.end(), [&](const auto& passes) {
      return std::any_of(passes.begin(), passes.end(),
                         [&](const SimulatedPass& pass) { return pass.action.kind == colour.kind; });
    });
    if (!used) continue;
    text += formatted("<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"", x, y - 10, 12, 12) + " fill=\"" +
            colour.fill + "\" stroke=\"#444\" stroke-width=\"0.5\"/>\n";
    text += text_at(x + 18, y, colour.name);
    x += 150;
  }
  return several_stages ? text + text_at(x, y, "paler: further stages of a rank") : text;
}

}  // namespace

std::string schedule_svg(const PipelineSchedule& schedule, const PipelineSimulation& simulation,
                         const std::string& title) {
  const double scale = kWidth / std::max(simulation.seconds, 1e-9);
  const double height = kTop + kRow * static_cast<double>(schedule.ranks()) + 34;
  std::string svg =
      formatted("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 %.0f %.0f\"",
                kLeft + kWidth + 12, height, kLeft + kWidth + 12, height) +
      " font-family=\"sans-serif\" font-size=\"12\">\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n";
  svg += text_at(kLeft, 20, title, " font-size=\"13\" font-weight=\"bold\"");
  for (size_t rank = 0; rank < simulation.of_rank.size(); ++rank) {
    const double y = kTop + kRow * static_cast<double>(rank);
    svg += text_at(8, y + 15, "rank " + std::to_string(rank));
    svg += formatted("<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"#eee\"/>\n", kLeft, y, kWidth,
                     kRow - 4);
    for (const SimulatedPass& pass : simulation.of_rank[rank]) {
      const auto* colour = std::find_if(std::begin(kColours), std::end(kColours),
                                        [&](const Colour& one) { return one.kind == pass.action.kind; });
      const double x = kLeft + pass.begin * scale, width = (pass.end - pass.begin) * scale;
      svg += rectangle(pass, colour->fill, x, y, width, place_of(schedule, pass.action.stage));
      if (width >= 11) {
        svg += text_at(x + width / 2, y + 15, std::to_string(*pass.action.micro_batch), " text-anchor=\"middle\"");
      }
    }
  }
  return svg + legend(simulation, has_several_stages(schedule), height - 12) + "</svg>\n";
}

}  // namespace fsdp::trainer
