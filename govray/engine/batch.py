"""What comes into a step, by the names that loops of others and tests know."""

from __future__ import annotations

from govray.engine.steps.batch import IGNORED, AfterStep, MicroBatch, StepBatch

__all__ = ["IGNORED", "AfterStep", "MicroBatch", "StepBatch"]
