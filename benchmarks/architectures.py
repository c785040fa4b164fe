"""``python -m benchmarks.architectures``: architectures of transformers, and what governs them.

Small ones with fresh weights, listed here beforehand. Of each:

* Whether rows couple, by an oracle that knows nothing of govray. Another row is put into row i's
  place, in float64 and under the same draws, and the losses of the others are compared.
* What the start-up trial says, in float32, with transformers' own kernels.
* How far governed gradients are from those of an oracle in float64. It takes one row at a time
  through the plain model, masks its finished gradients by group, and adds them up. Two ranks share
  rows of three routes, under each aggregator. A model that draws is in ``eval()`` there.

Three further lines add the loss that balances experts over all tokens, as transformers does. There
rows couple, and the trial has to refuse.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func
from transformers.utils import logging

from benchmarks.command import names, run
from benchmarks.ranks import run_ranks
from govray.engine.batch import MicroBatch, StepBatch
from govray.engine.collective.step_settings import AggregatorName, StepSettings
from govray.engine.gradients.layer_coverage import uncovered
from govray.engine.model.causal_lm import CausalLM
from govray.engine.model.causal_lm import loss as token_loss
from govray.engine.model.layer_groups import layer_groups
from govray.engine.step import build_step
from govray.engine.steps.first_exchange import Terms
from govray.errors import GovrayError, Refused
from govray.governance.policy.route import Route
from govray.train.checkpoint.tensor_shards import shard

_NAMES = (
    "apertus arcee biogpt bitnet bloom cohere cohere2 diffllama ernie4_5_moe exaone4 falcon "
    "falcon_mamba flex_olmo gemma gemma2 gemma3_text glm4 glm4_moe gpt2 gpt_neox gpt_oss gptj "
    "granite granitemoe jamba jetmoe llama llama4_text mamba minimax mistral mixtral mpt nemotron "
    "olmo olmo2 olmoe opt phi phi3 phimoe qwen2 qwen2_moe qwen3 qwen3_moe qwen3_next "
    "recurrent_gemma rwkv stablelm starcoder2"
)
LISTED = tuple(_NAMES.split())

BALANCED = {f"{name} balanced": name for name in ("mixtral", "olmoe", "qwen3_moe")}
"""Experts whose loss is joined by the one that balances them."""

_SIZES: Mapping[str, Any] = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model"), 16),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "shared_expert_intermediate_size"), 24),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "n_head"), 2),
    **dict.fromkeys(("num_attention_heads", "n_heads", "num_heads", "head_dim", "rotary_dim"), 4),
    **dict.fromkeys(("num_local_experts", "num_experts", "n_routed_experts", "state_size"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_experts_per_tok", "time_step_rank"), 2),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len"), 16),
    **dict.fromkeys(("eos_token_id", "bos_token_id")),
    **dict.fromkeys(("hidden_dropout", "hidden_dropout_prob", "resid_pdrop", "resid_dropout"), 0.0),
    **dict.fromkeys(("embd_pdrop", "embed_dropout", "dropout", "activation_dropout"), 0.0),
    "emb_dropout": 0.0,
    "moe_intermediate_size": 8,
    "pad_token_id": 0,
}
"""What an architecture is given of the fields that it has; others are its own defaults."""

CONTEXT, VOCABULARY = 6, 23
COUPLED = 1e-6
"""Share of a row's loss by which another row changes it, at least: some compute in float32."""

AGGREGATORS: Sequence[AggregatorName] = ("governed", "ddp", "fsdp2")
_CORPUS, _DIGEST = "corpus", "sha256:" + "0" * 64

Rows = dict[str, Tensor]


def build(name: str, dtype: torch.dtype) -> nn.Module:
    """The model, equal whenever it is built. In float64, experts run one after another."""
    kinds = {kind.model_type: kind for kind in MODEL_FOR_CAUSAL_LM_MAPPING}
    kind = kinds[BALANCED.get(name, name)]
    known = kind().to_dict().keys() - kind.attribute_map.keys()
    fields = {field: size for field, size in _SIZES.items() if field in known}
    torch.manual_seed(1)
    model = CausalLM(CONTEXT, VOCABULARY, config={"model_type": kind.model_type, **fields})
    if dtype is torch.float64:
        model.double()
        with torch.no_grad():  # so that every gradient is far above rounding
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
        if hasattr(model.language_model, "set_experts_implementation"):
            model.language_model.set_experts_implementation("eager")
    return model


