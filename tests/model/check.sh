#!/usr/bin/env bash
# check.sh [deep]: searches all states of the handover protocol's model with spin, in several small
# configurations (`deep`: in larger ones too, some minutes), and then its mutants, each of which must
# be found wrong. Fails on an error, on a search that is not complete, and on a mutant that lives.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
for tool in spin cc tcc; do
  if ! command -v "$tool" >/dev/null; then
    echo "check.sh: $tool is not installed: ./run setup installs it" >&2
    exit 1
  fi
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
megabytes=6000

# search DEFINES...: the outcome is in $work/out. A compiler that optimises takes longer than a small search.
compiler=(tcc)
[[ ${1:-} != deep ]] || compiler=(cc -O2)
search() {
  spin "$@" -a "$here/handover.pml" >spin.out || { cat spin.out; exit 1; }
  "${compiler[@]}" -w -DSAFETY -DCOLLAPSE -DMEMLIM="$megabytes" "$@" -o pan pan.c
  ./pan -m1000000 -w23 >out 2>&1 || true
  states=$(sed -nE 's/^ *([0-9.e+]+) states, stored.*/\1/p' out)
}

failures=0
fail() {
  failures=$((failures + 1))
  echo "FAILED $1"
  grep -E 'pan:|Warning|errors:|error:' out || cat out
}

correct() {
  search "$@"
  if ! grep -q 'errors: 0$' out; then
    fail "$*"
    if [[ -f handover.pml.trail ]]; then  # the way there
      spin "$@" -t -k handover.pml.trail -p "$here/handover.pml" 2>&1 | tail -n 80
    fi
  elif grep -qE 'not completed|too small|out of memory|MEMLIM' out; then
    fail "(not a complete search) $*"
  else
    echo "correct: ${states:-?} states: $*"
  fi
}

wrong() {
  search "$@"
  if grep -qE '^pan:1: (assertion violated|invalid end state)' out; then
    echo "caught: $*: $(sed -n 's/^pan:1: \(.*\) (at depth.*/\1/p' out | cut -c1-70)"
  else
    fail "(not caught) $*"
  fi
}

# The numbers of: kills, mad workers, handoffs, processes that use a slot, inputs.
size() { printf -- '-DKILLS=%s -DMADNESS=%s -DHANDOFFS=%s -DLIVES=%s -DINPUTS=%s' "$@"; }
read -ra all <<<"$(size 1 1 1 2 1)"
read -ra crashes <<<"$(size 2 0 0 2 2)"
read -ra handoffs <<<"$(size 1 0 4 1 1)"
read -ra late <<<"-DLATE_RELEASER $(size 1 0 3 1 1)"
read -ra liars <<<"-DLIARS=1 $(size 1 0 1 2 1)"
read -ra upgrade <<<"-DUPGRADE -DILLNESSES=0 $(size 1 0 0 1 0)"
read -ra mad_upgrade <<<"-DUPGRADE -DILLNESSES=0 $(size 0 1 0 1 0)"
read -ra busy_upgrade <<<"-DUPGRADE $(size 0 0 0 1 1)"

correct "${all[@]}"
correct "${crashes[@]}"
correct "${handoffs[@]}"
correct "${late[@]}"
correct "${liars[@]}"
correct "${upgrade[@]}"
correct "${mad_upgrade[@]}"
correct "${busy_upgrade[@]}"
if [[ ${1:-} == deep ]]; then
  for sizes in "1 1 1 2 2" "2 1 1 2 1" "1 0 4 1 2" "1 1 2 1 2" "2 0 2 2 1"; do
    read -ra numbers <<<"$sizes"
    read -ra large <<<"$(size "${numbers[@]}")"
    correct "${large[@]}"
  done
  read -ra large <<<"-DLIARS=1 $(size 1 0 1 2 2)"
  correct "${large[@]}"
  for sizes in "1 0 0 1 1" "2 0 0 1 0" "1 1 0 1 0" "0 0 0 1 2"; do
    read -ra numbers <<<"$sizes"
    read -ra large <<<"-DUPGRADE $(size "${numbers[@]}")"
    correct "${large[@]}"
  done
  correct -DSLOTS=3 -DKILLS=1 -DMADNESS=0 -DHANDOFFS=1 -DLIVES=1 -DINPUTS=1
fi

wrong -DMUTANT_NO_CUT "${all[@]}"
wrong -DMUTANT_GRANT_BEFORE_DEATH "${all[@]}"
wrong -DMUTANT_FIRST_LOCK "${all[@]}"
wrong -DMUTANT_NO_ASSIGN_WAITING "${all[@]}"
wrong -DMUTANT_STATE_IN_PLACE "${all[@]}"
wrong -DMUTANT_TAIL_FIRST "${all[@]}"
wrong -DMUTANT_ADOPT_LOOKS_AT_THE_INDEX_ONLY "${handoffs[@]}"
wrong -DMUTANT_NO_EPOCH_COMPARE "${late[@]}"
wrong -DMUTANT_BANK_REUSED "${liars[@]}"
wrong -DMUTANT_NO_TRIAL "${upgrade[@]}"
wrong -DMUTANT_RETIRED_AFTER_THE_LOOK "${upgrade[@]}"
wrong -DMUTANT_HEALTH_NOT_WATCHED "${busy_upgrade[@]}"
wrong -DMUTANT_NEW_ENDED_WITHOUT_A_LOOK "${upgrade[@]}"
wrong -DMUTANT_END_NOT_AWAITED "${busy_upgrade[@]}"

[[ $failures -eq 0 ]] || echo "$failures failed"
[[ $failures -eq 0 ]]
