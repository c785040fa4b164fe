"""``govray runs audit``: what a run's final model holds of the data that it was trained on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from govray.cli import signing_key, trust, user_files
from govray.cli.option_group import run_of
from govray.cli.output import PasswordFile, RevocationLists, field, line, note, report
from govray.errors import UsageError

if TYPE_CHECKING:
    from govray.governance.attestation.memorization_manifest import (
        CorpusEvidence,
        MemorizationManifest,
        SamplingScheme,
    )

SIGNED, UNSIGNED = "memorization.dsse.json", "memorization.json"


def audit(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A finished run's folder; or its id, in runs.")
    ],
    against: Annotated[
        Path | None,
        typer.Option(
            "--against", metavar="RUN", help="A run that left corpora out, such as a replay."
        ),
    ] = None,
    rows: Annotated[
        int,
        typer.Option(
            "--rows", min=1, max=100_000, help="Rows to compare per corpus, trained and held back."
        ),
    ] = 64,
    prefix: Annotated[
        int, typer.Option("--prefix", min=1, max=1 << 20, help="Tokens that decoding starts from.")
    ] = 32,
    suffix: Annotated[
        int,
        typer.Option("--suffix", min=1, max=1 << 20, help="Tokens that decoding has to reproduce."),
    ] = 32,
    temperature: Annotated[
        float,
        typer.Option("--temperature", min=0.01, max=100.0, help="The temperature of sampling."),
    ] = 1.0,
    top_k: Annotated[
        int,
        typer.Option(
            "--top-k",
            min=0,
            max=1 << 20,
            help="Sample from this many of the likeliest tokens; 0: all.",
        ),
    ] = 40,
    chance: Annotated[
        float,
        typer.Option(
            "--chance",
            min=0.001,
            max=0.999,
            help="The probability with which one of n samples has to be the text.",
        ),
    ] = 0.9,
    candidates: Annotated[
        int,
        typer.Option(
            "--candidates", min=100, max=10_000, help="Secrets sampled for each canary's exposure."
        ),
    ] = 1000,
    controls: Annotated[
        int,
        typer.Option("--controls", min=0, max=1000, help="Canaries that were never planted."),
    ] = 4,
    confidence: Annotated[
        float,
        typer.Option(
            "--confidence",
            min=0.5,
            max=0.999999,
            help="The confidence of the lower bound on epsilon.",
        ),
    ] = 0.95,
    delta: Annotated[
        float,
        typer.Option("--delta", min=0.0, max=0.5, help="The delta that the bound is for."),
    ] = 1e-5,
    seed: Annotated[int, typer.Option("--seed", min=0, help="The seed of all samples.")] = 0,
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="KEY", help="Sign as the operator: a PEM file, or env:NAME."),
    ] = None,
    password_file: PasswordFile = None,
    to: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help=f"Default: RUN/{SIGNED}, or {UNSIGNED}."),
    ] = None,
    revocations: RevocationLists = None,
) -> None:
    """Measure memorization, and write the memorization manifest.

    Compares trained rows with reserve rows at each layer, continues rows by greedy decoding, and
    measures the exposure of planted canaries. Where a coin decided which were planted, it bounds
    epsilon of differential privacy from below. It needs the run's data but no cluster. Under
    torchrun the ranks share the model, and none holds all of it.

    Exit code 0: the audit was made, and lists what could not be checked. 3: the model or the data
    is missing, or a revocation list is older than the run's trust root allows.
    """
    from govray.train.inputs.run_record import read_record

    # Before torch is imported: a wrong folder is told at once.
    run = run_of(run)
    record = read_record(run)

    from govray.governance.attestation.memorization_manifest import (
        AuditSettings,
        SamplingScheme,
        verify_memorization_manifest,
    )
    from govray.governance.attestation.privacy_audit import PrivacyLevel
    from govray.governance.formats import canonical_json
    from govray.governance.formats.document import format_time
    from govray.governance.trust.anchor import TrustAnchor
    from govray.governance.trust.trust_state import root_name
    from govray.train.attest.audit_ranks import launched_ranks
    from govray.train.attest.memorization_audit import audit as make

    signer = signing_key.load(key, password_file) if key else None
    path = to or run / (SIGNED if signer else UNSIGNED)
    if not path.parent.is_dir():
        raise UsageError("no such folder", where=str(path.parent), do="Give another --out")
    now = trust.reference_time(None).replace(microsecond=0)
    given, pinned = trust.lists(revocations)
    anchor = TrustAnchor(record.root, given, pinned.of(root_name(record.root)))
    state = anchor.load(at=now, delegations=record.delegations)
    with launched_ranks() as rank:
        document = make(
            run,
            at=format_time(now),
            settings=AuditSettings(
                rows=rows,
                prefix_tokens=prefix,
                suffix_tokens=suffix,
                candidates=candidates,
                controls=controls,
                seed=seed,
                sampling=SamplingScheme(temperature=temperature, top_k=top_k, probability=chance),
                privacy=PrivacyLevel(confidence=confidence, delta=delta),
            ),
            against=against,
            progress=lambda corpus, done, total: (
                None if rank else note(f"{done + 1}/{total}  {corpus}")
            ),
        )
    if rank:  # all came to the same evidence, and the first writes it
        return
    if signer:
        envelope = document.seal([signer])
        # Others will verify it too: a signature of a key that the run's root does not know is
        # useless.
        verify_memorization_manifest(state.each_key_counts("operator"), envelope, at=now)
        user_files.write(path, envelope)
    else:
        user_files.write(path, canonical_json.encode(document.to_json()))
    report({"file": str(path), "signed": signer is not None} | document.to_json())
    _tell(document)
    field("written", f"{path}{'' if signer else ' (not signed: give --key)'}")


def _tell(document: MemorizationManifest) -> None:
    line(f"AUDITED {document.run}  after {document.step} steps", style="bold")
    for corpus in document.corpora:
        _tell_corpus(corpus, document.settings.sampling)
    for each in document.unchecked:
        field("unchecked", f"{each.check}{f' of {each.corpus}' if each.corpus else ''}: {each.why}")


def _tell_corpus(corpus: CorpusEvidence, scheme: SamplingScheme) -> None:
    from govray.governance.record.e_process import least_odds

    line()
    line(f"{corpus.corpus}  could reach {', '.join(corpus.groups)}")
    if corpus.measures:
        first = corpus.measures[0]
        field(
            "odds",
            f"to be among the best known at least {least_odds(corpus.measures):.2f} times a "
            f"reserve record's, 95 % sure; {first.probe.records} of them "
            f"and {first.reserve.records} of the reserve",
        )
    if found := corpus.extraction:
        field(
            "extracted",
            f"{found.extracted} of {found.rows} rows; reserve {found.reserve_extracted} of "
            f"{found.reserve_rows}",
        )
    if corpus.discoverable and found:
        counts = ", ".join(f"{each.rows} in {each.samples:,}" for each in corpus.discoverable[::2])
        most = corpus.discoverable[-1]
        field(
            "sampled",
            f"rows that come with probability {scheme.probability:g}: {counts} samples; "
            f"reserve {most.reserve_rows} of {found.reserve_rows}",
        )
    if corpus.canaries:
        bits = [each.exposure_bits for each in corpus.canaries]
        gave = sum(each.extracted for each in corpus.canaries)
        field(
            "exposure",
            f"{sum(bits) / len(bits):.1f} bits, mean of {len(bits)} canaries (most "
            f"{max(bits):.1f}); decoding gives {gave} of their secrets",
        )
        if needed := [each.samples for each in corpus.canaries if each.samples]:
            field("secrets", f"the first comes in {min(needed):,} samples")
        if control := corpus.control_bits:
            field(
                "controls",
                f"{sum(control) / len(control):.1f} bits, mean of {len(control)} never planted",
            )
    if privacy := corpus.privacy:
        best = max(privacy.tried, key=lambda each: each.epsilon)
        level = privacy.level
        field(
            "privacy",
            f"epsilon is at least {privacy.epsilon:.2f} for these canaries (delta "
            f"{level.delta:g}, confidence {level.confidence:g}): {best.correct} of {best.guesses} "
            f"coins guessed right, {privacy.canaries} thrown",
        )
        note("A lower bound for canaries of this kind. Others may show more, so it is no limit.")
    if gap := corpus.counterfactual:
        field(
            "gap",
            f"{gap.gap:.3f} nats a token [{gap.low:.3f}, {gap.high:.3f}] against {gap.against}"
            + (f"; reserve {gap.reserve_gap:.3f}" if gap.reserve_gap is not None else ""),
        )
