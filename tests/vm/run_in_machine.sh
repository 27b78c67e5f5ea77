#!/usr/bin/env bash
# run_in_machine.sh [--program FILE]... [--cpus N] [--peer SCRIPT] [--lossy REASON | --judges-itself |
#                   --killed-owners] SCRIPT [ARGUMENTS]: what a vm_test is to Bazel.
# Without --lossy it fails when nobody has judged what the device counted: SCRIPT with --judges-itself,
# else judged.sh.
# Ends with the line "run_in_machine: N started, N of them again", which report_tests.py counts: of machines.
set -euo pipefail

# Beside each other, and not links: batond finds its children beside itself.
export BATON_BIN=$TEST_TMPDIR/bin
mkdir -p "$BATON_BIN"
options=() lossy='' judge=(tests/vm/judged.sh)
while [[ $1 == --* ]]; do
  case $1 in
    --lossy) lossy=$2 judge=() ;;
    --judges-itself)
      judge=()
      shift
      continue
      ;;
    --killed-owners)
      judge+=("$1")
      shift
      continue
      ;;
    --program) cp -L "$2" "$BATON_BIN" ;;
    --cpus | --peer) options+=("$1" "$2") ;;
  esac
  shift 2
done

# Bazel's home for tests is not the user's, who has the kernel.
HOME=$(getent passwd "$(id -u)" | cut -d: -f6)
export HOME
results=$TEST_UNDECLARED_OUTPUTS_DIR
export BATON_VM_STARTS=$TEST_TMPDIR/starts
# Earlier than Bazel's own time-out, for the console to be shown.
run() {
  deploy/vm/run_vm.sh --timeout $((TEST_TIMEOUT - 20 - SECONDS)) --results "$results" \
    "${options[@]}" "${judge[@]}" "$@"
}
status=0
run "$@" || status=$?
# It stood still after the script had begun, as it does now and then while it boots, or the script is undecided
# (common.sh): said above.
if [[ $status -eq 126 || $status -eq 75 ]]; then
  echo "run_in_machine: it is run once more, in another machine" >&2
  rm -rf "${results:?}"/*
  status=0
  run "$@" || status=$?
fi
if [[ -n $lossy ]]; then
  echo "run_in_machine: the device's counters are not judged: $lossy"
elif [[ $status -eq 0 && ! -s $results/judged ]]; then
  echo "run_in_machine: $1 has passed, but the device's counters were not judged" >&2
  status=1
fi

# The cases of the programs inside, for those who count them; those of several tests in one machine are a folder deeper.
# A script without any is a case. If nothing is written, Bazel does it in an action of its own, which may wait for a
# processor as long as other tests run, and keeps this machine's job meanwhile.
shopt -s nullglob
cases=("$results"/*.xml "$results"/*/*.xml)
if [[ ${#cases[@]} -gt 0 ]]; then
  python3 -c '
import sys
import xml.etree.ElementTree as ElementTree
all = ElementTree.Element("testsuites")
for path in sys.argv[1:]:
    all.extend(ElementTree.parse(path).getroot())
ElementTree.ElementTree(all).write(sys.stdout.buffer, encoding="UTF-8", xml_declaration=True)
' "${cases[@]}" >"$XML_OUTPUT_FILE"
else
  name=${TEST_TARGET#//} failure=''
  [[ $status -eq 0 ]] || failure="<failure message=\"exit status $status\"/>"
  printf '<testsuites><testsuite name="%s"><testcase name="%s" time="%s">%s</testcase></testsuite></testsuites>\n' \
    "${name/://}" "${name/://}" "$SECONDS" "$failure" >"$XML_OUTPUT_FILE"
fi
if [[ -s $BATON_VM_STARTS ]]; then
  starts=$(wc -l <"$BATON_VM_STARTS")
  echo "run_in_machine: $starts started, $((starts - 1)) of them again"
fi
exit "$status"
