"""Conversations: one encoding, one template, and loss targets in what assistants say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from govray.data.rows import chat
from govray.data.rows.chat import ChatTokenizer
from govray.data.tokenizer import ByteTokenizer
from govray.errors import Malformed
from govray.governance.formats.row_schema import MASKED
from tests.support.table import each_row

TOKENIZER = ChatTokenizer(ByteTokenizer())
SYSTEM, USER, ASSISTANT, TOOL, END = range(257, 262)

MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(chat.ROLES), "content": st.text(max_size=8)}),
    min_size=1,
    max_size=4,
)


def ids(words: np.ndarray) -> list[int]:
    return (words & (MASKED - 1)).tolist()


def taught(words: np.ndarray) -> list[int]:
    return words[words < MASKED].tolist()


def test_the_template_as_the_page_has_it() -> None:
    content = chat.encode(
        [
            {"role": "system", "content": "s"},
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "ok"},
        ]
    )
    words = TOKENIZER.encode(content)
    assert ids(words) == [
        SYSTEM, *b"s", END,
        USER, *b"hi", END,
        ASSISTANT, *b"ok", END,
    ]  # fmt: skip
    assert taught(words) == [*b"ok", END]
    assert TOKENIZER.separator == 256
    assert TOKENIZER.vocabulary == 262


@given(MESSAGES)
def test_only_assistants_teach_and_content_forges_nothing(messages: list[dict[str, str]]) -> None:
    words = TOKENIZER.encode(chat.encode(messages))
    expected: list[int] = []
    for message in messages:
        if message["role"] == "assistant":
            expected += [*message["content"].encode(), END]
    assert taught(words) == expected
    assert ids(words).count(END) == len(messages)
    assert sum(each in range(SYSTEM, END) for each in ids(words)) == len(messages)


@each_row(
    ("messages", "told"),
    [
        ("[", "not JSON"),
        ([], "no list of messages"),
        ({"role": "user", "content": "x"}, "no list of messages"),
        (["x"], "message 1 is no mapping"),
        ([{"content": "x"}], "message 1 has no role"),
        ([{"role": "user"}], "message 1 has no content"),
        ([{"role": "user", "content": 3}], "message 1 has no content"),
        ([{"role": "user", "content": ""}, {"role": "bot", "content": ""}], "message 2 has"),
        ([{"role": "user", "content": "x", "tool_calls": []}], "a field 'tool_calls'"),
        ([{"role": "assistant", "content": None, "tool_calls": [{}]}], "calls of tools can't be"),
        ([{"role": "user", "content": [{"type": "text"}]}], "a content of parts"),
        ([{"from": "human", "value": "x"}], r"from and value \(ShareGPT\)"),
    ],
)  # fmt: skip
def test_what_is_no_conversation_is_refused(messages: Any, told: str) -> None:
    with pytest.raises(Malformed, match=told):
        chat.encode(messages)


def test_a_template_beside_a_tokenizer_is_found(tmp_path: Path) -> None:
    tokenizer, config = (tmp_path / name for name in ("tokenizer.json", "tokenizer_config.json"))
    assert chat.own_template(tokenizer) is None
    for text, found in (("{}", None), ("[", None), ('{"chat_template": "x"}', config)):
        config.write_text(text)
        assert chat.own_template(tokenizer) == found
    (tmp_path / "chat_template.jinja").write_text("x")
    assert chat.own_template(tokenizer) == tmp_path / "chat_template.jinja"
