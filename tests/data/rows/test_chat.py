"""Conversations: one encoding, one template, and loss targets in what assistants say."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as HuggingFace
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from govray.data.rows import chat
from govray.data.rows.chat import ChatTokenizer
from govray.data.shard_file import Rows, cut
from govray.data.tokenizer import ByteTokenizer, FileTokenizer
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


def test_the_encoding_is_canonical_json() -> None:
    said = [{"role": "user", "content": "é\n"}]
    expected = '[{"content":"é\\n","role":"user"}]'.encode()
    assert chat.encode(said) == chat.encode(json.dumps(said)) == expected
    assert chat.encode([{**said[0], "name": None}]) == expected  # as tables have it
    assert chat.decode(expected) == said


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


def test_a_tokenizer_file_serves_as_well() -> None:
    words = {"what": 0, "is": 1, "it": 2, "nothing": 3, "[UNK]": 4}
    made = HuggingFace(WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = Whitespace()
    file = FileTokenizer("words", made.to_str().encode())
    tokenizer = ChatTokenizer(file)
    found = tokenizer.encode(
        chat.encode(
            [{"role": "user", "content": "what is it"}, {"role": "assistant", "content": "nothing"}]
        )
    )
    assert file.separator == 5
    assert ids(found) == [7, 0, 1, 2, 10, 8, 3, 10]
    assert taught(found) == [3, 10]
    assert tokenizer.digest not in (file.digest, TOKENIZER.digest)


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
    ],
)  # fmt: skip
def test_what_is_no_conversation_is_refused(messages: Any, told: str) -> None:
    with pytest.raises(Malformed, match=told):
        chat.encode(messages)


@each_row("content", [b"Hello", b'[{"role": "user", "content": "x"}]', b"[]", b"\xff"])
def test_records_in_another_form_are_refused(content: bytes) -> None:
    with pytest.raises(Malformed):
        TOKENIZER.encode(content)


@given(st.lists(st.tuples(st.integers(0, 261), st.booleans()), max_size=40), st.integers(1, 9))
def test_row_targets_are_counted_row_by_row(words: list[tuple[int, bool]], context: int) -> None:
    stream = np.array([i | (MASKED if m else 0) for i, m in words], np.uint32)
    rows = cut(stream, context)
    expected = [int((rows.row(number)[1:] < MASKED).sum()) for number in range(len(rows.lengths))]
    assert chat.row_targets(rows).tolist() == expected
    assert chat.row_targets(Rows(stream[:0], rows.lengths[:0])).tolist() == []
