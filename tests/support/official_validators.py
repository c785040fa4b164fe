"""Each format's own tool, as a function: it returns what the tool read, or raises `NotValid`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class NotValid(Exception):
    """What the tool said."""


def check_model_signing(model: Path, signature: Path, public_key: Path, *words: str) -> str:
    """``model_signing verify key``, as a user runs it."""
    given = ["--signature", str(signature), "--public_key", str(public_key), *words]
    done = subprocess.run(
        [sys.executable, "-m", "model_signing", "verify", "key", str(model), *given],
        capture_output=True,
        text=True,
        timeout=120,
    )
    said = done.stdout + done.stderr
    if done.returncode or "Verification succeeded" not in said:
        raise NotValid(said)
    return said


def check_sigstore(data: bytes) -> Any:
    """sigstore-models' strict classes read the bundle and write the same.

    They count no signatures: the format demands one, which Sigstore's verifiers check.
    """
    from pydantic import ValidationError
    from sigstore_models.bundle.v1 import Bundle

    try:
        bundle = Bundle.from_json(data)
    except ValidationError as error:
        raise NotValid(str(error)) from error
    if json.loads(bundle.to_json()) != json.loads(data):
        raise NotValid("the tool writes another document")
    return bundle


def check_cyclonedx(data: bytes) -> Any:
    """The strict validator of cyclonedx-python-lib; it does not follow references, so we do."""
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    if error := JsonStrictValidator(SchemaVersion.V1_7).validate_str(data.decode()):
        raise NotValid(str(error))
    bom = json.loads(data)
    named = [value for key, value in members(bom) if key == "bom-ref"]
    asked = {
        text
        for key, value in members(bom)
        if key in ("ref", "target", "assessor", "requirement", "dependsOn", "dependencies")
        or (key in ("claims", "evidence") and value != [] and isinstance(value[0], str))
        for text in ([value] if isinstance(value, str) else value)
        if isinstance(text, str)
    }
    if len(named) != len(set(named)) or not asked <= set(named):
        raise NotValid(f"no such bom-ref: {sorted(asked - set(named))}")
    return bom


def members(value: Any) -> Iterator[tuple[str, Any]]:
    """Every member of every object in a JSON value."""
    if isinstance(value, dict):
        yield from value.items()
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from members(each)


def check_spdx(data: bytes) -> Any:
    """The classes of spdx-python-model read the document, which checks types and values, and write
    it again, which checks what is required. They write the same, and no element is missing.
    """
    from spdx_python_model import v3_0_1 as spdx

    value = json.loads(data)
    objects = spdx.SHACLObjectSet()
    try:
        spdx.JSONLDDeserializer().deserialize_data(value, objects)
        missing = objects.link()
        written = spdx.JSONLDSerializer().serialize_data(objects)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise NotValid(str(error)) from error
    if missing:
        raise NotValid(f"named and not there: {missing}")
    if graph(written) != graph(value) or written["@context"] != value["@context"]:
        raise NotValid("the tool writes another document")
    return objects


def graph(document: Any) -> list[str]:
    """The objects of a JSON-LD document in one order; there is one blank node."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(each) for key, each in value.items()}
        if isinstance(value, list):
            return sorted((plain(each) for each in value), key=json.dumps)
        return "_:" if isinstance(value, str) and value.startswith("_:") else value

    return sorted(json.dumps(plain(each), sort_keys=True) for each in document["@graph"])


RECOMMENDED = ("citeAs", "datePublished", "schema.org/version")
"""What the specification asks for and no record states: mlcroissant warns of each."""

REQUIRED = {"@context", "@type", "conformsTo", "name", "description", "license"}
"""What the specification requires and every record states: mlcroissant accepts it without."""


def check_croissant(data: bytes) -> Any:
    """mlcroissant reads the document and writes the same, with no warning beyond those."""
    import mlcroissant

    value = json.loads(data)
    if missing := REQUIRED - value.keys():
        raise NotValid(f"required: {sorted(missing)}")
    try:
        metadata = mlcroissant.Dataset(jsonld=value).metadata
    except (mlcroissant.ValidationError, ValueError) as error:
        raise NotValid(str(error)) from error
    said = sorted(metadata.ctx.issues.warnings)
    if others := [each for each in said if not any(word in each for word in RECOMMENDED)]:
        raise NotValid("\n".join(others))
    if not metadata.ctx.is_v1_1():
        raise NotValid("another version")
    if unboxed(metadata.to_json()) != unboxed(value):
        raise NotValid("the tool writes another document")
    return metadata


