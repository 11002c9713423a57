"""What test programs say of their cases: the reports of GoogleTest and pytest, and the output of others."""

import dataclasses
import json
import re
import xml.etree.ElementTree as ElementTree


@dataclasses.dataclass
class Outcome:
    passed: int = 0
    skipped: int = 0
    failed: list = dataclasses.field(default_factory=list)  # names

    @property
    def total(self):
        return self.passed + self.skipped + len(self.failed)


def parse_gtest_json(path):
    outcome = Outcome()
    for suite in json.loads(path.read_text())["testsuites"]:
        for case in suite["testsuite"]:
            if case["status"] == "NOTRUN":
                continue
            if case.get("failures"):
                outcome.failed.append(f"{suite['name']}.{case['name']}")
            elif case["result"] == "SKIPPED":
                outcome.skipped += 1
            else:
                outcome.passed += 1
    return outcome


def parse_junit_xml(path):
    outcome = Outcome()
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            outcome.failed.append(f"{case.get('classname')}.{case.get('name')}")
        elif case.find("skipped") is not None:
            outcome.skipped += 1
        else:
            outcome.passed += 1
    return outcome


def parse_gtest_output(text):
    """What a program that left no report had done by its own word; the test it was in is the one that failed."""
    outcome, running = Outcome(), None
    for mark, name in re.findall(r"^\[( RUN      |       OK |  FAILED  |  SKIPPED )\] (\S+?\.\S+)", text, re.M):
        mark, name = mark.strip(), name.rstrip(",")
        if mark == "RUN":
            running = name
        elif name == running:
            running = None
            if mark == "FAILED":
                outcome.failed.append(name)
            elif mark == "SKIPPED":
                outcome.skipped += 1
            else:
                outcome.passed += 1
    if running:
        outcome.failed.append(running)
    return outcome


def parse_last_line(path):
    """What a program that is not GoogleTest's says: "seed 7 failed: …" of each failure, and at the end the counts."""
    text = path.read_text(errors="replace")
    counts = re.fullmatch(r"(\d+) passed, (\d+) failed", text.rstrip().rpartition("\n")[2])
    if not counts:
        raise ValueError("no counts")
    failed = re.findall(r"^(\S+ \d+) failed: ", text, re.M)
    if len(failed) != int(counts[2]):
        raise ValueError("not all failures are named")
    return Outcome(passed=int(counts[1]), failed=failed)
