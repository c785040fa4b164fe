"""The commands: few rounds, in rank processes as always.

Two start as a user starts them. The others end in the same line, and run in this process.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys

import jsonschema
import pytest
import torch

from benchmarks import scaling, sharded_commit, sharded_llama, step_parts, streams
from benchmarks.cases import CASES
from benchmarks.command import run
from benchmarks.digests import weights_digests
from benchmarks.ranks import run_ranks
from benchmarks.step import main
from benchmarks.step_options import QUICK
from benchmarks.timing import Setting
from benchmarks.traffic import STEPS
from govray.errors import RankFailed, Refused
from tests.support.tree import ROOT

RATIO = {"type": "number", "exclusiveMinimum": 0}
INTERVAL = {"type": "array", "items": RATIO, "minItems": 2, "maxItems": 2}
PAIRS = {"type": "integer", "minimum": 1}


def closed(properties: dict[str, object]) -> dict[str, object]:
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }


METHODS = ["ddp", "governed", "governed_sampled", "detach_and_where"]
METHOD = closed(
    {
        "seconds": RATIO,
        "tokens_per_second": RATIO,
        "vs_ddp": RATIO,
        "vs_ddp_interval": INTERVAL,
        "pairs": PAIRS,
        "memory": RATIO,
    }
)
CASE = closed(
    {
        "vs_ddp": RATIO,
        "vs_ddp_interval": INTERVAL,
        "ratio": RATIO,
        "memory": RATIO,
        "accounting": {"type": "number"},
        "ledger": RATIO,
        "vs_detach_where": RATIO,
        "vs_detach_where_interval": INTERVAL,
        "pairs": PAIRS,
        "methods": closed(dict.fromkeys(METHODS, METHOD)),
    }
)
COST = closed(
    {
        "bytes": RATIO,
        "calls": RATIO,
        "seconds": RATIO,
        "agreement_seconds": {"type": "number", "minimum": 0},
    }
)
SCALING = closed(
    {
        "computed": {"const": True},
        "link": closed(
            {
                "seconds_per_message": {"type": "number", "minimum": 0},
                "seconds_per_byte": {"type": "number", "minimum": 0},
                "median_relative_error": {"type": "number", "minimum": 0},
                "measured_ranks": {"const": [2, 4]},
            }
        ),
        "model": {"type": "string"},
        "worlds": closed(
            {
                world: closed(dict.fromkeys(["plain_ddp", *STEPS, "by_turns"], COST))
                for world in ("8", "4096")
            }
        ),
    }
)


def command(module: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", f"benchmarks.{module}", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=500,
    )


@pytest.mark.slow
def test_step_prints_a_table_and_one_json_line(capfd: pytest.CaptureFixture[str]) -> None:
    words = ["--quick", "--methods", ",".join(METHODS), "--cases", "allow_all,mix_50_30_20"]
    assert run(lambda: main(words)) == 0
    ran = capfd.readouterr()  # the rank processes' too
    *table, last = ran.out.splitlines()
    report = json.loads(last)
    assert [*report] == ["allow_all", "mix_50_30_20"]
    for case in report.values():
        jsonschema.validate(case, CASE)
        assert case["methods"]["ddp"]["memory"] == 1.0
        assert case["pairs"] == 3
        assert case["methods"]["detach_and_where"]["pairs"] == 1
    assert report["allow_all"]["ratio"] == pytest.approx(1.0)
    assert report["mix_50_30_20"]["ratio"] < 1
    assert torch.__version__ in table[0]
    assert "GPT of 2 blocks" in table[1]
    assert "3 pairs, 1 of each baseline" in table[1]
    assert sum(line.startswith("mix_50_30_20") for line in table) == len(METHODS) + 1
    assert "Traceback" not in ran.err


@pytest.mark.slow
def test_scaling_prints_what_it_computed_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(lambda: scaling.main(["--quick"])) == 0
    ran = capsys.readouterr()
    *table, last = ran.out.splitlines()
    jsonschema.validate(json.loads(last), SCALING)
    assert table[0].startswith("COMPUTED, NOT MEASURED")
    assert "Traceback" not in ran.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--cases", "everything"], "'everything' is none of allow_all"),
        (["--methods", "magic"], "'magic' is none of ddp"),
        (["--pairs", "0"], "'0' is no number of at least 1"),
        (["--rows", "1"], "2 rows are too few"),
        (["--blocks", "1"], "one block has no upper half"),
        pytest.param(
            ["--device", "cuda"],
            "0 GPUs for 1 processes",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU"),
        ),
    ],
)
def test_a_wrong_option_is_named_before_any_process_starts(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = run(lambda: main(words))
    except SystemExit as ended:  # argparse's way
        code = ended.code
    printed = capsys.readouterr()
    assert code == 2
    assert said in printed.err
    assert printed.out == ""


@pytest.mark.slow
def test_an_error_is_one_paragraph_and_no_traceback() -> None:
    ran = command("step", "--rows", "1")
    assert ran.returncode == 2
    assert ran.stderr.startswith("error: 2 rows are too few")
    assert len(ran.stderr.splitlines()) == 1


def test_digests_of_the_weights_repeat_and_follow_case_and_steps() -> None:
    setting = Setting(QUICK, "cpu", 1)
    first = weights_digests(0, setting, [*CASES], 2)
    assert len(set(first.values())) == len(CASES)
    assert weights_digests(0, setting, ["upper_50"], 2) == {"upper_50": first["upper_50"]}
    assert weights_digests(0, setting, ["upper_50"], 3) != {"upper_50": first["upper_50"]}


@pytest.mark.slow
def test_step_measures_two_domains_and_a_hundred_adapters(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cases = ["two_domains", "adapters_100"]
    words = ["--quick", "--cases", ",".join(cases), "--methods", "governed,zeroing", "--no-memory"]
    main([*words, "--pairs", "1"])
    *table, last = capsys.readouterr().out.splitlines()
    report = json.loads(last)
    assert [*report] == cases
    assert "zeroing" not in report["adapters_100"]["methods"]  # of one adapter at most
    for case in report.values():
        governed = case["methods"]["governed"]
        tokens = 2 * QUICK.rows * QUICK.tokens
        assert governed["tokens_per_second"] == pytest.approx(tokens / governed["seconds"])
    assert any("tokens/s" in line for line in table)


@pytest.mark.slow
def test_step_prints_digests_of_both_ranks_weights(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--quick", "--digests", "--pairs", "2", "--cases", "mix_50_30_20"])
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert re.fullmatch("[0-9a-f]{64}", report.pop("mix_50_30_20"))
    assert not report


def fail(rank: int, how: str) -> None:
    """One rank fails while the other waits for it."""
    if rank == 1:
        if how == "refuses":
            raise Refused("no", where="here")
        if how == "is wrong":
            raise ZeroDivisionError("division by zero")
        sys.exit(3)
    torch.distributed.barrier()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "kind", "said"),
    [
        ("refuses", Refused, "here: no"),
        ("is wrong", RankFailed, "rank 1: ZeroDivisionError: division by zero"),
        # Whichever is heard of first: the end of one, or what the other says about it.
        ("vanishes", RankFailed, "rank 1: the process ended without a result|rank 0: "),
    ],
)
def test_one_rank_that_fails_ends_all(how: str, kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said):
        run_ranks(fail, 2, "cpu", how)


@pytest.mark.slow
def test_slicing_compares_two_models_on_the_same_rows() -> None:
    ran = command("slicing", "--quick", "--pairs", "1", "--streams", "3")
    assert ran.returncode == 0, ran.stderr
    report = json.loads(ran.stdout.splitlines()[-1])
    jsonschema.validate(report["3"], closed({"sliced_vs_alone": RATIO, "interval": INTERVAL}))


def test_parts_of_a_step_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    try:
        assert run(lambda: step_parts.main(["--quick", "--steps", "1"])) == 0
    finally:
        torch.set_num_threads(threads)
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    passes = {
        f"{rows}: {way}"
        for rows in ("everything", "upper_half", "removable")
        for way in ("forward", "backward")
    }
    after = {"sum, divide, norms", "rest"}
    assert report["governed"].keys() == passes | after | {"optimizer"}
    assert report["expected"].keys() == passes | {"optimizer"}
    assert report["plain"].keys() == {"all: forward", "all: backward", "optimizer"} | after
    assert min(report["governed"].values()) > 0


@pytest.mark.slow
def test_streams_compares_steps_with_and_without_optimizer_view(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(lambda: streams.main(["--quick", "--adapters", "3", "12"])) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    kind = closed(
        {
            "seconds": RATIO,
            "vs_none": RATIO,
            "vs_none_interval": INTERVAL,
            "cpu_vs_none": RATIO,
            "cpu_vs_none_interval": INTERVAL,
        }
    )
    facts = {"construction_seconds": RATIO, "adapter_bytes": {"type": "integer", "minimum": 0}}
    assert [*report] == ["0", "3", "12"]
    jsonschema.validate(report["0"], closed(facts | {"idle": kind}))
    for count in ("3", "12"):
        jsonschema.validate(report[count], closed(facts | {"idle": kind, "due": kind}))
    assert report["0"]["idle"]["vs_none"] == 1.0
    assert report["12"]["adapter_bytes"] == 4 * report["3"]["adapter_bytes"] > 0


@pytest.mark.slow
def test_sharded_llama_compares_the_peak_with_what_must_be_there(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(lambda: sharded_llama.main(["--quick"])) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    must = found["state"] + found["unit"] + found["activations"]
    assert found["ratio"] == pytest.approx(found["peak"] / must, abs=1e-3)
    assert found["state"] < found["peak"] < 2 * must
    assert found["whole"] == 16 * found["parameters"]
    assert all(0 < each < 10 for each in found["losses"])


def test_sharded_commit_compares_the_copies(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(lambda: sharded_commit.main(["--quick"])) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    size = {"type": "integer", "minimum": 1}
    method = closed({"seconds": RATIO, "peak_bytes": size})
    jsonschema.validate(
        report,
        closed(
            {
                "state_bytes": size,
                "methods": closed(dict.fromkeys(["gathered", "sharded"], method)),
                "vs_gathered": RATIO,
                "interval": INTERVAL,
            }
        ),
    )
    peaks = {name: each["peak_bytes"] for name, each in report["methods"].items()}
    # Its own half and a copy of that, against its own half and a copy of the whole.
    assert report["state_bytes"] * 2 <= peaks["sharded"] < peaks["gathered"]
