"""What a page gives to a shell."""

from __future__ import annotations

import re

from tests.support.tree import ROOT


def section(page: str, heading: str) -> str:
    """The commands of the section whose heading begins so."""
    [found] = re.findall(rf"^## {heading}.*?(?=^## |\Z)", (ROOT / page).read_text(), re.M | re.S)
    commands = re.findall(r"^```bash\n(.*?)^```", found, re.M | re.S)
    assert commands, heading
    return "".join(commands)
