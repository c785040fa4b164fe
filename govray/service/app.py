"""The application: routes, and around them the layers that every request passes.

From the outside: requests are counted (`measures`), body and time are bounded (`limits`), ``Host``
is checked, what nobody foresaw becomes a 500 (`problems.CatchAll`), then FastAPI routes. The
caller is found by the routes' own dependency (`access.CallerDep`).

One application holds one engine and what it remembers of tokens and rates; two of them, or two
processes, share the store and nothing else.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.types import ASGIApp, Receive, Scope, Send

from govray import __version__
from govray.service import problems
from govray.service.access import Gate
from govray.service.limits import Buckets, Limits
from govray.service.measures import Measured, Measures
from govray.service.oidc import Oidc
from govray.service.problems import CatchAll, Problem, ProblemDetails
from govray.service.routes import (
    experiments,
    health,
    log,
    models,
    stream,
)