def undrawn(name: str) -> nn.Module:
    """The model in float64, so that its losses depend on no generator."""
    model = build(name, torch.float64)
    before = torch.get_rng_state()
    with torch.no_grad():
        loss_of(name)(model, rows(1, 0))
    return model if torch.equal(before, torch.get_rng_state()) else model.eval()


def rows(count: int, key: int) -> Rows:
    """Random ones, equal for equal keys."""
    generator = torch.Generator().manual_seed(key)
    drawn = torch.randint(1, VOCABULARY, (count, CONTEXT + 1), generator=generator)
    return {"tokens": drawn[:, :-1].clone(), "targets": drawn[:, 1:].clone()}


def balanced_loss(model: nn.Module, tensors: Mapping[str, Tensor]) -> Tensor:
    """The losses of tokens, each with the balance of all."""
    assert isinstance(model, CausalLM)
    output = model.language_model(
        input_ids=tensors["tokens"], use_cache=False, output_router_logits=True
    )
    losses = F.cross_entropy(output.logits.transpose(1, 2), tensors["targets"], reduction="none")
    config = model.language_model.config
    chosen = load_balancing_loss_func(output.router_logits, 4, config.num_experts_per_tok)
    balanced: Tensor = losses + config.router_aux_loss_coef * chosen
    return balanced


def loss_of(name: str) -> Any:
    """The loss of a line of the table."""
    return balanced_loss if name in BALANCED else token_loss


def coupling(name: str) -> float:
    """The largest share by which a row's loss differs when another row does."""
    model, count = build(name, torch.float64), 3
    one, other = rows(count, 1), rows(count, 2)
    largest = 0.0

    def losses(tensors: Rows) -> Tensor:
        torch.manual_seed(2)
        found: Tensor = loss_of(name)(model, tensors)
        return found

    with torch.no_grad():
        expected = losses(one)
        for place in range(count):
            turned = {key: tensor.clone() for key, tensor in one.items()}
            for key in turned:
                turned[key][place] = other[key][place]
            gap = ((losses(turned) - expected) / expected).abs()
            gap[place] = 0
            largest = max(largest, float(gap.max()))
    return largest


def routes(model: nn.Module) -> dict[str, Route]:
    """Everything; the upper block and what is behind it; half of the lower block, and the upper."""
    groups = list(layer_groups(model))
    upper = [group for group in groups if group in ("block.1", "final_norm", "head")]
    return {
        "all": Route(dict.fromkeys(groups, 1.0)),
        "upper": Route(dict.fromkeys(upper, 1.0)),
        "half": Route({"block.0": 0.5, "block.1": 1.0}),
    }


SHARED: Sequence[Mapping[str, Rows]] = (
    {"all": rows(2, 3), "upper": rows(1, 4)},
    {"upper": rows(2, 5), "half": rows(1, 6)},
)
"""What each rank reads."""


