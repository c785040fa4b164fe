"""The code of a submitter that an experiment names, and whether it goes with the job."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from govray.errors import UsageError
from govray.train.experiment.import_path import source_files, split_path
from govray.train.experiment.sections import ADAMW, COSINE
from govray.train.inputs.experiment_config import Experiment


def own_modules(experiment: Experiment) -> Iterator[tuple[str, str]]:
    """Each field that names neither govray's code nor torch's, and the module that it names."""
    named = [
        ("entrypoint", experiment.entrypoint),
        ("optimizer.name", experiment.optimizer.name),
        *(("schedule.name", each.name) for each in experiment.schedule.parts),
    ]
    for field, name in named:
        if name not in (ADAMW, COSINE) and not name.startswith(("govray.engine.", "torch.optim.")):
            yield field, split_path(name)[0]


def require_sent(
    experiment: Experiment, sent: Collection[str], *, option: str, starts: str | None = None
) -> None:
    """Raise ``UsageError`` for a module that lies in this folder and doesn't go with the job. One
    that lies elsewhere may be installed on the cluster.

    Args:
        sent: Names of the files of the folder that the job gets.
        option: What sends this folder.
        starts: The file that starts the job, if its folder is sent.
    """
    if starts is not None and starts not in sent:
        raise UsageError(
            f"the folder that is sent has no {starts}, which starts the job",
            where=option.partition(" ")[0],
            do="Name a folder of `govray init`",
        )
    if experiment.environment is not None and experiment.environment.image is not None:
        return  # which brings the code
    for field, module in own_modules(experiment):
        files = source_files(module)
        here = next((each for each in files if Path(each).is_file()), None)
        if here is not None and not {*files} & {*sent}:
            raise UsageError(
                f"{field} names {module}, whose file {here} is not sent with the job",
                where=str(Path(here).resolve()),
                do=f"Say {option}, and let no .gitignore or .rayignore leave the file out",
            )
