"""Options of the trainer in a config: read as TRL's are, kept with checkpoints, named on the model card."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
from trl import GRPOConfig, TrlParser

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.saved_runs import RUN_FILE
from grpo_replications.shared.training.config import TokenWeightedGRPOConfig, described, sources
from grpo_replications.shared.training.token_weights import token_weighting
from grpo_replications.shared.training.trainer import TokenWeightedGRPOTrainer
from tests.shared.training.test_trainer import dataset, make_trainer, mixed_reward, policy

YAML = """
output_dir: {output}
token_weight: sharpness
token_weight_options: {{tau: 5.0}}
num_generations: 4
per_device_train_batch_size: 8
max_completion_length: 5
max_steps: 1
use_cpu: true
bf16: false
report_to: none
group_log: {output}/log.jsonl
"""


def configured(tmp_path: Path, **given: Any) -> TokenWeightedGRPOTrainer:
    (tmp_path / "run.yaml").write_text(YAML.format(output=tmp_path))
    arguments = ["--config", str(tmp_path / "run.yaml"), "--success_reward", "0.5"]
    (config,) = TrlParser(TokenWeightedGRPOConfig).parse_args_and_config(arguments)
    model, tokenizer = policy()
    return TokenWeightedGRPOTrainer(
        model=model,
        reward_funcs=mixed_reward,
        args=config,
        train_dataset=dataset(),
        processing_class=tokenizer,
        **given,
    )


def test_a_yaml_file_and_the_command_line_give_the_same_trainer_as_arguments(tmp_path: Path) -> None:
    trainer = configured(tmp_path)
    assert trainer.weighting == token_weighting("sharpness", tau=5.0)
    assert trainer.success_reward == 0.5 and trainer.group_log.path == tmp_path / "log.jsonl"
    with pytest.raises(ReplicationError, match="token_weight is given to the trainer and in its config"):
        configured(tmp_path, token_weight="lopti")
    with pytest.raises(ReplicationError, match="the method lambda-grpo has no option tau"):
        config = TokenWeightedGRPOConfig(
            str(tmp_path), token_weight="lambda-grpo", token_weight_options={"tau": 1.0}, use_cpu=True, bf16=False
        )
        config.weighting()
    for wrong in ({"token_weight": 5}, {"token_weight": "lopti", "token_weight_options": {"eta": "high"}}):
        with pytest.raises(ReplicationError, match="token_weight"):
            TokenWeightedGRPOConfig(str(tmp_path), use_cpu=True, bf16=False, **wrong).weighting()


def test_a_checkpoint_keeps_the_method_and_is_resumed_with_no_other(tmp_path: Path) -> None:
    trainer, _ = make_trainer(tmp_path, "lambda-grpo", save_strategy="steps", save_steps=1)
    trainer.train()
    saved = json.loads((tmp_path / "checkpoint-1" / RUN_FILE).read_text())["settings"]
    assert saved["token_weight"]["factors"][0]["function"].endswith("token_weights.process_set_weight")
    card = (tmp_path / "README.md").read_text()
    assert "lambda-GRPO" in card and "2509.21154" in card and "- lambda-grpo" in card
    other, _ = make_trainer(tmp_path / "other", "sharpness", max_steps=2)
    with pytest.raises(ReplicationError, match=r"token_weight is .*Sharpness.* and was .*process_set_weight"):
        other.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))


def test_methods_are_told_apart_as_json_and_by_source() -> None:
    names = ["grpo", "lambda-grpo", "sharpness", "sharpness-logprob", "lopti", "lopti+ar", "80/20", "lambda-grpo*lopti"]
    assert len({json.dumps(described(token_weighting(name))) for name in names}) == len(names)
    assert [s.arxiv for s in sources(token_weighting("lambda-grpo*sharpness"), 3)] == [
        "2509.21154",
        "2511.00066",
        "2503.14476",
    ]
    assert sources(None, 0) == []


def test_the_signature_shows_the_arguments_of_trl() -> None:
    names = list(inspect.signature(TokenWeightedGRPOTrainer).parameters)
    assert {"model", "reward_funcs", "args", "peft_config", "token_weight", "redraw"} <= set(names)
    assert "kwargs" not in names


def test_an_ordinary_config_leaves_the_defaults(tmp_path: Path) -> None:
    trainer, _ = make_trainer(tmp_path)
    assert isinstance(trainer.args, GRPOConfig) and trainer.max_redraws == 0 and trainer.success_reward == 1.0
