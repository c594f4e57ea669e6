"""The corpus: frozen questions, hashes of their `--json` answers, and what a change altered, key by key.

    python tests/corpus/corpus.py check [--every 16] [--match TEXT]   answers here against the frozen hashes;
                                          what differs is answered by the base commit too, and printed key by key
    python tests/corpus/corpus.py check --reviewed WHY                 takes what differs over, with the reason
    python tests/corpus/corpus.py answer OUT.jsonl [--root CHECKOUT]   all answers of a checkout, with CPU seconds
    python tests/corpus/corpus.py compare OLD.jsonl NEW.jsonl          two files of answers, key by key
    python tests/corpus/corpus.py freeze OUT.jsonl                     writes the hashes anew

A question is one command line, or several that follow each other; ``{f}`` is a file that the first one writes. Each
runs in a process of its own, forked from one that has imported blinksim. Answers keep numbers to nine significant
digits and leave out what differs from run to run. A question that takes over a minute of CPU ends. `corpus.csv` holds
the hash of every answer, the reason if it is not that of the base commit on purpose, and the question.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import importlib
import io
import json
import os
import pickle
import resource
import shlex
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BASE = "ea47c70"
TABLE = HERE / "corpus.csv"
MOST_CPU_S = 60
# What says how long a search took, and where files lie.
# Prose may be edited: names of terms, reasons and what bounds assume. And what stood beside the time of the base:
# intervals of several sources, in place of which there is one answer.
_VOLATILE = (
    "beside",
    "measured_error",
    "synthesis_s",
    "made_s",
    "elapsed_s",
    "seconds",
    "output",
    "file",
    "path",
    "version",
    # What the base did not print: the rate of one of the bounds, which are compared.
    "most_exact",
    "most_GBps",
)
_WITHOUT_JSON = ("topo import", "topo export")
Answer = dict[str, Any]


def _worded(arguments: Sequence[str]) -> list[str]:
    """As it is asked: what the base took by default, the best schedule, has to be named since."""
    if " ".join(arguments[:2]) in _WITHOUT_JSON:
        return [*arguments]
    named = {word.partition("=")[0] for word in arguments} & {"--algorithm", "--algorithms", "--model", "--search"}
    defaults = {"project": ["--algorithm", "best"], "compare": ["--model", "auto"], "sweep": ["--algorithms", "best"]}
    default = defaults.get(arguments[0], [])
    return [*arguments, *([] if named else default), "--json"]


def plain(value: object) -> object:
    """A JSON value as it is compared: floats to nine digits, and nothing that differs from run to run."""
    if isinstance(value, dict):
        left_out = (*_VOLATILE, *(key for key in value if key.startswith(("interval_", "measured_"))))
        left_out += tuple(key for key in value if key.endswith(("words", "assumes", "reason", "facts", "refused")))
        left_out += ("name",) if "limit" in value else ()
        return {key: plain(held) for key, held in value.items() if key not in left_out}
    if isinstance(value, list):
        return [plain(held) for held in value]
    return float(f"{value:.9g}") if isinstance(value, float) else value


def _ask(question: str) -> Answer:
    """The answer of this process: exit statuses, what was printed, what was written."""
    from blinksim.cli.main import run

    found: Answer = {"exits": [], "printed": [], "messages": [], "files": {}}
    with tempfile.TemporaryDirectory() as folder:
        for part in question.split(" && "):
            arguments = _worded(shlex.split(part.replace("{f}", f"{folder}/f")))
            out, err = io.StringIO(), io.StringIO()
            with redirect_stdout(out), redirect_stderr(err):
                found["exits"].append(run(arguments))
            text = out.getvalue().replace(folder, "")
            try:
                found["printed"].append(plain(json.loads(text)))
            except ValueError:
                found["printed"].append(text)
            found["messages"].append(err.getvalue().replace(folder, "").strip())
            if found["exits"][-1] not in (0, 1, 5):
                break
        for path in sorted(Path(folder).rglob("*")):
            if path.is_file():
                text = path.read_text(encoding="utf-8", errors="replace").replace(folder, "")
                try:
                    kept = plain(json.loads(text))
                except ValueError:
                    kept = text
                found["files"][path.relative_to(folder).as_posix()] = kept
    return found


def digest(answer: Mapping[str, Any]) -> str:
    """Of what is promised: statuses, printed JSON and written files; messages may be edited."""
    kept = {key: answer.get(key) for key in ("exits", "printed", "files")}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]


def _import_everything(root: Path) -> None:
    """All modules that can be imported here, so that no question pays for them."""
    for path in sorted((root / "blinksim").rglob("*.py")):
        name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        if path.name != "__main__.py":
            with suppress(Exception):
                importlib.import_module(name)


def _answered(question: str, root: Path) -> Iterator[tuple[int, Path]]:
    """Forks a child that answers, and yields (its number, the file that it fills)."""
    handle, name = tempfile.mkstemp()
    os.close(handle)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (MOST_CPU_S, MOST_CPU_S + 1))
            os.chdir(root)
            found = _ask(question)
            Path(name).write_bytes(pickle.dumps(found))
            status = 0
        finally:
            os._exit(status)
    yield child, Path(name)


def answers(questions: Sequence[str], root: Path, jobs: int) -> Iterator[tuple[str, Answer]]:
    """Answers of the checkout at `root`, in the order in which they come; run in a process that imports it."""
    _import_everything(root)
    waiting = list(reversed(questions))
    running: dict[int, tuple[str, Path]] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            question = waiting.pop()
            for child, path in _answered(question, root):
                running[child] = (question, path)
        child, status, used = os.wait3(0)
        question, path = running.pop(child)
        data = path.read_bytes()
        path.unlink()
        answer = (
            pickle.loads(data)
            if status == 0 and data
            else {"exits": [f"ended by {status}"], "printed": [], "messages": [], "files": {}}
        )
        yield question, answer | {"cpu_s": round(used.ru_utime + used.ru_stime, 3)}


def write_answers(out: Path, root: Path, jobs: int, questions: Sequence[str]) -> None:
    """Answers of a checkout, a line each; in a process of its own whose blinksim is that checkout's."""
    given = "\n".join(questions)
    command = [sys.executable, str(HERE / "corpus.py"), "_worker", str(out), "--root", str(root), "--jobs", str(jobs)]
    path = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": path, "PYTHONHASHSEED": "0", "COLUMNS": "100"}
    subprocess.run(command, input=given, text=True, check=True, env=environment, cwd=root)