def unboxed(value: Any) -> Any:
    """JSON-LD has one meaning for a value and a list of it alone. mlcroissant writes no zone, and
    no time that is midnight.
    """
    if isinstance(value, dict):
        return {key: unboxed(each) for key, each in value.items()}
    if isinstance(value, list):
        return unboxed(value[0]) if len(value) == 1 else [unboxed(each) for each in value]
    if isinstance(value, str):
        return re.sub(r"^(\d{4}-\d\d-\d\d)(T00:00:00)?(T\S+?)?Z?$", r"\1\3", value)
    return value


def check_openlineage(data: bytes, written: Path) -> list[Any]:
    """Events built of the client's own classes, sent by its file transport to ``written``: the
    file is the same, byte for byte.
    """
    from openlineage.client.transport.file import FileConfig, FileTransport

    transport = FileTransport(FileConfig(str(written), append=True))
    events = []
    for line in data.splitlines():
        try:
            events.append(run_event(json.loads(line)))
        except (TypeError, ValueError, KeyError) as error:
            raise NotValid(str(error)) from error
        transport.emit(events[-1])
    if written.read_bytes() != data:
        raise NotValid("the client writes other events")
    return events


def run_event(value: dict[str, Any]) -> Any:
    from openlineage.client import event_v2 as v2

    def dataset(kind: Any, each: dict[str, Any], own: str) -> Any:
        return kind(
            namespace=each["namespace"],
            name=each["name"],
            facets={name: facet(name, f) for name, f in each["facets"].items()},
            **{own: {name: facet(name, f) for name, f in each[own].items()}},
        )

    run, job = value["run"], value["job"]
    return v2.RunEvent(
        eventType=v2.RunState(value["eventType"]),
        eventTime=value["eventTime"],
        producer=value["producer"],
        run=v2.Run(run["runId"], {name: facet(name, f) for name, f in run["facets"].items()}),
        job=v2.Job(job["namespace"], job["name"], job["facets"]),
        inputs=[dataset(v2.InputDataset, each, "inputFacets") for each in value["inputs"]],
        outputs=[dataset(v2.OutputDataset, each, "outputFacets") for each in value["outputs"]],
    )


def facet(name: str, value: dict[str, Any]) -> Any:
    """The facet as an object of its class, and everything in it as objects of theirs."""
    from openlineage.client import facet_v2 as v2

    lineage = v2.column_lineage_dataset

    def field_inputs(fields: dict[str, Any]) -> Any:
        return {
            group: lineage.Fields(
                inputFields=[
                    lineage.InputField(
                        **each | {"transformations": [lineage.Transformation(**t) for t in steps]}
                    )
                    for each in of["inputFields"]
                    for steps in [each["transformations"]]
                ],
                **{key: inner for key, inner in of.items() if key != "inputFields"},
            )
            for group, of in fields.items()
        }

    built: dict[str, Any] = {
        "columnLineage": (lineage.ColumnLineageDatasetFacet, {"fields": field_inputs}),
        "documentation": (v2.documentation_dataset.DocumentationDatasetFacet, {}),
        "inputStatistics": (
            v2.input_statistics_input_dataset.InputStatisticsInputDatasetFacet,
            {},
        ),
        "ownership": (
            v2.ownership_dataset.OwnershipDatasetFacet,
            {"owners": lambda all: [v2.ownership_dataset.Owner(**each) for each in all]},
        ),
        "processing_engine": (v2.processing_engine_run.ProcessingEngineRunFacet, {}),
        "schema": (
            v2.schema_dataset.SchemaDatasetFacet,
            {
                "fields": lambda all: [
                    v2.schema_dataset.SchemaDatasetFacetFields(**each) for each in all
                ]
            },
        ),
        "tags": (
            v2.tags_dataset.TagsDatasetFacet,
            {"tags": lambda all: [v2.tags_dataset.TagsDatasetFacetFields(**e) for e in all]},
        ),
        "version": (v2.dataset_version_dataset.DatasetVersionDatasetFacet, {}),
    }
    kind, inner = built[name]
    given = {
        key: inner.get(key, lambda same: same)(each)
        for key, each in value.items()
        if key not in ("_producer", "_schemaURL")
    }
    made = kind(**given, producer=value["_producer"])
    if made._schemaURL != value["_schemaURL"]:
        raise ValueError(f"{name}: the client's schema is {made._schemaURL}")
    return made


def check_model_card(path: Path) -> Any:
    """huggingface_hub reads the card, and its metadata have the types that it knows."""
    from huggingface_hub import ModelCard

    try:
        card = ModelCard.load(path)
    except Exception as error:  # a YAML error, or one of its own
        raise NotValid(str(error)) from error
    told = card.data.to_dict()
    if not told.get("tags") or not card.text.strip():
        raise NotValid("no metadata, or no text")
    return card
