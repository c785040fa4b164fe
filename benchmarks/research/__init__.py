"""Studies behind the monitor and the thesis, over one library.

Commands print a table and, as their last line, one JSON object: ``memorization``,
``record_scores``, ``operating_point``, ``exposure``, ``null``, ``evasion`` and ``thesis``. The
library: ``texts``, ``canaries``, ``runs``, ``domain``, ``arms``, ``watch``, ``membership``,
``ranking``, ``worlds``; and `benchmarks.intervals`.
"""
