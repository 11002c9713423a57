// Orders of work of a pipeline, as data: which rank runs which pass of which stage on which micro-batch, and when it
// sends and receives. They are made, checked, simulated, and read from and written to the CSV files of
// torch.distributed.pipelining. There are no tensors and there is no communication here: every function depends on its
// arguments alone, and may be called on any thread.
//
//   auto schedule = fsdp::with_communication(fsdp::make_pipeline_schedule("1F1B", 4, 1, 8));
//   fsdp::check_pipeline_schedule(schedule);
//   double bubble = fsdp::simulate_pipeline(schedule, std::vector<fsdp::StageCosts>(4)).bubble;
//
// A stage is a part of a model that one rank of the pipeline runs; stages are numbered in the order of the model. A
// rank may hold several. A micro-batch is one of the equal parts of a step's samples that pass through the stages one
// after the other.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

enum class PipelineActionKind : uint8_t {
  kForward,          // F
  kBackward,         // B: gradients of the stage's inputs and of its weights
  kInputGradient,    // I: gradients of the stage's inputs alone, which the stage before waits for
  kWeightGradient,   // W: gradients of the weights, after I
  kUnshard,          // the stage's parameters are needed soon
  kReshard,          // they are not needed for a while
  kReduceGradients,  // REDUCE_GRAD: all gradients of the step are there
  kSendForward,      // SEND_F: the stage's outputs, to the next stage
  kReceiveForward,   // RECV_F: the stage's inputs, from the stage before
  kSendBackward,     // SEND_B: the gradients of the stage's inputs, to the stage before
  kReceiveBackward,  // RECV_B: the gradients of the stage's outputs, from the next stage
};

// As in torch.distributed.pipelining: "F", "B", "I", "W", "UNSHARD", "RESHARD", "REDUCE_GRAD", "SEND_F", …
const char* to_string(PipelineActionKind kind);

// Returns whether the kind is one of the four that compute: F, B, I, W.
bool computes(PipelineActionKind kind);

// Returns whether actions of the kind are of one micro-batch: not kUnshard, kReshard and kReduceGradients.
bool has_micro_batch(PipelineActionKind kind);

struct PipelineAction {
  int stage = 0;
  PipelineActionKind kind = PipelineActionKind::kForward;
  std::optional<int> micro_batch;  // where has_micro_batch(kind)

  friend bool operator==(const PipelineAction& a, const PipelineAction& b) {
    return a.stage == b.stage && a.kind == b.kind && a.micro_batch == b.micro_batch;
  }
  friend bool operator!=(const PipelineAction& a, const PipelineAction& b) { return !(a == b); }
};

// Stage, kind, micro-batch, as torch.distributed.pipelining writes them: "2F0", "1UNSHARD", "3SEND_F1".
std::string to_string(const PipelineAction& action);

// The reverse of to_string. Throws c10::Error if the text is not an action.
PipelineAction parse_pipeline_action(std::string_view text);

struct PipelineSchedule {
  int micro_batches = 0;
  std::vector<int> rank_of_stage;                      // the rank of the pipeline that holds each stage
  std::vector<std::vector<PipelineAction>> of_rank{};  // what each rank does, in this order

  int ranks() const { return static_cast<int>(of_rank.size()); }
  int stages() const { return static_cast<int>(rank_of_stage.size()); }
  std::vector<int> stages_of(int rank) const;  // those that a rank holds, ascending
};

// The names that make_pipeline_schedule takes.
const std::vector<std::string>& pipeline_schedule_names();

// Returns whether make_pipeline_schedule takes this name.
bool is_pipeline_schedule_name(std::string_view name);

// Returns the number of stages a rank that the schedule of this name takes, or nothing if it takes any. Throws
// c10::Error for an unknown name.
std::optional<int> stages_per_rank_of(std::string_view name);

