"""What an operation family gives to the rest of Tilewright, in six protocols: words, legality,
learning, launching, checking and differentiation.

A family is a folder under `ops/` whose package defines ``FAMILY``, an object with the methods of
`Family`. Everything outside works through these protocols and never names a family. `Defaults`
(`ops/defaults.py`) has the methods that most families do not state themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

from tilewright.arch.model import Arch, Device
from tilewright.ops.backward import Backward
from tilewright.ops.estimate import Estimate
from tilewright.ops.foreign import Driver, Form, Reader
from tilewright.ops.formats import Formats
from tilewright.ops.joined import Joined
from tilewright.ops.keywords import Keyword
from tilewright.ops.library import Found
from tilewright.ops.library_engine import Offered
from tilewright.ops.nearby import Invariance, Nearby
from tilewright.ops.nouns import Call, Kept, KernelSource, Launch, Number, Operand, Theirs
from tilewright.ops.pool import Columns, Each
from tilewright.ops.profiles import Profile
from tilewright.ops.shards import Shards
from tilewright.tolerance import Tolerance
from tilewright.verdict import Verdict


class Problem(Protocol):
    """What to compute. Frozen and hashable; checks itself when made (`BadArgument`)."""

    family: ClassVar[str]

    @property
    def batch_invariant(self) -> bool:
        """Whether the caller asks for a kernel that is the same whatever the batch is."""

    @property
    def one_kernel(self) -> bool:
        """Whether the caller asks for results with the same bits whenever it is computed, so that
        no other kernel may stand in for the chosen one."""

    @property
    def flops(self) -> int:
        """Arithmetic operations of the result; a multiply-add counts as two."""

    @property
    def work(self) -> Mapping[str, int]:
        """Operations by the unit that does them: an operand dtype for multiply-adds (two each), or
        ``exp`` (see `tilewright.arch.peak`). The unit that does `flops` comes first."""

    @property
    def min_bytes(self) -> int:
        """Fewest bytes to move: each input read once, each output written once."""


class KernelConfig(Protocol):
    """How to compute it: a signature and an algorithm. Frozen and hashable."""

    family: ClassVar[str]

    @property
    def name(self) -> str:
        """The kernel's name; `Family.parse_name` is its exact inverse."""

    @property
    def pipeline(self) -> str:
        """How operands reach the matrix units: one of `Family.pipelines`."""


class Words(Protocol):
    """Names and data."""

    name: str
    problem_type: type[Any]
    config_type: type[Any]
    formats: Formats
    """The sweep documents that the family reads."""

    says: str
    """What the operation computes, from which arrays, of which shapes and dtypes: how its
    function's docstring begins; "" if the family says nothing."""

    helpers: ClassVar[Mapping[str, Callable[..., Any]]]
    """Functions that prepare operands, by the name they have at the top level."""

    functions: Mapping[str, Callable[[Callable[..., Any]], Callable[..., Any]]]
    """Other ways to call the operation, as another library does, by the name they have at the top
    level: each makes its function from the operation. What a function says to the operation
    depends on the numbers and words that it is given, and on the shapes, strides and dtypes of its
    arrays, never on what is in the arrays: a call like an earlier one is launched without it."""

    profiles: Mapping[str, Profile]
    """Named sets of kernels that an install builds, by name."""

    def parse_name(self, name: str) -> Any:
        """The config whose name this is. Raises `UnknownName`."""

    def parse_problem(self, words: Mapping[str, str], arch: Arch) -> Any:
        """A problem from words, as on a command line (``m=4096 dtype=fp8``); `arch` gives
        ``fp8`` and ``bf8`` their meaning. Raises `BadArgument`."""

    def tuning_key(self, problem: Any) -> Any:
        """The problem that has the row of `problem` in tables: `problem` itself, or the same with
        one fixed value in every field that does not decide which kernel is best (a softmax scale,
        say). The key of a key is the key."""

    def table(self, problem: Any) -> str:
        """The name of the shipped table that has rows of such problems (``gemm_bf16``)."""

    def nearby(self, problem: Any) -> Iterable[Nearby]:
        """Problems whose rows of a table may answer for `problem`, nearest first. Their kernels
        must have room for `problem`; whether one serves it is asked before it is used."""

    def invariance(self, problem: Any) -> Invariance:
        """What a kernel must serve to be chosen under ``batch_invariant`` for `problem`. Raises
        `BadArgument` where no kernel can be the same for problems like this one."""

    def pipelines(self, arch: Arch) -> Sequence[str]:
        """The pipelines that an architecture can run, by name; () if kernels have only one."""

    def axes(self) -> Mapping[str, Any]:
        """Every axis a space may have, in order, with the value taken where it is left out."""

    def wildcard(self, axis: str, arch: Arch) -> Sequence[Any]:
        """What ``"*"`` means for an axis on an architecture."""

    def make_config(self, fields: Mapping[str, Any], arch: Arch) -> Any:
        """The config with these values of all axes. Raises `BadArgument` if they contradict
        each other."""

    foreign_forms: Mapping[str, Form]
    """Kinds of another library's tables that can be read and written by name."""

    drivers: tuple[Driver, ...]
    """Command lines of other libraries' programs that `parse_problem` reads."""

    def foreign(self, titles: Sequence[str], file: str = "") -> Reader | None:
        """What reads another library's table with these columns, or of this file name, if it states
        problems of this family; None for any other table. Raises `BadArgument` if it does and
        neither says of which kind it is."""


