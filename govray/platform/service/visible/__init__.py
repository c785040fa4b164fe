"""What a caller may read: the one rule, for routes of ``/v1`` and for pages.

Staff reads everything. Everyone reads what is public. A supplier reads that, its own corpora, and
of the models that used them what concerns those. A caller with a role in a workspace or a
project reads what lies in it, and nothing elsewhere. What a caller may not read does not exist for
it: the same 404, the same text, from the same query.

What a role allows is said by `govray.platform.service.identity.rights`, and what follows for each
kind of row here. No other module of the service decides what may be read.
"""