def read_answers(path: Path) -> dict[str, Answer]:
    with path.open(encoding="utf-8") as lines:
        return dict(map(json.loads, lines))


def flat(value: object, at: str = "") -> Iterator[tuple[str, object]]:
    """(path of keys, value) of everything within; numbers of rows stay, so that a list can be compared."""
    if isinstance(value, dict) and value:
        for key, held in value.items():
            yield from flat(held, f"{at}.{key}" if at else str(key))
    elif isinstance(value, list) and value:
        for number, held in enumerate(value):
            yield from flat(held, f"{at}[{number}]")
    else:
        yield at, value


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[tuple[str, object, object]]:
    """(key, before, after) of all that is promised and differs."""
    kept = ("exits", "printed", "files")
    before, after = ({**dict(flat({key: answer.get(key) for key in kept}))} for answer in (old, new))
    return [
        (key, before.get(key, "-"), after.get(key, "-"))
        for key in dict.fromkeys([*before, *after])
        if before.get(key, "-") != after.get(key, "-")
    ]


def report(old: Mapping[str, Answer], new: Mapping[str, Answer], most: int = 6) -> int:
    """Prints what differs, question by question and summed up by key; returns how many questions do."""
    changed, keys = 0, Counter[str]()
    for question in old:
        found = differences(old[question], new[question]) if question in new else []
        if not found:
            continue
        changed += 1
        print(f"\n{question}")
        for key, before, after in found[:most]:
            print(f"  {key}: {_short(before)} -> {_short(after)}")
        if len(found) > most:
            print(f"  and {len(found) - most} more")
        keys.update({"".join(c for c in key if not c.isdigit()) for key, _, _ in found})
    for key, count in keys.most_common(20):
        print(f"{count:6} questions differ in {key}")
    cpu = [sum(answers_of[q]["cpu_s"] for q in old if q in new) for answers_of in (old, new)]
    print(f"{changed} of {len(old)} answers differ; CPU seconds {cpu[0]:.0f} and {cpu[1]:.0f}")
    return changed


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 90 else f"{text[:90]}…"


