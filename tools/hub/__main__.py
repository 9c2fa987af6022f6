"""Export the kernels of problems:

    PYTHONPATH=tools python -m hub shapes.jsonl --device h100_sxm --name my-kernels --to FOLDER

shapes.jsonl: files of problems, as `tilewright prepare` takes them, such as a capture of a model.
FOLDER is a repository of Hugging Face's: its build/ has one variant.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tilewright.arch import arch, device
from tilewright.measure.problems import load_problems

from .export import export


def main() -> None:
    parser = argparse.ArgumentParser(prog="hub", description=__doc__)
    parser.add_argument("problems", nargs="+", help="files of problems, or FAMILY:SET")
    parser.add_argument("--device", required=True, help="the GPU to plan for")
    parser.add_argument("--name", required=True, help="of the repository")
    parser.add_argument("--version", type=int, default=0, help="the kernel's; 0 is a beta")
    parser.add_argument("--to", type=Path, required=True, help="the folder to write")
    given = parser.parse_args()
    target = device(given.device)
    listed = load_problems(given.problems, arch(target.arch)).problems
    found = export(listed, target, given.name, given.version, given.to)
    for problem, why in found.refused:
        print(f"left out {problem}: {why}")
    print(f"{found.count} problems in {found.folder}")


if __name__ == "__main__":
    main()
