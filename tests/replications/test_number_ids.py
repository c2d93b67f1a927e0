"""No id of a number changes its meaning or vanishes unseen, and every number has a short name of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from grpo_replications.shared.harness.number_ids import (
    IDS_FILE,
    add_ids,
    completed,
    id_problems,
    known_ids,
    read_ids,
    withdrawn_ids,
    write_ids,
)
from grpo_replications.shared.harness.papers import Paper, discover

PAPERS = Path(__file__).parents[2] / "replications"


def test_ids_keep_their_meaning() -> None:
    assert not id_problems(PAPERS, discover(PAPERS))


def test_aliases_are_unique_and_short() -> None:
    aliases = [known.alias for known in known_ids(discover(PAPERS)).values()]
    assert len(set(aliases)) == len(aliases)
    assert sorted(map(len, aliases))[len(aliases) // 2] < 35


def test_withdrawn_ids_are_written_in_full() -> None:
    withdrawn = withdrawn_ids(PAPERS / "README.md")
    slugs = tuple(f"{paper.slug}/" for paper in discover(PAPERS))
    assert withdrawn and all(name.startswith(slugs) for name in withdrawn)


def test_a_changed_meaning_and_a_lost_id_are_seen(toy: Path) -> None:
    add_ids([Paper.load(toy)])
    path, claims = toy.parent / IDS_FILE, (toy / "claims.toml").read_text()
    before = read_ids(path)
    assert before["toy-paper/direction"].alias == "toy-paper-direction"

    def problems(text: str) -> list[str]:
        (toy / "claims.toml").write_text(text)
        return id_problems(toy.parent, [Paper.load(toy)])

    assert not problems(claims)
    assert not problems(claims.replace("Nothing is left over.", "Nothing is left.").replace("paper_value = 1.0\n", ""))
    (changed,) = problems(claims.replace('unit = "length"', 'unit = "squared length"'))
    assert "toy-paper/identity means something else" in changed
    renamed = claims.replace("toy-paper/identity", "toy-paper/residual")
    (gone,) = problems(renamed)
    assert "toy-paper/identity is gone" in gone
    add_ids([Paper.load(toy)])  # the report adds the new id and keeps the lost one
    assert set(read_ids(path)) == {*before, "toy-paper/residual"} and problems(renamed)
    (toy.parent / "README.md").write_text(
        "## Ids that changed\n\n| old id | now |\n|---|---|\n| `toy-paper/ident*` | x |\n"
    )
    assert not problems(renamed)
    (toy.parent / "README.md").unlink()


def test_words_may_be_corrected_and_an_alias_stays(toy: Path) -> None:
    paper = Paper.load(toy)
    known = completed({}, [paper])
    emptied = replace(known["toy-paper/identity"], meaning="", alias="kept")
    write_ids(toy.parent / IDS_FILE, [emptied])
    assert not id_problems(toy.parent, [paper])
    again = completed(read_ids(toy.parent / IDS_FILE), [paper])
    assert again["toy-paper/identity"] == replace(known["toy-paper/identity"], alias="kept")
    claims = (toy / "claims.toml").read_text()
    (toy / "claims.toml").write_text(claims.replace('kind = "exact"', 'kind = "exact"\nalias = "other"', 1))
    write_ids(toy.parent / IDS_FILE, again.values())
    (problem,) = id_problems(toy.parent, [Paper.load(toy)])
    assert "has the alias kept" in problem
