#include "fuzz_training/printer.h"

#include <sstream>

#include "fuzz_training/actions.h"

namespace fsdp::fuzz {
namespace {

// Returns a value as a C++ initialiser: {.kind = "linear", .children = {{}}}.
std::string initialiser(const Json& value) {
  if (!value.is_structured()) return value.dump();
  std::ostringstream text;
  const char* separator = "";
  text << "{";
  for (const auto& [name, inner] : value.items()) {
    text << separator;
    if (value.is_object()) text << "." << name << " = ";
    text << initialiser(inner);
    separator = ", ";
  }
  text << "}";
  return text.str();
}

std::string zero_text(const std::string& zero) {
  if (zero == "sharded") return "sharded->zero_grad(); ";
  if (zero == "sharded_zeros") return "sharded->zero_grad(false); ";
  if (zero == "module") return "net->zero_grad(); ";
  if (zero == "module_zeros") return "net->zero_grad(false); ";
  if (zero == "optimizer") return "optimizer.zero_grad(); ";
  return "";
}

std::string actions_text(const std::vector<std::string>& actions) {
  std::string text;
  for (const std::string& name : actions) text += action_of(name).call + " ";
  return text;
}

std::string pass_text(const Pass& pass) {
  std::string text;
  for (int64_t i = 0; i < pass.forwards; ++i) text += "forward; ";
  text += actions_text(pass.between) + "backward";
  if (pass.backward != "plain") text += " (" + pass.backward + ")";
  if (!pass.sync) text += " without sync";
  return text + "; ";
}

// Returns the calls of a rank in one line.
std::string step_text(const Step& step) {
  std::string text = zero_text(step.zero) + actions_text(step.before);
  for (const Pass& pass : step.passes) text += pass_text(pass);
  text += actions_text(step.ready);
  if (step.clip > 0) text += "sharded->clip_grad_norm_(); ";
  if (step.optimize) text += "optimizer.step(); ";
  return text + actions_text(step.after);
}

std::string test_text(uint64_t seed, const Case& training) {
  std::ostringstream text;
  text << "TEST(FuzzTraining, Seed" << seed << ") {\n";
  for (const Step& step : training.steps) text << "  // " << step_text(step) << "\n";
  text << "  const Case training = " << initialiser(to_json(training)) << ";\n"
       << "  const Verdict verdict = run_isolated(training, std::chrono::seconds(60));\n"
       << "  EXPECT_TRUE(verdict.passed) << verdict.text;\n}\n";
  return text.str();
}

}  // namespace

std::string failure_text(uint64_t seed, const Case& training, const Verdict& verdict) {
  std::ostringstream text;
  text << "seed " << seed << " failed: " << verdict.way << "\n"
       << verdict.text << "\n"
       << test_text(seed, training) << "fuzz_training --case '" << to_json(training).dump() << "'\n\n";
  return text.str();
}

}  // namespace fsdp::fuzz
