#!/usr/bin/env bash
# nvmed_throughput.sh ROUNDS SECONDS [LEAST]: fio at depth 8 against the kernel's own target and against
# brokered and native nvmed, all with the same disk in memory, in turns; medians of the rounds' ratios.
# With LEAST, the native one's are at least so much.
set -euo pipefail
# shellcheck source=tests/vm/nvmed_common.sh
source "$(dirname "$0")/nvmed_common.sh"
rounds=$1 seconds=$2 least=${3:-}
accesses=("randread 4k" "read 128k" "randwrite 4k" "write 128k")
connections=8

prefer_the_device
load_nvme
make_ram_disk "$disk_mib"
kernels=nqn.2014-08.org.example:kernel
make_target "$kernels" /dev/ram0 4430
declare -A device_of=()
connect_host "$kernels" 4430 -i 4
wait_device "$kernels"
device_of[kernel]=$device
# Two services, each with a batond of its own.
for mode in BROKERED NATIVE; do
  state=/run/baton-${mode,,} nqn=nqn.2014-08.org.example:${mode,,} port=$((port + 1))
  ready=() owner_of=() moves=0
  start_nvmed "$mode" disk
  connect_host "$nqn" "$port" -i 4
  wait_device "$nqn"
  device_of[${mode,,}]=$device
done
run_fio fill --filename="${device_of[kernel]}" --rw=write --bs=128k --iodepth=8

for ((round = 0; round < rounds; ++round)); do
  for access in "${accesses[@]}"; do
    for target in kernel brokered native; do
      # shellcheck disable=SC2086  # two words
      read -r iops _ < <(throughput "${device_of[$target]}" $access "$seconds")
      echo "$round,$access,$target,$iops"
    done
  done
done | tee "$work/figures"

failed=0
for access in "${accesses[@]}"; do
  for target in brokered native; do
    share=$(awk -F, -v access="$access" -v target="$target" '
      $2 == access && $3 == "kernel" { kernel[$1] = $4 }
      $2 == access && $3 == target { print $4 / kernel[$1] }' "$work/figures" | median)
    echo "$access at depth 8: $target to the kernel's target $share"
    if [[ $target == native && -n $least ]]; then
      awk -v share="$share" -v least="$least" 'BEGIN { exit !(share >= least) }' || failed=1
    fi
  done
done
[[ $failed -eq 0 ]] || die "native nvmed is slower than wanted, $least"
