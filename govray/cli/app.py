"""The table of verbs.

One module per verb family, each a plain function or a small `typer.Typer`. To
add a verb: write ``govray/cli/<verb>.py`` and add its line below.

The modules are imported at every start, so at their top they import only the
standard library, typer, rich, `govray.errors` and `govray.cli`. What a verb
needs beyond that it imports inside its function: `govray --help` stays quick,
and a verb runs with exactly the extras that it uses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from govray import __version__
from govray.cli import (
    adapter,
    audit,
    checkpoint,
    corpus,
    demo,
    init,
    keys,
    model,
    policy,
    replay,
    runs,
    schema,
    serve,
    show,
    sign,
    token,
    trace,
    train,
    tune,
    verify,
)

app = typer.Typer(
    name="govray",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command("demo")(demo.demo)
app.command("init")(init.init)
app.add_typer(keys.app, name="keys")
app.add_typer(corpus.app, name="corpus")
app.command("sign")(sign.sign)
app.command("show")(show.show)
app.command("verify")(verify.verify)
app.add_typer(policy.app, name="policy")
app.command("train")(train.train)
app.command("tune")(tune.tune)
app.add_typer(runs.app, name="runs")
app.command("replay")(replay.replay)
app.command("attest")(train.attest)
app.command("audit")(audit.audit)
app.command("trace")(trace.trace)
app.add_typer(adapter.app, name="adapter")
app.add_typer(checkpoint.app, name="checkpoint")
app.command("serve")(serve.serve)
app.add_typer(token.app, name="token")
