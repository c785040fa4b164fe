"""Conversations: their one encoding as a record, and the template by which they become words.

A record's content is canonical JSON: a list of messages, each with ``role`` and ``content``. So
the record's hash binds who said what. Roles are ``system``, ``user``, ``assistant`` and ``tool``.

Template
    A message is the marker of its role, the tokens of its content, and the marker of its end.
    Markers are ids of their own behind the tokenizer's and the separator: system, user, assistant,
    tool, end. So no content can forge a role or an end, whatever it spells. Loss targets are the
    tokens of assistants' contents and the ends of their messages, nothing else.

A word is a token id, with bit 31 set where the token is no loss target.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from govray.data.shard_file import Rows
from govray.data.tokenizer import Tokenizer, Tokens
from govray.errors import Malformed
from govray.governance.formats import canonical_json
from govray.governance.formats.row_schema import CHAT_MARKERS, MASKED
from govray.storage.regular_file import read_regular

ROLES = ("system", "user", "assistant", "tool")
TAUGHT = "assistant"
"""Whose words are loss targets."""

_TEMPLATE = (
    b"govray chat template v1: role marker, content, end marker; system user assistant tool end"
)
_UNTRAINED: tuple[tuple[Callable[[Mapping[str, Any]], bool], str, str], ...] = (
    (
        lambda message: not message.keys().isdisjoint({"tool_calls", "function_call"}),
        "a field 'tool_calls' or 'function_call': calls of tools can't be trained on yet",
        "Leave such conversations out, or write the call as the content's text.",
    ),
    (
        lambda message: isinstance(message.get("content"), list),
        "a content of parts: only one text can be trained on",
        "Join the parts that are text. A conversation with images or sound can't be trained on.",
    ),
    (
        lambda message: {"from", "value"} <= message.keys(),
        "the fields from and value (ShareGPT), which are not read",
        "Write role and content: human is user, gpt is assistant.",
    ),
)
"""Forms that others' conversations have and no record does: whether a message has it, and why."""
_DO = 'Write a list of {"role": …, "content": …}, with a role of ' + ", ".join(ROLES) + "."


def encode(messages: Any) -> bytes:
    """A record's content, from messages as a source has them. ``messages``: a list of mappings, or
    JSON text of one. Members that are ``None`` count as absent, as in tables."""
    if isinstance(messages, str | bytes):
        text = messages if isinstance(messages, bytes) else messages.encode(errors="surrogatepass")
        try:
            messages = canonical_json.parse(text)
        except Malformed as error:
            raise Malformed(f"the messages are not JSON ({error.what})", do=_DO) from None
    if isinstance(messages, list):
        messages = [
            {name: each for name, each in message.items() if each is not None}
            if isinstance(message, dict)
            else message
            for message in messages
        ]
    return canonical_json.encode([_checked(k, m) for k, m in enumerate(_listed(messages))])


def decode(content: bytes | memoryview) -> list[dict[str, str]]:
    try:
        value = canonical_json.parse_canonical(bytes(content))
    except Malformed as error:
        raise Malformed(f"the record is no conversation: {error.what}", do=_DO) from None
    return [_checked(k, message) for k, message in enumerate(_listed(value))]


def _listed(value: Any) -> Sequence[Any]:
    if not isinstance(value, list) or not value:
        raise Malformed("the record is no list of messages", do=_DO)
    return value


def _checked(number: int, message: Any) -> dict[str, str]:
    name = f"message {number + 1}"
    if not isinstance(message, dict):
        raise Malformed(f"{name} is no mapping", do=_DO)
    for found, what, do in _UNTRAINED:
        if found(message):
            raise Malformed(f"{name} has {what}", do=do)
    for field in ("role", "content"):
        if not isinstance(message.get(field), str):
            raise Malformed(f"{name} has no {field}, or one that is no text", do=_DO)
    if message["role"] not in ROLES:
        raise Malformed(f"{name} has the role {message['role']!r}", do=_DO)
    if extra := sorted(message.keys() - {"role", "content"}):
        raise Malformed(f"{name} has a field {extra[0]!r}, which is not trained on", do=_DO)
    return message


def own_template(tokenizer: Path) -> Path | None:
    """The file beside a tokenizer's that has a chat template, which is not what conversations are
    trained by."""
    template, config = (
        tokenizer.parent / name for name in ("chat_template.jinja", "tokenizer_config.json")
    )
    if template.is_file():
        return template
    with suppress(OSError, ValueError):
        if "chat_template" in json.loads(read_regular(config, canonical_json.MAX_BYTES)):
            return config
    return None


def row_targets(rows: Rows) -> npt.NDArray[np.int64]:
    """Loss targets ``[rows]`` of packed words, but for a row's first word, which has no input."""
    taught = rows.values < MASKED
    starts = np.cumsum(rows.lengths) - rows.lengths
    if not rows.lengths.size:
        return np.empty(0, np.int64)
    counts: npt.NDArray[np.int64] = np.add.reduceat(taught, starts, dtype=np.int64)
    return counts - taught[starts]


@dataclass(frozen=True)
class ChatTokenizer:
    """Conversations to words by the template, over a tokenizer of text.
    ``vocabulary`` counts the markers too. ``separator`` is the text tokenizer's."""

    text: Tokenizer

    @property
    def name(self) -> str:
        return f"chat over {self.text.name}"

    @property
    def digest(self) -> str:
        """SHA-256 of the template and the text tokenizer's digest."""
        return "sha256:" + hashlib.sha256(_TEMPLATE + self.text.digest.encode()).hexdigest()

    @property
    def separator(self) -> int:
        return self.text.separator

    @property
    def vocabulary(self) -> int:
        return self.text.vocabulary + CHAT_MARKERS

    def encode(self, content: bytes | memoryview) -> Tokens:
        """Words ``[n]`` of one record, without separator."""
        first = self.text.vocabulary
        found: list[Tokens] = []
        for message in decode(content):
            body = self.text.encode(message["content"].encode())
            words = np.empty(body.size + 2, np.uint32)
            words[0] = first + ROLES.index(message["role"])
            words[1:-1], words[-1] = body, first + len(ROLES)
            taught = message["role"] == TAUGHT
            words[: 1 if taught else None] |= np.uint32(MASKED)
            found.append(words)
        return np.concatenate(found)
