// The paper's figures, as curves of plans.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "planner/paper/paper_plans.h"

namespace fsdp::planner {

struct PaperCurve {
  std::string name;
  std::vector<std::pair<int64_t, double>> points;
  bool is_stated = false;  // in the paper's text
};

struct PaperFigure {
  std::string id;     // "7b"
  std::string title;  // "7(b): TFLOP/s of a GPU, minGPT-175B"
  std::string x;      // "GPUs"
  std::string y;      // "TFLOP/s"
  std::vector<PaperCurve> curves;
};

std::vector<PaperFigure> paper_figures(const PaperPlans& plans);

nlohmann::ordered_json figure_json(const PaperFigure& figure);

}  // namespace fsdp::planner
