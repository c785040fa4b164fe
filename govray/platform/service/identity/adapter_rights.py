"""Who may use which adapter: a file that the operator keeps, closed and small.

```yaml
adapters:
  acme-notes:
    roles: [engineer]
    suppliers: [acme-legal]
    users: [ada]
```

Nobody may use an adapter that the file does not name. A caller needs one of the three.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from govray.errors import Malformed, UsageError
from govray.governance.formats.field_errors import field_errors
from govray.governance.formats.strict_yaml import read_yaml
from govray.platform.service.identity.caller import Caller, Role

MAX_BYTES = 1 << 20

Names = Annotated[tuple[str, ...], Field(max_length=10_000)]


class AdapterUsers(BaseModel):
    """Who may use one adapter."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    roles: tuple[Role, ...] = ()
    suppliers: Names = ()
    users: Names = ()

    def allow(self, caller: Caller) -> bool:
        """Whether ``caller`` is among them; nobody without a token is."""
        if caller.public:
            return False
        return (
            not caller.roles.isdisjoint(self.roles)
            or caller.name in self.users
            or (caller.role == "supplier" and caller.supplier in self.suppliers)
        )


class AdapterRights(BaseModel):
    """The whole file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    adapters: dict[str, AdapterUsers] = Field(default_factory=dict, max_length=10_000)

    def of(self, caller: Caller) -> frozenset[str]:
        """The adapters that ``caller`` may use, whether the model has them or not."""
        return frozenset(name for name, users in self.adapters.items() if users.allow(caller))


def read_rights(path: Path) -> AdapterRights:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise UsageError(f"it has more than {MAX_BYTES:,} bytes", where=str(path))
        # Comments alone, and the mark of a document that has nothing in it, give no rights.
        lines = (line.strip() for line in data.splitlines())
        stated = any(line and line != b"---" and not line.startswith(b"#") for line in lines)
        value = read_yaml(data, name=str(path)).value if stated else {}
        return AdapterRights.model_validate(value)
    except OSError as error:
        raise UsageError(f"cannot read it: {error.strerror}", where=str(path)) from None
    except Malformed as error:
        raise UsageError(f"no YAML that is read here: {error.what}", where=error.where) from None
    except ValidationError as error:
        raise UsageError(str(field_errors(error)[0]), where=str(path)) from None
