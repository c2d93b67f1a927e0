"""How much disk a job's checkpoints take while it runs, for every profile that needs a hub: the manual's table.

`python -m grpo_replications.replications.checkpoint_sizes` writes it into replications/README.md, between its marks.
"""

from __future__ import annotations

from pathlib import Path

from grpo_replications.replications.estimate import cells_of
from grpo_replications.shared.harness.papers import Paper, discover
from grpo_replications.shared.planning import training_cost as cost

PAGE = Path(__file__).with_name("README.md")
BEGIN, END = "<!-- generated:checkpoint-sizes -->", "<!-- /generated:checkpoint-sizes -->"


def sizes(paper: Paper, profile: str) -> dict[tuple[str, str], float]:
    """Gigabytes on disk of the largest job of each experiment and model, where there are any: while it runs."""
    found: dict[tuple[str, str], float] = {}
    for plan in paper.profile(profile).plans.values():
        for cell in cells_of(paper, plan, profile):
            running = cost.disk(cell.work, cost.Assumptions()).running if cell.work else 0.0
            if running:
                key = (cell.experiment, cell.model)
                found[key] = max(found.get(key, 0.0), running / 1e9)
    return found


def table(papers: list[Paper]) -> str:
    """The table of all papers in Markdown."""
    lines = ["| profile | experiment | model | GB a running job |", "|---|---|---|---|"]
    for paper in papers:
        for name, profile in paper.profiles.items():
            if profile.requires == "hub":
                lines += [
                    f"| `{paper.slug}`, `{name}` | `{experiment}` | {model} | {size:.1f} |"
                    for (experiment, model), size in sizes(paper, name).items()
                ]
    return "\n".join(lines)


def with_table(page: str, papers: list[Paper]) -> str:
    """A page with the table between its marks; ValueError where it has none."""
    before, rest = page.split(BEGIN)
    return before + BEGIN + "\n" + table(papers) + "\n" + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), discover(PAGE.parent)), encoding="utf-8")
