"""The commands for one's own runs and data: `replicate plan-group-size` and `replicate diagnose`.

Nothing heavy is imported before a command runs, and neither command needs torch.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from typing import Any

from rich.console import Console

from grpo_replications.shared.errors import ReplicationError

FIDELITY = 0.95
_PLAN_TEXT = """
What group size does each difficulty need, what stays silent, and which single size is best for a budget?

Solve rates come from 'big-math' (the packaged histogram of 215,608 problems), from a .csv, .json, .jsonl or .parquet
file with a column of rates (shares of right rollouts), or from a data set on the hub (hub:ID).
"""
_PLAN_EXAMPLES = """
examples:
  replicate plan-group-size --solve-rates big-math
  replicate plan-group-size --solve-rates rates.csv --rollouts 16 --fidelity 0.9 --budget 512
  replicate plan-group-size --solve-rates big-math --budget 1024 --json > plan.json

fidelity   GRPO's expected update over its limit for infinite groups
silent     all completions of a group right, or all wrong: its advantages are zero
"""
_DIAGNOSE_TEXT = """
How many groups are silent, and is that what independent completions would give? Which group size would serve better? Do
entropy, length and gradient norms drift?

LOG is this project's groups.jsonl, or what TRL writes with log_completions=True: a parquet file, its directory, or the
run's directory. A trainer_state.json beside it is read too, if there is one.
"""
_DIAGNOSE_EXAMPLES = """
examples:
  replicate diagnose outputs/my-run                      a directory with groups.jsonl or completions/*.parquet
  replicate diagnose groups.jsonl --fidelity 0.95 --max-silent 0.2
  replicate diagnose outputs/my-run --reward accuracy_reward --reward format_reward=0.5 --success 1 --group-size 8
  replicate diagnose outputs/my-run --details            every table and test
  replicate diagnose groups.jsonl --json > diagnosis.json
"""


def add_commands(commands: Any) -> None:
    """Add both commands to the sub-parsers `commands` of a parser."""
    plan = _command(commands, "plan-group-size", _plan, "plan group sizes from solve rates", _PLAN_TEXT, _PLAN_EXAMPLES)
    plan.add_argument(
        "--solve-rates", required=True, metavar="SOURCE", help="big-math, a file with a column of rates, or hub:ID"
    )
    plan.add_argument("--column", metavar="NAME", help="the column of rates, where its name is not a usual one")
    plan.add_argument("--rollouts", type=int, metavar="N", help="how many rollouts are behind each rate")
    plan.add_argument("--fidelity", type=float, default=FIDELITY, metavar="F", help="fidelity to reach (default: 0.95)")
    plan.add_argument("--budget", type=int, metavar="N", help="completions a step, for which to find one group size")
    plan.add_argument(
        "--max-group-size", type=int, default=1024, metavar="G", help="largest size allowed (default: %(default)s)"
    )
    _add_noise_ratio(plan)
    plan.add_argument("--json", action="store_true", help="print the plan as JSON")

    text = "diagnose a run from its group log or TRL's completions"
    diagnose = _command(commands, "diagnose", _diagnose, text, _DIAGNOSE_TEXT, _DIAGNOSE_EXAMPLES)
    diagnose.add_argument("log", metavar="LOG", help="a log file or a run's directory")
    diagnose.add_argument(
        "--success",
        type=float,
        metavar="R",
        help="reward of a right completion, at least (default: the larger of two rewards, else 1)",
    )
    diagnose.add_argument(
        "--fidelity", type=float, default=FIDELITY, metavar="F", help="fidelity for the suggested size (default: 0.95)"
    )
    _add_noise_ratio(diagnose)
    diagnose.add_argument("--max-silent", type=float, metavar="S", help="also suggest a size with at most this share")
    diagnose.add_argument(
        "--window",
        type=float,
        metavar="STEPS",
        help="compare groups of a prompt this close (default: the usual distance)",
    )
    diagnose.add_argument("--group-size", type=int, metavar="G", help="num_generations, where it cannot be inferred")
    diagnose.add_argument(
        "--reward",
        action="append",
        metavar="NAME[=WEIGHT]",
        help="reward function to sum, with its weight (default: 1); again for each",
    )
    diagnose.add_argument("--skip-unscored", action="store_true", help="leave out groups with unscored completions")
    diagnose.add_argument("--details", action="store_true", help="print every table and test")
    diagnose.add_argument("--json", action="store_true", help="print the diagnosis as JSON")


def _command(
    commands: Any, name: str, action: Any, text: str, description: str, examples: str
) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name,
        help=text,
        description=description,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(action=action)
    return parser


def _plan(options: argparse.Namespace, console: Console) -> int:
    _check_share("--fidelity", options.fidelity)
    _check_least("--max-group-size", options.max_group_size, 2)
    _check_noise_ratio(options.noise_ratio)
    if options.budget is not None:
        _check_least("--budget", options.budget, 2)
    from grpo_replications.shared.planning.group_size_plan import plan_group_sizes, with_rollouts
    from grpo_replications.shared.planning.solve_rates import load_solve_rates

    rates = load_solve_rates(options.solve_rates, options.column)
    if options.rollouts is not None:
        _check_least("--rollouts", options.rollouts, 1)
        rates = with_rollouts(rates, options.rollouts)
    plan = plan_group_sizes(rates, options.fidelity, options.budget, options.max_group_size, options.noise_ratio)
    if options.json:
        print(to_json(plan))
        return 0
    from grpo_replications.replications.tool_reports import print_plan

    print_plan(console, plan)
    return 0


def _diagnose(options: argparse.Namespace, console: Console) -> int:
    _check_share("--fidelity", options.fidelity)
    if options.max_silent is not None:
        _check_share("--max-silent", options.max_silent)
    if options.window is not None:
        _check_least("--window", options.window, 0)
    from grpo_replications.shared.planning.diagnostics import diagnose
    from grpo_replications.shared.planning.read_log import read_run_log

    _check_noise_ratio(options.noise_ratio)
    log = read_run_log(options.log, options.group_size, _weights(options.reward), options.skip_unscored)
    diagnosis = diagnose(
        log, options.success, options.fidelity, options.max_silent, options.window, options.noise_ratio
    )
    if options.json:
        print(to_json(diagnosis))
        return 0
    from grpo_replications.replications.tool_reports import print_diagnosis, print_summary

    (print_diagnosis if options.details else print_summary)(console, diagnosis)
    return 0


def _add_noise_ratio(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--noise-ratio",
        type=float,
        metavar="R",
        help="mean square of the scatter of scores over the squared distance of right and wrong ones' means (default: "
        "both 3 and 100 are considered)",
    )


def _weights(given: list[str] | None) -> dict[str, float] | None:
    """`["format=0.5", "accuracy"]` as names with weights; None where nothing is given."""
    weights: dict[str, float] = {}
    for one in given or []:
        name, mark, number = one.rpartition("=")
        try:
            weight = float(number) if mark else 1.0
        except ValueError:
            raise ReplicationError(f"--reward {one}: '{number}' is no number; write NAME=WEIGHT.") from None
        weights[name if mark else one] = weight
    return weights or None


def to_json(result: Any) -> str:
    """A dataclass of results as JSON; an estimate becomes an object, a number that is not finite null."""
    return json.dumps(json_value(result), indent=2, ensure_ascii=False, allow_nan=False)


def json_value(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {field.name: json_value(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if hasattr(value, "_asdict"):
        return json_value(value._asdict())
    if isinstance(value, dict):
        return {name: json_value(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_value(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _check_share(name: str, value: float) -> None:
    if not 0 < value < 1:
        raise ReplicationError(f"{name} must lie above 0 and below 1, not {value:g}.")


def _check_noise_ratio(value: float | None) -> None:
    if value is not None:
        _check_least("--noise-ratio", value, 0)


def _check_least(name: str, value: float, least: int) -> None:
    if not (value >= least and math.isfinite(value)):
        raise ReplicationError(f"{name} must be at least {least}, not {value:g}.")
