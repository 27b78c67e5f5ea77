#!/usr/bin/env python3
"""report_tests.py: what it counts of a run, and what fails one, by its last line and its status."""

import json
import pathlib
import subprocess
import tempfile
import unittest

SCRIPT = "deploy/scripts/report_tests.py"


def case(name, body="", **attributes):
    suite, _, name = name.rpartition(".")
    text = "".join(f' {key}="{value}"' for key, value in attributes.items())
    return f'<testcase name="{name}" status="run"{text} classname="{suite}">{body}</testcase>'


def skipped(message):
    return f'<skipped message="{message}"/>'


UNDECIDED = "undecided: others used the machine in all of 15 rounds, and x is 9, recorded is 1"
FAILURE = '<failure message="it fails"><![CDATA[<testcase name="no case"> <skipped/>]]></failure>'


class ReportTests(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)
        self.work = pathlib.Path(self.directory.name)
        self.events = []
        self.skips = ("unless false\nA.expected\nunless true\nA.needless\n"
                      "because undecided: others used the machine in all of\nA.noisy\n")

    def ran(self, target, cases=(), status="PASSED", log="", shard=0, attempt=1):
        files = []
        path = self.work / f"{len(self.events)}"
        for name, text in (("test.log", log), ("test.xml", f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>")):
            file = path.with_suffix("." + name)
            file.write_text(text)
            files.append({"name": name, "uri": file.as_uri()})
        self.events.append({"id": {"testResult": {"label": target, "run": 1, "shard": shard, "attempt": attempt}},
                            "testResult": {"status": status, "testActionOutput": files}})
        self.events.append({"id": {"testSummary": {"label": target}}, "testSummary": {"overallStatus": status}})

    def report(self, *arguments):
        (self.work / "events").write_text("".join(json.dumps(event) + "\n" for event in self.events))
        (self.work / "skips").write_text(self.skips)
        done = subprocess.run([SCRIPT, str(self.work / "events"), "--expected-skips", str(self.work / "skips"),
                               *arguments], capture_output=True, text=True, check=False)
        self.assertEqual(done.stderr, "")
        self.output = done.stdout
        return done.stdout.splitlines()[-1], done.returncode

    def test_distinct_cases_are_counted_and_repeats_apart(self):
        self.ran("//tests:x", [case("A.b", file="x.cc"), case("A.c", file="x.cc")])
        self.ran("//tests:x_again", [case("A.b", file="x.cc")])
        self.ran("//tests:y", [case("A.b", file="y.cc")])
        self.ran("//tests:sharded", [case("A.d", file="z.cc"), case("A.e", file="z.cc", result="suppressed")])
        self.ran("//tests:sharded", [case("A.e", file="z.cc")], shard=1)
        self.ran("//tests:script", [case("tests/script")])
        self.assertEqual(self.report(), ("6 passed, 0 failed", 0))
        self.assertIn("repeats: 1,", self.output)

    def test_a_case_that_fails_anywhere_fails(self):
        self.ran("//tests:x", [case("A.b", file="x.cc")])
        self.ran("//tests:on_rdma", [case("A.b", FAILURE, file="x.cc"), case("A.c", file="x.cc")], status="FAILED")
        self.assertEqual(self.report("--status", "3"), ("1 passed, 1 failed", 1))

    def test_a_failure_in_a_target_that_passes_fails(self):
        self.ran("//tests:x", [case("A.b", FAILURE)])
        self.assertEqual(self.report(), ("0 passed, 1 failed", 1))

    def test_the_last_attempt_counts(self):
        self.ran("//tests:x", [case("A.b", FAILURE)], status="FAILED")
        self.ran("//tests:x", [case("A.b")], status="FLAKY", attempt=2)
        self.assertEqual(self.report(), ("1 passed, 0 failed", 0))

    def test_a_target_without_cases_is_one(self):
        self.ran("//tests:crashed", [], status="FAILED")
        self.ran("//tests:late", [case("A.b")], status="TIMEOUT")
        self.events.append({"id": {"targetCompleted": {"label": "//lib:broken"}}, "completed": {}})
        self.events.append({"id": {"targetCompleted": {"label": "//lib:other"}}, "aborted": {"reason": "ANALYSIS_FAILURE"}})
        self.events.append({"id": {"targetCompleted": {"label": "//lib:built"}}, "completed": {"success": True}})
        self.assertEqual(self.report("--status", "1"), ("1 passed, 4 failed", 1))

    def test_a_file_that_is_cut_off_fails(self):
        self.ran("//tests:x", ["<testcase"])
        self.assertEqual(self.report(), ("0 passed, 1 failed", 1))

    def test_a_build_that_broke_fails(self):
        self.assertEqual(self.report("--status", "1"), ("0 passed, 1 failed", 1))

    def test_only_expected_skips_are_no_failures(self):
        self.ran("//tests:x", [case("A.expected", skipped("it is &quot;so&quot;&#x0A;here"), result="skipped"),
                               case("A.b")])
        self.assertEqual(self.report(), ("1 passed, 0 failed, 1 skipped", 0))
        self.assertIn('skipped: //tests:x A.expected: it is "so" here', self.output)

    def test_a_skip_that_nobody_expects_fails(self):
        self.ran("//tests:x", [case("A.other", skipped("no reason"), result="skipped"), case("A.b")])
        self.ran("//tests:y", [case("A.other")])
        self.assertEqual(self.report(), ("1 passed, 1 failed", 1))
        self.assertIn("not in tests/expected_skips.txt", self.output)

    def test_a_skip_fails_where_what_it_needs_is_there(self):
        self.ran("//tests:x", [case("A.needless", skipped("no right"), result="skipped")])
        self.assertEqual(self.report(), ("0 passed, 1 failed", 1))

    def test_a_skip_for_another_reason_than_the_one_expected_fails(self):
        for reason in ("undecided: nobody knows", "others used the machine in all of 15 rounds", ""):
            self.events = []
            self.ran("//tests:x", [case("A.noisy", skipped(reason), result="skipped")])
            self.assertEqual(self.report(), ("0 passed, 1 failed", 1))
        self.events = []
        self.ran("//tests:x", [case("A.noisy", skipped(UNDECIDED), result="skipped")])
        self.assertEqual(self.report(), ("0 passed, 0 failed, 1 skipped", 0))

    def test_an_undecided_target_is_a_skip(self):
        self.ran("//tests:x", [case("A.noisy", skipped(UNDECIDED), result="skipped")], status="FAILED")
        self.assertEqual(self.report("--status", "3"), ("0 passed, 0 failed, 1 skipped", 0))
        self.assertEqual(self.report("--status", "1"), ("0 passed, 1 failed, 1 skipped", 1))

    def test_an_undecided_target_hides_no_other_run_that_broke(self):
        self.ran("//tests:x", [case("A.noisy", skipped(UNDECIDED), result="skipped")], status="FAILED")
        self.assertEqual(self.report("--status", "3", "--status", "3"), ("0 passed, 0 failed, 1 skipped", 0))
        for one, other in (("1", "3"), ("3", "1"), ("3", "4")):
            self.assertEqual(self.report("--status", one, "--status", other), ("0 passed, 1 failed, 1 skipped", 1))

    def test_an_undecided_target_that_nobody_expects_fails(self):
        for name in ("A.other", "A.needless"):
            self.events = []
            self.ran("//tests:x", [case(name, skipped(UNDECIDED), result="skipped")], status="FAILED")
            self.assertEqual(self.report("--status", "3"), ("0 passed, 1 failed", 1))

    def test_a_target_that_fails_otherwise_is_not_undecided(self):
        undecided = case("A.noisy", skipped(UNDECIDED), result="skipped")
        self.ran("//tests:x", [undecided], status="FAILED")
        self.ran("//tests:y", [case("A.expected", skipped("no right"), result="skipped")], status="FAILED")
        self.ran("//tests:z", [undecided], status="TIMEOUT")
        self.ran("//tests:w", [undecided, case("A.b", FAILURE)], status="FAILED")
        self.assertEqual(self.report("--status", "3"), ("0 passed, 3 failed, 2 skipped", 1))

    def test_machines_that_are_not_there_fail(self):
        self.assertEqual(self.report("--no-machine", "no network", "//tests/vm:x", "//tests/vm:y"),
                         ("0 passed, 2 failed", 1))

    def test_more_than_one_machine_in_fifty_started_again_fails(self):
        said = "its output\nrun_in_machine: {} started, {} of them again\n"
        self.ran("//tests/vm:x", [case("tests/vm/x")], log=said.format(99, 1))
        self.ran("//tests/vm:y", [case("tests/vm/y")], log=said.format(2, 1))
        self.assertEqual(self.report(), ("2 passed, 0 failed", 0))
        self.assertIn("machines: 101 started, 2 of them again (//tests/vm:x, //tests/vm:y)", self.output)
        self.ran("//tests/vm:z", [case("tests/vm/z")], log=said.format(2, 1))
        self.assertEqual(self.report(), ("3 passed, 1 failed", 1))

    def test_of_few_machines_one_may_be_started_again(self):
        self.ran("//tests/vm:x", [case("tests/vm/x")], log="run_in_machine: 2 started, 1 of them again\n")
        self.assertEqual(self.report(), ("1 passed, 0 failed", 0))


if __name__ == "__main__":
    unittest.main()
