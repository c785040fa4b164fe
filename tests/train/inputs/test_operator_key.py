"""What leaves the driver's environment before Ray starts."""

from __future__ import annotations

import json
import os

import pytest

from govray.errors import Refused
from govray.governance.signers.pkcs11_reference import PIN_VARIABLE
from govray.train.inputs import operator_key


def test_a_module_s_pin_leaves_the_environment_and_is_there_for_the_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(operator_key, "_taken", {})
    monkeypatch.setenv(PIN_VARIABLE, "1234")
    operator_key.take("pkcs11:token=t;object=k")
    assert PIN_VARIABLE not in os.environ
    assert operator_key._taken == {PIN_VARIABLE: "1234"}


def test_a_job_that_passes_the_pin_on_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"runtime_env": {"env_vars": {PIN_VARIABLE: "1234"}}}
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", json.dumps(config))
    with pytest.raises(Refused, match=f"passes {PIN_VARIABLE} to every worker") as refused:
        operator_key.take()
    assert "1234" not in str(refused.value)
