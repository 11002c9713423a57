"""Parts of benchmarks/compare: statistics, agreement of losses, tables, jobs, result files, the command line."""

import dataclasses
import json
import subprocess
import sys

import pytest

from conftest import SOURCE_DIR

sys.path.insert(0, str(SOURCE_DIR / "benchmarks"))
import ranks
from comparison import agreement, cli, jobs, lag, network, results, runner, spread, tables
from comparison.experiments import all_gather


def row(
    variant,
    losses=((2.0, 1.5),),
    *,
    status="measured",
    seconds=(1.0,),
    strategy="full_shard",
    group="g",
    dtype="fp32",
    **more,
):
    measured = [{"step_seconds": value, **more} for value in seconds] if status == "measured" else []
    made = {
        "group": group,
        "variant": variant,
        "side": variant.split()[0],
        "status": status,
        "reason": "",
        "dtype": dtype,
        "job": {"strategy": strategy},
        "losses": [list(each) for each in losses],
        "rounds": measured,
        "figures": {},
    }
    return results.summarise([made])[0]


def test_summary_has_median_and_range():
    assert spread.summary([3, 1, 2]) == {"median": 2, "min": 1, "max": 3, "rounds": 3}
    assert spread.summary([1.0, 2.0])["median"] == 1.5
    with pytest.raises(ValueError, match="no values"):
        spread.summary([])


def test_ratios_are_of_the_same_round():
    # The second round was slow for both: the ratios do not show it.
    assert spread.ratios([2.0, 20.0], [1.0, 10.0]) == [2.0, 2.0]
    with pytest.raises(ValueError, match="1 rounds cannot be compared with 2"):
        spread.ratios([1.0], [1.0, 2.0])


def test_shown_has_the_range_of_several_rounds_only():
    assert spread.shown(spread.summary([1.0, 2.0, 4.0]), "{:.1f}") == "2.0 (1.0–4.0)"
    assert spread.shown(spread.summary([1.0]), "{:.1f}") == "1.0"


def test_rows_with_other_losses_are_void_and_kept():
    rows = [row("fsdp.cpp full_shard", [[2.0, 1.6]]), row("DDP"), row("FSDP2 full_shard", [[2.0, 1.5 * (1 + 1e-5)]])]
    assert agreement.void_rows(rows) == "DDP"
    assert [each["status"] for each in rows] == ["void", "measured", "measured"]
    assert "losses differ from those of DDP by 0.067" in rows[0]["reason"] and "0.001" in rows[0]["reason"]


def test_one_wrong_round_is_enough():
    rows = [row("DDP", [[2.0, 1.5]] * 2), row("fsdp.cpp", [[2.0, 1.5], [2.0, 1.51]])]
    agreement.void_rows(rows)
    assert [each["status"] for each in rows] == ["measured", "void"]


@pytest.mark.parametrize("losses", [[2.0], [2.0, 1.5, 1.2], [2.0, float("nan")], [float("nan"), 1.5]])
def test_missing_steps_and_nans_are_void(losses):
    rows = [row("DDP"), row("fsdp.cpp", [losses])]
    agreement.void_rows(rows)
    assert rows[1]["status"] == "void"


def test_bf16_has_a_tolerance_of_its_own():
    rows = [row("FSDP2", dtype="bf16"), row("fsdp.cpp", [[2.0, 1.51]], dtype="bf16")]
    agreement.void_rows(rows)
    assert rows[1]["status"] == "measured"


def test_rows_that_were_not_measured_stay_as_they_are():
    rows = [row("DDP", [], status="out of memory"), row("fsdp.cpp"), row("FSDP1")]
    assert agreement.void_rows(rows) == "FSDP1"
    assert rows[0]["status"] == "out of memory"


def test_table_compares_with_ours_of_the_same_strategy():
    rows = [
        row("fsdp.cpp full_shard", seconds=(1.0, 2.0)),
        row("FSDP2 full_shard", seconds=(2.0, 3.0)),
        row("fsdp.cpp no_shard", seconds=(4.0, 4.0), strategy="no_shard"),
        row("DDP", seconds=(2.0, 2.0), strategy="no_shard"),
        row("FSDP1", [], status="out of memory"),
    ]
    lines = tables.group_table(rows, [("s", "step_seconds", "{:.1f}")], (("s", "step_seconds"),)).splitlines()
    assert lines[0] == "| variant | s | s / fsdp.cpp |" and lines[1] == "| --- | ---: | ---: |"
    assert lines[3] == "| FSDP2 full_shard | 2.5 (2.0–3.0) | 1.75 (1.50–2.00) |"
    assert lines[5] == "| DDP | 2.0 (2.0–2.0) | 0.50 (0.50–0.50) |"
    assert lines[6] == "| FSDP1 (out of memory) | – | – |"


def test_void_rows_show_their_figures_without_a_ratio():
    rows = [row("fsdp.cpp"), row("FSDP2", [[2.0, 9.0]], seconds=(0.5,))]
    agreement.void_rows([row("DDP"), *rows])
    assert tables.group_table(rows, [("s", "step_seconds", "{:.1f}")], (("s", "step_seconds"),)).splitlines()[3] == (
        "| FSDP2 (**void**) | 0.5 | – |"
    )


