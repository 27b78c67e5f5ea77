#!/usr/bin/env bash
# What rxe0 says of itself, and its place in the machine; to be sourced, after common.sh.
set -euo pipefail

# The kernel does in a thread what a NIC does: without it, programs that start take that its time,
# and its timer finds more on the way.
prefer_the_device() {
  local pid
  for pid in $(pgrep -x 'ksoftirqd/[0-9]+'); do chrt -f -p 1 "$pid"; done
}

# statistics: what check_counters judges, of this machine. count_timers comes before what is counted.
count_timers() {
  mount -t tracefs none /sys/kernel/tracing
  echo 'p:ack_timers rdma_rxe:retransmit_timer' >/sys/kernel/tracing/kprobe_events
  echo 1 >/sys/kernel/tracing/events/kprobes/ack_timers/enable
}
statistics() {
  echo "$(rdma statistic show link rxe0/1)" \
    "ack_timers $(awk '$1 == "ack_timers" { print $2 }' /sys/kernel/tracing/kprobe_profile)"
}

# check_counters <STATISTICS: of all machines: nothing was lost on the way, and nobody was not ready
# to receive. Prints what was judged.
#
# A retry is no loss by itself. Soft-RoCE starts a timer of 2.1 s at a send, unless it runs, and does
# not stop it at the acknowledgement ("some timeouts are spurious", rxe_comp.c): it ends every 2.1 s
# of a connection that is used, and what is on the way in that moment is sent again. That had arrived,
# or will, so it is a duplicate where it arrives; what was lost would not be. So every retry needs a
# duplicate and a timer that has ended. rping alone, without Baton, has them as well (control).
check_counters() {
  local words word name judged='' failed=0
  local -A count=()
  read -rd '' -a words || true
  for name in rcvd_rnr_err send_rnr_err rcvd_seq_err out_of_seq_request retry_exceeded_err \
    completer_retry_err duplicate_request ack_timers; do
    for ((word = 0; word + 1 < ${#words[@]}; ++word)); do
      [[ ${words[word]} != "$name" ]] ||
        count[$name]=$((${count[$name]:-0} + ${words[word + 1]}))
    done
    judged+="$name ${count[$name]:-not told}, "
    [[ -n ${count[$name]:-} ]] || failed=1
    case $name in
      completer_retry_err | duplicate_request | ack_timers) ;;
      *) [[ ${count[$name]:-0} -eq 0 ]] || failed=1 ;;
    esac
  done
  echo "${judged%, }"
  [[ $failed -eq 0 && ${count[completer_retry_err]} -le ${count[duplicate_request]} &&
    ${count[completer_retry_err]} -le ${count[ack_timers]} ]]
}

# The checker finds what it is for.
test_counters() {
  local bad
  local good='link rxe0/1 duplicate_request 2 out_of_seq_request 0 rcvd_rnr_err 0 send_rnr_err 0'
  good+=' rcvd_seq_err 0 retry_exceeded_err 0 completer_retry_err 2 ack_timers 3'
  check_counters <<<"$good" >/dev/null || die "the checker of counters refuses what is right"
  for bad in "${good/send_rnr_err 0/send_rnr_err 10}" "${good/rcvd_rnr_err 0/}" "${good/ack_timers 3/}" \
    "${good/retry_err 2/retry_err 3}" "$good"$'\n'"${good/rnr_err 0/rnr_err 1}" \
    "${good/timers 3/timers 1}" "${good/rcvd_seq_err 0/rcvd_seq_err 1}"; do
    ! check_counters <<<"$bad" >/dev/null || die "the checker of counters does not see \"$bad\""
  done
}
