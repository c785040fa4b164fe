"""Ray's provider of pretended nodes, for the autoscaler's process: their workers are forks."""

from __future__ import annotations

import os
import sys
from typing import Any

from ray.autoscaler._private.fake_multi_node.node_provider import FakeMultiNodeProvider

PYTHON = "TESTS_FORKED_PYTHON"
"""The variable with the launcher's path."""


class ForkedNodes(FakeMultiNodeProvider):  # type: ignore[misc]
    """Nodes that start the launcher. Ray reads ``sys.executable`` whenever it starts one."""

    def __init__(self, *args: Any, **more: Any) -> None:
        sys.executable = os.environ[PYTHON]
        super().__init__(*args, **more)
