#!/usr/bin/env python3
"""report_tests.py [--status N]... [--expected-skips FILE] [--no-machine REASON TARGET...] EVENTS...

Says what `bazel test --build_event_json_file=EVENTS`, which ended with the statuses N (0 if none is given), have run:
each case that was skipped, with its reason, how many machines were started, and in the last line "N passed, N failed[,
N skipped]". Fails when a case failed, or when nothing did and an N is not 0.

What counts is a case, however often it ran: the same one in another target, on another device or in a machine is
a repeat, which the line before the last one counts. A target that failed without naming a case (it crashed, timed
out or was not built) is one failed case. So is a skip that FILE does not expect, and a target of machines
(--no-machine) where there is none. More machines that had to be started again than one, or one in fifty, are one, too.

A target that failed and names no failed case, but a skip whose reason starts with "undecided: ", counts as that
skip. It fails so that Bazel does not keep its result, and runs it again the next time.
"""

import argparse
import json
import re
import subprocess
import sys
import urllib.parse
import xml.etree.ElementTree as ElementTree

PASSED, SKIPPED, FAILED = range(3)
MACHINES = re.compile(r"^run_in_machine: (\d+) started, (\d+) of them again$", re.MULTILINE)


def read_expected_skips(path):
    """Returns the condition of each case in FILE, by its name: "unless" or "because", and its text. See there."""
    conditions, condition = {}, None
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            kind, _, text = line.strip().partition(" ")
            if kind in ("unless", "because") and text:
                condition = kind, text
            elif line.strip() and not line.startswith("#"):
                if condition is None:
                    sys.exit(f"{path}: {line.strip()} comes before the first condition")
                conditions[line.strip()] = condition
    return conditions


