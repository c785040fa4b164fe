"""Starting with the optimizer's state of the run whose weights a run starts from.

A model folder has no optimizer: its run's last commit has. The attestation states that commit's
digest, so one signature covers weights and moments.

Invariants:

* The weights are those of a model that verifies under the run's trust root, and the commit is the
  one that this model's attestation names. Its weights have the attested digest.
* What earlier training saw came to a tensor's moments by that tensor's gradients. So the taint of
  the weights covers them.
* Moments and the optimizer's own counts are taken. Learning rates, schedule and all other settings
  are the new run's, from its step 0 on. Adapters begin anew.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import nn

from govray.errors import Damaged, Malformed, Refused, UsageError
from govray.governance.attestation import model_folder
from govray.governance.formats import canonical_json
from govray.governance.formats.tensor_header import read_header
from govray.governance.verify.verifier import VerifiedModel
from govray.train.checkpoint import commit_folder, whole_file
from govray.train.checkpoint.commit_reader import CommitFolder
from govray.train.checkpoint.optimizer_state import begin_optimizer, require_same_optimizer
from govray.train.checkpoint.storage import committed_folders
from govray.train.checkpoint.stored_tensors import NAMED_DTYPES
from govray.train.checkpoint.tensor_shards import fail_together
from govray.train.inputs.pretrained_start import OptimizerStart
from govray.train.state.trained_model import OPTIMIZER, OPTIMIZER_VALUES, read_tensors


def find_optimizer(
    path: Path, files: Mapping[str, str], model: VerifiedModel | None
) -> OptimizerStart:
    """The commit from which a model was attested, every byte of its optimizer's state checked.

    Args:
        path: The commit, or the folder of its run.
        files: The weights that the run starts from: file → digest.
        model: Whose they are, if it verifies.

    Raises:
        UsageError: No commit is there.
        Refused: It is another one than the model's, or its bytes were changed.
    """
    where = f"pretrained_optimizer {path}"
    if model is None:
        raise Refused(
            "the weights are of no model that verifies under the run's trust root, so nothing says "
            "that this optimizer's state is theirs",
            where=where,
            do="Attest the run whose state this is, and name its model folder in pretrained",
        )
    found: list[Path] = []
    if os.path.isfile(path / commit_folder.MANIFEST):
        found = [path]
    elif os.path.isdir(path):  # unlike Path's, False of any name that the system refuses
        found = [each for _, each in committed_folders(path) if isinstance(each, Path)]
    if not found:
        raise UsageError(
            "no commit lies there",
            where=where,
            do="Name a run's folder on disk, or a commit. One in an object store has to be "
            "downloaded before",
        )
    attested = model.attestation.execution.commit
    committed = next(
        (each for each in map(_opened, found) if each and each.digest == attested), None
    )
    if committed is None:
        raise Refused(
            f"the model was attested from the commit {attested}, and that is not here",
            where=where,
            do="Name the run of the model that is in pretrained, or its last commit",
        )
    try:
        weights = whole_file.entry(committed, model_folder.WEIGHTS).digest
        with ExitStack() as opened:
            for name in committed.entries:
                if name.endswith(OPTIMIZER):
                    whole_file.HashedFile(committed, opened, name).require_intact()
    except Damaged as error:
        raise _refusal(error, str(committed.folder)) from error
    if dict(files) != {model_folder.WEIGHTS: weights}:
        raise Refused(
            "the commit has other weights than those to start from",
            where=where,
            do=f"Name the model folder, or its {model_folder.WEIGHTS}, in pretrained",
        )
    return OptimizerStart(folder=str(Path(str(committed.folder)).resolve()), commit=attested)


def check_optimizer_fits(
    model: nn.Module, optimizer: torch.optim.Optimizer, start: OptimizerStart
) -> None:
    """Compare a run's optimizer with the one whose state it is to begin with.

    Args:
        model: With the dtypes in which it will be trained.

    Raises:
        Refused: It is of another class, other parameters or settings, or of other dtypes.
    """
    committed = open_start(start)
    try:
        require_same_optimizer(optimizer, _names(model), _values(committed))
        with whole_file.header(committed, model_folder.WEIGHTS) as file:
            stored = {each.name: each.dtype for each in read_header(file, where=start.folder)}
    except Malformed as error:
        raise _refusal(error, start.folder) from error
    for name, parameter in model.named_parameters():
        if NAMED_DTYPES.get(stored[name]) != parameter.dtype:
            raise Refused(
                f"{name} is {parameter.dtype} here, and its moments are of {stored[name]}",
                where=f"pretrained_optimizer {start.folder}",
                do="Train in the precision of the run whose state it is",
            )


def load_optimizer(
    model: nn.Module, optimizer: torch.optim.Optimizer, start: OptimizerStart
) -> None:
    """Have an optimizer begin with a commit's moments. Collective; ranks fail together.

    Args:
        model: As it will be trained: whole, or sharded, of which this rank's rows are read.
        optimizer: Over the base model's parameters alone.

    Raises:
        Refused: As `check_optimizer_fits`, or the commit is no longer the recorded one.
    """
    fail_together(lambda: _load(model, optimizer, start))


def open_start(start: OptimizerStart) -> CommitFolder:
    """The recorded commit. Its bytes are checked as they are read. Raises ``Refused``."""
    committed = _opened(Path(start.folder))
    if committed is None or committed.digest != start.commit:
        raise Refused(
            "the commit is gone, or changed since the run began",
            where=f"pretrained_optimizer {start.folder}",
            do="Restore it, or start a new run",
        )
    return committed


def _load(model: nn.Module, optimizer: torch.optim.Optimizer, start: OptimizerStart) -> None:
    check_optimizer_fits(model, optimizer, start)
    committed, names = open_start(start), _names(model)
    parameters = {name: parameter for parameter, name in names.items()}
    try:
        tensors = read_tensors(
            committed, OPTIMIZER, lambda key: parameters.get(key.partition("/")[2])
        )
        begin_optimizer(optimizer, names, tensors, _values(committed))
    except Malformed as error:
        raise _refusal(error, start.folder) from error


def _opened(folder: commit_folder.Folder) -> CommitFolder | None:
    try:
        return commit_folder.open_commit(folder)
    except (Damaged, UsageError):
        return None  # an interrupted run leaves such folders too


def _values(committed: CommitFolder) -> Any:
    return canonical_json.parse_canonical(committed.files[OPTIMIZER_VALUES])


def _names(model: nn.Module) -> dict[nn.Parameter, str]:
    return {parameter: name for name, parameter in model.named_parameters()}


def _refusal(error: Malformed, where: str) -> Refused:
    do = "Restore the commit, or begin without it" if isinstance(error, Damaged) else error.do
    return Refused(error.what, where=f"pretrained_optimizer {where}", do=do)
