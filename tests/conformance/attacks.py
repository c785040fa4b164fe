"""Everything that a model folder can be made to say falsely, one case each, and who notices."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from govray.errors import CouldNotCheck, GovrayError, Malformed, Refused, Untrusted
from govray.governance.attestation import model_folder
from govray.governance.attestation.environment import EarlierCode, Setup
from govray.governance.attestation.execution import CodeFacts
from govray.governance.attestation.model_attestation import Attestation, Removal, Replay
from govray.governance.formats import canonical_json
from govray.governance.formats.dsse import Envelope, Signature, pae, sign_payload
from govray.governance.formats.keys import LocalSigner
from govray.governance.formats.record_columns import RESERVE, TRAIN
from govray.governance.formats.signed_note import sign_checkpoint
from govray.governance.formats.statement import Subject, seal
from govray.governance.policy.credential import Credential, Period
from govray.governance.policy.depth_policy import Policy
from govray.governance.policy.policy_yaml import read_policy
from govray.governance.record.batch_plan import BatchPlan, StreamPlan
from govray.governance.record.ledger import (
    CorpusUse,
    GradientNorms,
    Leaf,
    Ledger,
    MeasuredPass,
    read_leaves,
)
from govray.governance.record.prepare_manifest import Manifest
from govray.governance.trust.authority import Delegation
from govray.governance.trust.revocation_list import Revocation, RevocationList
from tests.support.beaconed import beacon_of
from tests.support.uncovered import ARCHIVE, MARKS, PICKLE
from tests.support.world import (
    DIGEST,
    POLICY,
    STARTED,
    RecordLists,
    World,
    safetensors,
    sign_ledger,
    unchecked,
    write,
)


@dataclass(frozen=True)
class Given:
    """What whoever verifies is given beside the folder; the deployment's root by default."""

    root: bytes | None = None
    lists: tuple[bytes, ...] = ()


Attack = Callable[[World, Path], Given | None]


@dataclass(frozen=True)
class Case:
    """Somebody does something, and a step refuses it in some way, pointing at something.

    ``step`` is empty where the answer is that it could not be checked. ``without_records``: whether
    a summary refuses it, too.
    """

    name: str
    attack: Attack
    step: str
    kind: type[GovrayError]
    points_at: str
    without_records: bool = True


# What attackers do


def edit(name: str, change: Callable[[bytes], bytes]) -> Attack:
    """Somebody without a key changes a file."""

    def attack(world: World, folder: Path) -> None:
        data = (folder / name).read_bytes()
        changed = change(data)
        assert changed != data
        (folder / name).write_bytes(changed)

    return attack


class Insider:
    """The operator runs everything again from a changed stage on, and signs it.

    It needs a world that `World.deploy` alone deploys.
    """

    def __init__(self, **hooks: Any) -> None:
        self._hooks = hooks

    def __call__(self, world: World, folder: Path) -> None:
        shutil.rmtree(folder)
        arguments = {
            k: v(world) if k in ("policy", "credentials") else v for k, v in self._hooks.items()
        }
        world.deploy(folder, **arguments)


def reattest(
    change: Callable[[Attestation], dict[str, Any]] = lambda _: {},
    subjects: Callable[[list[Subject]], list[Subject]] = lambda s: s,
) -> Attack:
    """The operator signs another attestation over the same files."""

    def attack(world: World, folder: Path) -> None:
        document = unchecked(
            Attestation, (folder / model_folder.ATTESTATION).read_bytes(), world.operator
        ).document
        changed = document.model_copy(update=change(document))
        world.attest(folder, changed, subjects=subjects)

    return attack


def repin(name: str, make: Callable[[World, Path], bytes]) -> Attack:
    """The operator replaces a governance file and signs an attestation that pins it."""

    def attack(world: World, folder: Path) -> None:
        data = make(world, folder)
        write(folder / name, data)
        reattest(lambda a: {"files": a.files | {name: canonical_json.sha256(data)}})(world, folder)

    return attack