class Conditions:
    """Whether what a skipped case needs can be had here after all."""

    def __init__(self):
        self.known = {}

    def hold(self, command):
        if command not in self.known:
            self.known[command] = subprocess.run(
                ["bash", "-c", command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL, check=False).returncode == 0
        return self.known[command]


class Run:
    """What Bazel's events tell of a run."""

    def __init__(self, path):
        self.results = {}  # by target, run and shard: of the last attempt
        self.statuses = {}  # by target
        with open(path, encoding="utf-8") as lines:
            for line in lines:
                self.take(json.loads(line))

    def take(self, event):
        name = event["id"]
        if "testResult" in name:
            name, result = name["testResult"], event.get("testResult", {})
            key = name["label"], name.get("run", 0), name.get("shard", 0)
            attempt = name.get("attempt", 0)
            if key not in self.results or attempt >= self.results[key][0]:
                files = {file["name"]: urllib.parse.unquote(urllib.parse.urlparse(file["uri"]).path)
                         for file in result.get("testActionOutput", []) if "uri" in file}
                self.results[key] = attempt, result.get("status", "NO_STATUS"), files
        elif "testSummary" in name:
            self.statuses[name["testSummary"]["label"]] = event["testSummary"]["overallStatus"]
        elif "targetCompleted" in name and not event.get("completed", {}).get("success", False):
            # Also what is no test: nothing that is not built passes.
            self.statuses.setdefault(name["targetCompleted"]["label"], "NOT_BUILT")


def cases_of(target, path):
    """Yields (identity, name, state, reason) of each case that an XML file names."""
    for case in ElementTree.parse(path).iter("testcase"):
        if case.get("result") == "suppressed" or case.get("status") == "notrun":
            continue
        name = ".".join(filter(None, (case.get("classname"), case.get("name")))).replace(" ", "_")
        # The same name in two sources are two cases. Where no source is named, the target is meant.
        identity = case.get("file") or (target if name == target[2:].replace(":", "/") else ""), name
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            yield identity, name, FAILED, ""
        elif skipped is not None or case.get("result") == "skipped":
            reason = skipped.get("message", "") if skipped is not None else ""
            yield identity, name, SKIPPED, " ".join(reason.split()) or "no reason given"
        else:
            yield identity, name, PASSED, ""


class Report:
    def __init__(self, expected_skips):
        self.expected_skips = expected_skips
        self.conditions = Conditions()
        self.states = {}  # the worst of each case, but passed beats skipped
        self.occurrences = 0
        self.machines = self.again = 0
        self.started_again = []
        self.undecided = set()  # targets

    def add(self, identity, state):
        self.occurrences += 1
        before = self.states.get(identity)
        if before is None or FAILED in (before, state):
            self.states[identity] = state if before is None else FAILED
        elif state == PASSED:
            self.states[identity] = PASSED

    def fail(self, identity, text):
        print(text)
        self.add(identity, FAILED)

    def skip(self, target, identity, name, reason):
        print(f"skipped: {target} {name}: {reason}")
        kind, text = self.expected_skips.get(name, (None, None))
        if kind is None:
            self.fail(identity, "  not in tests/expected_skips.txt: a failure")
        elif kind == "unless" and self.conditions.hold(text):
            self.fail(identity, f"  a failure: what it needs is there ({text})")
        elif kind == "because" and not reason.startswith(text):
            self.fail(identity, f"  a failure: it may skip for another reason only ({text})")
        else:
            self.add(identity, SKIPPED)

    def add_result(self, target, status, files):
        failed = False
        try:
            cases = list(cases_of(target, files["test.xml"])) if "test.xml" in files else []
        except (ElementTree.ParseError, OSError) as error:
            self.fail((target, ""), f"failed: {target}: its cases cannot be read: {error}")
            cases, failed = [], True
        for identity, name, state, reason in cases:
            failed = failed or state == FAILED
            if state == SKIPPED and status == "FAILED" and reason.startswith("undecided: "):
                self.undecided.add(target)
            if state == SKIPPED:
                self.skip(target, identity, name, reason)
            elif state == FAILED and status in ("PASSED", "FLAKY"):
                self.fail(identity, f"failed: {target} {name}, though its target passed")
            else:
                self.add(identity, state)
        if "test.log" in files:
            with open(files["test.log"], encoding="utf-8", errors="replace") as log:
                for machines, again in MACHINES.findall(log.read()):
                    self.machines += int(machines)
                    self.again += int(again)
                    if int(again):
                        self.started_again.append(target)
        return failed

    def add_run(self, run):
        named = set()
        for (target, _, _), (_, status, files) in sorted(run.results.items()):
            if self.add_result(target, status, files):
                named.add(target)
        for target, status in sorted(run.statuses.items()):
            if status not in ("PASSED", "FLAKY") and target not in named | self.undecided:
                self.fail((target, ""), f"failed: {target}: {status}")

    def judge_machines(self):
        if not self.machines:
            return
        line = f"machines: {self.machines} started, {self.again} of them again"
        if self.started_again:
            line += f" ({', '.join(sorted(set(self.started_again)))})"
        print(line)
        if self.again > max(1, self.machines // 50):
            self.fail(("machines", ""), "failed: more than one machine, and more than one in fifty, were started again")

    def finish(self, statuses):
        counts = [list(self.states.values()).count(state) for state in (PASSED, SKIPPED, FAILED)]
        passed, skipped, failed = counts
        # Bazel ends with 3 if all was built and a test failed. Every one of those is counted above. A run that
        # ended with any other status lacks something, whatever the others ended with.
        ends_well = {0, 3} if self.undecided else {0}
        if failed == 0 and not ends_well.issuperset(statuses):
            failed = 1
        print(f"repeats: {self.occurrences - len(self.states)}, of cases that are counted once below")
        print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
        return failed == 0


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--status", type=int, action="append", default=[])
    parser.add_argument("--expected-skips", default="tests/expected_skips.txt")
    parser.add_argument("--no-machine", nargs="+", default=[])
    parser.add_argument("events", nargs="+")
    flags = parser.parse_intermixed_args()
    report = Report(read_expected_skips(flags.expected_skips))
    for events in flags.events:
        report.add_run(Run(events))
    for target in flags.no_machine[1:]:
        report.skip(target, (target, ""), "", f"there is no virtual machine: {flags.no_machine[0]}")
    report.judge_machines()
    sys.exit(not report.finish(flags.status))


if __name__ == "__main__":
    main()
