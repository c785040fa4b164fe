"""What an attestation shows of a corpus that is to be absent."""

from __future__ import annotations

import pytest

from govray.errors import Refused
from govray.governance.attestation.model_attestation import Attestation, Removal
from govray.platform.service.acting.case_answers import check_left_out, check_removed
from tests.support.world import FINISHED, World

ROOT = "sha256:" + "7c" * 32


@pytest.fixture(scope="module")
def attestation(tmp_path_factory: pytest.TempPathFactory) -> Attestation:
    """A run in which ``acme`` trained an adapter alone, and three corpora the trunk."""
    world = World()
    folder = world.deploy(tmp_path_factory.mktemp("model"))
    return world.verify(folder).attestation


def after(attestation: Attestation, adapter: str = "acme") -> Attestation:
    return attestation.model_copy(
        update={"removals": (Removal(adapter=adapter, removed=FINISHED),)}
    )


def test_what_is_in_no_manifest_and_no_layer_is_left_out(attestation: Attestation) -> None:
    roots = {each.corpus: f"sha256:{n:064x}" for n, each in enumerate(attestation.corpora)}
    check_left_out(attestation, roots, "delta", ROOT)
    with pytest.raises(Refused, match="its manifest has the corpus 'alpha'"):
        check_left_out(attestation, roots, "alpha", ROOT)
    with pytest.raises(Refused, match="'beta' has the same records as 'delta'"):
        check_left_out(attestation, roots, "delta", roots["beta"])


@pytest.mark.parametrize("label", ["acme", "unknown"])
def test_what_an_adapters_corpus_reached_besides_counts(
    attestation: Attestation, label: str
) -> None:
    *others, last = [each for each in attestation.taint if each.group != "adapter:acme"]
    reached = last.model_copy(update={"transitive": (*last.transitive, label)})
    with pytest.raises(Refused, match=last.group):
        check_removed(after(attestation.model_copy(update={"taint": (*others, reached)})), "acme")


def test_a_removal_counts_for_adapters_alone(attestation: Attestation) -> None:
    check_removed(after(attestation), "acme")
    with pytest.raises(Refused, match="the adapter 'acme', which 'acme' trained, is still in it"):
        check_removed(attestation, "acme")
    with pytest.raises(Refused, match="'alpha' trained no adapter"):
        check_removed(after(attestation), "alpha")
    with pytest.raises(Refused, match="read no corpus 'delta'"):
        check_removed(after(attestation), "delta")