class Legality(Protocol):
    """Which kernels there are, and which may be used."""

    def default_space(self, problem: Any, arch: Arch) -> Any:
        """The `KernelSpace` to dispatch problems like this one from when the user declares
        none."""

    def tuning_spaces(self, problem: Any, arch: Arch) -> Sequence[Any]:
        """The `KernelSpace`s that a tuning of this problem chooses from: the default space, and
        what may be best and is too much to choose from without measuring."""

    def tile(self, config: Any) -> Hashable:
        """What kernels have in common that differ by a few percent: variants of one tile."""

    def judge(self, config: Any, arch: Arch) -> Verdict:
        """May this config be built for this architecture?"""

    def supports(self, config: Any, problem: Any, arch: Arch) -> Verdict:
        """Can this config, built for this architecture, compute this problem?"""

    def serving(self, problem: Any, configs: Sequence[Any], arch: Arch) -> Sequence[int]:
        """The places of those `configs` that `supports` says yes of, in order. Without reasons this
        can be quicker: a plan asks of hundreds, again and again of the same `Pool`."""

    def repeats(self, config: Any) -> Verdict:
        """Does it give the same bits for the same operands in every run?"""

    def invariant(self, config: Any) -> Verdict:
        """Does it give a part of the result the same bits however much is computed at once (see
        `Invariance.over`)?"""

    def library_query(self, problem: Any, arch: Arch, library_name: str) -> Theirs | Verdict:
        """What a tuning asks the vendor's library for, whose algorithms become candidates; or why
        it does not ask.

        library_name: with its major version, as ``cublaslt13``, ``hipblaslt1`` or ``cudnn9``."""

    def library_config(self, problem: Any, library_name: str, found: Found | Offered) -> Any:
        """The config of an algorithm that the library offers for `problem`. Raises `BadArgument`
        for one that no name can say."""

    def library_faster(self, problem: Any, device: Device) -> Verdict:
        """Whether the first algorithm that the vendor's library offers should take less time for
        `problem` than the kernel with the best estimate. Either answer has its reason: a
        sentence. The rule of a yes is the kind of the library (``cublaslt``)."""

    def estimate(self, config: Any, problem: Any, device: Device) -> Estimate:
        """How long `config` should take for `problem` on `device`, and of what that is made."""

    def rank(
        self, problem: Any, configs: Iterable[Any], device: Device
    ) -> Sequence[tuple[Any, Estimate]]:
        """Configs with their estimates, best first (no measurement)."""


class Learning(Protocol):
    """What learned selection is told of problems and kernels beside their fields and estimates."""

    def lesson(self, problem: Any) -> str:
        """The class of problems that one model is for (``gemm_bf16``)."""

    def kin(self, problem: Any) -> Hashable:
        """What problems have in common whose best kernels say much about each other's. A model is
        judged on problems of which it saw none of their kin."""

    def kind(self, problem: Any) -> str:
        """The kind of a problem, in a word or two, by which results are told apart: a range of
        sizes, or a kind of layer."""

    def traits(self, problem: Any, configs: Columns, device: Device) -> Mapping[str, Each]:
        """Numbers by name that say how each kernel's tiles fill the problem and the device: arrays,
        or one number for all kernels. Nothing of them names a device."""


