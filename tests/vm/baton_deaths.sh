#!/usr/bin/env bash
# baton_deaths.sh MODE KILLS BROKERS DRIVERS RESTARTS UPGRADES [SEED]: clients that we did not write, while Baton's own processes die and
# are replaced: the kernel's NVMe host with a file system, in which fio verifies what it wrote, rping, and rdma_client,
# one after the other. KILLS times a keeper is killed, BROKERS times a broker, which drives the queues of a brokered
# service, DRIVERS times a baton-driver, which has the device and the connection ids, RESTARTS times batond, and UPGRADES times `baton upgrade --baton` replaces all keepers and brokers by those of another release, and by the former ones again: all in random order. The clients
# notice nothing. The workers of nvmed and of rdma_client's server are of MODE, BROKERED or NATIVE; those of rping's
# server are of the other.
set -euo pipefail
here=$(dirname "$0")
# shellcheck source=tests/vm/pingd_common.sh
source "$here/pingd_common.sh"
# shellcheck source=tests/vm/nvmed_common.sh
source "$here/nvmed_common.sh"
mode=$1 kills=$2 broker_kills=$3 driver_kills=$4 restarts=$5 upgrades=$6 seed=${7:-$RANDOM}
RANDOM=$seed
say "seed $seed"

# Small passes of fio: one that has begun goes on to its end after the last event.
disk_mib=96 ping_bytes=100 job_mib=1
other=NATIVE
[[ $mode == BROKERED ]] || other=BROKERED
# NAME MODE PORT PROGRAM FLAGS
services=(
  "nvmed $mode $port nvmed-v1 --config $state.target"
  "rdma-client $mode 7471 pingd-v1 --protocol rdma_client"
  "rping $other 7174 pingd-v1"
)

# ---------------------------------------------------------------- the services

configure() {
  local service name kind program flags fields=''
  configure_nvmed file
  echo "state_dir: \"$state\"" >"$work/config"
  for service in "${services[@]}"; do
    read -r name kind port program flags <<<"$service"
    read -ra worker_flags <<<"$flags"
    if [[ $kind == NATIVE ]]; then
      native_service "$name" "$BATON_BIN/$program.so" "$fields"
    else
      [[ -n $fields ]] || fields='max_connections: 16 yield_microseconds: 1'
      echo "services { name: \"$name\" device { $device_config } $fields" \
        'hang_timeout_ms: 120000 ready_timeout_ms: 120000 }'
    fi >>"$work/config"
    fields=''  # they are nvmed's
  done
}
# run_batond: the first one or the next. What its drivers log goes on at the end of the same file.
run_batond() {
  rm -f "$state.out"
  batond --start-timeout 300 --libexec "$work/libexec" --config "$work/config" >"$state.out" 2>>"$state.log" &
  batond=$!
  disown  # the shell says nothing of its end
  soon has_started
}
start_workers() {
  local service name kind port program flags
  for service in "${services[@]}"; do
    read -r name kind port program flags <<<"$service"
    [[ $kind == BROKERED ]] || continue
    for _ in 1 2; do
      # shellcheck disable=SC2086  # words
      "$program" --socket "$state/$name.sock" --service "$name" --listen "$address:$port" $flags \
        >>"$work/$name.out" 2>>"$work/$name.log" &
      disown
    done
  done
}

# read_log: what has been logged since. Starts no process, as `baton` would be one, which takes seconds here.
#   readies (workers that are ready), found (drivers, by batond), successor (the keeper that follows a killed one),
#   broker, driver (that follow dead ones), proven (new codes of brokers that stay)
readies=0 found=0 successor=0 broker=0 driver=0 proven=0 partial=''
read_log() {
  local line
  while IFS= read -r line <&"$log" || { partial+=$line && false; }; do
    line=$partial$line partial=''
    if [[ $line == *' worker_ready: '* ]]; then
      readies=$((readies + 1))
    elif [[ $line == *'driver of service '*': ready'* ]]; then
      found=$((found + 1))
    elif [[ $line =~ keeper_followed:\ .*\ (was\ killed|ended\ with\ the)\ .*\ pid\ ([0-9]+), ]]; then
      successor=${BASH_REMATCH[2]}
    elif [[ $line =~ driver_followed:\ .*\ pid\ ([0-9]+), ]]; then
      driver=${BASH_REMATCH[1]}
    elif [[ $line =~ broker_followed:\ .*\ process\ ([0-9]+)\ drives ]]; then
      broker=${BASH_REMATCH[1]}
    elif [[ $line == *' driver_code_proven: '* ]]; then
      proven=$((proven + 1))
    fi
  done
}
# have_logged VARIABLE NUMBER: it has reached it.
have_logged() { read_log && [[ ${!1} -ge $2 ]]; }

