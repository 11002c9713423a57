#include "planner/paper/paper_figures.h"

#include "planner/paper/bandwidth_figure.h"

namespace fsdp::planner {
namespace {

constexpr int kGatheringHosts = 2;

PaperCurve bandwidth_curve(const std::string& name, GatherForm form, const Cluster& cluster) {
  PaperCurve curve{.name = name, .points = {}};
  for (const int power : gathered_powers()) {
    const int64_t elements = int64_t{1} << power;
    curve.points.emplace_back(power, 4e-9 * static_cast<double>(elements) / gather_seconds(form, elements, cluster));
  }
  return curve;
}

PaperFigure forms_figure(const Cluster& cluster) {
  return {.id = "2a",
          .title = "2(a): GB of output per second of an all-gather among 16 GPUs, by log2 of its elements",
          .x = "log2 of elements",
          .y = "GB/s",
          .curves = {bandwidth_curve("even inputs, one output", GatherForm::kEven, cluster),
                     bandwidth_curve("list of outputs", GatherForm::kList, cluster),
                     bandwidth_curve("1 element uneven", GatherForm::kUneven, cluster),
                     bandwidth_curve("1e6 elements uneven", GatherForm::kUneven1e6, cluster)}};
}

PaperFigure sizes_figure(const Cluster& cluster) {
  PaperCurve curve{.name = "all of 2^30 elements", .points = {}};
  for (const int power : split_powers()) {
    curve.points.emplace_back(power, 1e3 * split_gather_seconds(int64_t{1} << power, cluster));
  }
  return {.id = "2b",
          .title = "2(b): milliseconds of gathering 2^30 fp32 elements among 16 GPUs, by log2 of the elements of each",
          .x = "log2 of elements",
          .y = "ms",
          .curves = {curve}};
}

PaperFigure scale_figure(const PaperPlans& plans) {
  PaperFigure figure{.id = "6a",
                     .title = "6(a): TFLOP/s of a GPU, T5 by millions of parameters, on 8 GPUs; runs that fit",
                     .x = "millions of parameters",
                     .y = "TFLOP/s",
                     .curves = {}};
  const auto add = [&](const std::string& name, const std::string& strategy, const std::string& dtype) {
    PaperCurve curve{.name = name, .points = {}};
    for (const std::string& model : scaled_models()) {
      const PaperRun run = scale_run(model, strategy, dtype);
      const auto millions = plans.of(run).at("model").at("parameters").get<int64_t>() / 1'000'000;
      if (plans.fits(run)) curve.points.emplace_back(millions, plans.tflops(run));
    }
    figure.curves.push_back(curve);
  };
  add("FSDP, bf16", "full_shard", "bf16");
  add("FSDP, fp32", "full_shard", "fp32");
  add("DDP, fp32", "no_shard", "fp32");
  return figure;
}

template <class Value>
PaperCurve gpt_curve(const std::string& name, int64_t batch, const Value& value) {
  PaperCurve curve{.name = name, .points = {}};
  for (const int64_t gpus : gpt_gpus()) curve.points.emplace_back(gpus, value(gpus, batch));
  return curve;
}

std::string batch_text(int64_t batch) { return "batch " + std::to_string(batch); }

PaperFigure prefetch_figure(const PaperPlans& plans) {
  PaperFigure figure{.id = "6b",
                     .title = "6(b): TFLOP/s of a GPU with and without backward prefetching, 175B, by GPUs",
                     .x = "GPUs",
                     .y = "TFLOP/s",
                     .curves = {}};
  for (const int64_t batch : gpt_batches()) {
    for (const bool prefetches : {true, false}) {
      figure.curves.push_back(
          gpt_curve(batch_text(batch) + (prefetches ? "" : ", no prefetching"), batch,
                    [&](int64_t gpus, int64_t of) { return plans.tflops(gpt_run(gpus, of, prefetches)); }));
    }
  }
  return figure;
}

PaperFigure limiter_figure(const PaperPlans& plans) {
  PaperFigure figure{.id = "6c",
                     .title = "6(c): TFLOP/s of a GPU with and without the rate limiter, by hosts of 8",
                     .x = "hosts",
                     .y = "TFLOP/s",
                     .curves = {}};
  for (const char* model : {"regnet-9b", "deepvit-8b", "t5-11b"}) {
    for (const bool is_limited : {true, false}) {
      PaperCurve curve{.name = std::string(model) + (is_limited ? "" : ", no limiter"), .points = {}};
      for (const LimitedModel& limited : limited_models()) {
        if (limited.model != model) continue;
        curve.points.emplace_back(limited.hosts, plans.tflops(limiter_run(limited, is_limited)));
      }
      figure.curves.push_back(curve);
    }
  }
  return figure;
}

PaperFigure gpt_speed_figure(const PaperPlans& plans) {
  PaperFigure figure{.id = "7b",
                     .title = "7(b): TFLOP/s of a GPU, 175B, model FLOPs, by GPUs",
                     .x = "GPUs",
                     .y = "TFLOP/s",
                     .curves = {}};
  for (const int64_t batch : gpt_batches()) {
    figure.curves.push_back(
        gpt_curve(batch_text(batch), batch, [&](int64_t gpus, int64_t of) { return plans.tflops(gpt_run(gpus, of)); }));
    const double stated = batch == 1 ? 173 : 186;
    PaperCurve curve = gpt_curve(batch_text(batch) + ", the paper's text", batch,
                                 [&](int64_t /*gpus*/, int64_t /*of*/) { return stated; });
    curve.is_stated = true;
    figure.curves.push_back(curve);
  }
  return figure;
}

PaperFigure t5_speed_figure(const PaperPlans& plans) {
  PaperFigure figure{.id = "7c",
                     .title = "7(c): TFLOP/s of a GPU, T5-11B, model FLOPs, by GPUs",
                     .x = "GPUs",
                     .y = "TFLOP/s",
                     .curves = {}};
  for (const int64_t batch : t5_batches()) {
    PaperCurve curve{.name = batch_text(batch), .points = {}};
    for (const int64_t gpus : t5_gpus()) curve.points.emplace_back(gpus, plans.tflops(t5_run(gpus, batch)));
    figure.curves.push_back(curve);
  }
  return figure;
}

PaperFigure gpt_memory_figure(const PaperPlans& plans) {
  PaperFigure figure{.id = "8b", .title = "8(b): GiB of a GPU, 175B, by GPUs", .x = "GPUs", .y = "GiB", .curves = {}};
  for (const int64_t batch : gpt_batches()) {
    for (const char* memory : {"reserved", "allocated"}) {
      figure.curves.push_back(gpt_curve(batch_text(batch) + ", " + memory, batch, [&](int64_t gpus, int64_t of) {
        return plans.gib(gpt_run(gpus, of), memory);
      }));
    }
  }
  return figure;
}

PaperFigure t5_memory_figure(const PaperPlans& plans) {
  PaperFigure figure{.id = "8c", .title = "8(c): GiB of a GPU, T5-11B, by GPUs", .x = "GPUs", .y = "GiB", .curves = {}};
  for (const int64_t batch : t5_batches()) {
    for (const char* memory : {"reserved", "allocated"}) {
      PaperCurve curve{.name = batch_text(batch) + ", " + memory, .points = {}};
      for (const int64_t gpus : t5_gpus()) curve.points.emplace_back(gpus, plans.gib(t5_run(gpus, batch), memory));
      figure.curves.push_back(curve);
    }
  }
  return figure;
}

}  // namespace

std::vector<PaperFigure> paper_figures(const PaperPlans& plans) {
  const Cluster cluster = paper_cluster(kGatheringHosts);
  return {forms_figure(cluster),  sizes_figure(cluster),    scale_figure(plans),
          prefetch_figure(plans), limiter_figure(plans),    gpt_speed_figure(plans),
          t5_speed_figure(plans), gpt_memory_figure(plans), t5_memory_figure(plans)};
}

nlohmann::ordered_json figure_json(const PaperFigure& figure) {
  nlohmann::ordered_json json = {{"id", figure.id}, {"title", figure.title}, {"x", figure.x}, {"y", figure.y}};
  json["curves"] = nlohmann::ordered_json::array();
  for (const PaperCurve& curve : figure.curves) {
    nlohmann::ordered_json points = nlohmann::ordered_json::array();
    for (const auto& [x, y] : curve.points) points.push_back({x, y});
    json["curves"].push_back({{"name", curve.name}, {"stated", curve.is_stated}, {"points", std::move(points)}});
  }
  return json;
}

}  // namespace fsdp::planner
