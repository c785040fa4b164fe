"""A draft as a DOCX file, by python-docx (the extra ``reports``).

Times and authors in the file's properties are fixed, so equal drafts give equal text.
"""

from __future__ import annotations

from datetime import datetime
from io import BytesIO

from docx import Document
from docx.document import Document as WordDocument

from govray.evidence.reports.draft import HEADLINE, Draft, Field
from govray.evidence.reports.web_page import WORDS
from govray.printable import printable

_EPOCH = datetime(2026, 1, 1)  # a file's properties have to have some time


def word_file(draft: Draft) -> bytes:
    word = Document()
    properties = word.core_properties
    properties.title, properties.author = draft.title, "govray"
    properties.comments = HEADLINE
    properties.created = properties.modified = _EPOCH
    word.add_heading(draft.title, 0)
    word.add_paragraph().add_run(f"{HEADLINE}. {draft.summary}").bold = True
    for each in draft.basis:
        word.add_paragraph(printable(f"{each}."))
    for section in draft.sections:
        word.add_heading(f"{section.number} {section.title}", min(section.level - 1, 9))
        for field in section.fields:
            _field(word, field)
    if draft.unused:
        word.add_heading("Stated by the provider and not used", 1)
        word.add_paragraph(f"Records fill these fields: {', '.join(draft.unused)}.")
    out = BytesIO()
    word.save(out)
    return out.getvalue()


def _field(word: WordDocument, field: Field) -> None:
    word.add_paragraph().add_run(printable(field.label)).bold = True
    said = word.add_paragraph()
    said.add_run(f"{WORDS[field.state]}.").italic = True
    said.add_run(f" {printable(field.source)}.")
    for each in field.lines:
        word.add_paragraph(printable(each), style="List Bullet")
    if field.grid is None:
        return
    rows = (field.grid.columns, *field.grid.rows)
    # All at once: to add rows one by one takes three times as long.
    table = word.add_table(rows=len(rows), cols=len(field.grid.columns), style="Table Grid")
    for made, row in zip(table.rows, rows, strict=True):
        for cell, text in zip(made.cells, row, strict=True):
            cell.text = printable(text)
