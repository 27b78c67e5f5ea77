#!/usr/bin/env bash
# Evidence, not a bar: how many emulated machines stand still in which nothing of Baton's runs, and where.
# Boots BATON_MACHINES (200) of them by run_vm.sh --bare: the kernel, QEMU's command line and the time-out of the
# machines of tests/vm, but a first program that does no more than load the modules, write a line for each to
# the console, and turn the machine off. Prints how many came to their end, and of each that stood still what
# its console showed last and which functions of the kernel its processors were in.
# BATON_MODULES: "all" (as tests/vm has them) or "none". BATON_AT_ONCE (1): machines beside each other, each
# with two processors, on a host that is to be busy. BATON_BOOT_SECONDS (60) of each.
# Ends with 0 when a machine stood still, with 3 when none did (nothing is shown), and with 1 when a machine
# could not be started or none came to its end.
set -euo pipefail
machines=${BATON_MACHINES:-200} at_once=${BATON_AT_ONCE:-1} boot=${BATON_BOOT_SECONDS:-60}
modules=${BATON_MODULES:-all}
for number in "$machines" "$at_once" "$boot"; do
  [[ $number =~ ^[1-9][0-9]*$ ]] || { echo "bare-machines: \"$number\" is no number" >&2; exit 1; }
done
[[ $modules == all || $modules == none ]] ||
  { echo "bare-machines: BATON_MODULES is all or none, not \"$modules\"" >&2; exit 1; }
deploy/scripts/install_packages.sh vm

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
{
  cat <<'END_OF_PROGRAM'
#!/bin/busybox sh
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
$b mount -t devtmpfs dev /dev
echo "bare: the first program runs"
END_OF_PROGRAM
  # shellcheck disable=SC2016  # expanded in the machine
  [[ $modules == none ]] || echo 'for module in /modules/*; do
  echo "bare: loads ${module##*/}"
  $b insmod "$module" || echo "bare: cannot load ${module##*/}"
done'
  cat <<'END_OF_PROGRAM'
echo "bare: done"
echo o >/proc/sysrq-trigger
$b sleep 60
END_OF_PROGRAM
} >"$work/bare.sh"

# boot NUMBER: a machine, and those that run_vm.sh starts in the place of one that stands still, three at most.
boot() {
  local status=0
  # The last one has its time, too: to tell where processors are takes some seconds.
  BATON_VM_STARTS=$work/$1.starts deploy/vm/run_vm.sh --boot-timeout "$boot" --timeout $((3 * boot + 30)) --bare \
    "$work/bare.sh" >"$work/$1.out" 2>"$work/$1.err" </dev/null || status=$?
  echo "$status" >"$work/$1.status"
  # 124: the last of them stood still, too.
  [[ $status -eq 0 || $status -eq 124 ]]
}
# boot_some FIRST: each at_once-th, until there are enough.
boot_some() {
  local number
  for ((number = $1; number <= machines; number += at_once)); do
    boot "$number" || return 1
  done
}

began=$SECONDS
lanes=()
for ((lane = 1; lane <= at_once; ++lane)); do
  boot_some "$lane" &
  lanes+=("$!")
