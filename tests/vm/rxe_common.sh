#!/usr/bin/env bash
# What rxe0 says of itself, and its place in the machine; to be sourced, after common.sh.
set -euo pipefail

# The kernel does in a thread what a NIC does: without it, programs that start take that its time,
# and its timer finds more on the way.
prefer_the_device() {
  local pid
  for pid in $(pgrep -x 'ksoftirqd/[0-9]+'); do chrt -f -p 1 "$pid"; done
}

# Where the kernel tells how often a function was called.
tracing=${BATON_TRACING:-/sys/kernel/tracing}

# count_timers: from here on `statistics` has how often a timer for acknowledgements has ended.
count_timers() {
  [[ -e $tracing/kprobe_events ]] || mount -t tracefs none "$tracing"
  ! grep -q ack_timers "$tracing/kprobe_events" || return 0
  # Else the kernel changes its scheduler's code, for names of threads that nobody reads. QEMU has been seen to go on with
  # the breakpoint that stands there meanwhile, for ever.
  echo 0 >"$tracing/options/record-cmd"
  echo 'p:ack_timers rdma_rxe:retransmit_timer' >"$tracing/kprobe_events"
  echo 1 >"$tracing/events/kprobes/ack_timers/enable"
}
# statistics: what check_counters judges, of this machine, since count_timers was called.
statistics() {
  echo "$(rdma statistic show link rxe0/1)" \
    "ack_timers $(awk '$1 == "ack_timers" { print $2 }' "$tracing/kprobe_profile")"
}

# read_counters <STATISTICS: fills `count` with the sums over all machines of what check_counters judges.
read_counters() {
  local words word
  count=()
  read -rd '' -a words || true
  for ((word = 0; word + 1 < ${#words[@]}; ++word)); do
    [[ " ${losses[*]} ${retries[*]} " != *" ${words[word]} "* || ! ${words[word + 1]} =~ ^[0-9]+$ ]] ||
      count[${words[word]}]=$((${count[${words[word]}]:-0} + ${words[word + 1]}))
  done
}
losses=(rcvd_rnr_err send_rnr_err rcvd_seq_err out_of_seq_request retry_exceeded_err)
retries=(completer_retry_err duplicate_request ack_timers)
declare -A count=()
owners_are_killed=''

# check_counters <STATISTICS: of all machines: nothing was lost on the way, and nobody was
# not ready to receive. Prints what was judged, and each counter that is not as it should be to standard error.
# $BATON_VM_RESULTS/judged is there afterwards: run_in_machine.sh looks for it.
#
# With $owners_are_killed: a dead owner may leave a receive that nobody knows to be posted, so its peer may be told that
# nobody is ready. What that peer had sent behind such a request is out of sequence when it arrives, once for
# each request (check_psn() in rxe_resp.c), and the peer, told so, sends again. More than that is a loss.
#
# A retry is no loss by itself. Soft-RoCE starts a timer of 2.1 s at a send, unless it runs, and does
# not stop it at the acknowledgement ("some timeouts are spurious", rxe_comp.c): it ends every 2.1 s
# of a connection that is used, and what is on the way in that moment is sent again. That had arrived,
# or will, so it is a duplicate where it arrives; what was lost would not be. So every retry needs a
# duplicate and a timer that has ended. rping alone, without Baton, has them as well (control).
check_counters() {
  local name failed=0 judged='' forbidden=("${losses[@]}")
  read_counters
  for name in "${losses[@]}" "${retries[@]}"; do
    judged+="$name ${count[$name]:-not told}, "
    [[ -n ${count[$name]:-} ]] || complain "$name is not told"
  done
  echo "${judged%, }"
  if [[ -n $owners_are_killed ]]; then
    forbidden=(retry_exceeded_err)
    at_most rcvd_rnr_err send_rnr_err
    at_most out_of_seq_request send_rnr_err
    at_most rcvd_seq_err out_of_seq_request
    at_most completer_retry_err ack_timers out_of_seq_request
    at_most completer_retry_err duplicate_request out_of_seq_request send_rnr_err
  else
    at_most completer_retry_err duplicate_request
    at_most completer_retry_err ack_timers
  fi
  for name in "${forbidden[@]}"; do
    [[ ${count[$name]:-0} -eq 0 ]] || complain "$name is ${count[$name]}, not 0"
  done
  echo "${judged%, }" >>"$BATON_VM_RESULTS/judged"
  return "$failed"
}
# lost_nothing <STATISTICS: none of the losses, of which all are told.
lost_nothing() {
  local name
  read_counters
  for name in "${losses[@]}"; do [[ ${count[$name]:-1} -eq 0 ]] || return 1; done
}
# To check_counters, of which they are parts. at_most COUNTER CAUSE...: of the causes together.
at_most() {
  local cause sum=0
  for cause in "${@:2}"; do sum=$((sum + ${count[$cause]:-0})); done
  [[ ${count[$1]:-0} -le $sum ]] || complain "$1 is ${count[$1]}, more than ${*:2}, which is $sum"
}
complain() {
  echo "counters: $1" >&2
  failed=1
}