operator() { baton --socket "$state/operator.sock" --timeout 120 "$@"; }
# ask_keepers: each service is served by a keeper, $keeper_of[NAME], and two workers. It has a driver, $driver_of[NAME],
# and a brokered one a broker, $broker_of[NAME].
declare -A keeper_of=() broker_of=() driver_of=()
ask_keepers() {
  local name keeper broker driver
  operator service list -o json >"$work/services" 2>&1 || die "no services: $(<"$work/services")"
  jq -r '.services[] | select(.reachable and .ready_workers == 2) |
    "\(.name) \(.keeper_pid) \(.driver_pid) \(.broker_pid // 0)"' \
    "$work/services" >"$work/serving"
  [[ $(wc -l <"$work/serving") -eq ${#services[@]} ]] || die "not all are served: $(<"$work/services")"
  while read -r name keeper driver broker; do
    keeper_of[$name]=$keeper
    driver_of[$name]=$driver
    [[ $broker == 0 ]] || broker_of[$name]=$broker
  done <"$work/serving"
}

# ---------------------------------------------------------------- its deaths

# make_releases: another release's are the same files, which call themselves so. Each is one file for all upgrades, since
# QEMU would translate a copy's code again. Drivers look for their code beside their own file.
release=0.1.0
make_releases() {
  local file
  mkdir "$work/libexec"
  ln -s "$BATON_BIN"/* "$work/libexec"
  cp --remove-destination "$BATON_BIN/baton-driver" "$BATON_BIN/libbaton-driver.so" "$work/libexec"
  for file in baton-keeper libbaton-driver.so; do
    ln "$work/libexec/$file" "$work/$file-0.1.0"
    LC_ALL=C sed 's/0\.1\.0\x00/0.1.1\x00/g' "$work/$file-0.1.0" >"$work/$file-0.1.1"
    chmod 755 "$work/$file-0.1.1"
  done
}

# kill_keeper: of one service after the other; returns when the next keeper of that serves.
killed=0
kill_keeper() {
  local name
  read -r name _ <<<"${services[killed++ % ${#services[@]}]}"
  read_log
  successor=0
  kill -KILL "${keeper_of[$name]}" || die "the keeper of $name, ${keeper_of[$name]}, is gone"
  soon have_logged successor 1
  keeper_of[$name]=$successor
}

# kill_broker: of one brokered service after the other; returns when its twin drives the queues.
brokers_killed=0
kill_broker() {
  local names name
  mapfile -t names < <(printf '%s\n' "${!broker_of[@]}" | sort)
  name=${names[brokers_killed++ % ${#names[@]}]}
  read_log
  broker=0
  kill -KILL "${broker_of[$name]}" || die "the broker of $name, ${broker_of[$name]}, is gone"
  soon have_logged broker 1
  broker_of[$name]=$broker
}

# kill_driver: of one service after the other; returns when its twin has taken over, and the next keeper serves.
drivers_killed=0
kill_driver() {
  local name former
  read -r name _ <<<"${services[drivers_killed++ % ${#services[@]}]}"
  former=${driver_of[$name]}
  soon has_twin "$former"
  read_log
  successor=0 driver=0
  kill -KILL "$former" || die "the driver of $name, $former, is gone"
  soon have_logged driver 1
  driver_of[$name]=$driver
  soon have_logged successor 1
  keeper_of[$name]=$successor
}
has_twin() { pgrep -P "$1" -x baton-twin >/dev/null; }

# restart_batond: returns when the next one has found the drivers. Their keepers are the same.
restart_batond() {
  kill -KILL "$batond" || die "batond is gone"
  read_log
  found=0
  run_batond
  soon have_logged found ${#services[@]}
  kill -0 "${keeper_of[@]}" || die "keepers have ended with batond"
}

# upgrade_baton: returns when nothing is on probation any more. A new broker that is killed before is given up.
upgrade_baton() {
  local name file
  if [[ $release == 0.1.0 ]]; then release=0.1.1; else release=0.1.0; fi
  for file in baton-keeper libbaton-driver.so; do
    ln "$work/$file-$release" "$work/libexec/$file.new"
    mv "$work/libexec/$file.new" "$work/libexec/$file"
  done
  read_log
  proven=0
  operator upgrade --baton --watch-window 0.1 >"$work/upgrade.log" 2>&1 || die "upgrade: $(<"$work/upgrade.log")"
  for name in "${!keeper_of[@]}"; do
    keeper_of[$name]=$(replaced "$name" keeper "${keeper_of[$name]}")
  done
  for name in "${!broker_of[@]}"; do
    broker_of[$name]=$(replaced "$name" broker "${broker_of[$name]}")
  done
  soon have_logged proven ${#broker_of[@]}
}
# replaced NAME KIND PID: the process of $release that follows it, as the upgrade says.
replaced() {
  local line
  line=$(grep "^service $1: $2 replaced (pid $3, " "$work/upgrade.log") || line=''
  [[ $line =~ " -> pid "([0-9]+)", release $release)"$ ]] || die "not $release: $(<"$work/upgrade.log")"
  echo "${BASH_REMATCH[1]}"
}

disturb_baton() {
  local event events=() i
  for ((i = 0; i < kills; ++i)); do events+=(kill_keeper); done
  for ((i = 0; i < broker_kills; ++i)); do events+=(kill_broker); done
  for ((i = 0; i < driver_kills; ++i)); do events+=(kill_driver); done
  for ((i = 0; i < restarts; ++i)); do events+=(restart_batond); done
  for ((i = 0; i < 2 * upgrades; ++i)); do events+=(upgrade_baton); done
  mapfile -t events < <(printf '%s\n' "${events[@]}" | shuf --random-source=<(yes "$RANDOM"))
  for event in "${events[@]}"; do
    pause "0.$((RANDOM % 10))"
    in_window "$event" "$event"
    await_progress
    say "$event: ${windows[-1]}"
  done
}

# ---------------------------------------------------------------- the clients

# In the background, one after the other, until $work/stop is there: passes of fio that write and verify, and
# rdma_client, which connects anew each time.
#
# All are slow on purpose: what they could do at once would take the machine's time from what dies and starts. fio takes
# --rate_iops for blocks of 4 KiB, the smallest: a pass is written in 9 s, and read in 5.
verify_on() {
  local pass depth
  for ((pass = 1; ; ++pass)); do
    [[ ! -e $work/stop ]] || return 0
    depth=$((pass % 2 ? 1 : 8))
    write_blocks "write$pass" /run/mounted/verified "$depth" "$pass" --rate_iops=30
    verify_blocks "verify$pass" /run/mounted/verified "$depth" "$pass" --rate_iops=60 ||
      die "in pass $pass fio does not read what it wrote: $(<"$work/verify$pass.fio")"
    echo "$pass" >>"$work/passes"
  done
}
connect_on() {
  while [[ ! -e $work/stop ]]; do
    rdma_client -s "$address" -p 7471 >"$work/rdma_client.said" 2>&1 || true
    [[ $(<"$work/rdma_client.said") == $'rdma_client: start\nrdma_client: end 0' ]] ||
      die "rdma_client: $(<"$work/rdma_client.said")"
    echo 0 >>"$work/connects"
    pause 2
  done
}
# slow_down PID: to a tenth of a processor.
slow_down() {
  local groups=/sys/fs/cgroup
  mount -t cgroup2 none "$groups"
  echo +cpu >"$groups/cgroup.subtree_control"
  mkdir "$groups/slow"
  echo 10000 100000 >"$groups/slow/cpu.max"
  echo "$1" >"$groups/slow/cgroup.procs"
}
start_clients_of_all() {
  connect_host "$nqn" "$port" -i 4
  wait_device "$nqn"
  mkfs.ext4 -q "$device"
  mkdir /run/mounted
  mount "$device" /run/mounted
  fallocate -l "$((jobs * job_mib))M" /run/mounted/verified
  fallocate -l 16M /run/mounted/timed
  start_steady_io timed /run/mounted/timed randrw 30
  verify_on &
  loops=("$!")
  : >"$work/connects"
  connect_on &
  loops+=("$!")
  port=7174 start_endless_clients "$address" 1
  slow_down "${clients[@]}"
  await_progress
}

# await_progress: each client goes on: a ping and blocks that begin after this are done, and a connection.
await_progress() {
  local i last pings=() blocks connects
  for i in "${!clients[@]}"; do
    last=$(last_ping "$i")
    pings+=($((${last:-0} + 2)))
  done
  blocks=$(blocks_done) connects=$(connects_done)
  soon pinged "${pings[@]}"
  soon have_gone_on $((blocks + 20)) $((connects + 1))
}
have_gone_on() {
  kill -0 "${loops[@]}" || die "a client has ended"
  [[ $(blocks_done) -ge $1 && $(connects_done) -ge $2 ]]
}
# Below the controller: the name space itself, or this path to it.
blocks_done() { awk '{ print $1 + $5 }' "$controller"/nvme*n*/stat; }
connects_done() { wc -l <"$work/connects"; }

# end_clients_of_all: nothing is in their logs, nor in the kernel's.
end_clients_of_all() {
  local pid i
  touch "$work/stop"
  for pid in "${loops[@]}"; do wait "$pid" || die "a client has ended"; done
  end_steady_io timed
  umount /run/mounted
  fsck.ext4 -fn "$device" >"$work/fsck" 2>&1 || die "fsck: $(<"$work/fsck")"
  pause_clients
  statistics | check_counters || die "the device lost something, or was not ready"
  for i in "${!clients[@]}"; do
    [[ ! -s $work/client.$i.err ]] || die "client $i: $(<"$work/client.$i.err")"
  done
  [[ $(<"$controller/cntlid") == "$cntlid" ]] || die "the host has another controller"
  end_clients 1 || die "not every ping came back once"
  disconnect_host "$nqn"
  kernel_log | check_kernel_log || die "the kernel's log tells of trouble"
}

test_checkers
test_kernel_log_checker
prefer_the_device
count_timers
load_nvme
make_releases
configure
run_batond
exec {log}<"$state.log"
start_workers
read -r _ _ port _ <<<"${services[0]}"
wait_for "the workers" have_logged readies $((2 * ${#services[@]}))
ask_keepers
mark_kernel_log
start_clients_of_all
cntlid=$(<"$controller/cntlid")
disturb_baton
tell_processes() { echo "keepers ${keeper_of[*]}, brokers ${broker_of[*]}, drivers ${driver_of[*]}"; }
last=$(tell_processes)
ask_keepers
[[ $(tell_processes) == "$last" ]] || die "there are $(tell_processes), not $last"
end_clients_of_all

# One more was started for each kill, and for each upgrade there and back. Where the machine stands still for longer than
# a keeper waits for its driver, 10 s, it ends by itself, and is followed.
started=$(grep -c 'its keeper was started' "$state.log")
expected=$((${#services[@]} * (1 + 2 * upgrades) + kills + driver_kills))
[[ $started -ge $expected ]] || die "$started keepers were started, not $expected"
troubles='broker_(killed|not_forked)|worker_(dead|killed|hangs)|native_worker_ended|device_lost|queue_pair_failed|connection_(poisoned|refused)|given_up'
! grep -E "$troubles" "$state.log" || die "batond's log tells of trouble"
for event in kill_keeper kill_broker kill_driver restart_batond upgrade_baton; do
  longest_of "$event" "$work/timed_lat.1.log" | sort -n >"$work/longest"
  say "$event: $(wc -l <"$work/longest"); longest I/O of the host meanwhile, in ms, p50 $(median <"$work/longest")," \
    "longest $(tail -n 1 "$work/longest")"
done
sed -n 's/.* driver_followed: .* took over in \([0-9]*\) us.*/\1/p' "$state.log" | sort -n >"$work/takeovers"
[[ ! -s $work/takeovers ]] ||
  say "takeovers of drivers, in us, p50 $(median <"$work/takeovers"), longest $(tail -n 1 "$work/takeovers")"
say "$started keepers; $(wc -l <"$work/passes") passes of fio were verified, $(connects_done) rdma_clients served; no trouble in any log"