def test_where_ours_is_behind_is_listed():
    ahead = [
        row("fsdp.cpp full_shard", seconds=(1.0,)),
        row("FSDP2 full_shard", seconds=(0.99,)),
        row("FSDP1", [], status="failed"),
    ]
    behind = [
        row("fsdp.cpp no_shard", seconds=(4.0,), strategy="no_shard"),
        row("fsdp.cpp other", seconds=(3.0,), strategy="no_shard"),
        row("DDP", seconds=(2.0,), strategy="no_shard"),
    ]
    assert lag.lagging(ahead) == []
    assert lag.lagging(ahead + behind) == ["* g, no_shard: seconds a step 3.000, DDP 2.000"]


def test_knee_is_where_larger_gathers_gain_little():
    figures = {str(size): {"min": seconds} for size, seconds in ((1, 9.0), (2, 1.4), (4, 3.0), (8, 1.45), (16, 1.0))}
    assert all_gather.knee({"figures": figures}) == 8
    assert all_gather.knee({"figures": {"1": {"min": 1.0}, "2": {"min": 5.0}}}) == 2


def test_jobs_name_wrong_keys_and_values():
    whole = dict(vars(jobs.Job("m", "s")))
    assert jobs.read_job(whole) == jobs.Job("m", "s")
    with pytest.raises(ValueError, match='unknown key "stategy"'):
        jobs.read_job({**whole, "stategy": "full_shard"})
    with pytest.raises(ValueError, match='key "batch" is missing'):
        jobs.read_job({key: value for key, value in whole.items() if key != "batch"})
    with pytest.raises(ValueError, match='"strategy" has the unknown value "zero"'):
        jobs.Job("m", "s", strategy="zero")
    with pytest.raises(ValueError, match='"side" has the unknown value "FSDP3"'):
        jobs.variant("FSDP3")


@pytest.mark.parametrize(
    "change, message",
    [
        ({"stategy": "full_shard"}, 'unknown key "stategy"'),
        ({"strategy": "zero"}, '"strategy" has the unknown value "zero"'),
        ({"batch": None}, 'key "batch" has the value null'),
        ({"batch": ...}, 'key "batch" is missing'),
    ],
)
def test_our_side_names_wrong_keys_and_values(change, message, build_dir, tmp_path):
    job = {key: value for key, value in {**vars(jobs.Job("m", "s")), **change}.items() if value is not ...}
    (tmp_path / "job.json").write_text(json.dumps(job))
    done = subprocess.run(
        [build_dir / "compare_ours", tmp_path / "job.json"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and message in done.stderr


def test_out_of_memory_is_found_in_what_any_rank_has_written():
    said = (
        "Traceback (most recent call last):\n  MemoryError is named here\n"
        "RuntimeError: [enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: "
        "can't allocate memory: you tried to allocate 8 bytes.\n"
    )
    failed = row("DDP")
    runner.fail(
        failed, ranks.RankError("rank 0 failed:\nConnection closed by peer", ["Connection closed by peer", said])
    )
    assert failed["status"] == "out of memory"
    assert (
        failed["reason"] == "RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."
    )
    runner.fail(failed, ranks.RankError("rank 0 failed:\nMemoryError " + "x" * 300))
    assert failed["status"] == "out of memory" and len(failed["reason"]) == 202 and failed["reason"].endswith("x …")
    runner.fail(failed, ranks.RankError("rank 1 failed:\nValueError: no", ["", "ValueError: no"]))
    assert failed["status"] == "failed" and failed["reason"] == "rank 1 failed:\nValueError: no"


def test_results_of_another_schema_are_refused(tmp_path):
    path = results.write(tmp_path, "2", [row("DDP")], {"command": "c"})
    document = results.read(path)
    assert document["schema_version"] == 1 and document["rows"][0]["figures"]["step_seconds"]["median"] == 1.0
    path.write_text(json.dumps({**document, "schema_version": 99}))
    with pytest.raises(ValueError, match="schema_version is 99"):
        results.read(path)


def test_ranks_of_a_namespace_are_a_host():
    place = network.Place(4, ("a", "a", "b", "b"), ({"X": "1"},) * 4, "10.0.0.1")
    assert [place.variables_of(rank, 7)["LOCAL_RANK"] for rank in range(4)] == ["0", "1", "0", "1"]
    assert place.variables_of(3, 7)["MASTER_ADDR"] == "10.0.0.1" and place.variables_of(3, 7)["X"] == "1"
    assert place.first_ranks() == [0, 2] and place.counted
    assert network.Place(2).prefix_of(1) == [] and not network.Place(2).counted
    apart = dataclasses.replace(place, apart=True)
    assert [apart.variables_of(rank, 7) for rank in (0, 3)] == [
        {
            "RANK": "0",
            "WORLD_SIZE": "1",
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": "10.0.0.1",
            "MASTER_PORT": port,
            "X": "1",
        }
        for port in ("7", "10")
    ]
    first = apart.of(2)
    assert (first.ranks, first.namespaces, first.variables_of(1, 7)["WORLD_SIZE"]) == (2, ("a", "a"), "2")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--experiment", "seven"], "invalid choice: 'seven'"),
        (["--budget", "huge"], "invalid choice: 'huge'"),
        (["--rounds", "0"], "0 is not positive"),
        (["--build-dir", "/nowhere"], "/nowhere lacks compare_ours"),
        (["--report-only"], "experiment-1.json"),
    ],
)
def test_wrong_arguments_are_named(arguments, message, tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main([*arguments, "--out", str(tmp_path)])
    assert end.value.code and message in f"{end.value.code} {capsys.readouterr().err}"
    assert not list(tmp_path.iterdir())
