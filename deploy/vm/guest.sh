#!/usr/bin/env bash
# guest.sh NETWORK_DEVICE: goes on after init: makes rxe0, runs the script that the machine was
# started for, leaves its exit status where the host finds it, and turns the machine off. Starts few
# programs, since that takes long here.
set -euo pipefail
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
share=/run/baton-vm
address='' directory='' left='' programs=''
# shellcheck disable=SC1091  # made by run_vm.sh
source "$share/settings"

turn_off() {
  echo o >/proc/sysrq-trigger
  sleep 60
}

# The host shows what is on the console when there is no result.
give_up() {
  echo "vm: $*" >/dev/console
  turn_off
}
trap 'give_up "guest.sh, line $LINENO"' ERR

rdma link add rxe0 type rxe netdev "$1" || give_up "rxe0 cannot be made"
declare -A channels=([out]='' [err]='')
for port in /sys/class/virtio-ports/*; do
  channels[$(<"$port/name")]=/dev/${port##*/}
done
[[ -c ${channels[out]} && -c ${channels[err]} ]] || give_up "no channel to the host"

# show_life: once a second, for run_vm.sh, which ends a machine that stands still. Shortly before the machine's time is
# over it shows on the console what runs, and what waits in the kernel.
show_life() {
  local beat=0 never
  exec {never}<> <(true)
  while :; do
    read -rt 1 -u "$never" || true
    echo "$((beat += 1))" >"$share/beat"
    if [[ -n $left && $SECONDS -ge $((left - 30)) ]]; then
      left=''
      ps -eo pid,ppid,stat,wchan:24,etimes,args >/dev/console || true
      echo w >/proc/sysrq-trigger
    fi
  done
}

true >"$share/up"  # run_vm.sh starts a machine again that does not come here
mapfile -d '' -t command <"$share/command"
ulimit -l unlimited -n 65536
export PATH=$programs:$PATH BATON_BIN=$programs
export BATON_VM=1 BATON_VM_ADDRESS=$address BATON_VM_RESULTS=$share/results
export BATON_VM_HOST_CPU=$share/host_cpu
cd "$directory"
show_life &
life=$!
status=0
setsid "${command[@]}" </dev/null >"${channels[out]}" 2>"${channels[err]}" || status=$?
kill "$life"
echo "$status" >"$share/status"
turn_off