class Launching(Protocol):
    """What to compile and what to launch."""

    scalars: Mapping[str, Number]
    """The scalars that a caller gives at each call, by keyword (`Given`)."""

    arguments: tuple[str, ...]
    """How a call passes operands, for its signature: names by position, in the order of a usual
    call; ``v=`` may be left out; ``*operands`` any number; ``**operands`` by names besides
    `keywords`."""

    def keywords(self) -> Mapping[str, Keyword]:
        """The other keywords of a call: its options, and the operands that may be passed by
        keyword; {} where a value's type says which it is."""

    def keyword(self, name: str) -> Keyword | None:
        """What is passed by the keyword `name`; None for a name that `keywords` has not, and that
        means nothing beside one that is."""

    def sources(self, config: Any, arch: Arch) -> Mapping[str, KernelSource]:
        """What to compile, by part: `MAIN` where there is one kernel; {} for an algorithm of the
        vendor's library."""

    def interpreted(self, config: Any) -> Any:
        """The config whose kernels Triton's interpreter runs in place of `config`'s: itself, or,
        for a kernel in Gluon (which has no interpreter), its Triton sibling, which computes the
        same result."""

    def launch(self, config: Any, problem: Any, device: Device) -> Launch:
        """How to launch it."""

    def operands(self, problem: Any) -> tuple[Operand, ...]:
        """The problem's operands, by name and role: those that a caller passes by position, in
        order, then those passed by keyword, then the outputs. An optional operand is among them
        where the problem has it."""

    def problem_of(self, call: Call, config: Any = None) -> Any:
        """The problem that a call states.

        config: how to read operands that can be read in more than one way.

        Raises `BadArgument` for a wrong number of inputs, for operands that do not fit together
        and for operands that no kernel can read."""

    def outputs(self, call: Call) -> tuple[Operand, ...]:
        """The outputs to make for a call that passes none, in order."""

    def kept(self, problem: Any) -> Kept | None:
        """The operand of a call that may be kept in another layout, as weights may; None if there
        is none, or if it lies so."""

    def written(self, inputs: int, named: Collection[str]) -> tuple[int, ...]:
        """Places, among the operands passed by position, of those that a call writes in place
        (``inout``), in order. An ``inout`` operand is passed by position.

        inputs: operands by position. named: names of those passed by keyword."""

    def joined(self, call: Call, apart: Sequence[bool]) -> Joined | None:
        """How calls like this one are one call with a further dimension; None where they are made
        one by one.

        apart: whether the calls differ in it, for each operand, by position and then by keyword.
            They differ in one at least."""

    def shards(self, call: Call) -> Shards | None:
        """How a call that passes no outputs can be split over several devices; None if it cannot.
        Each device makes the same call, with the same options, on its part of the operands."""

    def options(self, problem: Any) -> dict[str, Any]:
        """The call's keyword options that, with the operands, state `problem`."""

    def scalar_defaults(self, problem: Any) -> Mapping[str, int | float]:
        """The scalars that a call may leave out, and their values then."""


class Checking(Protocol):
    """What is right, and how far a kernel may be from it."""

    def make_inputs(self, problem: Any, rng: Rng) -> Mapping[str, Any]:
        """Fresh values for every operand that the kernels read, by name, and for the scalars given
        at the call."""

    def reference(self, problem: Any, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """What each output must hold, by name.

        inputs: as `make_inputs` gives them, arrays in float64 (NumPy's or torch's), made from the
            rounded operands; scalars as they are. Each of an ``inout`` operand before the call.

        The results are in the arithmetic of `inputs`. An ``inout`` operand is an output here.
        Where nothing is to be written a result holds `arrays.poison_of` the output."""

    def tolerances(self, problem: Any, config: Any) -> Mapping[str, Tolerance]:
        """How far this config's outputs may be from the reference, by name.

        config: None for the vendor's library. Its outputs may be as far as those of a kernel that
            adds each sum up in one part, which is nearest to it."""

    def vendor(self, problem: Any) -> Mapping[str, Bind]:
        """The calls that compute `problem` by the vendor's libraries, by torch's names, the usual
        one first; {} where there is none. The fastest is what kernels are compared with."""

    def stand_in(self, problem: Any) -> Mapping[str, Bind]:
        """Those of them that may answer a call while its kernel is being built: none measures
        anything first."""


Bind = Callable[[Mapping[str, Any], Mapping[str, Any]], Callable[[], Any]]
"""From a problem's inputs and its outputs on a GPU, each by name, to a call that computes it. The
call returns the output, of several a tuple in order, in whichever memory."""


class Rng(Protocol):
    """Makes inputs, the same for the same seed (`arrays.Random`)."""

    @property
    def numpy(self) -> Any:
        """A `numpy.random.Generator`."""

    def independent(self, operands: Iterable[Operand]) -> dict[str, Any]:
        """An array for each operand, filled as its `Operand.values` says, independently of the
        others."""

    def filled(self, operand: Operand, values: Any) -> Any:
        """An array for an operand with these values, a NumPy array of its shape."""


class Differentiation(Protocol):
    """Which gradients there are, and what training in mixed precision converts."""

    def gradients(self, problem: Any, wanted: Sequence[str]) -> Backward | Verdict:
        """How a backward pass computes the gradients of some inputs, or why it cannot.

        problem: states a call that passes no outputs.
        wanted: names of the operands that want a gradient, in order."""

    def lowered(
        self, inputs: int, named: Sequence[str], options: Mapping[str, Any]
    ) -> tuple[int, ...]:
        """Places, among a call's operands by position and then by keyword, of activations, weights
        and biases: where they are fp32, fp16 or bf16, ``torch.autocast`` converts them.

        inputs: operands by position. named: names of those by keyword. options: the call's."""


class Family(Words, Legality, Learning, Launching, Checking, Differentiation, Protocol):
    """One operation family. Implementations are stateless."""
