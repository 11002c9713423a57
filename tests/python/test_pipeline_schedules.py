"""Orders of pipelines, literally those of torch.distributed.pipelining."""

import itertools
import json
import re
import subprocess
from types import SimpleNamespace

import pytest
import torch.distributed.pipelining.schedules as reference
from torch.distributed.pipelining._utils import generate_stage_to_rank_mapping

RANKS, MICRO_BATCHES = range(1, 5), range(1, 9)
STAGES_PER_RANK = {
    "GPipe": (1,),
    "1F1B": (1,),
    "Interleaved1F1B": (1, 2, 3),
    "InterleavedZeroBubble": (1, 2, 3),
    "ZBVZeroBubble": (2,),
}
CASES = [
    (name, ranks, stages, micro_batches)
    for name, all_stages in STAGES_PER_RANK.items()
    for ranks, stages, micro_batches in itertools.product(RANKS, all_stages, MICRO_BATCHES)
]


@pytest.fixture(scope="module")
def ours(build_dir):
    """What the library makes of every case."""
    requests = "".join(f"{' '.join(map(str, case))}\n" for case in CASES)
    done = subprocess.run([build_dir / "pipeline_orders"], input=requests, capture_output=True, text=True, check=True)
    return dict(zip(CASES, map(json.loads, done.stdout.splitlines()), strict=True))


def order_of_torch(name, ranks, stages_per_rank, micro_batches):
    """By rank, without empty cells. Schedules ask their stages for nothing but numbers before they run."""
    schedule_class = reference.get_schedule_class(name)
    made = schedule_class.__new__(schedule_class)
    made.pp_group_size, made._n_microbatches = ranks, micro_batches
    made._num_stages = made.num_stages = ranks * stages_per_rank
    if name == "GPipe":
        return without_empty(made._get_pipeline_order())
    if name == "1F1B":
        # It counts the forward passes of the last rank from 1 when it shows them, and from 0 when it runs them.
        *before, last = without_empty(made._get_pipeline_order())
        return [*before, [re.sub(r"F(\d+)", lambda found: f"F{int(found[1]) - 1}", text) for text in last]]
    made.n_local_stages, made.number_of_rounds = stages_per_rank, max(1, micro_batches // ranks)
    made.microbatches_per_round = micro_batches // made.number_of_rounds
    return without_empty({rank: made._calculate_single_rank_operations(rank) for rank in range(ranks)})


def without_empty(order):
    return [[str(action) for action in order[rank] if action is not None] for rank in sorted(order)]


def lowered_by_torch(passes, rank_of_stage, micro_batches):
    made = SimpleNamespace(_n_microbatches=micro_batches, _num_stages=len(rank_of_stage), pp_group_size=len(passes))
    orders = {rank: [reference._Action.from_str(text) for text in order] for rank, order in enumerate(passes)}
    assert reference._validate_schedule(orders, len(passes), len(rank_of_stage), micro_batches) == dict(
        enumerate(rank_of_stage)
    )
    for rank, order in orders.items():
        orders[rank] = reference._add_reduce_grad(reference._add_unshard_reshard(order), made._n_microbatches)
    return without_empty(reference._add_send_recv(orders, rank_of_stage.__getitem__, len(rank_of_stage)))


def fits(name, ranks, micro_batches):
    return not name.startswith("Interleaved") or micro_batches % max(1, micro_batches // ranks) == 0


def test_every_order_is_made_or_refused_as_torch_does(ours):
    for case, answer in ours.items():
        name, ranks, _, micro_batches = case
        assert ("error" in answer) != fits(name, ranks, micro_batches), (case, answer)
        if "error" in answer:
            assert f"{micro_batches} micro-batches over {ranks} ranks do not fit" in answer["error"]


@pytest.mark.parametrize("name", STAGES_PER_RANK)
def test_orders_are_those_of_torch(ours, name):
    compared = 0
    for case, answer in ours.items():
        _, ranks, stages_per_rank, micro_batches = case
        if case[0] != name or "error" in answer:
            continue
        if name == "1F1B" and micro_batches < ranks - 1:
            continue  # there torch.distributed.pipelining's order has passes of micro-batches that do not exist
        passes = [[text for text in order if "REDUCE" not in text] for order in order_of_torch(*case)]
        assert answer["passes"] == passes, case
        compared += 1
    assert compared >= 26


@pytest.mark.parametrize("name", STAGES_PER_RANK)
def test_communication_is_placed_as_torch_does(ours, name):
    for case, answer in ours.items():
        if case[0] == name and "error" not in answer:
            lowered = lowered_by_torch(answer["passes"], answer["rank_of_stage"], case[3])
            assert answer["actions"] == lowered, case


def test_stages_lie_as_torch_places_them(ours):
    for (name, ranks, stages_per_rank, _), answer in ours.items():
        style = "v" if name == "ZBVZeroBubble" else "loop"
        placed = generate_stage_to_rank_mapping(ranks, ranks * stages_per_rank, style)
        assert "error" in answer or dict(enumerate(answer["rank_of_stage"])) == placed


def test_torch_runs_every_schedule_to_its_end(ours):
    for answer in ours.values():
        if "error" in answer:
            continue
        orders = {
            rank: [
                action
                for action in map(reference._Action.from_str, order)
                if action.computation_type not in (reference.UNSHARD, reference.RESHARD, reference.REDUCE_GRAD)
            ]
            for rank, order in enumerate(answer["actions"])
        }
        stages = len(answer["rank_of_stage"])
        reference._simulate_comms_compute(orders, answer["rank_of_stage"].__getitem__, stages)


def test_bubbles_are_those_of_the_formulas(ours):
    """Passes F, I and W take a second each. GPipe, 1F1B: (P-1)/(M+P-1); interleaved: (P-1)/(vM+P-1)."""
    for (name, ranks, stages_per_rank, micro_batches), answer in ours.items():
        if "error" in answer or micro_batches < ranks:
            continue
        whole = ranks - 1 + stages_per_rank * micro_batches
        if name in ("GPipe", "1F1B", "Interleaved1F1B"):
            expected = (ranks - 1) / whole
            if name != "Interleaved1F1B" or micro_batches % ranks == 0:
                assert answer["bubble"] == pytest.approx(expected, abs=1e-12), (name, ranks, micro_batches)
        if name == "ZBVZeroBubble" and micro_batches >= 2 * ranks - 1:
            # Only what begins late on rank r and, as no optimizer step follows here, ends early.
            assert answer["seconds"] == 6 * micro_batches + ranks - 1, (ranks, micro_batches, answer["seconds"])


def test_micro_batches_in_flight_are_those_of_the_formulas(ours):
    for (name, ranks, stages_per_rank, micro_batches), answer in ours.items():
        if "error" in answer:
            continue
        if name == "GPipe":
            assert answer["in_flight"] == [micro_batches] * ranks
        if name == "1F1B":
            assert answer["in_flight"] == [min(micro_batches, ranks - rank) for rank in range(ranks)]
        if name == "InterleavedZeroBubble" and stages_per_rank == 1:
            assert answer["in_flight"] == [min(micro_batches, ranks)] * ranks, (ranks, micro_batches, answer)