def rows() -> list[dict[str, str]]:
    """The table: the hash of an answer, the reason if it was changed on purpose, the question."""
    with TABLE.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def write_rows(found: Sequence[Mapping[str, str]]) -> None:
    with TABLE.open("w", encoding="utf-8", newline="") as out:
        writer = csv.DictWriter(out, ("hash", "why", "question"), lineterminator="\n")
        writer.writeheader()
        writer.writerows(found)


def base_checkout() -> Path:
    """The base commit, checked out under build/ once."""
    place = ROOT / "build" / "corpus-base"
    if not (place / "blinksim").is_dir():
        place.mkdir(parents=True, exist_ok=True)
        archive = subprocess.run(["git", "archive", BASE], cwd=ROOT, check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x"], cwd=place, input=archive, check=True)
    return place


def chosen(every: int, match: str) -> list[str]:
    questions = [row["question"] for row in rows()]
    return [question for number, question in enumerate(questions) if number % every == 0 and match in question]


def check(every: int, match: str, jobs: int, reason: str) -> int:
    """Compares answers with the frozen hashes; with a reason, what differs is taken over."""
    frozen = {row["question"]: row["hash"] for row in rows()}
    with tempfile.TemporaryDirectory() as folder:
        now, before = Path(folder) / "now.jsonl", Path(folder) / "base.jsonl"
        write_answers(now, ROOT, jobs, chosen(every, match))
        found = read_answers(now)
        differing = [question for question, answer in found.items() if digest(answer) != frozen[question]]
        if not differing:
            print(f"{len(found)} answers, all as frozen")
            return 0
        print(f"{len(differing)} of {len(found)} answers are not as frozen; asking {BASE}")
        write_answers(before, base_checkout(), jobs, differing)
        report(read_answers(before), {question: found[question] for question in differing})
    if reason:
        taken = {question: {"hash": digest(found[question]), "why": reason} for question in differing}
        write_rows([row | taken.get(row["question"], {}) for row in rows()])
    return 0 if reason else 1


def freeze(path: Path) -> None:
    """Writes the hashes anew, from answers of the base commit."""
    found = read_answers(path)
    write_rows([{"hash": digest(found[row["question"]]), "why": "", "question": row["question"]} for row in rows()])


def _work(out: Path, root: Path, jobs: int) -> None:
    questions: Iterable[str] = sys.stdin.read().splitlines()
    with out.open("w", encoding="utf-8") as lines:
        for question, answer in answers(list(questions), root, jobs):
            lines.write(json.dumps([question, answer]) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("check", "answer", "compare", "freeze", "_worker"))
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--root", type=Path, default=ROOT)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--every", type=int, default=1, help="only every so many questions")
    parser.add_argument("--match", default="", help="only questions with this text")
    parser.add_argument("--reviewed", default="", metavar="WHY", help="take what differs over, with the reason")
    given = parser.parse_args()
    if given.what == "check":
        return check(given.every, given.match, given.jobs, given.reviewed)
    if given.what == "answer":
        write_answers(given.files[0].resolve(), given.root.resolve(), given.jobs, chosen(given.every, given.match))
    elif given.what == "_worker":
        _work(given.files[0], given.root, given.jobs)
    elif given.what == "compare":
        old, new = map(read_answers, given.files)
        return min(report(old, new), 1)
    else:
        freeze(given.files[0])
    return 0


if __name__ == "__main__":
    sys.exit(main())
