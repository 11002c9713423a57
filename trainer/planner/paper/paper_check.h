// What the paper's text states beside a figure, and what plans give.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace fsdp::planner {

enum class Agreement : uint8_t { kAgrees, kDiffers, kNotChecked };

// "agrees", "differs", "not checked"
const char* to_string(Agreement agreement);

struct PaperCheck {
  std::string figure;    // "7(b)"
  std::string what;      // "TFLOP/s of a GPU, batch 1"
  std::string paper;     // the statement of its text
  std::string accepted;  // "155.7 to 190.3"
  std::string planned;
  Agreement agreement = Agreement::kNotChecked;
};

nlohmann::ordered_json check_json(const PaperCheck& check);

// "12.5 to 13.1 %"; one number if all are shown alike.
std::string range_text(const std::vector<double>& values, int digits, const std::string& unit);

// A range that all values have to be in.
struct AcceptedRange {
  double low = 0;
  double high = 0;
  int digits = 1;
  std::string unit = {};  // " %"
};

PaperCheck check_within(const std::string& figure, const std::string& what, const std::string& paper,
                        const AcceptedRange& range, const std::vector<double>& values);

}  // namespace fsdp::planner
