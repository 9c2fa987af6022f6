"""`Defaults`: what a family need not state, where the usual answer is its own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar

from tilewright.arch.model import Arch, Device
from tilewright.errors import BadArgument
from tilewright.ops.estimate import Estimate, Estimates
from tilewright.ops.foreign import Driver, Form
from tilewright.ops.formats import Formats
from tilewright.ops.joined import Joined
from tilewright.ops.keywords import Keyword
from tilewright.ops.library import Found, library_of
from tilewright.ops.library_engine import Offered
from tilewright.ops.nearby import Invariance, Nearby
from tilewright.ops.nouns import Call, Kept, Number, Operand, Theirs
from tilewright.ops.pool import Columns, Each, Pool, each
from tilewright.ops.profiles import Profile
from tilewright.ops.protocols import Rng
from tilewright.ops.shards import Shards
from tilewright.verdict import YES, Verdict, no


class Defaults:
    """A base class for families. What it has may be overridden; all else of `Family` is the
    family's to state."""

    formats = Formats()
    says: str = ""
    helpers: ClassVar[Mapping[str, Callable[..., Any]]] = {}
    functions: Mapping[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = MappingProxyType(
        {}
    )
    scalars: Mapping[str, Number] = MappingProxyType({})
    arguments: tuple[str, ...] = ("*operands",)
    foreign_forms: Mapping[str, Form] = MappingProxyType({})
    drivers: tuple[Driver, ...] = ()
    tie: ClassVar[str] = ""
    """The term of estimates whose least goes first where kernels are expected to take as long."""
    profiles: Mapping[str, Profile] = MappingProxyType({})
    variant_fields: ClassVar[frozenset[str]] = frozenset({"num_stages"})
    """Fields of a config by which variants of one tile differ."""

    def pipelines(self, arch: Arch) -> Sequence[str]:
        """Kernels have no pipelines to tell apart."""
        return ()

    def foreign(self, titles: Sequence[str], file: str = "") -> Any:
        """No other library's tables are read."""
        return None

    def shards(self, call: Call) -> Shards | None:
        """A call is not split: every device computes it whole."""
        return None

    def tuning_key(self, problem: Any) -> Any:
        """Every field may decide which kernel is best."""
        return problem

    def table(self, problem: Any) -> str:
        """One table for all problems, called as the family."""
        family: Any = self
        return str(family.name)

    def tile(self, config: Any) -> Hashable:
        """All other fields."""
        names = (one.name for one in fields(config) if one.name not in self.variant_fields)
        return tuple(getattr(config, name) for name in names)

    def lesson(self, problem: Any) -> str:
        """As its table."""
        family: Any = self
        return str(family.table(problem))

    def kin(self, problem: Any) -> Hashable:
        """Each problem is of a kin of its own."""
        family: Any = self
        found: Hashable = family.tuning_key(problem)
        return found

    def kind(self, problem: Any) -> str:
        """One kind, called as the family."""
        family: Any = self
        return str(family.name)

    def traits(self, problem: Any, configs: Columns, device: Device) -> Mapping[str, Each]:
        """None: fields and the estimate say all."""
        return {}

    def kept(self, problem: Any) -> Kept | None:
        """Nothing is."""
        return None

    def nearby(self, problem: Any) -> Iterable[Nearby]:
        """No other problem's row answers."""
        return ()

    def invariance(self, problem: Any) -> Invariance:
        """No kernel is known to be the same whatever the batch is: `BadArgument`."""
        family: Any = self
        raise BadArgument(f"{family.name} has no kernels that are known to be batch-invariant")

    def invariant(self, config: Any) -> Verdict:
        """No kernel is known to give the same bits whatever the batch is."""
        return no("invariant", "is not known to give the same bits whatever the batch is")

    def repeats(self, config: Any) -> Verdict:
        """Every kernel repeats: none adds in an order that changes."""
        return YES

    def library_query(self, problem: Any, arch: Arch, library_name: str) -> Theirs | Verdict:
        """No library's algorithms are candidates."""
        family: Any = self
        return no("family", f"no vendor's library is asked for {family.name}")

    def library_config(self, problem: Any, library_name: str, found: Found | Offered) -> Any:
        """Never called, as `library_query` asks for nothing."""
        family: Any = self
        raise BadArgument(f"{family.name} has no algorithms of {library_name}")

    def library_faster(self, problem: Any, device: Device) -> Verdict:
        """No record says so."""
        family: Any = self
        return no("record", f"no record has a vendor's library ahead for {family.name}")

    def serving(self, problem: Any, configs: Sequence[Any], arch: Arch) -> Sequence[int]:
        """Each config is asked about."""
        family: Any = self
        return [i for i, c in enumerate(configs) if family.supports(c, problem, arch)]

    def rank(
        self, problem: Any, configs: Iterable[Any], device: Device
    ) -> Sequence[tuple[Any, Estimate]]:
        """By estimate; ties by `tie`, then by name. A library's algorithms come last: only a
        measurement says how good they are."""
        family: Any = self
        pool, found = Pool.of(configs), []
        if not pool:
            return ()
        for library, (places, c) in pool.columns.groups(library_of).items():
            estimates = partial(Defaults.estimates, self) if library else family.estimates
            found.append((places, estimates(c, problem, device)))
        last = each(pool.columns, library_of) != ""
        return Estimates.joined(found).ranking(pool, last, tie=self.tie)

    def estimates(self, configs: Columns, problem: Any, device: Device) -> Estimates:
        """What kernels should take, each by itself."""
        family: Any = self
        return Estimates.each([family.estimate(one, problem, device) for one in configs])

    def interpreted(self, config: Any) -> Any:
        """Every kernel is in Triton."""
        return config

    def keywords(self) -> Mapping[str, Keyword]:
        """A value's type says what its keyword is."""
        return {}

    def keyword(self, name: str) -> Keyword | None:
        """As `keywords` has it."""
        return self.keywords().get(name)

    def outputs(self, call: Call) -> tuple[Operand, ...]:
        """As the problem that the call states has them."""
        family: Any = self
        return tuple(o for o in family.operands(family.problem_of(call)) if o.role == "out")

    def written(self, inputs: int, named: Collection[str]) -> tuple[int, ...]:
        """A call writes no operand in place."""
        return ()

    def joined(self, call: Call, apart: Sequence[bool]) -> Joined | None:
        """Calls are made one by one."""
        return None

    def lowered(
        self, inputs: int, named: Sequence[str], options: Mapping[str, Any]
    ) -> tuple[int, ...]:
        """``torch.autocast`` converts nothing, as of any operation that torch does not know."""
        return ()

    def options(self, problem: Any) -> dict[str, Any]:
        """The operands say all of a problem."""
        return {}

    def scalar_defaults(self, problem: Any) -> Mapping[str, int | float]:
        """A call gives all scalars."""
        return {}

    def make_inputs(self, problem: Any, rng: Rng) -> Mapping[str, Any]:
        """Every operand drawn independently, as its `Operand.values` says."""
        family: Any = self
        return rng.independent(o for o in family.operands(problem) if o.read)

    def vendor(self, problem: Any) -> Any:
        """There is no call of the vendor's library."""
        return {}

    def stand_in(self, problem: Any) -> Any:
        """The vendor's call."""
        return self.vendor(problem)

    def gradients(self, problem: Any, wanted: Sequence[str]) -> Any:
        """There are none."""
        family: Any = self
        return no("gradients", f"{family.name} states no gradients")
