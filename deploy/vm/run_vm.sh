#!/usr/bin/env bash
# run_vm.sh [--cpus N] [--mem MB] [--timeout S] [--boot-timeout S] [--still-timeout S] [--results DIR]
#           [--count-instructions] [--peer SCRIPT2] SCRIPT [ARGUMENTS]
# run_vm.sh [...] --bare SCRIPT
# Boots a virtual machine of Debian's kernel with a Soft-RoCE device, rxe0 at 10.0.0.1, on top of this
# machine's file system (read-only, with a layer in memory), runs SCRIPT in it as root and in this
# directory, passes its output on, and ends with its exit status; 124 when the time is over. A machine
# that has not come to its script within the boot's time is started again, twice at most. One that stands still
# afterwards, and one whose kernel panics because of that, is ended with exit status 126. Baton's
# programs are on its PATH ($BATON_BIN, or out/bin of this tree); what it leaves in
# $BATON_VM_RESULTS is in DIR then. With --peer a second machine runs SCRIPT2 at 10.0.0.2, on a wire
# of their own, and ends with the first; its output is prefixed.
# $BATON_VM_STARTS, where it is set, is a file that gets a line for each start of the machines, also those again.
# --count-instructions: the clock of the machine, which has one processor then, goes by the instructions
# that it executes, 8 ns each. So what is measured there does not depend on what else the host does.
# --bare: the machine's first program is SCRIPT, for busybox, and nothing of Baton's runs there: no file system
# is mounted, and no module is loaded (they are in /modules, in load order). SCRIPT turns the machine off. What
# its console showed comes to standard output then, and the exit status is 0. The boot's time is until that end.
# No hardware support is needed or used: the machine is emulated. Without root, files that this user
# cannot read are not readable in the machine, either.
set -euo pipefail
here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)

usage() { sed -n '2,20s/^# //p' "$0" >&2; exit 2; }
cpus=2 memory=2048 limit=600 boot_limit=60 still_limit=90 peer='' results='' bare='' processor=(-accel 'tcg,thread=multi')
while [[ ${1:-} == --* ]]; do
  if [[ $1 == --count-instructions ]]; then
    cpus=1 processor=(-accel 'tcg,thread=single' -icount 'shift=3,sleep=on')
    shift
    continue
  fi
  if [[ $1 == --bare ]]; then
    bare=yes
    shift
    continue
  fi
  [[ $# -ge 2 ]] || usage
  case $1 in
    --cpus) cpus=$2 ;;
    --mem) memory=$2 ;;
    --timeout) limit=$2 ;;
    --boot-timeout) boot_limit=$2 ;;
    --still-timeout) still_limit=$2 ;;
    --results) results=$2 ;;
    --peer) peer=$2 ;;
    *) usage ;;
  esac
  shift 2
