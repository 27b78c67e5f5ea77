#!/usr/bin/env bash
# in_one_machine.sh 'NAME JUDGE SCRIPT [ARGUMENTS]'...: several tests in one machine, one after another. Each has a
# directory of results of its own, $BATON_VM_RESULTS/NAME, a new rxe0, and a machine in which nothing runs that the one
# before has started (clean_up says what else). All run, also behind one that fails. One that is undecided runs twice. Each is one case of the whole's
# test.xml, which is called as its own target is, or has the cases that it has left in *.xml.
# JUDGE says who judges what the device has counted for it: "judged" (judged.sh), "killed-owners" (the same, with that
# option), "judges-itself" or "lossy", nobody.
set -euo pipefail
here=$(dirname "$0")
all=$BATON_VM_RESULTS
# What is cleaned: all but a test of this wants it to be the machine.
root=${BATON_CLEANED_ROOT:-}
# shellcheck source=tests/vm/common.sh
source "$here/common.sh"
# shellcheck source=tests/vm/rxe_common.sh
source "$here/rxe_common.sh"
interface=$(rdma link show rxe0/1 | sed -n 's/.*netdev \([^ ]*\).*/\1/p')

# What is there before the first one, and stays.
declare -A there=()
for entry in "$root"/{proc/[0-9],run/,dev/shm/,sys/class/net/}*; do there[$entry]=1; done

# end_processes: returns when none is left. Threads of the kernel, and what has ended, have no program.
end_processes() {
  local entry found=yes
  while [[ -n $found ]]; do
    found=''
    for entry in "$root"/proc/[0-9]*; do
      [[ -e $entry/exe && -z ${there[$entry]:-} ]] || continue
      found=yes
      kill -KILL "${entry##*/}" 2>/dev/null || true
    done
    [[ -z $found ]] || pause 0.1
  done
}

# make_device: rxe0, which counts from 0, beside no other, with the machine's address as its only one. Everybody may
# open its files, as at the machine's start.
make_device() {
  local link gid='' file
  for link in "$root"/sys/class/infiniband/*; do
    [[ ! -e $link ]] || rdma link delete "${link##*/}"
  done
  for link in "$root"/sys/class/net/*; do
    [[ -n ${there[$link]:-} ]] || ip link delete "${link##*/}"
  done
  ip -4 address flush dev "$interface"
  ip address add "$BATON_VM_ADDRESS/24" dev "$interface"
  ip link set "$interface" mtu 4200 up
  rdma link add rxe0 type rxe netdev "$interface"
  chown root:root "$root"/dev/infiniband/*
  chmod 0666 "$root"/dev/infiniband/*
  # The kernel makes GIDs in its own time.
  until [[ $gid == *:ffff:* ]]; do
    for file in "$root"/sys/class/infiniband/rxe0/ports/1/gids/{0,1,2,3}; do
      read -r gid 2>/dev/null <"$file" || gid=''
      [[ $gid != *:ffff:* ]] || break
    done
    [[ $gid == *:ffff:* ]] || pause 0.1
  done
}

# clean_up: takes away what the last test has left: controllers of NVMe, processes, files in $place, /run and /dev/shm,
# kernel settings, counted timers, networks and devices. What else a script leaves, as mounts, does the next ones no
# harm, or it is the last one.
clean_up() {
  local entry pid left=()
  for entry in "$root"/sys/class/nvme/*/delete_controller; do
    [[ ! -e $entry ]] || echo 1 >"$entry" || true
  done
  end_processes
  for entry in "$root"/{run,dev/shm}/*; do
    [[ -n ${there[$entry]:-} || ! -e $entry ]] || left+=("$entry")
  done
  # But not where something is mounted.
  rm -rf --one-file-system "$place" "${left[@]}" || true
  echo 0 >"$root/proc/sys/kernel/randomize_va_space"
  echo 0 >"$root/proc/sys/vm/nr_hugepages"
  # count_timers and prefer_the_device.
  if read -r _ 2>/dev/null <"$tracing/kprobe_events"; then
    echo 0 >"$tracing/events/kprobes/enable"
    : >"$tracing/kprobe_events"
  fi
  for pid in $(pgrep -x 'ksoftirqd/[0-9]+'); do chrt -o -p 0 "$pid"; done
  make_device
}

# run_test NAME JUDGE SCRIPT [ARGUMENTS]: returns its exit status.
run_test() {
  local name=$1 judge=$2 script=$3 status=0 command=(bash)
  shift 3
  # The host's files are there, too.
  place=$(mktemp -dt "$name-XXXXXX")
  chmod 755 "$place"
  mkdir "$all/$name"
  case $judge in
    judged) command+=("$here/judged.sh") ;;
    killed-owners) command+=("$here/judged.sh" --killed-owners) ;;
  esac
  BATON_VM_RESULTS=$all/$name TMPDIR=$place setsid --wait "${command[@]}" "$(realpath "$script")" "$@" </dev/null ||
    status=$?
  if [[ $judge == lossy ]]; then
    echo "the device's counters are not judged"
  elif [[ $status -eq 0 && ! -s $all/$name/judged ]]; then
    echo "in_one_machine: $name has passed, but the device's counters were not judged" >&2
    status=1
  fi
  return "$status"
}

# write_cases: what those that have ended make of test.xml.
write_cases() { printf '<testsuites>%s</testsuites>\n' "$cases" >"$all/cases.xml"; }

cases='' failed='' place=''
for test in "$@"; do
  read -ra words <<<"$test"
  [[ -z $place ]] || clean_up
  name=${words[0]} status=0 began=$SECONDS failures=0 failure=''
  echo "=== $name"
  run_test "${words[@]}" || status=$?
  if [[ $status -eq $undecided ]]; then
    echo "=== $name: undecided, once more"
    clean_up
    rm -r "${all:?}/$name"
    status=0
    run_test "${words[@]}" || status=$?
  fi
  seconds=$((SECONDS - began))
  if [[ $status -eq 0 ]]; then
    echo "=== $name: passed in $seconds s"
  else
    failed+=" $name" failures=1 failure="<failure message=\"exit status $status\"/>"
    echo "=== $name: FAILED with exit status $status in $seconds s"
  fi
  ! compgen -G "$all/$name/*.xml" >/dev/null || continue
  cases+="<testsuite name=\"$name\" tests=\"1\" failures=\"$failures\" time=\"$seconds\">"
  cases+="<testcase name=\"tests/vm/$name\" time=\"$seconds\">$failure</testcase></testsuite>"
  write_cases
done
[[ -z $failed ]] || die "failed:$failed"
echo "each by its own judge" >"$all/judged"
