"""The estimate's arithmetic: sizes of known models, the parts of memory, and what time and disk grow with."""

from __future__ import annotations

from dataclasses import replace

import pytest

from grpo_replications.shared.errors import ReplicationError
from grpo_replications.shared.planning import training_cost as cost
from grpo_replications.shared.planning.gpus import GPUS, gpu_called, gpu_like
from grpo_replications.shared.planning.model_shapes import KNOWN, shape_from_config, shape_of

ASSUME = cost.Assumptions()
H100 = GPUS["h100"]
FULL = cost.Workload(shape_of("Qwen/Qwen2.5-7B"), steps=100, completions=256, max_tokens=4096, reference=True)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("embedded", 134_515_008),
        ("openai-community/gpt2", 124_439_808),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", 1_777_088_000),
        ("meta-llama/Llama-3.2-1B-Instruct", 1_235_814_400),
        ("Qwen/Qwen2.5-3B", 3_085_938_688),
        ("Qwen/Qwen2.5-7B-Instruct-1M", 7_615_616_512),
        ("meta-llama/Llama-3.1-8B-Instruct", 8_030_261_248),
        ("mistralai/Mistral-7B-Instruct-v0.3", 7_248_023_552),
    ],
)
def test_sizes_are_the_published_ones(name: str, parameters: int) -> None:
    assert KNOWN[name].parameters == parameters


def test_the_shape_of_a_configuration_is_that_of_the_model_it_makes() -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}
    sizes |= {"num_key_value_heads": 2, "vocab_size": 50}
    for config, model in ((LlamaConfig, LlamaForCausalLM), (Qwen2Config, Qwen2ForCausalLM)):
        for tied in (False, True):
            made = model(config(**sizes, tie_word_embeddings=tied))
            shape = shape_from_config(made.config.to_dict())
            assert shape.parameters == sum(p.numel() for p in made.parameters())
    adapted = get_peft_model(made, LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"))
    assert shape.adapter_parameters(4) == sum(p.numel() for p in adapted.parameters() if p.requires_grad)


def test_full_training_of_7b_takes_20_bytes_a_parameter_before_anything_else() -> None:
    parts = cost.memory(FULL, H100, ASSUME).parts
    held = sum(parts[name] for name in ("weights", "gradients", "Adam", "reference model")) / ASSUME.slack
    assert held == pytest.approx(20 * 7_615_616_512)
    adapter = cost.memory(replace(FULL, adapter_rank=64), H100, ASSUME).parts
    assert "reference model" not in adapter and adapter["Adam"] < 0.03 * parts["Adam"]
    assert "Adam" not in cost.memory(replace(FULL, adam=False), H100, ASSUME).parts


def test_memory_counts_the_larger_of_training_and_decoding_and_what_vllm_reserves() -> None:
    decoding = cost.Decoding(1, 512, 4096)
    light, heavy = (cost.memory(replace(FULL, vllm_share=0.3, evaluations=e), H100, ASSUME) for e in ((), (decoding,)))
    name = "activations and logits of a micro-batch"
    assert name in light.parts and "cache of decoding" in heavy.parts and name not in heavy.parts
    assert light.parts["vLLM's share"] == 0.3 * H100.memory and not light.problem
    assert cost.memory(FULL, H100, ASSUME).parts["cache of decoding"] > 0, "transformers samples a rollout at once"
    assert "vLLM needs" in cost.memory(replace(FULL, vllm_share=0.1), H100, ASSUME).problem
    two = cost.memory(replace(FULL, vllm_share=0.3, micro_batch=2), H100, ASSUME).parts[name]
    assert two == pytest.approx(2 * light.parts[name])


def test_time_grows_with_what_is_computed() -> None:
    def training(**changes: object) -> float:
        return cost.seconds(replace(FULL, **changes), H100, ASSUME).training

    base = training()
    assert training(steps=200) == pytest.approx(2 * base)
    assert training(processes=2) == pytest.approx(base / 2)
    assert training(precision="float32") > 10 * base
    assert training(checkpointing=True) > base > training(adapter_rank=64) and training(reference=False) < base
    tokens = 100 * 256 * (ASSUME.length_share * 4096 + ASSUME.prompt_tokens)
    least = 8 * FULL.shape.parameters * tokens / (ASSUME.flops_share * H100.bfloat16)
    assert least < base < 1.3 * least, "a pass is 6, the reference 2 operations a parameter, attention a little more"
    sampling = cost.seconds(FULL, H100, ASSUME).sampling
    assert cost.seconds(replace(FULL, vllm_share=0.3), H100, ASSUME).sampling < sampling
    assert cost.seconds(replace(FULL, passes_over_rollout=2), H100, ASSUME).sampling == pytest.approx(sampling / 2)


def test_disk_holds_two_checkpoints_of_what_is_trained_and_the_log() -> None:
    one = cost.disk(replace(FULL, saves=True), ASSUME)
    assert one.running == 2 * 12 * FULL.shape.parameters
    assert one.kept == 100 * 256 * ASSUME.length_share * 4096 * ASSUME.text_bytes
    assert cost.disk(FULL, ASSUME).running == 0


def test_gpus_by_name_and_as_a_driver_calls_them() -> None:
    assert gpu_called("H100") is H100
    with pytest.raises(ReplicationError, match=r"no GPU 'h1000'.*l40s"):
        gpu_called("h1000")
    found = gpu_like("NVIDIA H100 80GB HBM3", 85e9)
    assert (found.bfloat16, found.memory) == (H100.bfloat16, 85e9)
    assert gpu_like("NVIDIA A100-SXM4-40GB", 42e9).bandwidth == GPUS["a100-40gb"].bandwidth
    assert gpu_like("Something New", 100e9).memory == 100e9
    with pytest.raises(ReplicationError, match="size of the model nobody/else is not known"):
        shape_of("nobody/else")
