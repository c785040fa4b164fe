"""What a caller may read: the one rule, for routes of ``/v1`` and for pages.

Staff reads everything. Everyone reads what is public. A supplier reads that, its own corpora, and
of the models that used them what concerns those. Who has a role in a workspace, a project or a
model reads what lies in it (`within`), and nothing elsewhere. What a caller may not read does not
exist for it: the same 404, the same text, from the same query.

The rule stands in these modules, and is named from here. No other module of the service decides by
the caller's role what may be read.
"""

from __future__ import annotations

from govray.platform.service.visible.lookup import SEE_MODELS as SEE_MODELS
from govray.platform.service.visible.lookup import DigestPath as DigestPath
from govray.platform.service.visible.lookup import absent as absent
from govray.platform.service.visible.lookup import full_digest as full_digest
from govray.platform.service.visible.reach import in_projects as in_projects
from govray.platform.service.visible.reach import is_staff as is_staff
from govray.platform.service.visible.reach import is_within as is_within
from govray.platform.service.visible.reach import within as within
from govray.platform.service.visible.readers import AUDITING as AUDITING
from govray.platform.service.visible.readers import AUDITORS as AUDITORS
from govray.platform.service.visible.readers import CORPUS_READERS as CORPUS_READERS
from govray.platform.service.visible.readers import RUN_READERS as RUN_READERS
from govray.platform.service.visible.readers import STAFF_ONLY as STAFF_ONLY
from govray.platform.service.visible.readers import administers as administers
from govray.platform.service.visible.readers import is_admin as is_admin
from govray.platform.service.visible.readers import promotes as promotes
from govray.platform.service.visible.readers import reads_audit as reads_audit
from govray.platform.service.visible.readers import reads_corpora as reads_corpora
from govray.platform.service.visible.readers import reads_public_only as reads_public_only
from govray.platform.service.visible.readers import reads_runs as reads_runs
from govray.platform.service.visible.readers import watches as watches
from govray.platform.service.visible.visible_corpora import corpora_of as corpora_of
from govray.platform.service.visible.visible_corpora import credentials as credentials
from govray.platform.service.visible.visible_corpora import find_corpus as find_corpus
from govray.platform.service.visible.visible_corpora import own_corpora as own_corpora
from govray.platform.service.visible.visible_corpora import supplied as supplied
from govray.platform.service.visible.visible_corpora import uses as uses
from govray.platform.service.visible.visible_models import attestation_order as attestation_order
from govray.platform.service.visible.visible_models import attestations as attestations
from govray.platform.service.visible.visible_models import cells as cells
from govray.platform.service.visible.visible_models import check_promotes as check_promotes
from govray.platform.service.visible.visible_models import find_attestation as find_attestation
from govray.platform.service.visible.visible_models import find_ledger as find_ledger
from govray.platform.service.visible.visible_models import find_lineage as find_lineage
from govray.platform.service.visible.visible_models import find_model as find_model
from govray.platform.service.visible.visible_models import find_policy as find_policy
from govray.platform.service.visible.visible_models import find_trust_root as find_trust_root
from govray.platform.service.visible.visible_models import find_version as find_version
from govray.platform.service.visible.visible_models import ledgers as ledgers
from govray.platform.service.visible.visible_models import models as models
from govray.platform.service.visible.visible_models import policies as policies
from govray.platform.service.visible.visible_models import reads_entries as reads_entries
from govray.platform.service.visible.visible_models import reads_registry as reads_registry
from govray.platform.service.visible.visible_models import reads_whole as reads_whole
from govray.platform.service.visible.visible_models import scope_of as scope_of
from govray.platform.service.visible.visible_models import trust_roots as trust_roots
from govray.platform.service.visible.visible_models import versions as versions
from govray.platform.service.visible.visible_models import whole_attestations as whole_attestations
from govray.platform.service.visible.visible_models import whole_models as whole_models
from govray.platform.service.visible.visible_runs import audit_entries as audit_entries
from govray.platform.service.visible.visible_runs import experiments as experiments
from govray.platform.service.visible.visible_runs import find_experiment as find_experiment
from govray.platform.service.visible.visible_runs import find_submission as find_submission
from govray.platform.service.visible.visible_runs import find_trial as find_trial
from govray.platform.service.visible.visible_runs import reads_file as reads_file
from govray.platform.service.visible.visible_runs import submissions as submissions
from govray.platform.service.visible.visible_runs import trials as trials
