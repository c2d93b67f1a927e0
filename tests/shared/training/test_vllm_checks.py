"""Whether vLLM can sample is asked before anything is loaded, and what TRL corrects is stated and measured."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.training import run, vllm_checks
from grpo_replications.shared.training.run import grpo_config, run_training, sampling_correction
from grpo_replications.shared.training.settings import TrainingSettings
from grpo_replications.shared.training.vllm_checks import check_vllm, sampling_in_words


def config(tmp_path: Path, **changes: Any) -> Any:
    return grpo_config(TrainingSettings(use_vllm=True, **changes), 0, tmp_path)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_checks.importlib.util, "find_spec", lambda name: name)


@pytest.fixture
def server() -> Iterator[tuple[str, dict[str, Any]]]:
    """A server's address, and its answers by path, as `vllm serve` gives them with the flags that TRL needs."""
    answers: dict[str, Any] = {
        "/v1/models": {"data": [{"id": "a/model"}]},
        "/server_info": {"vllm_config": {"model_config": {"logprobs_mode": "processed_logprobs"}}},
    }

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = answers.get(self.path.partition("?")[0])
            self.send_response(404 if found is None else 200)
            self.end_headers()
            self.wfile.write(json.dumps(found).encode())

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{serving.server_address[1]}", answers
        serving.shutdown()


@pytest.mark.parametrize("mode", ["colocate", "server"])
def test_without_vllm_one_message_before_a_model_is_loaded(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_checks.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(run.catalog, "load", lambda name: pytest.fail("a model was loaded"))
    settings = TrainingSettings(use_vllm=True, vllm_mode=mode)
    with pytest.raises(ReplicationError, match=r"vLLM is not installed: pip install 'trl\[vllm\]'"):
        run_training(settings, 0, None, None, directory=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    check_vllm(grpo_config(TrainingSettings(), 0, tmp_path), "a/model")


def test_a_server_is_asked_for_its_model_and_its_log_probabilities(
    tmp_path: Path, installed: None, server: tuple[str, dict[str, Any]]
) -> None:
    address, answers = server
    options = {"vllm_mode": "server", "trl": {"vllm_server_base_url": address}}
    check_vllm(config(tmp_path, **options), "a/model")
    with pytest.raises(ReplicationError, match=r"serves a/model, not another/model. Start it on GPUs of its own"):
        check_vllm(config(tmp_path, **options), "another/model")
    answers["/server_info"]["vllm_config"]["model_config"]["logprobs_mode"] = "raw_logprobs"
    with pytest.raises(ReplicationError, match=r"of the kind raw_logprobs.*--logprobs-mode processed_logprobs"):
        check_vllm(config(tmp_path, **options), "a/model")
    uncorrected = {**options["trl"], "vllm_importance_sampling_correction": False}
    check_vllm(config(tmp_path, vllm_mode="server", trl=uncorrected), "a/model")
    del answers["/server_info"]
    with pytest.raises(ReplicationError, match=r"No vLLM server that training can use answers.*VLLM_SERVER_DEV_MODE=1"):
        check_vllm(config(tmp_path, **options), "a/model")


def test_a_server_that_is_not_there(tmp_path: Path, installed: None) -> None:
    nobody = {"vllm_server_base_url": "http://127.0.0.1:9"}
    with pytest.raises(ReplicationError, match=r"answers at http://127.0.0.1:9.*vllm serve a/model"):
        check_vllm(config(tmp_path, vllm_mode="server", trl=nobody), "a/model")


@pytest.mark.parametrize("mode", ["colocate", "server"])
def test_what_samples_is_left_beside_the_group_log(
    mode: str, tmp_path: Path, installed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_checks, "_check_server", lambda *_: None)
    monkeypatch.setattr(run.catalog, "load", lambda name: (_ for _ in ()).throw(InterruptedError))
    with pytest.raises(InterruptedError):
        run_training(TrainingSettings(use_vllm=True, vllm_mode=mode), 0, None, None, directory=tmp_path)
    assert (tmp_path / "sampling.txt").read_text() == (
        f"vLLM ({mode}); terms times the ratio of the policy's probability to vLLM's, a completion is left out where "
        "the ratio lies outside [0, 3]\n"
    )


def test_every_kind_of_correction_in_words(tmp_path: Path) -> None:
    assert sampling_in_words(grpo_config(TrainingSettings(), 0, tmp_path)).startswith("transformers")
    off = config(tmp_path, trl={"vllm_importance_sampling_correction": False})
    assert sampling_in_words(off) == "vLLM (colocate); no correction for its own probabilities"
    bounds = {"vllm_importance_sampling_clip_min": 0.5, "vllm_importance_sampling_clip_max": None}
    cut = config(tmp_path, trl={"vllm_importance_sampling_mode": "token_truncate", **bounds})
    assert sampling_in_words(cut).endswith("a token has its ratio truncated to [0.5, infinity]")


def test_the_correction_is_measured_over_the_rollouts() -> None:
    names = ("importance_sampling_ratio/min", "importance_sampling_ratio/mean", "importance_sampling_ratio/max")
    names += ("sampling_logp_difference/mean", "sampling_logp_difference/max")
    values = [(0.0, 0.9, 1.5, 0.01, 0.2), (0.5, 1.1, 1.2, 0.03, 0.1)]
    history = [{f"sampling/{name}": value for name, value in zip(names, row)} for row in values]
    assert sampling_correction([*history, {"loss": 0.0}]) == pytest.approx(
        {
            "sampling_ratio_least": 0.0,
            "sampling_ratio_mean": 1.0,
            "sampling_ratio_largest": 1.5,
            "sampling_difference_mean": 0.02,
            "sampling_difference_largest": 0.2,
        }
    )
    assert sampling_correction([{"loss": 0.0}]) == {}
