"""Domains that somebody asks about, and those that issuers state."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from govray.governance.policy.corpus_description import CorpusDescription, Domains
from govray.platform.service.acting.stated_domains import (
    StatedDomain,
    domain_of,
    related,
    stated_domains,
    states_domains,
)

LABEL = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,10}[a-z0-9])?", fullmatch=True).filter(
    lambda label: not label.startswith("xn--")
)
DOMAIN = st.lists(LABEL, min_size=1, max_size=4).map(lambda labels: ".".join([*labels, "example"]))


@given(DOMAIN, st.sampled_from(["{}", "https://{}/a?b#c", "http://me@{}:80/", "//{}", " {}. "]))
def test_a_url_and_its_domain_are_one(domain: str, form: str) -> None:
    assert domain_of(form.format(domain.upper())) == domain
    stated = CorpusDescription(
        source="crawled", domains=Domains(unit="records", sizes={domain: 1}, total=1)
    )
    assert list(stated_domains(stated, domain)) == [StatedDomain(domain, 1, "records")]


@given(DOMAIN, DOMAIN)
def test_related_is_below_or_above_by_whole_labels(one: str, other: str) -> None:
    a, b = one.split("."), other.split(".")
    shorter = min(len(a), len(b))
    assert related(one, other) == (a[-shorter:] == b[-shorter:]) == related(other, one)


def test_international_names_and_own_urls() -> None:
    assert domain_of("https://Bücher.example/x") == "xn--bcher-kva.example"
    own = CorpusDescription(source="public_dataset", url="https://data.example.org/set")
    assert list(stated_domains(own, "example.org")) == [StatedDomain("data.example.org")]
    bucket = CorpusDescription(source="public_dataset", url="s3://bucket/set")
    assert list(stated_domains(bucket, "example.org")) == []
    assert [states_domains(each) for each in (own, CorpusDescription(source="user"), None)] == [
        True,
        False,
        False,
    ]
