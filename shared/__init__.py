"""What every paper uses; it knows no paper.

Arrows between the packages run one way: `planning`, `harness` and `training` use `tasks` and `models`, these use
`grading`, and that uses `theory`; `statistics` and `errors` stand below all of them. `tests/test_architecture.py` holds
this.
"""
