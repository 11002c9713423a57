"""The experiments: each module has TITLE, run(call) that returns rows, and report(rows) that returns Markdown;
plot(rows, folder) writes images and returns their names."""

from comparison.experiments import all_gather, decoders, model_size, one_host, overlap, parts, scaling

EXPERIMENTS = {"1": all_gather, "2": model_size, "3": overlap, "4": scaling, "5": parts, "6": one_host, "7": decoders}
