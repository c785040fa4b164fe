"""The pages that people read: server-rendered, with small modules of JavaScript beside them.

`site.mount` puts them on the application. Nothing is built and nothing is fetched from elsewhere:
templates and static files are the package's own. The Content-Security-Policy allows no other source
and no inline script or style.

Invariants

* A page shows what the caller may read and no more; whose that is,
  `govray.platform.service.identity.access` says.
* All text is escaped by the templates. Scripts write text nodes only, which the policy
  ``require-trusted-types-for`` enforces.
* A page judges no model: what it says of one is the service's word, and it names the commands that
  need no service.
* Forms do what the routes of ``/v1`` do, by the same functions, and so with the same rules.
"""
