"""What a caller may read: the one rule, for routes of ``/v1`` and for pages.

Staff reads everything. Everyone reads what is public. A supplier reads that, its own corpora, and
of the models that used them what concerns those. A caller with a role in a workspace, a project or
a model reads what lies in it (`reach.within`), and nothing elsewhere. What a caller may not read
does not exist for it: the same 404, the same text, from the same query.

The rule stands in these modules. No other module of the service decides by the caller's role what
may be read.
"""