// Makes an order of passes, without communication. In upper or lower case, as in PyTorch:
//   GPipe                  all forward passes, then all backward passes (Huang et al. 2019)
//   1F1B                   as few forward passes ahead as keep all ranks busy (PipeDream-Flush, Narayanan et al. 2021)
//   Interleaved1F1B        1F1B with several stages a rank, for a smaller bubble (Narayanan et al. 2021, section 2.2)
//   InterleavedZeroBubble  with weight gradients apart, which fill the bubble; with one stage a rank this is ZB-H1
//                          (Qi et al. 2023, section 3), whose activations take as much memory as those of 1F1B
//   ZBVZeroBubble          two stages a rank, placed in a V: rank 0 has the first and the last (Qi et al. 2023, section
//   6)
// GPipe and 1F1B take one stage a rank; where micro-batches are more than ranks, the interleaved ones take a number of
// them that micro_batches / ranks (rounded down) divides. The orders are those of torch.distributed.pipelining. Throws
// c10::Error if the arguments do not fit, naming the argument, its value and what is accepted.
PipelineSchedule make_pipeline_schedule(std::string_view name, int ranks, int stages_per_rank, int micro_batches);

// Returns whether there are only passes in it: no sends, receives, hints or reductions.
bool has_passes_only(const PipelineSchedule& schedule);

// Adds sends, receives, hints to gather and release stages, and reductions of gradients to an order of passes. A rank
// receives what another one sends in the order of the sends, and no later than it uses it. Between two stages of one
// rank nothing is sent. max_active_stages: stages of a rank that may be gathered at the same time. Throws c10::Error if
// the order contains anything but passes, or if ranks would wait for one another for ever.
PipelineSchedule with_communication(const PipelineSchedule& passes, int max_active_stages = 3);

struct PipelineScheduleFacts {
  bool communicates = false;        // whether sends and receives are in it
  std::vector<int> most_in_flight;  // by stage: micro-batches whose forward pass has run and whose last backward
                                    // pass (B, or W) has not, at most
  std::vector<int> most_in_flight_of_rank;  // summed over the stages of each rank, at most
};

// Proves that a schedule can run, by going through it: every stage runs each micro-batch forward once and backward once
// (B, or I and W), in this order; stages of neighbouring numbers exchange exactly what they need; on each way from one
// rank to another, receives stand in the order of the sends; no rank waits for ever, given that sends do not wait for
// their receivers; gradients are reduced once, at the end. Throws c10::Error that names rank, action and its place.
PipelineScheduleFacts check_pipeline_schedule(const PipelineSchedule& schedule);

// Seconds, or any other unit. A B takes as long as I and W together.
struct StageCosts {
  double forward = 1, input_gradient = 1, weight_gradient = 1;
  double send = 0;  // from the end of a pass to its result's arrival at another rank, beside the passes of both
};

struct SimulatedPass {
  PipelineAction action;
  double begin = 0, end = 0;
};

struct PipelineSimulation {
  double seconds = 0;  // from the first pass to the last one's end
  double bubble = 0;   // the part of it, averaged over the ranks, in which a rank runs no pass: 0 to 1
  std::vector<std::vector<SimulatedPass>> of_rank{};
};

// Runs the passes of a schedule with these costs of each stage. Each begins when the rank's pass before it has ended
// and its inputs have arrived. Throws c10::Error if the schedule cannot run (check_pipeline_schedule), or if there are
// not as many costs as stages.
PipelineSimulation simulate_pipeline(const PipelineSchedule& schedule, const std::vector<StageCosts>& of_stage);

// Reads a schedule from the CSV form of torch.distributed.pipelining, with or without communication: a line for each
// rank, an action in each cell; empty cells are left out. `source` names the file in errors. Throws c10::Error that
// names line and cell if a cell is no action, or if a stage stands in the lines of two ranks or in none. Does not check
// whether the schedule can run.
PipelineSchedule read_pipeline_csv(std::istream& stream, const std::string& source);

// Writes a schedule in that form.
void write_pipeline_csv(std::ostream& stream, const PipelineSchedule& schedule);

}  // namespace fsdp
