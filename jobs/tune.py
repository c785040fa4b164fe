"""Search one experiment: `ray job submit --working-dir . -- python jobs/tune.py --config FILE`.

The job runs on the cluster that it is submitted to, or on this machine. The attestation key is read
here, on the job's driver, as in jobs/train.py, or nowhere with --unsigned. No trial sees it.

An unfinished search of exactly this file is resumed; with --submission, that submission's own. On
SIGTERM, which `ray job stop` sends, its trials commit and it exits with code 75. Set
RAY_JOB_STOP_WAIT_TIME_S to what that takes.
"""

from __future__ import annotations

import argparse
import sys

from govray.errors import GovrayError
from govray.governance.submission.submission import read_submission
from govray.printable import printable
from govray.tune.search_config import read_search


def main() -> int:
    """Parse the arguments, search, print which trial is the best and where its model is."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", required=True, help="experiment file with a search section")
    parser.add_argument("--new", action="store_true", help="don't go on with an unfinished search")
    parser.add_argument(
        "--submission", metavar="FILE", help="JSON that says who submitted the search"
    )
    parser.add_argument("--unsigned", action="store_true", help="read no key: others sign")
    arguments = parser.parse_args()
    try:
        file = read_search(arguments.config)
        given = arguments.submission
        submission = read_submission(given) if given else None
        from govray.train.driver.ray_cluster import start_ray
        from govray.train.inputs import operator_key
        from govray.tune.search import run

        operator_key.take(file.experiment.attestation_key, refuse=arguments.unsigned)
        start_ray(experiment=file.experiment.name)
        outcome = run(
            file,
            new=arguments.new,
            submission=submission,
            unsigned=arguments.unsigned,
            on_resume=lambda folder: print(printable(f"going on with {folder}"), flush=True),
            on_wait=lambda line: print(printable(line), flush=True),
        )
    except GovrayError as error:
        print(f"govray: {error}", file=sys.stderr)
        return error.exit_code
    conclusion = outcome.conclusion
    print(printable(f"search {outcome.folder}"))
    if conclusion.best is None:
        print("No trial stayed within the memorization limit")
    else:
        print(printable(f"best   {conclusion.best}"))
        model = outcome.models.get(conclusion.best, "none yet: the attestor signs it")
        print(printable(f"model  {model}"))
    if conclusion.why:
        leader = f"{conclusion.leader}'s, which is not best: {conclusion.why}"
        print(printable(f"The {file.search.lead} is {leader}"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