def step(model: nn.Module, own: Mapping[str, Rows], name: str, host: AggregatorName) -> Rows:
    """One governed step; the gradients that the optimizer sees, whole."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen: Rows = {}

    def look(*_: object) -> None:
        for parameter_name, parameter in model.named_parameters():
            if (gradient := parameter.grad) is not None:
                full = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
                seen[parameter_name] = full.clone()

    optimizer.register_step_pre_hook(look)
    known = routes(model)
    run_step = build_step(
        model,
        optimizer,
        groups=layer_groups(model),
        routes={route.digest: route for route in known.values()},
        terms=Terms(policy_digest=_DIGEST, plan_digest=_DIGEST, corpora=(_CORPUS,)),
        settings=StepSettings(clip_norm=None, aggregator=host),
    )
    parts = tuple(
        MicroBatch(
            known[route].digest,
            tensors,
            tuple(range(len(tensors["targets"]))),
            (CONTEXT,) * len(tensors["targets"]),
        )
        for route, tensors in own.items()
    )
    count = sum(len(part.positions) for part in parts)
    run_step(StepBatch(0, parts, {_CORPUS: (count, count * CONTEXT)}), loss_of(name))
    return seen


def oracle(name: str) -> Rows:
    """Σ_i w_il ∂ℓ_i/∂θ_l / N_l, row by row."""
    model = undrawn(name)
    parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
    sums = {each: torch.zeros_like(parameter) for each, parameter in parameters.items()}
    counts = dict.fromkeys(sums, 0)
    weights = {
        route: {
            each: weight
            for group, weight in found.weights.items()
            for each in layer_groups(model)[group]
        }
        for route, found in routes(model).items()
    }
    for own in SHARED:
        for route, tensors in own.items():
            for place in range(len(tensors["targets"])):
                row = {key: tensor[place : place + 1] for key, tensor in tensors.items()}
                gradients = torch.autograd.grad(
                    loss_of(name)(model, row).sum(), [*parameters.values()], allow_unused=True
                )
                for each, gradient in zip(parameters, gradients, strict=True):
                    if each in weights[route]:
                        counts[each] += CONTEXT
                        if gradient is not None:
                            sums[each] += weights[route][each] * gradient
    return {each: total / counts[each] for each, total in sums.items()}


def distances(rank: int, listed: Sequence[str], hosts: Sequence[AggregatorName]) -> Any:
    """Architecture → aggregator → the largest distance of a parameter's gradient, or the error."""
    quiet()
    found: dict[str, dict[str, float | str]] = {}
    for name in listed:
        expected = oracle(name)
        floor = 1e-6 * torch.stack([each.norm() for each in expected.values()]).norm()
        found[name] = {}
        for host in hosts:
            model = undrawn(name)
            if host == "fsdp2":
                shard(model)
            try:
                seen = step(model, SHARED[rank], name, host)
            except GovrayError as error:
                found[name][host] = str(error)
                continue
            found[name][host] = max(
                float((seen[each] - total).norm() / total.norm().clamp_min(floor))
                for each, total in expected.items()
            )
    return found


def refusal(name: str) -> str | None:
    """What the trial says in the first step, if it refuses."""
    model = build(name, torch.float32)
    try:
        step(model, {"all": rows(3, 7), "upper": rows(2, 8)}, name, "governed")
    except Refused as error:
        return str(error)
    return None


def quiet() -> None:
    """Let transformers not warn of missing kernels, for each model."""
    warnings.filterwarnings("ignore")
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line for each architecture, and one JSON object."""
    every = [*LISTED, *BALANCED]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.architectures")
    parser.add_argument("--listed", type=names(dict.fromkeys(every)), default=every)
    parser.add_argument(
        "--aggregators", type=names(dict.fromkeys(AGGREGATORS)), default=AGGREGATORS
    )
    chosen = parser.parse_args(arguments)
    quiet()
    found: dict[str, dict[str, Any]] = {}
    for name in chosen.listed:
        found[name] = {
            "uncovered": len(uncovered(build(name, torch.float32))),
            "coupling": coupling(name),
            "refused": refusal(name),
        }
    exact = [name for name in chosen.listed if found[name]["refused"] is None]
    for start in range(0, len(exact), 10):  # torch's hosts leave groups behind in a process
        some = exact[start : start + 10]
        (told, *_) = run_ranks(distances, 2, "cpu", some, chosen.aggregators)
        for name, each in told.items():
            found[name]["distance"] = each
    for name, each in found.items():
        gaps = [
            f"{host} {gap:.0e}" if isinstance(gap, float) else f"{host}: {gap}"
            for host, gap in each.get("distance", {}).items()
        ]
        print(
            f"{name:<20} {each['uncovered']:>2} uncovered, rows "
            f"{'couple' if each['coupling'] > COUPLED else 'apart '} ({each['coupling']:.0e}), "
            f"{each['refused'] or ', '.join(gaps)}"
        )
    apart = {name for name, each in found.items() if each["coupling"] <= COUPLED}
    print(
        json.dumps(
            {
                "architectures": found,
                "falselyRefused": sorted(apart - {*exact}),
                "falselyPassed": sorted({*exact} - apart),
            }
        )
    )


if __name__ == "__main__":
    sys.exit(run(main))
