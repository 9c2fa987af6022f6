"""Proof that a listing is the code object's: assembled again, it gives the same machine code.

So what is executed is what a GPU would be given, and nothing has to be decoded.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import threading
from functools import cache

from tilewright.child import Child, ChildDied, ChildTimeout
from tilewright.emulate import code_object
from tilewright.errors import BadFile

_ASSEMBLER = "tilewright.emulate.assembler"
_SECONDS = 120.0
"""For the assembler to start and to answer; it takes milliseconds."""


class Prover:
    """Proves listings, with an assembler in a child process that is started when first needed.
    Remembers its proofs. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: Child | None = None
        self._owner = 0
        self._proven: set[bytes] = set()

    def prove(self, listing: str, binary: bytes, target: str) -> None:
        """Check that `listing` assembles to the machine code of `binary`.

        target: the architecture, as LLVM names it.

        Raises `BadFile` if it does not.
        """
        text = listing.encode()
        parts = (target.encode(), text, binary)
        key = hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).digest()
        with self._lock:
            if key in self._proven:
                return
            made = self._assembled(text, target)
            wanted = code_object.section(binary, ".text")
            if made != wanted:
                raise BadFile(
                    f"the listing assembles to other machine code than the binary has: "
                    f"{len(made)} and {len(wanted)} bytes that differ from byte "
                    f"{_first_difference(made, wanted)} on; build the kernel again"
                )
            self._proven.add(key)

    def close(self) -> None:
        """End the child. A later proof starts a new one."""
        # After a fork, the child belongs to the parent, and the lock may be held.
        if self._owner == os.getpid():
            with self._lock:
                self._drop()

    def _assembled(self, listing: bytes, target: str) -> bytes:
        """The machine code of a listing."""
        if self._owner != os.getpid():
            self._owner, self._child = os.getpid(), None
        if self._child is None:
            self._child = Child(_ASSEMBLER)
        said = ""
        try:
            answer, made = self._child.request({"target": target}, [listing], _SECONDS)
            if "error" not in answer:
                return made[0]
            said = f"{answer['error']}: {self._child.stderr_tail(2000)}"
        except (ChildDied, ChildTimeout) as error:
            said = f"the assembler {error}"
        except BaseException:
            # An interrupted request would leave its answer for the next one to read.
            self._drop()
            raise
        self._drop()  # so that the next one's reasons are its own
        raise BadFile(f"the listing of a kernel for {target} cannot be assembled: {said.strip()}")

    def _drop(self) -> None:
        if self._child is not None:
            self._child.close()
        self._child = None


@cache
def prover() -> Prover:
    """The process's prover, closed at exit."""
    shared = Prover()
    atexit.register(shared.close)
    return shared


os.register_at_fork(after_in_child=prover.cache_clear)


def _first_difference(one: bytes, other: bytes) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (x, y) in pairs if x != y), min(len(one), len(other)))