def flip(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def payload_edit(change: Callable[[dict[str, Any]], None]) -> Callable[[bytes], bytes]:
    """Change the statement in an envelope, encode it canonically, and keep the signatures."""

    def edit_envelope(data: bytes) -> bytes:
        value = json.loads(data)
        statement = json.loads(base64.b64decode(value["payload"]))
        change(statement)
        value["payload"] = base64.b64encode(canonical_json.encode(statement)).decode()
        return canonical_json.encode(value)

    return edit_envelope


def padding_bit(data: bytes) -> bytes:
    """Set a bit that base64 decoding drops: other bytes, the same payload."""
    value = json.loads(data)
    for holder, name in [(value, "payload"), (value["signatures"][0], "sig")]:
        text = holder[name]
        body = text.rstrip("=")
        if len(body) < len(text):
            alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
            holder[name] = body[:-1] + alphabet[alphabet.index(body[-1]) ^ 1] + text[len(body) :]
            break
    changed = canonical_json.encode(value)
    assert base64.b64decode(json.loads(changed)["payload"]) == base64.b64decode(
        json.loads(data)["payload"]
    )
    return changed


# Data


def with_records(change: Callable[[list[tuple[str, int]]], list[tuple[str, int]]]) -> Attack:
    """The operator lists other records for alpha's first part than its supplier signed."""

    def records(lists: RecordLists) -> RecordLists:
        first, *rest = lists["alpha"]
        return lists | {"alpha": [change(list(first)), *rest]}

    return Insider(records=records)


def swap(records: list[tuple[str, int]]) -> list[tuple[str, int]]:
    records[0], records[1] = records[1], records[0]
    return records


def smuggle_reserve(world: World, folder: Path) -> None:
    """The operator marks a reserved record as training data, and every count follows."""

    def manifest(made: Manifest) -> Manifest:
        first, *rest = made.corpora
        part, *others = first.parts
        columns = world.files.read(first, 0)
        splits = columns.splits.copy()
        splits[np.flatnonzero(splits == RESERVE)[0]] = TRAIN
        changed = world.files.part(
            replace(columns, splits=splits), number=0, file=part.file, context=made.context
        )
        smuggled = first.model_copy(update={"parts": (changed, *others)})
        return made.model_copy(update={"corpora": (smuggled, *rest)})

    Insider(manifest=manifest)(world, folder)


def acme(world: World, **changes: Any) -> dict[str, bytes]:
    return {"acme": world.issue("acme", **changes)}


def until(end: str) -> Period:
    return Period(from_="2026-01-01T00:00:00Z", until=end)


# Policies


def signed_policy(*replace: tuple[str, str]) -> Callable[[World], bytes]:
    """A policy that compliance really signed, from changed source."""
    text = POLICY
    for old, new in replace:
        assert old in text
        text = text.replace(old, new)
    return lambda world: read_policy(text).seal(world.keys.compliance)


def stating(change: Callable[[dict[str, Any]], object]) -> Callable[[bytes], bytes]:
    """The statement with another predicate."""

    def changed(payload: bytes) -> bytes:
        statement = json.loads(payload)
        change(statement["predicate"])
        return canonical_json.encode(statement)

    return changed


def signed_policy_json(change: Callable[[dict[str, Any]], None]) -> Callable[[World, Path], bytes]:
    """A policy statement that our own signing would refuse, signed all the same."""

    def make(world: World, _: Path) -> bytes:
        statement = json.loads(Envelope.parse(world.policy).payload)
        change(statement["predicate"])
        digest = canonical_json.sha256(canonical_json.encode(statement["predicate"]))
        statement["subject"][0]["digest"]["sha256"] = digest.removeprefix("sha256:")
        return sign_payload(canonical_json.encode(statement), world.keys.compliance)

    return make


def signed_twice_by_one(world: World, _: Path) -> bytes:
    """One key's true signature, twice, under the hints of both keys."""
    envelope = Envelope.parse(world.policy)
    key = world.keys.compliance[0]
    sig = key.sign(pae(envelope.payload_type, envelope.payload))
    hints = [k.public_key.keyid for k in world.keys.compliance]
    twice = tuple(Signature(sig, hint) for hint in hints)
    return Envelope(envelope.payload_type, envelope.payload, twice).encode()


def second_adapter(policy: dict[str, Any]) -> None:
    policy["profiles"]["other"] = {"layers": {}, "adapter": "other", "rank": 2}
    policy["rules"].append({"match": {"corpus": ["acme*"]}, "name": "other", "profile": "other"})


# Plan and ledger


def stream_with(plan: BatchPlan, corpus: str) -> int:
    return next(i for i, s in enumerate(plan.streams) if corpus in {c.corpus for c in s.corpora})


def change_stream(corpus: str, change: Callable[[StreamPlan], dict[str, Any]]) -> Attack:
    def plan(planned: BatchPlan) -> BatchPlan:
        streams = list(planned.streams)
        i = stream_with(planned, corpus)
        streams[i] = StreamPlan(**dict(streams[i]) | change(streams[i]))
        return BatchPlan(**dict(planned) | {"streams": tuple(streams)})

    return Insider(plan=plan)


def fewer_rows(stream: StreamPlan) -> dict[str, Any]:
    [member] = stream.corpora
    return {"corpora": (member.model_copy(update={"rows": member.rows - 1}),)}


def into_wide_stream(planned: BatchPlan) -> BatchPlan:
    """Move gamma (upper half only) into the stream that trains everything."""
    narrow = planned.streams[stream_with(planned, "gamma")]
    wide = planned.streams[stream_with(planned, "alpha")]
    merged = StreamPlan(**dict(wide) | {"corpora": (*wide.corpora, *narrow.corpora)})
    rest = [s for s in planned.streams if s.id not in (narrow.id, wide.id)]
    streams = tuple(sorted([merged, *rest], key=lambda s: s.id))
    return BatchPlan(**dict(planned) | {"streams": streams})


def change_leaf(step: int, change: Callable[[Leaf], dict[str, Any]]) -> Attack:
    def leaves(recorded: list[Leaf]) -> list[Leaf]:
        recorded[step] = Leaf(**dict(recorded[step]) | change(recorded[step]))
        return recorded

    return Insider(leaves=leaves)


def more_of_alpha(leaf: Leaf) -> dict[str, Any]:
    use = leaf.corpora["alpha"]
    more = CorpusUse(rows=use.rows, targets=use.targets + 1)
    return {"corpora": leaf.corpora | {"alpha": more}}


def later_positions(leaf: Leaf) -> dict[str, Any]:
    return {"streams": {s: (start + 1, stop + 1) for s, (start, stop) in leaf.streams.items()}}


def renumbered_swap(recorded: list[Leaf]) -> list[Leaf]:
    """Exchange the content of two steps and keep the numbering intact."""
    one, two = dict(recorded[1]), dict(recorded[2])
    recorded[1], recorded[2] = Leaf(**two | {"step": 1}), Leaf(**one | {"step": 2})
    return recorded


def one_step_more(recorded: list[Leaf]) -> list[Leaf]:
    last = recorded[-1]
    return [*recorded, Leaf(**dict(last) | {"step": last.step + 1})]


def without_line(number: int) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        lines = data.splitlines(keepends=True)
        return b"".join(lines[:number] + lines[number + 1 :])

    return change


def swap_lines(number: int) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        lines = data.splitlines(keepends=True)
        lines[number : number + 2] = reversed(lines[number : number + 2])
        return b"".join(lines)

    return change


def change_norms(change: Callable[[GradientNorms], dict[str, Any]]) -> Attack:
    """The operator writes other gradient norms for step 2, and shares that follow from them."""

    def norms(measured: list[GradientNorms]) -> list[GradientNorms]:
        return [
            GradientNorms(**dict(each) | change(each)) if each.step == 2 else each
            for each in measured
        ]

    return Insider(norms=norms)


def on_rank(old: int, new: int) -> Callable[[GradientNorms], dict[str, Any]]:
    def change(norms: GradientNorms) -> dict[str, Any]:
        moved = [
            MeasuredPass(**dict(p) | {"rank": new}) if p.rank == old else p for p in norms.passes
        ]
        return {"passes": tuple(sorted(moved, key=lambda p: (p.rank, p.stream)))}

    return change


def one_row_more(norms: GradientNorms) -> dict[str, Any]:
    first, *rest = norms.passes
    more = {corpus: rows + 1 for corpus, rows in first.corpora.items()}
    return {"passes": (MeasuredPass(**dict(first) | {"corpora": more}), *rest)}


def in_another_stream(norms: GradientNorms) -> dict[str, Any]:
    moved = [MeasuredPass(**dict(p) | {"stream": DIGEST}) for p in norms.passes]
    return {"passes": tuple(moved)}


def of_another_corpus(norms: GradientNorms) -> dict[str, Any]:
    return {"squared_norms": norms.squared_norms | {"zeta": {"head": 1.0}}}


def where_forbidden(norms: GradientNorms) -> dict[str, Any]:
    gamma = norms.squared_norms["gamma"] | {"embedding": 1e-9}
    return {"squared_norms": norms.squared_norms | {"gamma": gamma}}


def left_out(norms: GradientNorms) -> dict[str, Any]:
    gamma = {g: n for g, n in norms.squared_norms["gamma"].items() if g != "head"}
    return {"squared_norms": norms.squared_norms | {"gamma": gamma}}


def share_of_gamma(share: float | None) -> Callable[[Attestation], dict[str, Any]]:
    def change(a: Attestation) -> dict[str, Any]:
        return {
            "coverage": tuple(
                row.model_copy(update={"gradient_norm_share": share})
                if (row.corpus, row.group) == ("gamma", "head")
                else row
                for row in a.coverage
            )
        }

    return change


def note_by_another_key(world: World, folder: Path) -> bytes:
    document = unchecked(
        Attestation, (folder / model_folder.ATTESTATION).read_bytes(), world.operator
    ).document
    root = bytes.fromhex(document.ledger.root.removeprefix("sha256:"))
    return sign_checkpoint(
        document.ledger.origin, document.ledger.size, root, LocalSigner.generate()
    )


def note_of_another_run(world: World, folder: Path) -> bytes:
    leaves = read_leaves((folder / model_folder.LEDGER).read_bytes())
    return sign_ledger(Ledger("another-run", leaves), world.keys.operator)


def note_of_other_leaves(world: World, folder: Path) -> bytes:
    """As many of the same run."""
    attestation = unchecked(
        Attestation, (folder / model_folder.ATTESTATION).read_bytes(), world.operator
    ).document
    leaves = read_leaves((folder / model_folder.LEDGER).read_bytes())
    return sign_ledger(Ledger(attestation.run.id, (*leaves[:-1], leaves[0])), world.keys.operator)


# Model files


def add(name: str, data: bytes = b"x") -> Attack:
    return lambda _, folder: write(folder / name, data)


def rename(old: str, new: str) -> Attack:
    def attack(_: World, folder: Path) -> None:
        (folder / old).rename(folder / new)

    return attack


def extra_tensor(world: World, folder: Path) -> None:
    """The operator attests weights that hold a tensor of no layer group."""
    names = (
        model_folder.Bundle(folder)
        .tensor_file(model_folder.WEIGHTS)
        .tensor_names(model_folder.WEIGHTS)
    )
    (folder / model_folder.WEIGHTS).write_bytes(safetensors([*names, "secret.weight"]))
    reattest()(world, folder)


def weights(
    change: Callable[[dict[str, Any], bytes], tuple[dict[str, Any], bytes]],
) -> Attack:
    """The operator attests weights whose header says another thing of the bytes behind it."""

    def attack(world: World, folder: Path) -> None:
        data = (folder / model_folder.WEIGHTS).read_bytes()
        end = 8 + int.from_bytes(data[:8], "little")
        header, content = change(json.loads(data[8:end]), data[end:])
        text = json.dumps(header).encode()
        (folder / model_folder.WEIGHTS).write_bytes(
            len(text).to_bytes(8, "little") + text + content
        )
        reattest()(world, folder)

    return attack


def shifted(entry: dict[str, Any], by: int) -> dict[str, Any]:
    """A header's entry whose bytes lie further behind."""
    return entry | {"data_offsets": [each + by for each in entry["data_offsets"]]}


def removed_at(time: str) -> Callable[[Attestation], dict[str, Any]]:
    return lambda _: {"removals": (Removal(adapter="acme", removed=time),)}


def remove_acme(time: str) -> Attack:
    """The operator removes the adapter, and says when."""

    def attack(world: World, folder: Path) -> None:
        shutil.rmtree(folder / model_folder.ADAPTERS)
        reattest(removed_at(time))(world, folder)

    return attack


def missing_adapter_tensor(world: World, folder: Path) -> None:
    (folder / model_folder.adapter_files("acme")[1]).write_bytes(
        safetensors(["acme.lora_A.weight"])
    )
    reattest()(world, folder)


def unattested_adapter(world: World, folder: Path) -> None:
    """The operator covers an adapter's files that no route trains."""
    for name in model_folder.adapter_files("evil"):
        write(folder / name, safetensors(["evil.weight"]))
    reattest()(world, folder)


def symlink(world: World, folder: Path) -> None:
    target = folder.parent / "elsewhere.safetensors"
    shutil.move(folder / model_folder.WEIGHTS, target)
    (folder / model_folder.WEIGHTS).symlink_to(target)


# The attestation


def raise_level(a: Attestation) -> dict[str, Any]:
    return {"levels": a.levels | {"acme": dict.fromkeys(a.levels["acme"], 2)}}


def claim_replay(a: Attestation) -> dict[str, Any]:
    evidence = Replay(
        corpus="acme",
        party="world",
        plan=a.plan.without("acme").digest,
        files={model_folder.WEIGHTS: DIGEST},
        environment=a.environment,
    )
    return {"replays": (evidence,)} | raise_level(a)


def claim_replay_of_another_plan(a: Attestation) -> dict[str, Any]:
    changed = claim_replay(a)
    [evidence] = changed["replays"]
    return changed | {"replays": (evidence.model_copy(update={"plan": a.plan.digest}),)}


def replay_across_other_code(world: World, folder: Path) -> None:
    """A replay that would be evidence if the run had been of one code."""
    digest = canonical_json.sha256((folder / model_folder.WEIGHTS).read_bytes())

    def claim(a: Attestation) -> dict[str, Any]:
        changed = claim_replay(a)
        [evidence] = changed["replays"]
        earlier = (EarlierCode(step=1, code_digest=DIGEST),)
        return changed | {
            "replays": (evidence.model_copy(update={"files": {model_folder.WEIGHTS: digest}}),),
            "run": a.run.model_copy(update={"earlier_code": earlier}),
        }

    reattest(claim)(world, folder)


def average_and_replay(*compared: str) -> Attack:
    """A model with an average of its weights, and a replay that compared these of its files."""

    def attack(world: World, folder: Path) -> None:
        data = (folder / model_folder.WEIGHTS).read_bytes()
        write(folder / model_folder.EMA, data)
        files = dict.fromkeys(compared, canonical_json.sha256(data))

        def claim(a: Attestation) -> dict[str, Any]:
            changed = claim_replay(a)
            [evidence] = changed["replays"]
            return changed | {"replays": (evidence.model_copy(update={"files": files}),)}

        reattest(claim)(world, folder)

    return attack


def hide_taint(a: Attestation) -> dict[str, Any]:
    first, *rest = a.taint
    kept = tuple(label for label in first.transitive if label != "gamma")
    return {"taint": (first.model_copy(update={"transitive": kept}), *rest)}


def fewer_tokens(a: Attestation) -> dict[str, Any]:
    rows = list(a.coverage)
    i = next(i for i, r in enumerate(rows) if (r.corpus, r.group) == ("gamma", "head"))
    rows[i] = rows[i].model_copy(update={"tokens": rows[i].tokens - 1})
    return {"coverage": tuple(rows)}


def wider_route(a: Attestation) -> dict[str, Any]:
    """Say that gamma may train everything, as if the policy did."""
    by_name = {c.corpus: c for c in a.corpora}
    gamma = by_name["gamma"].model_copy(update={"route": by_name["alpha"].route})
    return {"corpora": tuple((by_name | {"gamma": gamma}).values())}


def another_class(a: Attestation) -> dict[str, Any]:
    by_name = {c.corpus: c for c in a.corpora}
    cls = by_name["gamma"].credential_class.model_copy(update={"license_category": "permissive"})
    gamma = by_name["gamma"].model_copy(update={"credential_class": cls})
    return {"corpora": tuple((by_name | {"gamma": gamma}).values())}


def later_root(a: Attestation) -> dict[str, Any]:
    return {"trust_root": a.trust_root.model_copy(update={"version": 2})}


def another_root(a: Attestation) -> dict[str, Any]:
    return {"trust_root": a.trust_root.model_copy(update={"digest": DIGEST})}


def run_until(finished: str) -> Callable[[Attestation], dict[str, Any]]:
    return lambda a: {"run": a.run.model_copy(update={"finished": finished})}


def further_signature(data: bytes) -> bytes:
    """A signature by a stranger, beside the operator's."""
    envelope = Envelope.parse(data)
    return envelope.cosign([LocalSigner.generate()])


def hinted(keyid: str) -> Callable[[bytes], bytes]:
    """The envelope with another key hint beside its first signature."""

    def change(data: bytes) -> bytes:
        envelope = Envelope.parse(data)
        first, *rest = envelope.signatures
        changed = (Signature(first.sig, keyid), *rest)
        return Envelope(envelope.payload_type, envelope.payload, changed).encode()

    return change


def number_as_hint(data: bytes) -> bytes:
    value = json.loads(data)
    value["signatures"][0]["keyid"] = 7
    return canonical_json.encode(value)


def manifest_of_any_signature(change: Callable[[bytes], bytes]) -> Attack:
    """The manifest is pinned by its statement; its envelope is another one."""

    def attack(world: World, folder: Path) -> None:
        reattest(lambda a: {"files": a.files | {model_folder.MANIFEST: a.manifest}})(world, folder)
        edit(model_folder.MANIFEST, change)(world, folder)

    return attack


def without_delegations(world: World, folder: Path) -> Given:
    """The root names everybody; an empty file of delegations is attested, and isn't there."""
    lines = (folder / model_folder.DELEGATIONS).read_bytes().splitlines()
    named = [unchecked(Delegation, line, world.operator).document.authority for line in lines]
    repin(model_folder.DELEGATIONS, lambda *_: b"")(world, folder)
    (folder / model_folder.DELEGATIONS).unlink()
    return Given(root=world.sign_root(version=2, authorities=(*world.authorities(), *named)))


def missing_replays(world: World, folder: Path) -> None:
    """An empty file of replays is attested, and isn't there."""
    repin(model_folder.REPLAYS, lambda *_: b"")(world, folder)
    (folder / model_folder.REPLAYS).unlink()


def about_another(world: World) -> bytes:
    """The policy, signed in a statement about something else."""
    document = unchecked(Policy, world.policy, world.operator).document
    return seal(document, [Subject.of(document.name, DIGEST)], world.keys.compliance)


def about_other_records(world: World) -> dict[str, bytes]:
    document = unchecked(Credential, world.issue("acme"), world.operator).document
    return {"acme": seal(document, [Subject.of("acme", DIGEST)], [world.keys.acme])}


def prepared_with(**changes: Any) -> Attack:
    """The first corpus of the manifest with other fields."""

    def manifest(made: Manifest) -> Manifest:
        first, *rest = made.corpora
        return made.model_copy(update={"corpora": (first.model_copy(update=changes), *rest)})

    return Insider(manifest=manifest)


def weighted_alike(a: Attestation) -> dict[str, Any]:
    """As many weighted tokens as tokens, where the weight is less than one."""
    i = next(i for i, r in enumerate(a.coverage) if r.weighted_tokens != str(r.tokens))
    row = a.coverage[i].model_copy(update={"weighted_tokens": str(a.coverage[i].tokens)})
    return {"coverage": (*a.coverage[:i], row, *a.coverage[i + 1 :])}


def two_lists(world: World, folder: Path) -> Given:
    """Two lists of one issuer are given, and neither is said to be the newer one."""
    lists = []
    for number in (1, 2):
        made = RevocationList(
            issuer="archive", sequence=number, issued=f"2026-11-1{number}T00:00:00Z", entries=()
        )
        lists.append(made.seal([world.keys.archive]))
    return Given(lists=tuple(lists))


def another_payload_type(data: bytes) -> bytes:
    return data.replace(b"application/vnd.in-toto+json", b"application/json")


def another_predicate(world: World, folder: Path) -> None:
    """The operator's true signature over a true statement of another kind."""
    shutil.copyfile(folder / model_folder.MANIFEST, folder / model_folder.ATTESTATION)


# Whole bundles


def fresh_root(world: World, folder: Path) -> None:
    """Somebody builds the same deployment with keys of their own."""
    shutil.rmtree(folder)
    World(name=world.name).deploy(folder)


def fresh_root_without_delegations(world: World, folder: Path) -> None:
    shutil.rmtree(folder)
    other = World(name=world.name)
    # The stranger's folder names the true root; the keys give it away.
    other.root, other.delegations = world.root, []
    other.deploy(folder)


def executed(**changes: Any) -> Callable[[Attestation], dict[str, Any]]:
    """Another execution, well formed or not."""
    return lambda a: {"execution": a.execution.model_copy(update=changes)}


def submitted(**changes: Any) -> Callable[[Attestation], dict[str, Any]]:
    """Somebody submitted the run."""
    by = {"submission": "s-1", "user": "eve", "project": "p", "submitted": STARTED}
    return executed(**by | changes)


# How signed bytes are written


def resigned(change: Callable[[bytes], bytes]) -> Attack:
    """The operator signs the attestation's statement in other bytes."""

    def attack(world: World, folder: Path) -> None:
        path = folder / model_folder.ATTESTATION
        payload = change(Envelope.parse(path.read_bytes()).payload)
        path.write_bytes(sign_payload(payload, [world.keys.operator]))

    return attack


def with_field(*path: str) -> Callable[[bytes], bytes]:
    """One more field in the object at a path of a document."""

    def change(data: bytes) -> bytes:
        value = at = json.loads(data)
        for name in path:
            at = at[int(name) if isinstance(at, list) else name]
        at["surprise"] = 1
        return canonical_json.encode(value)

    return change


def bom(data: bytes) -> bytes:
    return b"\xef\xbb\xbf" + data


def utf16(data: bytes) -> bytes:
    return data.decode().encode("utf-16")


def spaced(data: bytes) -> bytes:
    return data.replace(b":", b": ", 1)


def policy_resigned(change: Callable[[bytes], bytes]) -> Attack:
    """Compliance signs the policy's statement in other bytes, and the operator attests that."""

    def make(world: World, _: Path) -> bytes:
        payload = change(Envelope.parse(world.policy).payload)
        return sign_payload(payload, world.keys.compliance)

    return repin(model_folder.POLICY, make)


def first_credential(change: Callable[[bytes], bytes]) -> Attack:
    """The first credential's envelope in other bytes, attested so."""

    def make(_: World, folder: Path) -> bytes:
        first, rest = (folder / model_folder.CREDENTIALS).read_bytes().split(b"\n", 1)
        return change(first) + b"\n" + rest

    return repin(model_folder.CREDENTIALS, make)


# What whoever verifies is given


def rooted(change: Callable[[bytes], bytes] = lambda data: data, **fields: Any) -> Attack:
    """Another root than the deployment's own is given."""
    return lambda world, _: Given(root=change(world.sign_root(**fields)))


def under_another_beacon(world: World, _: Path) -> Given:
    """The root names a beacon that the reserve's salt does not follow from."""
    return Given(root=world.sign_root(version=2, beacon=beacon_of(LocalSigner.generate())))


def asking(**asked: int) -> Callable[[World], bytes]:
    """A later root, which asks for revocation lists of the archive."""

    def make(world: World) -> bytes:
        first, *rest = world.authorities()
        return world.sign_root(version=2, authorities=(first.model_copy(update=asked), *rest))

    return make


def listed(
    issuer: str = "archive",
    *,
    since: str = STARTED,
    issued: str = "2026-11-19T00:00:00Z",
    signer: str = "",
    root: Callable[[World], bytes] = lambda world: world.root,
    **entry: Callable[[World, Path], str],
) -> Attack:
    """A list is given, which revokes one thing."""

    def attack(world: World, folder: Path) -> Given:
        named = {kind: make(world, folder) for kind, make in entry.items()}
        document = RevocationList(
            issuer=issuer,
            sequence=1,
            issued=issued,
            entries=(Revocation(since=since, reason="for a test", **named),) if named else (),
        )
        by = getattr(world.keys, signer or issuer)
        signers = list(by) if isinstance(by, tuple) else [by]
        return Given(root=root(world), lists=(document.seal(signers),))

    return attack


def withheld(make: Callable[[World], bytes]) -> Attack:
    """No list is given."""
    return lambda world, _: Given(root=make(world))


def digest(name: str, line: int | None = None) -> Callable[[World, Path], str]:
    """Of the statement in a file of the folder, or in one of its lines."""

    def make(_: World, folder: Path) -> str:
        data = (folder / name).read_bytes()
        data = data if line is None else data.split(b"\n")[line]
        return canonical_json.sha256(Envelope.parse(data).payload)

    return make


def refused(
    step: str,
    kind: type[GovrayError],
    *rows: tuple[str, Attack, str],
    without_records: bool = True,
) -> list[Case]:
    """Cases of one step and kind: name, attack, and what the message points at."""
    return [Case(name, attack, step, kind, at, without_records) for name, attack, at in rows]


CASES = [
    *refused(
        "step 1 (trust root)",
        Malformed,
        ("weights linked", symlink, "symbolic link"),
        (
            "root with a signature over other bytes",
            rooted(payload_edit(lambda s: s["predicate"].update(version=2))),
            "trust root",
        ),
        ("root behind a byte order mark", rooted(bom), "trust root"),
        ("root with an empty key hint", rooted(hinted("")), "keyid"),
        ("root with a number as key hint", rooted(number_as_hint), "keyid"),
        ("root with a key hint of 300 letters", rooted(hinted("0" * 300)), "keyid"),
    ),
    *refused(
        "step 1 (trust root)",
        Untrusted,
        ("re-signed under a fresh root", fresh_root, "delegation 1"),
        ("root that expired", rooted(expires="2026-11-19T00:00:00Z"), "expired"),
    ),
    *refused(
        "step 2 (signature)",
        Untrusted,
        (
            "attestation field changed",
            edit(
                model_folder.ATTESTATION,
                payload_edit(lambda s: s["predicate"]["run"].update(name="x")),
            ),
            "attestation: ",
        ),
        (
            "user of the execution changed",
            edit(
                model_folder.ATTESTATION,
                payload_edit(lambda s: s["predicate"]["execution"].update(user="x")),
            ),
            "attestation: ",
        ),
        (
            "re-signed with fresh keys",
            fresh_root_without_delegations,
            "no signature verifies under any operator authority",
        ),
    ),
    *refused(
        "step 2 (signature)",
        Malformed,
        (
            "payload type changed",
            edit(model_folder.ATTESTATION, another_payload_type),
            "attestation: ",
        ),
        (
            "base64 padding bit set",
            edit(model_folder.ATTESTATION, padding_bit),
            "base64 is not in its canonical form",
        ),
        ("another kind of statement", another_predicate, "predicate type"),
        ("envelope in UTF-16", edit(model_folder.ATTESTATION, utf16), "attestation: "),
        ("envelope behind a byte order mark", edit(model_folder.ATTESTATION, bom), "attestation: "),
        ("envelope with a space", edit(model_folder.ATTESTATION, spaced), "attestation: "),
        ("statement signed in UTF-16", resigned(utf16), "attestation: "),
        ("statement signed behind a byte order mark", resigned(bom), "attestation: "),
        ("statement signed with a space", resigned(spaced), "attestation: "),
        *(
            (f"{name} with an unknown field", edit(model_folder.ATTESTATION, change), "surprise")
            for name, change in [
                ("envelope", with_field()),
                ("signature", with_field("signatures", "0")),
            ]
        ),
        *(
            (f"{name} signed with an unknown field", resigned(with_field(*path)), "surprise")
            for name, path in [
                ("statement", ()),
                ("subject", ("subject", "0")),
                ("attestation", ("predicate",)),
                ("run", ("predicate", "run")),
                ("corpus", ("predicate", "corpora", "0")),
                ("coverage entry", ("predicate", "coverage", "0")),
            ]
        ),
    ),
    *refused(
        "step 2 (signature)",
        Malformed,
        *(
            (name, resigned(stating(change)), at)
            for name, change, at in [
                ("no execution", lambda p: p.pop("execution"), "execution"),
                ("no taint", lambda p: p.pop("taint"), "taint"),
                ("tokens as a number", lambda p: p["coverage"][0].update(tokens=7), "tokens"),
                ("unknown origin", lambda p: p["execution"]["code"].update(origin="ours"), "code"),
                ("unknown isolation", lambda p: p["execution"].update(isolation="v"), "isolation"),
                ("no attempt", lambda p: p["execution"].update(attempts=0), "attempts"),
                ("a user without a project", lambda p: p["execution"].update(user="e"), "user"),
                (
                    "code of the deployment with an archive",
                    lambda p: p["execution"].update(
                        code={"origin": "deployment", "archive": DIGEST}, isolation="run"
                    ),
                    "no archive",
                ),
                (
                    "code of the deployment on a shared cluster",
                    lambda p: p["execution"].update(
                        code={"origin": "deployment"}, isolation="sharedCluster"
                    ),
                    "isolation",
                ),
            ]
        ),
    ),
    *refused(
        "step 2 (signature)",
        Refused,
        (
            "a stranger's signature added",
            edit(model_folder.ATTESTATION, further_signature),
            model_folder.ATTESTATION,
        ),
        (
            "key hint changed",
            edit(model_folder.ATTESTATION, hinted("0" * 64)),
            model_folder.ATTESTATION,
        ),
    ),
    *refused(
        "step 3 (statement)",
        Refused,
        (
            "removal before the run ended",
            remove_acme("2026-11-10T08:59:59Z"),
            "removals of adapter acme: removed at 2026-11-10T08:59:59Z, before the run finished",
        ),
        (
            "removal after the reference time",
            remove_acme("2026-11-20T00:00:01Z"),
            "removed at 2026-11-20T00:00:01Z, after the reference time",
        ),
        (
            "run that ends after the reference time",
            reattest(run_until("2026-11-20T00:00:01Z")),
            "run.finished",
        ),
        ("a later root named", reattest(later_root), "trustRoot"),
        ("another root named", reattest(another_root), "trustRoot"),
        ("root of another organisation", rooted(name="another-org"), "another-org"),
    ),
    *refused(
        "step 4 (files)",
        Refused,
        (
            "manifest part dropped on disk",
            edit(
                model_folder.MANIFEST,
                payload_edit(lambda s: s["predicate"]["corpora"][1]["parts"].pop()),
            ),
            model_folder.MANIFEST,
        ),
        (
            "leaf edited on disk",
            edit(model_folder.LEDGER, lambda d: d.replace(b'"worldSize":2', b'"worldSize":3', 1)),
            model_folder.LEDGER,
        ),
        *(
            (f"{name} added", add(name), name)
            for name in (
                "adapters/evil/adapter_model.safetensors",
                "adapters/acme/adapter_model.bin",
                "model-00002.safetensors",
                "Model.SafeTensors",
                "pytorch_model.bin",
                "governance/root.json",
                "evil.pkl",
                "modeling_x.py",
                "model.gguf",
                "tokenizer.json",
                "sub/.git/hooks/x",
                ".git/evil.pkl",
                ".git/hooks/post-checkout",
                ".cache/huggingface/model.joblib",
                ".a/.b/__pycache__/x.pyc",
                "LICENSE.bin",
                "Config.json",
                "adapterſ/README.md",
            )
        ),
        ("archive called README.md", add("README.md", ARCHIVE), "README.md"),
        ("pickle called notes.txt", add("docs/notes.txt", PICKLE), "docs/notes.txt"),
        ("archive behind a picture", add("a.png", MARKS[".png"] + ARCHIVE), "a.png"),
        ("weights changed", edit(model_folder.WEIGHTS, flip), model_folder.WEIGHTS),
        ("config changed", edit(model_folder.CONFIG, flip), model_folder.CONFIG),
        (
            "weights renamed",
            rename(model_folder.WEIGHTS, "weights.safetensors"),
            f"{model_folder.WEIGHTS}: ",
        ),
        (
            "adapter renamed",
            rename("adapters/acme", "adapters/acme2"),
            "adapters/acme/adapter_config.json",
        ),
        (
            "adapter deleted",
            lambda _, folder: shutil.rmtree(folder / "adapters"),
            "adapters/acme/adapter_config.json",
        ),
        (
            "adapter covered that nothing trains",
            unattested_adapter,
            "adapters/evil/adapter_config.json",
        ),
        (
            "weights not covered",
            reattest(subjects=lambda s: [x for x in s if x.name != model_folder.WEIGHTS]),
            model_folder.WEIGHTS,
        ),
        (
            "removal of an adapter that is there",
            reattest(removed_at("2026-11-15T00:00:00Z")),
            "adapters/acme/adapter_config.json",
        ),
        (
            "governance file not pinned",
            reattest(
                lambda a: {"files": {n: d for n, d in a.files.items() if n != model_folder.LEDGER}}
            ),
            model_folder.LEDGER,
        ),
        ("average added that nobody attested", add(model_folder.EMA), "ema/model.safetensors"),
        ("loader's config that nobody attested", add(model_folder.LOADER_CONFIG), "config.json"),
        ("delegations missing", without_delegations, "the file is missing"),
        ("replays missing", missing_replays, "the file is missing"),
    ),
    *refused(
        "step 4 (files)",
        Malformed,
        (
            "subject that climbs out",
            reattest(subjects=lambda s: [*s, Subject.of("../outside.txt", DIGEST)]),
            "../outside.txt",
        ),
    ),
    *refused(
        "step 5 (policy)",
        Untrusted,
        (
            "two signatures by one key",
            repin(model_folder.POLICY, signed_twice_by_one),
            "signed by 1 of 2 distinct keys",
        ),
        (
            "policy signed by the operator",
            repin(
                model_folder.POLICY,
                lambda w, _: sign_payload(Envelope.parse(w.policy).payload, [w.keys.operator]),
            ),
            "policy authority",
        ),
        (
            "policy older than the root allows",
            Insider(policy=signed_policy(("version: 3", "version: 1"))),
            "older than version 2",
        ),
        ("policy about something else", Insider(policy=about_another), "subject"),
        (
            "policy expired before the run",
            Insider(
                policy=signed_policy(
                    ("from: 2026-11-01, until: 2027-11-01", "from: 2026-10-01, until: 2026-11-01")
                )
            ),
            "policy licences v3",
        ),
        (
            "policy expired during the run",
            Insider(policy=signed_policy(("until: 2027-11-01", "until: 2026-11-10T08:30:00Z"))),
            "policy licences v3",
        ),
    ),
    *refused(
        "step 5 (policy)",
        Malformed,
        (
            "policy with an unknown field",
            repin(model_folder.POLICY, signed_policy_json(lambda p: p.update(exemptions=["acme"]))),
            "exemptions",
        ),
        (
            "two adapters in one meet",
            repin(model_folder.POLICY, signed_policy_json(second_adapter)),
            "'contracts' and 'other'",
        ),
        ("policy signed with a space", policy_resigned(spaced), "policy"),
        (
            "policy signed with an unknown field of a rule",
            policy_resigned(with_field("predicate", "rules", "0")),
            "rules[0].surprise",
        ),
    ),
    *refused(
        "step 5 (policy)",
        Refused,
        (
            "policy attested by another name",
            reattest(lambda a: {"policy": a.policy.model_copy(update={"name": "strict"})}),
            model_folder.POLICY,
        ),
        (
            "another true policy",
            repin(model_folder.POLICY, lambda w, _: signed_policy(("0.3", "0.4"))(w)),
            model_folder.POLICY,
        ),
    ),
    *refused(
        "step 6 (credentials)",
        Untrusted,
        (
            "credential out of its issuer's scope",
            Insider(credentials=lambda w: acme(w, sensitivity="restricted")),
            "credential of corpus 'acme'",
        ),
        (
            "credential by an issuer of other corpora",
            Insider(
                credentials=lambda w: {
                    "beta": w.issue("beta", signer=w.keys.acme, issuer="acme-legal")
                }
            ),
            "credential of corpus 'beta'",
        ),
        (
            "credential expired",
            Insider(credentials=lambda w: acme(w, valid=until("2026-11-01T00:00:00Z"))),
            "expired at 2026-11-01",
        ),
        (
            "credential expired during the run",
            Insider(credentials=lambda w: acme(w, valid=until("2026-11-10T08:30:00Z"))),
            "expired at 2026-11-10T08:30",
        ),
        ("credential about other records", Insider(credentials=about_other_records), "subject"),
        (
            "credential self-signed",
            Insider(credentials=lambda w: acme(w, signer=LocalSigner.generate())),
            "no signature verifies under any credential authority",
        ),
        (
            "credential signed by the operator",
            Insider(credentials=lambda w: acme(w, signer=w.keys.operator)),
            "no signature verifies under any credential authority",
        ),
        (
            "delegation revoked",
            listed(delegation=digest(model_folder.DELEGATIONS, 0)),
            "revoked since",
        ),
    ),
    *refused(
        "step 6 (credentials)",
        Refused,
        (
            "credential twice",
            repin(
                model_folder.CREDENTIALS,
                lambda _, f: (f / model_folder.CREDENTIALS).read_bytes() * 2,
            ),
            "acme: ",
        ),
        ("file of gates without one", repin(model_folder.GATES, lambda *_: b""), "without one"),
        (
            "credential left out",
            repin(
                model_folder.CREDENTIALS,
                lambda _, f: without_line(2)((f / model_folder.CREDENTIALS).read_bytes()),
            ),
            "beta: ",
        ),
    ),
    *refused(
        "step 6 (credentials)",
        Malformed,
        ("credential behind a byte order mark", first_credential(bom), "Credential"),
        (
            "envelope of a credential with an unknown field",
            first_credential(with_field()),
            "surprise",
        ),
    ),
    *refused(
        "step 7 (manifest)",
        Refused,
        (
            "record added",
            with_records(lambda r: [*r, ("ab" * 32, 5)]),
            "alpha: the manifest has 19 records",
        ),
        ("record dropped", with_records(lambda r: r[:-1]), "alpha: the manifest has 17 records"),
        ("prepared under another credential", prepared_with(credential=DIGEST), "acme"),
        ("prepared under another class", prepared_with(class_digest=DIGEST), "another class"),
        (
            "prepared under another commitment",
            prepared_with(commitment=DIGEST),
            "another commitment",
        ),
        (
            "a stranger's signature of the manifest",
            manifest_of_any_signature(further_signature),
            model_folder.MANIFEST,
        ),
        (
            "another key hint in the manifest",
            manifest_of_any_signature(hinted("0" * 64)),
            model_folder.MANIFEST,
        ),
        ("another manifest", reattest(lambda _: {"manifest": DIGEST}), model_folder.MANIFEST),
        ("quarantine hidden", reattest(lambda _: {"quarantine": ()}), "quarantine"),
        ("reserve that no beacon's pulse decided", under_another_beacon, "reserve: "),
    ),
    *refused(
        "step 7 (manifest)",
        Refused,
        (
            "record replaced",
            with_records(lambda r: [("ab" * 32, r[0][1]), *r[1:]]),
            "alpha: the manifest's records do not have the Merkle root",
        ),
        (
            "records swapped",
            with_records(swap),
            "alpha: the manifest's records do not have the Merkle root",
        ),
        ("reserved record trained on", smuggle_reserve, "its hash says reserve"),
        without_records=False,
    ),
    *refused(
        "step 8 (routes)",
        Refused,
        ("route wider than the policy", reattest(wider_route), "gamma"),
        ("class not the credential's", reattest(another_class), "gamma"),
        (
            "corpus attested twice",
            reattest(lambda a: {"corpora": (*a.corpora, a.corpora[-1])}),
            "gamma",
        ),
        (
            "domains merged",
            reattest(lambda a: {"domains": (tuple(sorted(sum(a.domains, ()))),)}),
            "domains",
        ),
        ("tensor of no layer group", extra_tensor, "secret.weight"),
        ("adapter tensor missing", missing_adapter_tensor, "acme.lora_B.weight"),
    ),
    *refused(
        "step 8 (routes)",
        Malformed,
        (
            "tensor that another's bytes hide",
            weights(lambda h, d: (h | {"norm.weight": h["head.weight"]}, d[:-4])),
            "overlap",
        ),
        (
            "bytes between tensors",
            weights(lambda h, d: (h | {"norm.weight": shifted(h["norm.weight"], 4)}, d + bytes(4))),
            "hole",
        ),
        (
            "bytes behind the last tensor",
            weights(lambda h, d: (h, d + b"an adapter that was said to be removed")),
            "the file ends 38 bytes after the last tensor",
        ),
    ),
    *refused(
        "step 9 (plan)",
        Refused,
        ("plan reads fewer rows than were prepared", change_stream("gamma", fewer_rows), "gamma"),
        ("plan reads a corpus in another route's stream", Insider(plan=into_wide_stream), "gamma"),
        (
            "plan over another manifest",
            reattest(lambda a: {"plan": BatchPlan(**dict(a.plan) | {"manifest": DIGEST})}),
            "plan",
        ),
    ),
    *refused(
        "step 10 (ledger)",
        Refused,
        (
            "leaf edited, then pinned",
            Insider(ledger_data=lambda d: d.replace(b'"worldSize":2', b'"worldSize":3', 1)),
            "size or root",
        ),
        ("last leaf removed, then pinned", Insider(ledger_data=without_line(8)), "size or root"),
        (
            "gradient norms removed, then pinned",
            Insider(ledger_data=without_line(1)),
            "size or root",
        ),
        (
            "gradient norms on a rank that the step had not",
            change_norms(on_rank(1, 2)),
            "step 2 gradient norms: the step had no rank 2",
        ),
        (
            "gradient norms on another rank",
            change_norms(on_rank(0, 1)),
            "step 2 gradient norms: rank 0 has 0 rows",
        ),
        (
            "gradient norms of more rows",
            change_norms(one_row_more),
            "step 2 gradient norms: rank 0 has 2 rows",
        ),
        (
            "gradient norms without a pass",
            change_norms(lambda n: {"passes": n.passes[:-1]}),
            "step 2 gradient norms: rank 1 has",
        ),
        (
            "gradient norms in another stream",
            change_norms(in_another_stream),
            "step 2 gradient norms: rank 0 has 0 rows of corpus",
        ),
        (
            "gradient norm of a corpus that was not read",
            change_norms(of_another_corpus),
            "the step read nothing of corpus zeta",
        ),
        (
            "gradient norm where none is permitted",
            change_norms(where_forbidden),
            "a gradient of corpus gamma in embedding, which its route forbids",
        ),
        (
            "gradient norm left out of a group",
            change_norms(left_out),
            "head was measured, but not for corpus gamma",
        ),
        (
            "counts that the plan does not give",
            change_leaf(1, more_of_alpha),
            "step 1: rows and targets of corpus alpha",
        ),
        (
            "ranges that the plan does not give",
            change_leaf(1, later_positions),
            "step 1: the range of stream",
        ),
        (
            "two steps exchanged and renumbered",
            Insider(leaves=renumbered_swap),
            "step 1: the range of stream",
        ),
        ("a step after the last", Insider(leaves=one_step_more), "step 6: the plan has 6 steps"),
        (
            "a step under another policy",
            change_leaf(3, lambda _: {"policy": DIGEST}),
            "step 3: the step was under another policy",
        ),
        (
            "a step under another plan",
            change_leaf(3, lambda _: {"plan": DIGEST}),
            "step 3: the step was under another plan",
        ),
        (
            "note of other leaves",
            repin(model_folder.CHECKPOINT, note_of_other_leaves),
            "another size or root",
        ),
    ),
    *refused(
        "step 10 (ledger)",
        Malformed,
        (
            "leaf removed, then pinned",
            Insider(ledger_data=without_line(2)),
            "line 3: step 2 where step 1",
        ),
        (
            "leaves reordered, then pinned",
            Insider(ledger_data=swap_lines(2)),
            "line 3: step 2 where step 1",
        ),
        (
            "gradient norms of another step",
            Insider(ledger_data=swap_lines(1)),
            "line 3: gradient norms that are not behind the leaf of their step 0",
        ),
    ),
    *refused(
        "step 10 (ledger)",
        Untrusted,
        ("note by a stranger", repin(model_folder.CHECKPOINT, note_by_another_key), "checkpoint"),
        ("note of another run", repin(model_folder.CHECKPOINT, note_of_another_run), "another-run"),
    ),
    *refused(
        "step 11 (coverage)",
        Refused,
        ("coverage understated", reattest(fewer_tokens), "gamma in head"),
        ("weighted tokens overstated", reattest(weighted_alike), " in "),
        ("coverage out of order", reattest(lambda a: {"coverage": a.coverage[::-1]}), "order"),
        ("gradient-norm share understated", reattest(share_of_gamma(0.001)), "gamma in head"),
        ("gradient-norm share hidden", reattest(share_of_gamma(None)), "gamma in head"),
        (
            "gradient-norm share without a sample",
            Insider(
                norms=lambda _: [],
                attestation=lambda a: a.model_copy(update=share_of_gamma(0.5)(a)),
            ),
            "gamma in head",
        ),
        ("coverage entry left out", reattest(lambda a: {"coverage": a.coverage[1:]}), "acme"),
        (
            "coverage entry repeated",
            reattest(lambda a: {"coverage": (*a.coverage, a.coverage[0])}),
            "repeated",
        ),
        ("taint hidden", reattest(hide_taint), "taint of embedding"),
        ("level without evidence", reattest(raise_level), "levels of acme"),
        (
            "replay of other weights",
            reattest(claim_replay),
            "replay without acme: it compared another",
        ),
        (
            "replay of another plan",
            reattest(claim_replay_of_another_plan),
            "replay without acme: it followed another plan",
        ),
        (
            "replay across other code",
            replay_across_other_code,
            "attestation replays: the run went on under other code",
        ),
        (
            "replay of the weights, and not of their average",
            average_and_replay(model_folder.WEIGHTS),
            "replay without acme: it compared the weights, and not their average",
        ),
    ),
    *refused(
        "step 12 (assurance)",
        Refused,
        (
            "more assurance than is shown",
            reattest(lambda _: {"assurance_level": "witnessed"}),
            "witnessed",
        ),
        (
            "disclaimer shortened",
            reattest(lambda a: {"disclaimer": a.disclaimer.replace(" or that the model", "")}),
            "disclaimer",
        ),
    ),
    *refused(
        "step 13 (revocations)",
        Refused,
        (
            "attestation revoked",
            listed("operator", attestation=digest(model_folder.ATTESTATION)),
            "revoked since",
        ),
        (
            "policy revoked",
            listed("compliance", policy=digest(model_folder.POLICY)),
            "revoked since",
        ),
        (
            "credential revoked",
            listed(credential=digest(model_folder.CREDENTIALS, 2)),
            "revoked since",
        ),
        ("corpus revoked", listed(corpus=lambda *_: "gamma"), "revoked since"),
    ),
    *refused(
        "step 13 (revocations)",
        Untrusted,
        (
            "list signed by another than its issuer",
            listed(signer="operator", corpus=lambda *_: "gamma"),
            "archive",
        ),
        (
            "list of what its issuer could not issue",
            listed(attestation=digest(model_folder.ATTESTATION)),
            "could issue",
        ),
        (
            "list issued after the reference time",
            listed(issued="2026-11-21T00:00:00Z", corpus=lambda *_: "gamma"),
            "issued at",
        ),
        ("two lists of one issuer", two_lists, "two revocation lists"),
    ),
    *(
        case
        for step, name, at in [
            ("step 14 (replay checks)", model_folder.replay_file("lab"), "replay-lab"),
            ("step 15 (timestamp)", model_folder.timestamp_file("tsa"), "timestamp-tsa"),
            ("step 16 (witnesses)", model_folder.WITNESSED, "checkpoint"),
        ]
        for case in refused(step, Malformed, (f"altered {name}", add(name), at))
    ),
    *refused(
        "step 17 (execution)",
        Refused,
        *(
            (name, reattest(change), at)
            for name, change, at in [
                ("registered late", executed(registered="2026-11-10T08:00:01Z"), "registered"),
                ("attested early", executed(attested="2026-11-10T08:59:59Z"), "run.finished"),
                ("attested late", executed(attested="2026-11-20T00:00:01Z"), "attested"),
                ("submitted under another policy", submitted(policy=DIGEST), "policy"),
                (
                    "another image than the job's",
                    executed(code=CodeFacts(origin="submitted", setup=Setup(image=DIGEST))),
                    "code",
                ),
            ]
        ),
    ),
    *refused(
        "",
        CouldNotCheck,
        (
            "list withheld that the root asks for",
            withheld(asking(minimum_revocations=1)),
            "none was given",
        ),
        (
            "list withheld that the root asks to be new",
            withheld(asking(maximum_revocation_age_hours=48)),
            "none was given",
        ),
        (
            "list older than the root asks for",
            listed(root=asking(minimum_revocations=2)),
            "is older than list 2",
        ),
        (
            "list too old",
            listed(root=asking(maximum_revocation_age_hours=24)),
            "older than the 24 hours",
        ),
    ),
]

PASSING: list[tuple[str, Attack]] = [
    ("untouched", lambda *_: None),
    (
        "submitted by somebody",
        reattest(submitted(code=CodeFacts(origin="submitted", archive=DIGEST))),
    ),
    (
        "submitted by a clock that is ahead of the register's",
        reattest(submitted(submitted="2026-11-10T08:00:01Z")),
    ),
    (
        "the deployment's own code",
        reattest(submitted(code=CodeFacts(origin="deployment"), isolation="run")),
    ),
    ("readable files beside", add("README.md")),
    ("what the Hub's download keeps", add(".cache/huggingface/download/a/config.json.metadata")),
    ("signed again", reattest()),
    (
        "corpus revoked after the run",
        listed(since="2026-11-19T00:00:00Z", corpus=lambda *_: "gamma"),
    ),
    (
        "attestation revoked after the reference time",
        listed(
            "operator", since="2026-11-21T00:00:00Z", attestation=digest(model_folder.ATTESTATION)
        ),
    ),
    (
        "list of nothing, as new as the root asks for",
        listed(root=asking(minimum_revocations=1, maximum_revocation_age_hours=48)),
    ),
    ("later root", rooted(version=2)),
]
"""What nobody refuses."""