done
failed=''
for lane in "${lanes[@]}"; do wait "$lane" || failed=yes; done
if [[ -n $failed ]]; then
  echo "bare-machines: a machine could not be started" >&2
  for file in "$work"/*.status; do
    read -r status <"$file"
    [[ $status -eq 0 || $status -eq 124 ]] || cat "${file%.status}.err" >&2
  done
  exit 1
fi

# Lines of the console end with a carriage return.
came=0 early=0 again=0
for ((number = 1; number <= machines; ++number)); do
  again=$((again + $(wc -l <"$work/$number.starts") - 1))
  if [[ $(<"$work/$number.status") -eq 0 ]]; then
    if tr -d '\r' <"$work/$number.out" | grep -x 'bare: done' >/dev/null; then
      came=$((came + 1))
    elif grep 'BUG: soft lockup' "$work/$number.out" >/dev/null; then
      echo "machine $number stood still, as its kernel's own watchdog saw; from its console:"
      tr -d '\r' <"$work/$number.out" | grep -A 40 'BUG: soft lockup' | sed 's/^/  | /'
    else
      early=$((early + 1))
      echo "machine $number ended before its first program did; its console's end:"
      tr -d '\r' <"$work/$number.out" | tail -n 12 | sed 's/^/  | /'
    fi
  fi
done
started=$((machines + again))
still=$((started - came - early))

# last_lines NUMBER: of the console of each that stood still. run_vm.sh announces a console, and its own next line
# ends it.
last_lines() {
  awk '
    { gsub(/\r/, "") }
    /^vm: no start within|^vm: the script did not end within/ { inside = 1; last = "(nothing)"; next }
    inside && /^vm: / { print last; inside = 0 }
    inside && NF { last = $0 }
    END { if (inside) print last }' "$work/$1.err"
  tr -d '\r' <"$work/$1.out" | grep -m1 'BUG: soft lockup' || true
}
if [[ $still -gt 0 ]]; then
  # Names of functions: the kernel is always loaded to the same addresses.
  # shellcheck disable=SC2016  # expanded in the machine
  echo 'sort /proc/kallsyms >"$BATON_VM_RESULTS/kallsyms"' >"$work/kallsyms.sh"
  deploy/vm/run_vm.sh --results "$work" "$work/kallsyms.sh" >/dev/null 2>"$work/kallsyms.err" ||
    cat "$work/kallsyms.err" >&2
  touch "$work/kallsyms"
fi
for ((number = 1; number <= machines; ++number)); do
  [[ $(wc -l <"$work/$number.starts") -gt 1 || $(<"$work/$number.status") -eq 124 ]] || continue
  echo "machine $number stood still; its console's last lines, and where its processors were, in two looks:"
  # Addresses are hexadecimal numbers of sixteen digits, so they compare as strings do.
  awk '
    FILENAME == ARGV[1] { if ($2 ~ /[tTwW]/) { at[++symbols] = $1; name[symbols] = $3 }; next }
    function function_of(address,   low, high, middle) {
      low = 1; high = symbols
      if (!symbols || address "" < at[1] "") return "not in the kernel, or not known"
      while (low < high) {
        middle = int((low + high + 1) / 2)
        if (at[middle] "" <= address "") low = middle; else high = middle - 1
      }
      return name[low]
    }
    { gsub(/\r/, "") }
    /^vm: no start within|^vm: the script did not end within/ { inside = 1; lines = 0; next }
    inside && /^vm: / { inside = 0; tell() }
    /^vm: .*CPU#/ { processor = $0; sub(/^.*CPU#/, "processor ", processor) }
    /^vm: RIP=/ {
      address = $2; sub(/^RIP=/, "", address)
      printf "  %s at %s: %s\n", processor, address, function_of(address)
    }
    inside && NF { line[++lines] = $0 }
    function tell(   i) {
      if (!lines) print "  | (nothing)"
      for (i = lines > 8 ? lines - 7 : 1; i <= lines; ++i) print "  | " line[i]
    }
    END { if (inside) tell() }' "$work/kallsyms" "$work/$number.err"
done

echo "bare machines, modules: $modules, $at_once at once, $((SECONDS - began)) s:"
printf '%6d  started\n' "$started"
printf '%6d  came to their end\n' "$came"
printf '%6d  ended before\n' "$early"
printf '%6d  stood still, %s s each\n' "$still" "$boot"
if [[ $still -gt 0 ]]; then
  echo "last line of the console of those that stood still:"
  for ((number = 1; number <= machines; ++number)); do last_lines "$number"; done |
    sort | uniq -c | sort -rn
fi
if [[ $came -eq 0 ]]; then
  echo "bare-machines: no machine came to its end" >&2
  exit 1
fi
[[ $still -gt 0 ]] || { echo "not shown: none of $started stood still"; exit 3; }
