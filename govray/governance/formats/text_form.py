"""The form in which texts are compared for near copies, by its name.

An answer about near copies is one of a form, and states it. Another form finds other copies.

``govray.dev/compared-text/v1``, of a text in Unicode:

1. Code points that are ignored by default go (zero-width ones, soft hyphens, variation selectors).
   Of more than 30 marks in a row the first 30 stay.
2. NFKC, then full case folding, then NFKC.
3. A **letter** is a code point of category L, M or N. All others go. A **word** is letters in a
   row that nothing else parts. In some scripts lines may break at each letter, and there a word
   begins at each letter with its marks. These are the line breaking classes AK, AS, CJ, ID and SA:
   Chinese, Japanese, Thai, Lao, Khmer, Burmese and others.
4. A **sequence** is the 16 letters from the start of a word on, whichever words they are of. It is
   8 where the first is wide (Chinese, Japanese, Korean). It begins in each word up to the first
   after which the text has fewer letters.

Source: UAX 15 (normal forms), UAX 29 (words), UAX 14 (line breaking).
"""

TEXT_FORM = "govray.dev/compared-text/v1"
