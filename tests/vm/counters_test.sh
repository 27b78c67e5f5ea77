#!/usr/bin/env bash
# judged.sh and check_counters, with an `rdma` and a kernel's trace that say what this test wants.
set -euo pipefail

die() { echo "counters_test: $*" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export BATON_VM_RESULTS=$work/results BATON_TRACING=$work/tracing PATH=$work:$PATH
mkdir -p "$BATON_VM_RESULTS" "$BATON_TRACING"/{events/kprobes/ack_timers,options}
printf '#!/bin/sh\ncat "%s"\n' "$work/rdma.says" >"$work/rdma"
# While judged.sh waits, what was on the way arrives.
printf '#!/bin/sh\nsed -i "s/late_//" "%s"\n' "$work/rdma.says" >"$work/sleep"
chmod +x "$work/rdma" "$work/sleep"
good='link rxe0/1 sent_pkts 90 duplicate_request 2 out_of_seq_request 0 rcvd_rnr_err 0 send_rnr_err 0'
good+=' rcvd_seq_err 0 retry_exceeded_err 0 completer_retry_err 2'

options=()
# judge STATISTICS TIMERS: what judged.sh makes of them after a script that passes.
judge() {
  rm -f "$BATON_VM_RESULTS"/*
  : >"$BATON_TRACING/kprobe_events"
  echo "$1" >"$work/rdma.says"
  echo "${2:+ack_timers $2 0}" >"$BATON_TRACING/kprobe_profile"
  tests/vm/judged.sh "${options[@]}" "$work/script.sh" 'two words' >"$work/out" 2>"$work/err"
}
# refuses WHY STATISTICS [TIMERS]: and says so, in a line of its own.
refuses() {
  ! judge "$2" "${3-3}" || die "passed: $2"
  grep -qxF "counters: $1" "$work/err" || die "\"$1\" is not told of $2: $(<"$work/err")"
}

# shellcheck disable=SC2016  # expanded in it
echo '[[ $1 == "two words" ]] && echo ran' >"$work/script.sh"
judge "$good" 3 || die "refuses what is right: $(<"$work/err")"
grep -qx ran "$work/out" || die "the script has not run: $(<"$work/out")"
[[ -s $BATON_VM_RESULTS/judged ]] || die "no verdict is left"
grep -q 'p:ack_timers rdma_rxe:retransmit_timer' "$BATON_TRACING/kprobe_events" || die "timers are not counted"
judge "${good/duplicate_request 2/late_duplicate_request 2}" 3 || die "does not wait for what is on the way"

for loss in rcvd_rnr_err send_rnr_err rcvd_seq_err out_of_seq_request retry_exceeded_err; do
  refuses "$loss is 7, not 0" "${good/$loss 0/$loss 7}"
  refuses "$loss is not told" "${good/$loss 0/}"
  # Here the second of two machines has lost something.
  refuses "$loss is 1, not 0" "$good ${good/$loss 0/$loss 1}"
done
refuses 'completer_retry_err is 3, more than duplicate_request, which is 2' "${good/retry_err 2/retry_err 3}"
refuses 'completer_retry_err is 2, more than ack_timers, which is 1' "$good" 1
refuses 'ack_timers is not told' "$good" ''
refuses 'completer_retry_err is not told' "${good/completer_retry_err 2/}"
refuses 'duplicate_request is not told' ''

# A retry without need is no loss; a counter that is not told may hide one.
lost_nothing() { (source tests/vm/rxe_common.sh && lost_nothing <<<"$1"); }
lost_nothing "$good" || die "a loss is seen where none was"
for loss in rcvd_rnr_err send_rnr_err rcvd_seq_err out_of_seq_request retry_exceeded_err; do
  ! lost_nothing "${good/$loss 0/$loss 1}" || die "$loss is no loss"
  ! lost_nothing "${good/$loss 0/}" || die "$loss is no loss where it is not told"
done

# Where owners are killed, a receiver that is not ready is excused, with what follows from it.
options=(--killed-owners)
killed=${good/rcvd_rnr_err 0 send_rnr_err 0/rcvd_rnr_err 3 send_rnr_err 4}
killed=${killed/out_of_seq_request 0/out_of_seq_request 2}
killed=${killed/rcvd_seq_err 0/rcvd_seq_err 1}
judge "$good" 3 || die "refuses what is right of killed owners: $(<"$work/err")"
judge "$killed" 1 || die "refuses what killed owners leave: $(<"$work/err")"
refuses 'retry_exceeded_err is 1, not 0' "${killed/exceeded_err 0/exceeded_err 1}"
refuses 'rcvd_rnr_err is 5, more than send_rnr_err, which is 4' "${killed/rcvd_rnr_err 3/rcvd_rnr_err 5}"
refuses 'out_of_seq_request is 5, more than send_rnr_err, which is 4' "${killed/seq_request 2/seq_request 5}"
refuses 'rcvd_seq_err is 3, more than out_of_seq_request, which is 2' "${killed/rcvd_seq_err 1/rcvd_seq_err 3}"
refuses 'completer_retry_err is 3, more than ack_timers out_of_seq_request, which is 2' "${killed/retry_err 2/retry_err 3}" 0
refuses 'completer_retry_err is 1, more than duplicate_request out_of_seq_request send_rnr_err, which is 0' \
  "link rxe0/1 duplicate_request 0 out_of_seq_request 0 rcvd_rnr_err 0 send_rnr_err 0 rcvd_seq_err 0 \
retry_exceeded_err 0 completer_retry_err 1"
refuses 'out_of_seq_request is 7, more than send_rnr_err, which is 0' "${good/seq_request 0/seq_request 7}"
options=()

# A script's own status comes first, and nothing is judged then.
echo 'exit 7' >"$work/script.sh"
status=0
judge "$good" 3 || status=$?
[[ $status -eq 7 && ! -e $BATON_VM_RESULTS/judged ]] || die "exit status $status of a script that ends with 7"
echo "every counter that rises is told by name and value"
