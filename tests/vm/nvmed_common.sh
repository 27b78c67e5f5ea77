#!/usr/bin/env bash
# nvmed on rxe0, of either kind, and what disturbs it; to be sourced.
set -euo pipefail
# shellcheck source=tests/vm/nvme_common.sh
source "$(dirname "${BASH_SOURCE[0]}")/nvme_common.sh"
# shellcheck source=tests/vm/native_common.sh
source "$(dirname "${BASH_SOURCE[0]}")/native_common.sh"

service=nvmed
state=/run/baton
port=4420
nqn=nqn.2014-08.org.example:baton
# The sizes of the name space and of the service's buffers. Scripts set their own.
disk_mib=64
buffer_mib=192
connections=16
# One, or so many, named $nqn1 and on, each with a name space of its own.
subsystems=1
# shellcheck disable=SC2034  # of the scripts that are sourced into
report_port=7000

# shellcheck disable=SC2317  # by the trap
dump() {
  tail -n 40 "$state.log" "$work"/nvmed.log >&2 || true
  dmesg | tail -n 40 >&2
}

# configure_nvmed BACKING: what its workers read, in $state.target, and the service's fields, in $fields. BACKING is
# where the name spaces are: memory, of the service; file, in memory, by threads; disk, in memory, past the page cache,
# without threads (only one); failing: the first one a file without blocks in a file system of 8 MiB, /run/full, the
# second a disk with 64 bad blocks of 4 KiB from 8,192 on.
configure_nvmed() {
  local i targets=("$nqn") outside='outside_effects: true'
  [[ $1 != memory ]] || outside=''
  [[ $subsystems -eq 1 ]] || for ((i = 1; i <= subsystems; ++i)); do targets[i - 1]=$nqn$i; done
  for i in "${!targets[@]}"; do
    make_backing "$1" "$i"
    echo "subsystems { nqn: \"${targets[i]}\" serial: \"BATON$i\" namespaces { id: 1 $backing } }"
  done >"$state.target"
  fields="shards: 1 max_connections: $connections send_queue_depth: 512 receive_queue_depth: 256"
  fields+=" connection_state_bytes: 1088 shard_state_bytes: 16384 buffer_bytes: $((buffer_mib << 20))"
  fields+=" max_inline_bytes: 16 yield_microseconds: ${yield_us:-1} $outside"
}
# start_nvmed MODE BACKING: MODE is BROKERED or NATIVE. Two workers are ready when it returns.
start_nvmed() {
  mode=$1
  configure_nvmed "$2"
  if [[ $mode == NATIVE ]]; then
    worker_flags=(--config "$state.target")
    start_native "$service" "$BATON_BIN/nvmed-v1.so" "$fields"
  else
    echo "state_dir: \"$state\" services { name: \"$service\" device { rdma { device: \"rxe0\" } } $fields" \
      'hang_timeout_ms: 120000 ready_timeout_ms: 120000 }' >"$work/config"
    batond --start-timeout 300 --config "$work/config" >"$state.out" 2>"$state.log" &
    batond=$!
    wait_for "batond" has_started
    exec {log}<"$state.log"
    start_worker 1
    start_worker 1
  fi
  version=1
  wait_for "two workers" are_ready 2
}
# make_backing BACKING NUMBER: in the words of nvmed's configuration, in $backing.
make_backing() {
  case $1 in
    memory) backing="memory { bytes: $((disk_mib << 20)) }" ;;
    file)
      truncate -s "${disk_mib}M" "/dev/shm/nvmed$2"
      backing="file { path: \"/dev/shm/nvmed$2\" }"
      ;;
    disk)
      make_ram_disk "$disk_mib"
      backing='file { path: "/dev/ram0" direct: true prompt: true }'
      ;;
    failing)
      if [[ $2 -eq 0 ]]; then
        mkdir /run/full
        mount -t tmpfs -o size=8m none /run/full
        truncate -s "${disk_mib}M" /run/full/nvmed
        backing='file { path: "/run/full/nvmed" }'
      else
        make_bad_disk
        backing='file { path: "/dev/nullb0" direct: true }'
      fi
      ;;
    *) die "no backing $1" ;;
  esac
}
# null_blk(4)'s, in memory: its sectors have 512 bytes.
make_bad_disk() {
  local disk=/sys/kernel/config/nullb/nullb0
  modprobe null_blk nr_devices=0
  mkdir "$disk"
  echo "$disk_mib" >"$disk/size"
  echo 1 >"$disk/memory_backed"
  echo "+$((8192 * 8))-$((8192 * 8 + 511))" >"$disk/badblocks"
  echo 1 >"$disk/power"
}
# start_worker VERSION: a brokered one.
start_worker() {
  "nvmed-v$1" --socket "$state/$service.sock" --listen "$BATON_VM_ADDRESS:$port" \
    --config "$state.target" >>"$work/nvmed.out" 2>>"$work/nvmed.log" &
  disown  # the shell says nothing of its end
}

