"""DAPO's log: the carried points, the warp by hand, recovery of known parameters, both bootstraps, and the R^2."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import curve_fit

from grpo_replications.replications.sigma_identity import dapo_log as log
from grpo_replications.replications.sigma_identity.settings import DapoLogGenericSettings, DapoLogSettings
from grpo_replications.replications.sigma_identity.tables_figures import FIGURES
from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.harness.jobs import JobContext, Row
from grpo_replications.shared.planning.solve_rates import load_solve_rates

STEPS, SHARES = log.read_log()


def values(rows: list[Row]) -> dict[str, float]:
    return {row["metric"]: row["value"] for row in rows if "step" not in row}


def measured(tmp_path: Path, **changes: object) -> dict[str, float]:
    settings = {"growth": "exponential", "start": "interior", "plateau": "fixed", "draws": 200, **changes}
    return values(log.dapo_log(DapoLogSettings(**settings), 0, JobContext(tmp_path)))


def test_points() -> None:
    assert len(STEPS) == len(SHARES) == 60
    assert (STEPS[0], SHARES[0], STEPS[-1], SHARES[-1]) == (71, 0.0, 9003, 0.565)
    assert np.all(np.diff(STEPS) > 0)
    assert "arXiv:2503.14476" in log.DATA.read_text() and "CC BY 4.0" in log.DATA.read_text()


def test_starts() -> None:
    everything, inner, clipped = (log.start_rates(start) for start in ("all", "interior", "clipped"))
    assert everything.problems == 215_608
    assert inner.problems == clipped.problems == 191_501
    assert (clipped.rates.min(), clipped.rates.max()) == (0.02, 0.98)


@pytest.mark.parametrize("start", ["all", "interior", "clipped"])
def test_the_share_is_the_mean_of_warped_powers(start: str) -> None:
    rates = log.start_rates(start)
    for temperature in (1.0, 1.7, 50.0, 900.0):
        warped = rates.rates ** (1 / temperature)
        exact = (warped**32 * rates.counts).sum() / rates.counts.sum()
        assert log.all_correct_share(start, np.array(math.log(temperature))) == pytest.approx(exact, abs=1e-6)
    # Never solved stays never solved: no temperature gets the share past the problems with p > 0.
    limit = (rates.counts[rates.rates > 0]).sum() / rates.counts.sum()
    assert log.all_correct_share(start, np.array(11.0)) < limit
    back = log.log_temperature_at(start, log.all_correct_share(start, np.array([0.5, 3.0])))
    np.testing.assert_allclose(back, [0.5, 3.0], atol=1e-6)


@pytest.mark.parametrize("growth", log.GROWTHS)
def test_temperature_grows_from_one_to_its_end(growth: str) -> None:
    end = math.log(50.0)
    path = log.GROWTHS[growth](np.array([0.0, 0.5, 1.0, 3.0, 60.0]), np.array(end))
    assert path[0] == pytest.approx(0, abs=1e-12) and path[-1] == pytest.approx(end)
    assert np.all(np.diff(path) >= 0)
    by_hand = {
        "exponential": math.log(1 + 49 * (1 - math.exp(-0.5))),
        "geometric": end * (1 - math.exp(-0.5)),
        "reciprocal": -math.log(1 / 50 + (1 - 1 / 50) * math.exp(-0.5)),
        "linear": math.log(25.5),
    }
    assert path[1] == pytest.approx(by_hand[growth])


@pytest.mark.parametrize("growth", log.GROWTHS)
@pytest.mark.parametrize("plateau", ["fixed", "fitted"])
def test_fit_recovers_what_made_the_data(growth: str, plateau: str) -> None:
    end = 0.57 if plateau == "fixed" else 0.52
    log_end = log.log_temperature_at("all", np.array(end))
    made = log.all_correct_share("all", log.GROWTHS[growth](STEPS / 1800.0, log_end))
    found = log.fit(log.warp_candidates(growth, "all", plateau, STEPS), made)
    assert found.r_squared > 0.999
    assert found.plateau == pytest.approx(end, abs=0.0101)
    assert found.timescale == pytest.approx(1800, rel=0.03)


def test_fit_of_another_curve_is_bad() -> None:
    falling = SHARES[::-1].copy()
    assert log.fit(log.warp_candidates("exponential", "all", "fixed", STEPS), falling).r_squared < 0.1


@pytest.mark.parametrize(
    ("form", "curve"),
    [
        ("exponential", lambda t, a, tau: a * (1 - np.exp(-t / tau))),
        ("hyperbolic", lambda t, a, tau: a * t / (t + tau)),
    ],
)
def test_generic_fit_against_scipy(form: str, curve) -> None:
    (plateau, timescale), _ = curve_fit(curve, STEPS, SHARES, p0=(0.6, 2000.0))
    r_squared = 1 - ((SHARES - curve(STEPS, plateau, timescale)) ** 2).sum() / ((SHARES - SHARES.mean()) ** 2).sum()
    found = log.fit(log.saturating_candidates(form, STEPS), SHARES)
    assert found.r_squared == pytest.approx(r_squared, abs=1e-5)
    assert found.plateau == pytest.approx(plateau, rel=5e-3)
    assert found.timescale == pytest.approx(timescale, rel=1e-2)
    assert round(found.r_squared, 2) == 0.98


def test_weighted_fits_are_those_of_repeated_points() -> None:
    generator = np.random.default_rng(0)
    weights = generator.multinomial(60, np.full(60, 1 / 60), size=3).astype(float)
    for candidates in (
        log.warp_candidates("geometric", "interior", "fixed", STEPS),
        log.saturating_candidates("exponential", STEPS),
    ):
        chosen, r_squared = log.best(candidates, SHARES, weights)
        for draw, counts in enumerate(weights.astype(int)):
            y, curves = np.repeat(SHARES, counts), np.repeat(candidates.curves, counts, axis=1)
            if candidates.scaled:
                curves = curves * ((curves @ y) / (curves**2).sum(axis=1))[:, np.newaxis]
            loss = ((curves - y) ** 2).sum(axis=1)
            assert chosen[draw] == loss.argmin()
            assert r_squared[draw] == pytest.approx(1 - loss.min() / ((y - y.mean()) ** 2).sum(), abs=1e-10)


def test_numbers_of_the_paper(tmp_path: Path) -> None:
    """The .92 holds for the obvious growth with rates inside (0, 1), not with all of them."""
    inner, everything = measured(tmp_path), measured(tmp_path, start="all")
    assert round(inner["r2"], 2) == 0.92 and inner["paper_r2_outside"] == 0
    assert round(everything["r2"], 2) == 0.86 and everything["paper_r2_outside"] > 0
    assert round(inner["plateau_mean_last_ten"], 2) == 0.57
    assert inner["plateau"] == 0.57 and 40 < inner["temperature"] < 60
    assert inner["generic_better_share"] > 0.95
    assert inner["start_share"] < 0.06 < 0.11 < everything["start_share"]
    assert everything["start_share"] == pytest.approx(
        (load_solve_rates("big-math").rates ** 32 @ load_solve_rates("big-math").counts) / 215_608, abs=1e-6
    )


def test_bootstraps_contain_the_estimate_and_repeat(tmp_path: Path) -> None:
    first, again = measured(tmp_path, growth="linear"), measured(tmp_path, growth="linear")
    assert first == again
    for name in ("pairs", "residuals"):
        assert first[f"r2_low_{name}"] < first["r2"] < first[f"r2_high_{name}"] <= 1
    other = values(
        log.dapo_log(
            DapoLogSettings(growth="linear", start="interior", plateau="fixed", draws=200), 1, JobContext(tmp_path)
        )
    )
    assert other["r2"] == first["r2"] and other["r2_low_pairs"] != first["r2_low_pairs"]


def test_wrong_settings_stop() -> None:
    for growth, start, plateau in (("x", "all", "fixed"), ("linear", "x", "fixed"), ("linear", "all", "x")):
        with pytest.raises(ReplicationError, match="must be"):
            log.warp_candidates(growth, start, plateau, STEPS)
    with pytest.raises(ReplicationError, match="must be"):
        log.saturating_candidates("x", STEPS)
    with pytest.raises(ReplicationError, match="no temperature"):
        log.log_temperature_at("all", np.array(0.99))


def test_figure(tmp_path: Path) -> None:
    settings = {"growth": "exponential", "start": "interior", "plateau": "fixed"}
    rows = pd.DataFrame(log.dapo_log(DapoLogSettings(**settings, draws=50), 0, JobContext(tmp_path))).assign(
        experiment="dapo-log", **settings
    )
    exponential = DapoLogGenericSettings(form="exponential", draws=50)
    generic = pd.DataFrame(log.dapo_log_generic(exponential, 0, JobContext(tmp_path)))
    for frame in (rows, pd.concat([rows, generic.assign(experiment="dapo-log-generic", form="exponential")])):
        frame.attrs = {"paper": {"sigma-identity/dapo-log/r2": 0.92}}
        assert FIGURES["dapo_log"](frame) is not None
