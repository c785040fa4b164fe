"""What an experiment needs beyond a training installation is said before anything starts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from govray import cli
from govray.errors import CouldNotCheck, UsageError
from govray.train.inputs import needed_extras
from govray.train.inputs.experiment_config import parse_experiment
from govray.train.inputs.needed_extras import require_extras
from govray.train.loop.entrypoint import own_loop
from tests.support.deployment import Deployment

CHANGES: dict[str, tuple[Mapping[str, Any], str]] = {
    "transformers": ({"entrypoint": "govray.engine.huggingface:CausalLM"}, "huggingface"),
    "optax": ({"entrypoint": "flax_loop:train_loop"}, "jax"),
    "flax": ({"framework": "jax"}, "jax"),
    "wandb": ({"tracking": {"wandb": {"project": "pumps"}}}, "wandb"),
    "mlflow": ({"tracking": {"mlflow": {}}}, "mlflow"),
    "pkcs11": ({"attestation_key": "pkcs11:token=T;object=k"}, "pkcs11"),
}


@pytest.fixture
def hidden(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names of packages that this Python is not to find."""
    names: set[str] = set()
    found = lambda name: None if name in names else find_spec(name)  # noqa: E731
    monkeypatch.setattr(needed_extras, "find_spec", found)
    return names


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Deployment:
    deployment = Deployment(tmp_path / "here")
    monkeypatch.chdir(deployment.folder)
    Path("flax_loop.py").write_text("from optax import adam\n\ndef train_loop(config): pass\n")
    return deployment


@pytest.mark.parametrize("module", CHANGES)
def test_a_package_that_is_missing_is_told_from_the_file(
    module: str, hidden: set[str], here: Deployment
) -> None:
    change, extra = CHANGES[module]
    experiment = parse_experiment(here.experiment(**change), where="test")
    require_extras(experiment)
    hidden.add(module)
    with pytest.raises(CouldNotCheck, match=f"needs {module},.*govray\\[{extra}\\]'"):
        require_extras(experiment)
    require_extras(parse_experiment(here.experiment(), where="test"))  # which needs none of them


def test_it_is_told_before_ray_starts(
    hidden: set[str],
    here: Deployment,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def started(**_: Any) -> None:
        pytest.fail("Ray was started first")

    monkeypatch.setattr("govray.train.driver.ray_cluster.ray_running", started)
    hidden.add("optax")
    file = Path("own.yaml")
    file.write_text(json.dumps(here.experiment(entrypoint="flax_loop:train_loop")))
    assert cli.main(["train", str(file)]) == 3
    assert "pip install 'govray[jax]'" in capsys.readouterr().err


def test_what_a_module_imports_in_its_turn_is_told_where_it_is_imported(here: Deployment) -> None:
    Path("outer_loop.py").write_text("import inner_model\n")
    inner = Path("inner_model.py")
    for wrong, do in (
        ("raise ModuleNotFoundError('No module', name='transformers.models')", "govray[hugging"),
        ("raise ModuleNotFoundError('No module', name='pumps')", "Name an importable"),
    ):
        inner.write_text(f"{wrong}\n")
        experiment = parse_experiment(
            here.experiment(entrypoint="outer_loop:train_loop"), where="test"
        )
        with pytest.raises(UsageError) as caught:
            own_loop(experiment)
        assert do in (caught.value.do or "")
