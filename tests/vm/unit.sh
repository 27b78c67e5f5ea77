#!/usr/bin/env bash
# unit.sh PACKAGE: the Debian package and its unit under a real systemd, with a service on an RDMA device:
# it becomes ready, the device is reached through DeviceAllow=, stopping it leaves a worker alone that an
# upgrade has started, and the next start does not mind that one; the connections of a brokered and of a native
# service outlive its restart, its death, its hanging and a changed configuration, a keeper, control and batond that the
# kernel kills for want of memory, and one that hardly gets a processor; they end with its stop. What
# operators did is in /var/log/baton, for control's user alone. The package's own upgrade restarts nothing, and
# its removal stops what runs.
set -euo pipefail
package=$PWD/$1

work=$(mktemp -d)
mkfifo "$work/nothing"
log=$work/log
tell() { echo "$SECONDS s: $*"; }  # since it was started
# Without a process: to start one takes long here. Longer where each look starts some.
pause() { read -rt "${1:-0.2}" <>"$work/nothing" || true; }
die() { echo "unit: $*" >&2; tail -n 200 "$work"/*log >&2; exit 1; }

rm -f /usr/sbin/policy-rc.d # the host's, if any, forbids packages to start anything
# Not the index of all manual pages, which takes minutes where it is emulated.
dpkg --no-triggers --install "$package" >"$work/dpkg.log" 2>&1 || die "the package does not install"
[[ $(stat -c %a /run/baton) == 700 ]] || die "there is no state directory"
mkdir -p /etc/baton /etc/systemd/system/batond.service.d
cat >/etc/baton/baton.textproto <<END
state_dir: "/run/baton"
services { name: "ledger" device { rdma { device: "rxe0" } } watch_window_ms: 100
  ready_timeout_ms: 600000 }
END
# A worker's, as deploy/README.md has it.
cat >/etc/systemd/system/ledger.service <<END
[Unit]
DefaultDependencies=no
Wants=batond.service
After=batond.service
[Service]
ExecStart=$BATON_BIN/ledger-v1 --socket /run/baton/ledger.sock --listen $BATON_VM_ADDRESS:7471
Restart=on-failure
StandardOutput=append:$work/ledger.log
StandardError=inherit
END
# With their default dependencies the units would want all of a machine's start. Here only what they ask for is started,
# and soon.
cat >/etc/systemd/system/batond.service.d/test.conf <<END
[Unit]
DefaultDependencies=no
[Service]
WatchdogSec=8
RestartSec=100ms
ExecStopPost=/bin/sh -c 'echo "systemd: batond has ended: \$SERVICE_RESULT \$EXIT_CODE \$EXIT_STATUS"'
StandardOutput=append:$work/batond.log
StandardError=inherit
END
sed -e '/^DeviceAllow=/d' -e 's/^Restart=.*/Restart=no/' deploy/systemd/batond.service \
  >/etc/systemd/system/batond-closed.service
mkdir /etc/systemd/system/batond-closed.service.d
sed "s/batond.log/batond-closed.log/" /etc/systemd/system/batond.service.d/test.conf \
  >/etc/systemd/system/batond-closed.service.d/test.conf
printf '[Unit]\nDefaultDependencies=no\n' >/etc/systemd/system/nothing.target
systemd-analyze verify batond.service || die "it is not a sound unit"

# A control group, mounts and processes of its own; /run is shared, where systemctl finds it.
mount -t cgroup2 cgroup2 /sys/fs/cgroup 2>/dev/null || true
env -i container=test PATH="$PATH" unshare --fork --pid --mount-proc --kill-child \
  /lib/systemd/systemd --system --unit=nothing.target --log-target=console </dev/null >"$log" 2>&1 &
unshare=$!
until manager=$(pgrep -P "$unshare"); do pause; done
# From among its processes: it would not know who asks.
systemctl() { nsenter --target "$manager" --mount --pid systemctl "$@"; }
until systemctl is-system-running 2>/dev/null | grep -E 'running|degraded' >/dev/null; do
  kill -0 "$manager" 2>/dev/null || die "systemd has ended"
  pause 0.5
done
tell "systemd runs"

# A control for the device policy: without its DeviceAllow= the keeper does not get at the device.
systemctl start batond-closed || die "a service that cannot be started keeps batond from it"
systemctl show batond-closed -p StatusText --value |
  grep -q '^degraded, being started again: driver of service ledger' || die "started without DeviceAllow="
grep -q 'device rxe0 cannot be opened' "$work/batond-closed.log" || die "another error than the device's"
systemctl stop batond-closed
systemctl start batond || die "does not start"
systemctl show batond -p ActiveState -p StatusText >"$work/state"
grep -qx 'ActiveState=active' "$work/state" || die "not active"
grep -qx 'StatusText=running, services: ledger' "$work/state" || die "$(cat "$work/state")"
pgrep -x -U baton-control baton-control >/dev/null || die "control is not a user of its own"
tell "started: $(grep StatusText "$work/state")"

# What the unit takes from it, and what is kept for it: by the group above, too.
batond=$(pgrep -x batond)
bounding=$(sed -n 's/^CapBnd:[[:blank:]]*/0x/p' "/proc/$batond/status")
# CAP_SYS_MODULE, CAP_SYS_RAWIO, CAP_SYS_BOOT, CAP_SYS_TIME
(((bounding & (1 << 16 | 1 << 17 | 1 << 22 | 1 << 25)) == 0)) || die "its capabilities are bounded by $bounding only"
[[ $(systemctl show batond -p RestrictNamespaces --value) == net ]] || die "it may make namespaces of other kinds"
[[ $(systemctl show batond -p RestrictAddressFamilies --value) == *AF_NETLINK* ]] || die "it may have all sockets"
group=/sys/fs/cgroup$(sed -n 's/^0:://p' "/proc/$batond/cgroup")
for group in "$group" "${group%/*}"; do
  [[ $(<"$group/memory.min") -ge $((64 << 20)) ]] || die "$group: memory.min is $(<"$group/memory.min")"
done

# A worker of a unit of its own, replaced by an upgrade by one that systemd counts to batond.
export PATH=$BATON_BIN:$PATH
systemctl start ledger
until baton worker list ledger -o json | grep '"WORKER_STATE_READY"' >/dev/null; do pause; done
baton upgrade ledger --exec "$BATON_BIN/ledger-v2" >"$work/upgrade.log" 2>&1 || die "no upgrade"
pid=$(pgrep -x ledger-v2)
grep -q batond.service "/proc/$pid/cgroup" || die "the upgrade's worker is elsewhere"
until [[ $(systemctl show ledger -p ActiveState --value) == inactive ]]; do pause 0.5; done
# What operators did outlasts batond and /run, and only control's user may look.
audit=/var/log/baton/control/audit.log
on_record() {
  [[ $(stat -c '%a %U' /var/log/baton) == '711 root' ]] || die "$1: others have /var/log/baton"
  [[ $(stat -c '%a %U' /var/log/baton/control) == '700 baton-control' ]] || die "$1: others have control's directory"
  [[ $(stat -c '%a %U' "$audit") == '600 baton-control' ]] || die "$1: others have $audit"
  [[ $(readlink -f /run/baton/audit.log) == "$audit" ]] || die "$1: the state directory does not lead to $audit"
  grep -q '"what":"Upgrade"' "$audit" || die "$1: the upgrade is not on record"
  baton audit --verify >"$work/verified" 2>&1 || die "$1: the record is not sound: $(cat "$work/verified")"
  grep -qE "^$audit: [1-9][0-9]* records in " "$work/verified" || die "$1: $(cat "$work/verified")"
}
on_record "batond runs"
kill -STOP "$pid"  # it would end by itself
systemctl stop batond || die "does not stop"
on_record "batond is stopped"
tell "on record: $(cat "$work/verified")"
[[ $(systemctl show batond -p ActiveState --value) == inactive ]] || die "not inactive"
grep -q 'State:.T' "/proc/$pid/status" || die "the worker was not left alone"
if pgrep -x batond >/dev/null; then die "batond has not ended"; fi
# They are told by systemd's letting go of what it keeps.
while pgrep -x baton-driver || pgrep -x baton-keeper || pgrep -x baton-control; do pause; done >/dev/null
systemctl start batond || die "does not start beside a worker that stayed"
kill -CONT "$pid"
while kill -0 "$pid" 2>/dev/null && ! grep -q 'State:.Z' "/proc/$pid/status"; do pause; done
[[ $(systemctl show batond -p StatusText --value) == 'running, services: ledger' ]] || die "not well"
tell "stopped: the upgrade's worker was left alone, and ended by itself; started again"

# Services outlive batond.
systemctl stop batond || die "does not stop"
# configure [LEDGER KV]: with these fields of the two services besides.
configure() {
  cat >/etc/baton/baton.textproto <<END
state_dir: "/run/baton"
services { name: "ledger" device { rdma { device: "rxe0" } } hang_timeout_ms: 120000 ready_timeout_ms: 600000
  yield_microseconds: 1 ${1:-} }
services { name: "kv" device { rdma { device: "rxe0" } } hang_timeout_ms: 120000 mode: NATIVE ${2:-}
  yield_microseconds: 1
  native { object: "$BATON_BIN/ledger-v1.so" workers: 2 uid: 0 gid: 0
    arguments: "--socket" arguments: "/run/baton/kv.sock"
    arguments: "--service" arguments: "kv" arguments: "--listen" arguments: "$BATON_VM_ADDRESS:7472" } }
END
}
configure
ready=$(grep -c 'worker_ready: ' "$work/batond.log")
systemctl start batond || die "does not start with a native service"
until [[ $(grep -c 'worker_ready: ' "$work/batond.log") -eq $((ready + 2)) ]]; do pause; done
mapfile -t workers < <(pgrep -x ledger-v1.so)
[[ ${#workers[@]} -eq 2 ]] || die "not two native workers: ${workers[*]}"
systemctl start ledger
until baton worker list ledger -o json | grep '"WORKER_STATE_READY"' >/dev/null; do pause; done
declare -A peers say
# start_peer NAME PORT: with four connections. At full speed they would take the machine's time from what starts.
start_peer() {
  local name=$1 in
  mkfifo "$work/$name.in"
  exec {in}<>"$work/$name.in"
  say[$name]=$in
  baton-peer --device rdma:rxe0 --connect "$BATON_VM_ADDRESS:$2" --connections 4 --rate 30 --json --until-stdin-closes \
    --reply-timeout-ms 600000 --drain-timeout-ms 600000 <"$work/$name.in" >"$work/$name.out" 2>"$work/$name-peer.log" &
  peers[$name]=$!
  until grep -q '"connected"' "$work/$name.out"; do
    kill -0 "${peers[$name]}" 2>/dev/null || die "peer $name does not connect"
    pause
  done
}
answered() { grep -c '"settled"' "$work/$1.out" || true; }
# Each connection of each peer is answered a request that was made after this.
settle() {
  local name before
  for name in "${!peers[@]}"; do
    before=$(answered "$name")
    echo settle >&"${say[$name]}"
    until [[ $(answered "$name") -gt $before ]]; do
      kill -0 "${peers[$name]}" 2>/dev/null || die "peer $name has ended: $(cat "$work/$name.out")"
      pause
    done
  done
}
start_peer brokered 7471
start_peer native 7472
main_pid() { systemctl show batond -p MainPID --value; }
fed() { systemctl show batond -p WatchdogTimestampMonotonic --value; }
keepers=$(pgrep -x baton-keeper)
control=$(pgrep -x baton-control)
# newcomer PORT: connects, is answered, and leaves, however long that takes.
newcomer() {
  local out=$work/new.$1.out status=0
  rm -f "$out.ended"
  : >"$out"
  # says WHAT: waits until the newcomer does, or has ended.
  says() { until grep -q "$1" "$out" || [[ -e $out.ended ]]; do pause; done; }
  baton-peer --device rdma:rxe0 --connect "$BATON_VM_ADDRESS:$1" --json --until-stdin-closes \
    --reply-timeout-ms 600000 --drain-timeout-ms 600000 \
    < <(says '"connected"' && echo settle && says '"settled"' && echo stop) >>"$out" 2>&1 || status=$?
  touch "$out.ended"
  return "$status"
}
# serves_newcomers WHAT PORT...: new connections to each, made at the same time, are served.
serves_newcomers() {
  local port what=$1
  local -A started=()
  shift
  for port in "$@"; do
    newcomer "$port" &
    started[$port]=$!
  done
  for port in "$@"; do
    wait "${started[$port]}" ||
      die "$what: a new connection to $port is not served: $(cat "$work/new.$port.out")"
  done
}
# outlives WHAT COMMAND...: the connections do, and another batond has the same keepers, which accept new ones.
outlives() {
  local before what=$1
  before=$(main_pid)
  shift
  "$@"
  until [[ $(main_pid) != "$before" ]] && systemctl is-active --quiet batond; do pause 0.5; done
  settle
  [[ $(pgrep -x baton-keeper) == "$keepers" ]] || die "$what: other keepers: $(pgrep -x baton-keeper), not $keepers"
  [[ $(pgrep -x baton-control) == "$control" ]] || die "$what: another control: $(pgrep -x baton-control)"
  serves_newcomers "$what" 7471 7472
  [[ $(systemctl show batond -p StatusText --value) == 'running, services: ledger, kv' ]] || die "$what: not well"
  tell "services: the connections outlive $what"
}
settle
outlives "a restart" systemctl restart batond
outlives "a batond that is killed" kill -KILL "$(pgrep -x batond)"
# Their drivers start others.
drivers=$(pgrep -x baton-driver)
# are_others: two, and none of the former ones.
are_others() {
  [[ $(pgrep -x -c baton-keeper) -eq 2 ]] && ! grep -qxF "$keepers" < <(pgrep -x baton-keeper)
}
# serves_all WHAT: the drivers are the same, and old and new connections are served.
serves_all() {
  [[ $(pgrep -x baton-driver) == "$drivers" ]] || die "$1: other drivers: $(pgrep -x baton-driver), not $drivers"
  settle
  serves_newcomers "$1" 7471 7472
}
# outlives_keepers WHAT COMMAND...: the connections do, when all keepers end.
outlives_keepers() {
  local what=$1
  shift
  "$@"
  until are_others; do pause; done
  keepers=$(pgrep -x baton-keeper)
  serves_all "$what"
  tell "services: the connections outlive $what"
}
outlives_keepers "keepers that are killed" pkill -KILL -x baton-keeper
# confine GROUP SETTING VALUE PID...: puts processes into a control group of ours, beside systemd's.
confine() {
  local pid group=/sys/fs/cgroup/$1
  echo "+cpu +memory" >/sys/fs/cgroup/cgroup.subtree_control
  mkdir "$group"
  echo "$3" >"$group/$2"
  for pid in "${@:4}"; do echo "$pid" >"$group/cgroup.procs"; done
}
# run_out_of_memory PID COMMAND...: the process may have no more memory than it has. The kernel kills it once it asks
# for some, which COMMAND leads it to.
run_out_of_memory() {
  local group=/sys/fs/cgroup/no-memory
  confine no-memory memory.max 0 "$1"
  shift
  until grep -q '^oom_kill [1-9]' "$group/memory.events"; do
    timeout 60 "$@" >"$work/asked.out" 2>&1 || true
    pause
  done
  until rmdir "$group" 2>/dev/null; do pause; done
}
# Each keeper is connected to, by a worker that it refuses.
connect_to_keepers() {
  local service
  for service in ledger kv; do
    ledger-v1 --socket "/run/baton/$service.sock" --service nobody --listen "$BATON_VM_ADDRESS:0" || true
  done
}
export -f connect_to_keepers
keepers_run_out_of_memory() {
  local keeper
  for keeper in $keepers; do run_out_of_memory "$keeper" bash -c connect_to_keepers; done
}
outlives_keepers "keepers that run out of memory" keepers_run_out_of_memory
# score PROGRAM: by which the kernel chooses, of its first process.
score() { cat "/proc/$(pgrep -x "$1" | head -n 1)/oom_score_adj"; }
[[ $(score baton-control) -eq 500 ]] || die "control is not the first to go: $(score baton-control)"
[[ $(score baton-driver) -eq -900 ]] || die "drivers are not the last to go: $(score baton-driver)"
[[ $(score baton-keeper) -eq 0 ]] || die "keepers do not go like others: $(score baton-keeper)"
for worker in "${workers[@]}"; do
  [[ $(<"/proc/$worker/oom_score_adj") -eq 0 ]] || die "a native worker does not go like others"
done
control=$(pgrep -x baton-control)
run_out_of_memory "$control" baton service list
until baton service list >/dev/null 2>&1; do pause; done
[[ $(pgrep -x baton-control) != "$control" ]] || die "control was not killed"
control=$(pgrep -x baton-control)
[[ $(pgrep -x baton-keeper) == "$keepers" ]] || die "other keepers: $(pgrep -x baton-keeper), not $keepers"
settle
tell "services: the connections outlive a control that runs out of memory"
outlives "a batond that runs out of memory" run_out_of_memory "$(pgrep -x batond)" baton reload
# All of them together get a thousandth of a processor, while an operator asks. What connections need, they do not
# wait for. systemd may end batond meanwhile, by its watchdog.
mapfile -t starved < <(pgrep -x batond && pgrep -x baton-control && pgrep -x baton-keeper)
home=/sys/fs/cgroup$(sed -n 's/^0:://p' "/proc/$(pgrep -x batond)/cgroup")
group=/sys/fs/cgroup/no-processor
confine no-processor cpu.max '1000 1000000' "${starved[@]}"
baton --timeout 300 worker list ledger >"$work/asked.out" 2>&1 &
asked=$!
serves_all "Baton without a processor"
# Each of these periods takes a second.
until [[ $(sed -n 's/^nr_throttled //p' "$group/cpu.stat") -ge 5 ]]; do
  timeout 5 bash -c connect_to_keepers >"$work/refused.out" 2>&1 || true
done
settle
echo max >"$group/cpu.max"
# Also what they start meanwhile.
until rmdir "$group" 2>/dev/null; do
  while read -r pid; do echo "$pid" >"$home/cgroup.procs" 2>/dev/null || true; done <"$group/cgroup.procs"
  pause
done
wait "$asked" || echo "the operator had no answer: $(cat "$work/asked.out")"
is_well() {
  systemctl is-active --quiet batond &&
    [[ $(systemctl show batond -p StatusText --value) == 'running, services: ledger, kv' ]]
}
# A watchdog that is due ends a batond that looks well, so it is well once it has fed its watchdog.
last=$(fed)
until [[ $(fed) != "$last" ]] && is_well && baton service list >/dev/null 2>&1 &&
  [[ $(pgrep -x -c baton-keeper) -eq 2 ]]; do pause 0.5; done
keepers=$(pgrep -x baton-keeper)
control=$(pgrep -x baton-control)
serves_all "Baton with a processor again"
tell "services: the connections outlive want of processor time"
# All of Baton but the drivers is replaced. batond stays the same process, and goes on feeding its watchdog.
before=$(main_pid)
baton upgrade --baton --watch-window 0.1 >"$work/upgrade.log" 2>&1 || die "no upgrade: $(<"$work/upgrade.log")"
last=$(fed)
until [[ $(fed) != "$last" ]]; do pause 0.5; done
settle
are_others || die "keepers are not replaced: $(pgrep -x baton-keeper)"
keepers=$(pgrep -x baton-keeper)
[[ $(main_pid) == "$before" ]] || die "another batond: $(main_pid), not $before"
control=$(pgrep -x baton-control)  # it was replaced, too
serves_all "an upgrade"
tell "services: the connections outlive an upgrade of Baton"
# It would stay for ever, if its watchdog did not end it.
outlives "a batond that hangs" kill -STOP "$(pgrep -x batond)"
# A changed configuration reaches the keepers that run.
configure "listeners { host: \"$BATON_VM_ADDRESS\" port: 7473 }" "listeners { host: \"$BATON_VM_ADDRESS\" port: 7474 }"
baton reload >"$work/reload.log" 2>&1 || die "no reload"
serves_newcomers "listeners come" 7473 7474
start_peer late 7473
configure
baton reload >"$work/reload.log" 2>&1 || die "no reload"
for port in 7473 7474; do
  if newcomer "$port"; then die "the listener $port is gone, and serves"; fi
done
settle
[[ $(pgrep -x baton-keeper) == "$keepers" ]] || die "other keepers: $(pgrep -x baton-keeper), not $keepers"
tell "services: listeners come and go without a restart"
# One that cannot be started, again and again.
refusals() { grep -c 'service absent: ended with exit code 1 while starting' "$work/batond.log" || true; }
cp /etc/baton/baton.textproto "$work/sound"
echo 'services { name: "absent" device { rdma { device: "rxe9" } } }' >>/etc/baton/baton.textproto
systemctl restart batond || die "does not start without the device of one service"
until [[ $(refusals) -gt 2 ]]; do pause; done
cp "$work/sound" /etc/baton/baton.textproto
systemctl restart batond
until systemctl is-active --quiet batond; do pause 0.5; done
settle
[[ $(pgrep -x baton-keeper) == "$keepers" ]] || die "other keepers: $(pgrep -x baton-keeper), not $keepers"
tell "services: the connections outlive a batond with a service that cannot start"

systemctl stop ledger
pkill -KILL -f 'baton-peer.*:747[13]'
unset 'peers[brokered]' 'peers[late]'
settle
for pid in "${workers[@]}"; do kill -0 "$pid" || die "worker $pid has ended"; done

# A stop is their end.
systemctl stop batond
for pid in "${workers[@]}"; do
  while kill -0 "$pid" 2>/dev/null && ! grep -q 'State:.Z' "/proc/$pid/status"; do pause; done
done
until [[ $(systemctl show batond -p NFileDescriptorStore --value) -eq 0 ]]; do pause 0.5; done
echo stop >&"${say[native]}"
if wait "${peers[native]}"; then die "the peer has noticed nothing of a stop"; fi
cat >/etc/baton/baton.textproto <<END
state_dir: "/run/baton"
services { name: "ledger" device { rdma { device: "rxe0" } } }
END
systemctl start batond || die "does not start again"
tell "native: a stop ends the workers"

# From where the package's scripts reach the manager.
in_manager() { nsenter --target "$manager" --mount --pid "$@" >>"$work/dpkg.log" 2>&1; }
pid=$(systemctl show batond -p MainPID --value)
in_manager dpkg --no-triggers --install "$package" || die "the package does not install over itself"
[[ $(systemctl show batond -p MainPID --value) == "$pid" ]] || die "an upgrade of the package restarted batond"
baton service list >/dev/null || die "no service after an upgrade of the package"
in_manager dpkg --no-triggers --purge baton || die "the package cannot be removed"
[[ $(systemctl show batond -p ActiveState --value) != active ]] || die "batond outlives its package"
if pgrep -x batond >/dev/null; then die "batond runs without its package"; fi
[[ ! -e /usr/libexec/baton && ! -e /lib/systemd/system/batond.service ]] || die "something is left"
[[ -e /etc/baton/baton.textproto ]] || die "the operator's configuration is gone"
tell "package: upgraded beside what runs, and removed"
