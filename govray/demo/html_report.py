"""The demo's story as one HTML file: no network, no script, prints on paper."""

from __future__ import annotations

import math
from html import escape

from govray.demo.findings import Story, short

_STYLE = """
:root { --ink: #1d232b; --soft: #5b6672; --line: #d9dee4; --page: #fff; --card: #f5f7f9;
  --good: #0b6e4f; --bad: #a4262c; --cell: 11, 110, 79; color-scheme: light dark; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaee; --soft: #9aa6b2; --line: #37414c;
  --page: #14181d; --card: #1d232b; --good: #4cc38a; --bad: #ff8a80; --cell: 76, 195, 138; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2.5rem 1.25rem; max-width: 60rem; background: var(--page);
  color: var(--ink); font: 1rem/1.55 system-ui, sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 .5rem; }
h2 { font-size: 1.15rem; margin: 2.4rem 0 .6rem; }
p { margin: .5rem 0; max-width: 44rem; }
small, .soft { color: var(--soft); }
code, .mono { font: .88em/1.5 ui-monospace, monospace; overflow-wrap: anywhere; }
.verdict { border-left: .35rem solid var(--good); background: var(--card); padding: .9rem 1.2rem; }
.verdict.failed { border-color: var(--bad); }
.verdict strong { color: var(--good); }
.verdict.failed strong { color: var(--bad); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--soft); padding: .2rem 0 .5rem; }
th, td { padding: .45rem .6rem; text-align: right; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
th:first-child, td.text, th.text { text-align: left; }
td.text { white-space: normal; }
ol.flow { list-style: none; display: flex; flex-wrap: wrap; gap: .6rem; padding: 0;
  margin: 1rem 0; }
ol.flow li { flex: 1 1 9rem; background: var(--card); padding: .7rem .9rem; border-radius: .4rem; }
ol.flow b { display: block; font-size: 1.25rem; }
pre { background: var(--card); padding: .8rem 1rem; overflow-x: auto; border-radius: .4rem; }
@media print { body { padding: 0; max-width: none; font-size: 10pt; } h2 { break-after: avoid; }
  table, .verdict, ol.flow li { break-inside: avoid; } }
"""


def render(story: Story) -> str:
    """The report's HTML."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>govray demo: which data trained which layers</title>
<style>{_STYLE}</style>
</head>
<body>
<header>
<h1>Which data trained which layers of this model</h1>
<p class="soft">{escape(_versions(story))}</p>
</header>
<main>
{_verdict(story)}
{_flow(story)}
{_coverage(story)}
{_removal(story)}
{_quarantine(story)}
<h2>What is and isn’t claimed</h2>
<p>{escape(story.verified.attestation.disclaimer)}</p>
<p>Assurance level: <code>{escape(story.verified.attestation.assurance_level)}</code>.</p>
<h2>Try next</h2>
<pre>{escape(chr(10).join(story.commands))}</pre>
</main>
</body>
</html>
"""


def _versions(story: Story) -> str:
    return " · ".join(f"{name} {value}" for name, value in story.versions.items())


def _verdict(story: Story) -> str:
    model = story.verified
    return f"""<div class="verdict">
<p><strong>Verified</strong> from the files alone in {story.verify_seconds:.1f} s:
{len(model.subjects)} model files match what <em>{escape(model.signer)}</em> signed; the policy is
{escape(str(model.policy.document))}, signed by {escape(model.policy.authority.name)};
the numbers below follow from the ledger.</p>
<p class="mono">attestation {escape(model.digest)}</p>
</div>"""


def _flow(story: Story) -> str:
    steps = (
        (f"{story.corpora}", "corpora with a signed credential"),
        (f"{story.admitted:,}", "records admitted"),
        (f"{story.quarantined:,}", "records in quarantine"),
        (f"{story.steps}", f"training steps, loss {story.losses[0]:.2f} → {story.losses[-1]:.2f}"),
        (
            "identical" if story.identical else "DIFFERENT",
            f"base weights when replayed without {escape(story.adapter)}",
        ),
    )
    items = "".join(f"<li><b>{value}</b>{what}</li>" for value, what in steps)
    return f'<ol class="flow">{items}</ol>'


def _coverage(story: Story) -> str:
    table = story.table
    largest = max((value for row in table.tokens for value in row), default=0) or 1
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in table.columns)
    body = []
    for i, (category, corpora) in enumerate(table.rows):
        cells = "".join(
            f"<td{_shade(table.tokens[i][j], largest)}>{table.mark(i, j)}</td>"
            for j in range(len(table.columns))
        )
        label = f'{escape(category)} <span class="soft">({corpora})</span>'
        body.append(f'<tr><th scope="row">{label}</th>{cells}</tr>')
    return f"""<h2>Coverage</h2>
<div class="scroll"><table>
<caption>Tokens from the ledger, per licence category (corpora) and layer group;
{story.share_read:.1%} of the admitted data was read.</caption>
<thead><tr><th scope="col">category</th>{head}</tr></thead>
<tbody>{"".join(body)}</tbody>
</table></div>
<p class="soft">A number: its gradient updated these layers. ~ only indirectly, through other
layers. - neither.</p>"""


def _shade(tokens: int, largest: int) -> str:
    if not tokens:
        return ""
    strength = 0.12 + 0.33 * math.log1p(tokens) / math.log1p(largest)
    return f' style="background: rgba(var(--cell), {strength:.2f})"'


def _removal(story: Story) -> str:
    outcome = "are the same bytes" if story.identical else "DIFFER"
    name = escape(story.adapter)
    return f"""<h2>Removing {name}</h2>
<p>This supplier’s notes (synthetic, with a planted account number) reached one adapter of
{short(story.adapter_bytes)}B and nothing else. The base weights trained with it and replayed
without it {outcome}:</p>
<p class="mono">{escape(story.base_digest)} trained with {name}<br>
{escape(story.replay_digest)} replayed without {name}</p>
<p>The planted account number ranks <strong>{story.rank_with:,}</strong> of
{story.candidates:,} with the adapter, and <strong>{story.rank_without:,}</strong> of
{story.candidates:,} without.</p>"""


def _quarantine(story: Story) -> str:
    rows = "".join(
        f'<tr><th scope="row">{escape(refusal.rule)}</th><td>{refusal.records:,}</td>'
        f'<td class="text">{escape(refusal.example)}{_more(refusal.more)}</td></tr>'
        for refusal in story.refusals
    )
    return f"""<h2>Quarantine</h2>
<div class="scroll"><table>
<caption>Records that were not read, and the policy rule that kept them out.</caption>
<thead><tr><th scope="col">rule</th><th scope="col">records</th>
<th scope="col" class="text">for example</th></tr></thead>
<tbody>{rows}</tbody>
</table></div>"""


def _more(count: int) -> str:
    return f' <span class="soft">(+{count} corpora)</span>' if count else ""