done
[[ $# -ge 1 ]] || usage
script=$1
shift
[[ -z $bare || ($# -eq 0 && -z $peer && -z $results) ]] || usage
first_program=$here/init
[[ -z $bare ]] || first_program=$script
for file in "$script" ${peer:+"$peer"}; do
  [[ -r $file ]] || { echo "vm: there is no script $file" >&2; exit 2; }
done

kernel=$("$here/prepare.sh")
# What Debian's kernel does against attackers (it clears memory that it allocates, checks each copy to or from a process,
# moves its stack, asks AppArmor) takes time, and nobody attacks this machine.
unguarded='init_on_alloc=0 hardened_usercopy=off randomize_kstack_offset=off apparmor=0'
# A kernel measures its clock while it starts, and when QEMU gets no processor at that moment, the
# machine's time goes several times too fast. A host that is a virtual machine itself can tell.
clock=''
if grep -qw hypervisor /proc/cpuinfo && [[ ! -d /sys/devices/system/cpu/cpu0/cpufreq ]]; then
  clock=$(awk '/^cpu MHz/ {printf " tsc_early_khz=%d", 1000 * $4; exit}' /proc/cpuinfo)
fi
# It is QEMU's own clock that says how many there were.
[[ ${#processor[@]} -eq 2 ]] || clock=' tsc_early_khz=1000000'
work=$(mktemp -dt baton-vm-XXXXXX)
pids=()
end_machines() {
  for pid in "${pids[@]}"; do
    kill "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
  done
}
# shellcheck disable=SC2317  # by the trap
cleanup() {
  end_machines
  rm -rf "$work"
}
trap cleanup EXIT

# The initial file system: the modules, for all that every machine needs, and what loads them.
make_initrd() {
  local root=$work/initrd.root number=100 module
  mkdir -p "$root"/{bin,modules,proc,sys,dev,lower,upper,root}
  cp "$(command -v busybox)" "$root/bin/busybox"
  install -m 755 "$first_program" "$root/init"
  # In load order; what is built into the kernel is not named "insmod".
  PATH=$PATH:/sbin:/usr/sbin modprobe -C /dev/null -d "$kernel" -S "${kernel##*/}" -a --show-depends \
    virtio_pci virtio_console 9pnet_virtio 9p overlay \
    crc32_generic rdma_rxe rdma_ucm ib_uverbs dummy virtio_net tcp_diag >"$work/depends"
  while read -r module; do
    cp "$module" "$root/modules/$((number++))-${module##*/}"
  done < <(sed -n 's/^insmod \(.*[^ ]\) *$/\1/p' "$work/depends" | awk '!seen[$0]++')
  # Without signatures and descriptions of types: the kernel would check the former, and read all of its own of the latter
  # for the first module that has some.
  ! command -v strip >/dev/null || strip --strip-debug --remove-section=.BTF "$root"/modules/*
  (cd "$root" && find . | cpio -o -H newc --quiet) >"$work/initrd"
}

# start NAME ADDRESS WIRE COMMAND...: becomes the machine. Its output goes to its standard output and
# standard error, which are pipes: QEMU opens them anew, and would overwrite a file that others
# write, too.
start() {
  local name=$1 address=$2 wire=$3 network=()
  local share=$work/$name left=$((limit - (SECONDS - begun)))
  shift 3
  mkdir -p "$share/results"
  mkfifo "$work/$name.monitor".{in,out}
  cp "$here/guest.sh" "$share/guest.sh"
  printf '%s\0' "$@" >"$share/command"
  printf '%s=%q\n' address "$address" directory "$PWD" left "$left" modules "$kernel/lib/modules/${kernel##*/}" wire "$wire" \
    programs "${BATON_BIN:-${here%/deploy/vm}/out/bin}" >"$share/settings"
  if [[ -n $wire ]]; then
    network=(
      -netdev "dgram,id=wire,local.type=unix,local.path=$work/$name.wire,remote.type=unix,remote.path=$work/$wire.wire"
      -device "virtio-net-pci,netdev=wire,host_mtu=4500,romfile=,mac=52:54:00:00:00:0${address##*.}"
    )
  fi
  # The console is for a machine that does not come up; the script has a channel of its own. The
  # check whether the timer ticks has the machine panic when QEMU gets no processor meanwhile. In the
  # kernel's tests of its ciphers an emulated machine has stood still for ever: it boots without. A
  # processor that has run 60 s in the kernel stays there: the machine ends then, with a trace.
  # QEMU translates code once for each address that it is run at: with random ones, all libraries again for
  # each process, which took half of the time of most tests. It executes `rep movsb` byte by byte, which the
  # kernel copies and clears pages with where the processor says that it is fast (erms). Where the kernel guards itself
  # from the memory of processes (smap), QEMU ends a block of code at both ends of each copy to or from them, and
  # translates their addresses for itself once more.
  # With page tables of five levels (la57) it looks at one more for each address that it translates: a tenth of the time.
  exec timeout --kill-after=5 "$((left > 0 ? left : 1))" \
    qemu-system-x86_64 "${processor[@]}" -cpu max,-erms,-smap,-la57 -smp "$cpus" -m "$memory" \
    -nographic -no-reboot -kernel "$kernel/kernel" -initrd "$work/initrd" \
    -append "console=ttyS0 panic=-1 loglevel=5 softlockup_panic=1 watchdog_thresh=30 log_buf_len=4M no_timer_check tsc=reliable clocksource=tsc mitigations=off cryptomgr.notests nokaslr norandmaps $unguarded$clock" \
    -serial "file:$work/$name.console" -monitor "pipe:$work/$name.monitor" -parallel none -nic none "${network[@]}" \
    -fsdev local,id=host,path=/,security_model=none,readonly=on,multidevs=remap \
    -device virtio-9p-pci,fsdev=host,mount_tag=host \
    -fsdev "local,id=share,path=$share,security_model=none" \
    -device virtio-9p-pci,fsdev=share,mount_tag=share \
    -device virtio-serial-pci \
    -chardev file,id=out,path=/dev/fd/1,append=on -device virtserialport,chardev=out,name=out \
    -chardev file,id=err,path=/dev/fd/2,append=on -device virtserialport,chardev=err,name=err </dev/null
}

# Once a second, for who measures in the first machine and wants to know whether it had the host for
# itself: seconds since the host's start, ticks that its processors were busy, those of the machine.
tell_host_times() {
  local told=$work/first/host_cpu machine='' seconds host line taken
  while sleep 1; do
    if [[ -z $machine ]]; then
      # timeout's child.
      read -r machine _ <"/proc/$first/task/$first/children" || [[ -n $machine ]] || continue
    fi
    # proc(5): user, nice and system, irq, softirq and steal; of a process utime and stime.
    read -r seconds _ </proc/uptime
    read -r -a host </proc/stat
    read -r line <"/proc/$machine/stat" || break
    read -r -a taken <<<"${line##*) }"
    echo "$seconds $((host[1] + host[2] + host[3] + host[6] + host[7] + host[8]))" \
      "$((taken[11] + taken[12]))" >"$told.new"
    mv "$told.new" "$told"
  done &>/dev/null
}

show_console() {
  echo "vm: $2 the console:" >&2
  cat "$work/$1.console" >&2 || true
}

# Where its kernel stands. That is always loaded to the same addresses: /proc/kallsyms of any machine
# has their names.
show_processors() {
  local line
  for _ in 1 2; do
    echo 'info registers -a' 1<>"$work/$1.monitor.in"
    while read -r -t 2 line; do
      [[ $line != *CPU#* && $line != RIP=* ]] || echo "vm: ${line%$'\r'}" >&2
    done <>"$work/$1.monitor.out"
  done
}

# Ends the first machine when it has shown no life for $still_limit seconds. Its script may have ended, and the machine
# cannot turn itself off. `still` is there then.
end_when_still() {
  local beat last=none since=$SECONDS
  while sleep 1; do
    beat=$(cat "$work/first/beat" 2>/dev/null || true)
    [[ $beat == "$last" ]] || last=$beat since=$SECONDS
    if [[ $((SECONDS - since)) -ge $still_limit ]]; then
      touch "$work/still"
      show_processors first
      kill "$first"
      return
    fi
  done
}

# What the peer has to say for itself when it has not simply been ended.
tell_of_peer() {
  local status
  status=$(cat "$work/peer/status" 2>/dev/null || true)
  if [[ -n $status ]]; then
    [[ $status -eq 0 ]] || echo "vm: the peer's script ended with exit status $status" >&2
  elif ! kill -0 "$second" 2>/dev/null; then
    show_console peer "the peer ended without a result;"
  fi
}

start_machines() {
  pids=()
  [[ -z ${BATON_VM_STARTS:-} ]] || echo "$script" >>"$BATON_VM_STARTS"
  rm -rf "$work"/{first,peer}{,.wire,.console,.monitor.in,.monitor.out}
  if [[ -n $peer ]]; then
    (start peer 10.0.0.2 first bash "$(realpath "$peer")" > >(sed -u 's/^/peer: /') \
      2> >(sed -u 's/^/peer: /' >&2)) {output}>&- {errors}>&- &
    second=$!
    pids+=("$second")
  fi
  (start first 10.0.0.1 "${peer:+peer}" bash "$(realpath "$script")" "$@" 1>&"$output" 2>&"$errors") &
  first=$!
  pids+=("$first")
}

# NAME PID: whether that machine has come to its script, or has ended, which is told of below.
comes_up() {
  local until=$((SECONDS + boot_limit))
  until [[ -e $work/$1/up ]] || ! kill -0 "$2" 2>/dev/null; do
    if [[ $SECONDS -ge $until ]]; then
      show_console "$1" "no start within $boot_limit s;"
      show_processors "$1"
      return 1
    fi
    sleep 0.2
  done
}

make_initrd
begun=$SECONDS
exec {output}> >(exec cat)
relays=("$!")
exec {errors}> >(exec cat >&2)
relays+=("$!")
start_machines "$@"
for again in "again" "for the last time"; do
  if comes_up first "$first" && { [[ -z $peer ]] || comes_up peer "$second"; }; then break; fi
  end_machines
  echo "vm: started $again" >&2
  start_machines "$@"
done
exec {output}>&- {errors}>&-
tell_host_times &
pids+=("$!")
if [[ -z $bare ]]; then
  end_when_still &
  pids+=("$!")
fi
ended=0
wait "$first" || ended=$?
wait "${relays[@]}" || true  # all that the machine said is out
[[ -z $peer ]] || tell_of_peer
if [[ -n $results ]]; then
  mkdir -p "$results"
  cp -r "$work/first/results/." "$results"
fi
# 137: it did not end when it was asked to.
if [[ ($ended -eq 124 || $ended -eq 137) && ! -e $work/still ]]; then
  show_console first "the script did not end within $limit s;"
  exit 124
fi
if [[ -n $bare && $ended -eq 0 ]]; then
  cat "$work/first.console"
  exit 0
fi
status=$(cat "$work/first/status" 2>/dev/null || true)
if [[ -z $status ]] && { grep -q 'BUG: soft lockup' "$work/first.console" || [[ -e $work/still ]]; }; then
  show_console first "the machine stood still;"
  exit 126
fi
if [[ -z $status ]]; then
  show_console first "the machine ended without a result;"
  exit 125
fi
exit "$status"
