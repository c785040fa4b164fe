"""What a job tells the attestor's register of its run, and from where the register lets it resume.

The queue gives a job the register's address and the attempt's secret, in its environment. A job
without them, such as one by hand, tells nothing and asks nothing.

The driver posts that the run starts, has finished and has ended. Rank 0 posts each commit, from the
thread that wrote it. So the digest is of what was written, not of what a folder holds later.
Retention waits for it: what the register names is there until it names something newer.

A run resumes from the last commit that the register has, and from no other. A newer one in the
folder may be of a job that died before it could post, or may be planted. Nothing tells them apart.
So it is put aside, and at most the steps of one commit are repeated. If the registered commit is
not there, an older state was restored or the folder is of another run. That is refused, as is a
folder that was there before anything was posted.

On plain Ray any job of the cluster can read the secret, so there it guards against accidents alone.

Invariant: nothing goes on past a commit that could not be posted.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from govray.errors import GovrayError, InfrastructureFailed, Refused, UsageError
from govray.governance.formats import canonical_json
from govray.governance.submission.http_exchange import HttpAnswer, check_url, get, post
from govray.governance.submission.register_forms import (
    ADDRESS,
    LARGEST,
    SECRET,
    Flagged,
    PostForm,
    PostKind,
    RunStanding,
)

WAITS_S = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Between tries. When all have failed, the attempt has; another one may go well."""


def register_of(run: str) -> RegisterPosts | None:
    """The register, as this process may use it for a run; None where the environment names none."""
    address, secret = os.environ.get(ADDRESS), os.environ.get(SECRET)
    if not address:
        return None
    if not secret:
        raise UsageError(
            "there is a register, and no secret for it",
            where=SECRET,
            do="The queue gives both; by hand, unset both",
        )
    return RegisterPosts(check_url(address, where=ADDRESS).rstrip("/"), secret, run)


class RegisterPosts:
    """The posts of one process about one run.

    Every call may raise:

    * `Refused`: the register does not take it, and never will. `Flagged`: not from this attempt.
    * `InfrastructureFailed`: the register does not answer, or not now.
    """

    def __init__(self, address: str, secret: str, run: str) -> None:
        self._address = address
        self._secret = secret
        self._run = run
        self._stands: RunStanding | None = None

    def standing(self, *, at_most: int | None = None) -> RunStanding:
        """Where the run stands: what this process posts next goes on from there.
        ``at_most``: by the last commit whose step is that or before, for a look alone."""
        below = "" if at_most is None else f"?at_most={at_most}"
        address = f"{self._address}/runs/{self._run}{below}"
        found = self._answer(lambda: get(address, where=address, bearer=self._secret))
        if at_most is None:
            self._stands = found
        return found

    def started(self, *, planted: bool) -> None:
        """Tell that a driver has begun, before it makes the run's folder.

        Args:
            planted: Whether the folder is there all the same.
        """
        stands = self.standing()
        if planted and not stands.posts:
            raise Refused(
                "its folder was there before its first attempt",
                where=f"run {self._run}",
                do="Look who made it and take it away, then submit again",
            )
        if stands.last is None:
            self._post("started")

    def committed(
        self, *, branch: int, step: int, commit: str | None, size: int, root: str | None
    ) -> None:
        """Tell of a commit.

        Args:
            branch: How often the run was rolled back.
            step: The first step that it does not hold.
            commit: Digest of its manifest; None where a rollback begins anew.
            size, root: Of the ledger up to it.
        """
        self._post(
            "committed",
            branch=branch,
            step=step,
            commit=commit,
            ledger_size=size,
            ledger_root=root,
        )

    def finished(self) -> None:
        """Tell that all steps are done and committed."""
        if self.standing().last not in ("finished", "ended"):  # a worker has posted the commits
            self._post("finished")

    def ended(self) -> None:
        """Tell that the run has finished, and that the driver writes no more into its folder."""
        self.finished()
        if self._stands is None or self._stands.last != "ended":
            self._post("ended")

    def _post(self, kind: PostKind, **moved: Any) -> None:
        before = self._stands or self.standing()
        form = PostForm(
            **dict(before.position) | moved,
            run=self._run,
            sequence=before.sequence,
            kind=kind,
            previous=before.commit,
        )
        address, body = f"{self._address}/posts", canonical_json.encode(form.to_json())
        # The same post may arrive twice: the register takes it once.
        self._stands = self._answer(
            lambda: post(address, body, kind="application/json", where=address, bearer=self._secret)
        )

    def _answer(self, ask: Callable[[], HttpAnswer]) -> RunStanding:
        for wait in (*WAITS_S, None):
            try:
                answer = ask()
                if answer.status < 500:
                    return self._read(answer)
                trouble = f"it answers {answer.status}"
            except InfrastructureFailed as error:
                trouble = error.what
            if wait is not None:
                time.sleep(wait)
        raise InfrastructureFailed(
            f"the register does not answer: {trouble}",
            where=self._address,
            do="See whether the attestor runs; the next attempt goes on from the last commit",
        )

    def _read(self, answer: HttpAnswer) -> RunStanding:
        where = f"run {self._run}"
        try:
            value = canonical_json.parse(answer.body, limit=LARGEST, where=self._address)
            if answer.status == 200:
                return RunStanding.from_json(value, where=self._address)
            said = value if isinstance(value, dict) else {}
            title, detail = (str(said.get(name, "")) for name in ("title", "detail"))
        except GovrayError:
            title = detail = ""
        # 401: the queue has given the attempt another secret since.
        kind = Flagged if answer.status == 401 or title == "Flagged" else Refused
        raise kind(
            f"the register refuses: {detail[:500] or f'status {answer.status}'}",
            where=where,
            do="Nothing goes on that is not registered; see the register for what is",
        )


@contextmanager
def flag_told(register: RegisterPosts | None) -> Iterator[None]:
    """Within, raise `Flagged` where workers refuse because of it: they agree on kinds of errors,
    and this one is not among them."""
    try:
        yield
    except Refused:
        if register is not None:
            register.standing()
        raise