# await_load: until the host is at work; for ten seconds at most.
await_load() {
  local i before
  for ((i = 0; i < 100; ++i)); do
    before=$(<"$packets")
    pause 0.1
    [[ $(<"$packets") -lt $((before + 10)) ]] || return 0
  done
}

# disturb_nvmed UPGRADES KILLS [COMMAND]: in random order, at random moments, each after COMMAND, and each
# in a window; two workers are ready before each, the owner and its heir. The host is at work while each of them
# happens, which a hundred packets show. One that nobody was there to notice happens once more, in the last place; as
# many times as there are events, in all.
disturb_nvmed() {
  local event events=() i before unnoticed=0
  for ((i = 0; i < $1; ++i)); do events+=(upgrade); done
  for ((i = 0; i < $2; ++i)); do events+=(kill); done
  [[ ${#events[@]} -eq $(($1 + $2)) ]] || die "not $1 upgrades and $2 kills"
  mapfile -t events < <(printf '%s\n' "${events[@]}" | shuf --random-source=<(yes "$RANDOM"))
  for ((i = 0; i < ${#events[@]}; ++i)); do
    event=${events[i]}
    pause "0.$((RANDOM % 10))"
    "${3:-:}"
    await_load
    before=$(<"$packets")
    in_window "$event" "${event}_nvmed"
    [[ $(<"$packets") -lt $((before + 100)) ]] || continue
    unnoticed=$((unnoticed + 1))
    [[ $unnoticed -le $(($1 + $2)) ]] || die "nobody was there to notice"
    events+=("$event")
  done
  say "$(($1 + $2)) events under load, $unnoticed besides that nobody noticed"
}

# keep_writing: fio is writing blocks that are verified later, to all of ${devices[@]}. When a pass is over,
# what it wrote is read, and the next one begins, with a depth of its own.
writers=() pass=0 devices=()
is_writing() {
  local pid
  for pid in "${writers[@]}"; do ! kill -0 "$pid" 2>/dev/null || return 0; done
  return 1
}
keep_writing() {
  local i before
  ! is_writing || return 0
  finish_writing
  [[ ${#devices[@]} -gt 0 ]] || devices=("$device")
  pass=$((pass + 1)) depth=$((pass % 2 ? 1 : 8))
  before=$(<"$packets")
  for i in "${!devices[@]}"; do
    write_blocks "write$pass-$i" "${devices[i]}" "$depth" "$pass" &
    writers+=("$!")
  done
  soon has_sent $((before + 200))
}
finish_writing() {
  local pid i
  [[ ${#writers[@]} -gt 0 ]] || return 0
  for pid in "${writers[@]}"; do wait "$pid" || die "fio did not write all of pass $pass"; done
  writers=()
  for i in "${!devices[@]}"; do
    verify_blocks "verify$pass-$i" "${devices[i]}" "$depth" "$pass" ||
      die "in pass $pass, at depth $depth, fio does not read what it wrote: $(cat "$work/verify$pass-$i.fio")"
  done
}

# upgrade_nvmed: to the other version; returns when nobody of the former one is left.
# shellcheck disable=SC2317  # by its name
upgrade_nvmed() {
  local suffix=''
  [[ $mode == BROKERED ]] || suffix=.so
  version=$((3 - version))
  upgrade_to "$service" "nvmed-v$version$suffix"
}
# kill_nvmed: its owner; returns when the heir serves and another one stands by.
kill_nvmed() {
  local owner
  follow
  owner=${owner_of[0]}
  kill -KILL "${pid_of[$owner]}" || die "worker $owner, ${pid_of[$owner]}, is gone"
  if [[ $mode == BROKERED ]]; then
    unset "ready[$owner]"
    pause 0.1  # systemd's RestartSec=, unless it is set
    start_worker "$version"
  fi
  soon went_on "$owner" 2
}
