"""What the licence names of older package metadata mean in SPDX, as one explicit table.

Before PEP 639 a distribution named its licence in the free-text ``License`` field and in trove
classifiers. Both are read through this table and nothing else: a name maps to the SPDX licences
that it may mean. A name of a family, such as "BSD License", does not identify a licence. Another
name in the same metadata may decide it.

A name that is not here is unknown: no licence text is read, and nothing is guessed.

Sources: https://pypi.org/classifiers, https://spdx.org/licenses and PEP 639.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from govray.errors import Malformed
from govray.governance.trust import license as spdx

_BSD: Final = ("0BSD", "BSD-2-Clause", "BSD-3-Clause", "BSD-4-Clause")
_LGPL_2: Final = ("LGPL-2.0-only", "LGPL-2.1-only")
_LGPL_2_LATER: Final = ("LGPL-2.0-or-later", "LGPL-2.1-or-later")
_LGPL_3: Final = ("LGPL-3.0-only",)
_LGPL_3_LATER: Final = ("LGPL-3.0-or-later",)
_GPL_2: Final = ("GPL-2.0-only",)
_GPL_2_LATER: Final = ("GPL-2.0-or-later",)
_GPL_3: Final = ("GPL-3.0-only",)
_GPL_3_LATER: Final = ("GPL-3.0-or-later",)

#: Classifiers that approve of a licence without naming it.
NEUTRAL: Final = frozenset({"License :: OSI Approved", "License :: DFSG approved"})

#: Trove classifier, without ``License ::`` and ``OSI Approved ::``, → what it may mean.
CLASSIFIERS: Final[Mapping[str, tuple[str, ...]]] = {
    # Apache-1.1 was superseded in 2004, before the index had the classifier in use.
    "Apache Software License": ("Apache-2.0",),
    "BSD License": _BSD,
    "Boost Software License 1.0 (BSL-1.0)": ("BSL-1.0",),
    "CC0 1.0 Universal (CC0 1.0) Public Domain Dedication": ("CC0-1.0",),
    "Eclipse Public License 1.0 (EPL-1.0)": ("EPL-1.0",),
    "Eclipse Public License 2.0 (EPL-2.0)": ("EPL-2.0",),
    "European Union Public Licence 1.1 (EUPL 1.1)": ("EUPL-1.1",),
    "European Union Public Licence 1.2 (EUPL 1.2)": ("EUPL-1.2",),
    "GNU Affero General Public License v3": ("AGPL-3.0-only",),
    "GNU Affero General Public License v3 or later (AGPLv3+)": ("AGPL-3.0-or-later",),
    "GNU General Public License (GPL)": _GPL_2 + _GPL_2_LATER + _GPL_3 + _GPL_3_LATER,
    "GNU General Public License v2 (GPLv2)": _GPL_2,
    "GNU General Public License v2 or later (GPLv2+)": _GPL_2_LATER,
    "GNU General Public License v3 (GPLv3)": _GPL_3,
    "GNU General Public License v3 or later (GPLv3+)": _GPL_3_LATER,
    "GNU Lesser General Public License v2 (LGPLv2)": _LGPL_2,
    "GNU Lesser General Public License v2 or later (LGPLv2+)": _LGPL_2_LATER,
    "GNU Lesser General Public License v3 (LGPLv3)": _LGPL_3,
    "GNU Lesser General Public License v3 or later (LGPLv3+)": _LGPL_3_LATER,
    "GNU Library or Lesser General Public License (LGPL)": (
        _LGPL_2 + _LGPL_2_LATER + _LGPL_3 + _LGPL_3_LATER
    ),
    "Historical Permission Notice and Disclaimer (HPND)": ("HPND",),
    "ISC License (ISCL)": ("ISC",),
    "MIT License": ("MIT",),
    "MIT No Attribution License (MIT-0)": ("MIT-0",),
    "Mozilla Public License 1.1 (MPL 1.1)": ("MPL-1.1",),
    "Mozilla Public License 2.0 (MPL 2.0)": ("MPL-2.0",),
    "Python Software Foundation License": ("PSF-2.0",),
    "The Unlicense (Unlicense)": ("Unlicense",),
    "University of Illinois/NCSA Open Source License": ("NCSA",),
    "Zero-Clause BSD (0BSD)": ("0BSD",),
    "Zope Public License": ("ZPL-1.1", "ZPL-2.0", "ZPL-2.1"),
    "zlib/libpng License": ("Zlib",),
}

#: Common contents of the ``License`` field, in lower case, → what they may mean.
NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "apache": ("Apache-1.0", "Apache-1.1", "Apache-2.0"),
    "apache license": ("Apache-1.0", "Apache-1.1", "Apache-2.0"),
    "apache software license": ("Apache-1.0", "Apache-1.1", "Apache-2.0"),
    "apache 2": ("Apache-2.0",),
    "apache 2.0": ("Apache-2.0",),
    "apache 2.0 license": ("Apache-2.0",),
    "apache license 2.0": ("Apache-2.0",),
    "apache license, version 2.0": ("Apache-2.0",),
    "apache license version 2.0": ("Apache-2.0",),
    "apache software license 2.0": ("Apache-2.0",),
    "bsd": _BSD,
    "bsd license": _BSD,
    "2-clause bsd": ("BSD-2-Clause",),
    "2-clause bsd license": ("BSD-2-Clause",),
    "bsd 2-clause": ("BSD-2-Clause",),
    "bsd 2-clause license": ("BSD-2-Clause",),
    "simplified bsd": ("BSD-2-Clause",),
    "3-clause bsd": ("BSD-3-Clause",),
    "3-clause bsd license": ("BSD-3-Clause",),
    "bsd 3-clause": ("BSD-3-Clause",),
    "bsd 3-clause license": ("BSD-3-Clause",),
    "new bsd": ("BSD-3-Clause",),
    "new bsd license": ("BSD-3-Clause",),
    "gplv2": _GPL_2,
    "gplv2+": _GPL_2_LATER,
    "gplv3": _GPL_3,
    "gplv3+": _GPL_3_LATER,
    "lgplv3": _LGPL_3,
    "lgplv3+": _LGPL_3_LATER,
    "isc license": ("ISC",),
    "mit license": ("MIT",),
    "the mit license": ("MIT",),
    "the mit license (mit)": ("MIT",),
    "mpl 2.0": ("MPL-2.0",),
    "mozilla public license 2.0": ("MPL-2.0",),
    "psf license": ("PSF-2.0",),
    "python software foundation license": ("PSF-2.0",),
    "the unlicense": ("Unlicense",),
}


def meanings(name: str) -> tuple[str, ...]:
    """The SPDX licences that a classifier or a licence's name may mean; none if it is unknown."""
    if name.startswith("License ::"):
        return CLASSIFIERS.get(short(name), ())
    if known := NAMES.get(name.lower()):
        return known
    try:
        expression = spdx.normalise(name)
    except Malformed:
        return ()
    return () if spdx.category(expression) in (None, "unknown") else (expression,)


def short(classifier: str) -> str:
    """A classifier without what all licence classifiers begin with."""
    return classifier.removeprefix("License :: ").removeprefix("OSI Approved :: ")
