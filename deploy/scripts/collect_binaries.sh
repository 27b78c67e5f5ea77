#!/usr/bin/env bash
# collect_binaries.sh DIRECTORY: copies the programs and native objects that have been built into
# DIRECTORY, and baton's manual pages into man beside it.
# collect_binaries.sh --labels:  prints their Bazel labels.
# Copies, not links: batond finds its children beside its own executable.
set -euo pipefail
cd "$(dirname "$0")/../.."

LABELS=(
  //supervisor/batond:batond
  //supervisor/batond:baton-init
  //supervisor/driver:baton-driver
  //supervisor/keeper:baton-keeper
  //supervisor/keeper:baton-launch
  //supervisor/driver:baton-nic
  //supervisor/driver:libbaton-driver.so
  //supervisor/control:baton-control
  //supervisor/cli:baton
  //supervisor/nic_check:baton-nic-check
  //worker/examples/ledger:ledger-v1
  //worker/examples/ledger:ledger-v2
  //worker/examples/ledger:ledger-v1.so
  //worker/examples/ledger:ledger-v2.so
  //worker/examples/ledger:ledger-state
  //worker/examples/ledger:ledger-baseline
  //worker/examples/peer:baton-peer
  //worker/examples/memd:memd-cli
  //worker/examples/memd:memd-v1
  //worker/examples/memd:memd-v2
  //worker/examples/memd:memd-v1.so
  //worker/examples/memd:memd-v2.so
  //worker/examples/filed:baton-get
  //worker/examples/filed:filed-v1
  //worker/examples/filed:filed-v2
  //worker/examples/filed:filed-v1.so
  //worker/examples/filed:filed-v2.so
  //worker/examples/nvmed:nvmed-v1
  //worker/examples/nvmed:nvmed-v2
  //worker/examples/nvmed:nvmed-v1.so
  //worker/examples/nvmed:nvmed-v2.so
  //worker/examples/pingd:pingd-v1
  //worker/examples/pingd:pingd-v2
  //worker/examples/pingd:pingd-v1.so
  //worker/examples/pingd:pingd-v2.so
  //worker/examples/echo:echo.so
  //tests/native:failover-alone
  //tests/native:failover-peer
  //tests/native:failover-service.so
)

if [[ $1 == --labels ]]; then
  printf '%s\n' "${LABELS[@]}"
  exit 0
fi

directory=$1
mkdir -p "$directory"
built=$(bazel info bazel-bin 2>/dev/null)
for label in "${LABELS[@]}"; do
  path=${label#//}
  from=$built/${path/://}
  to=$directory/${label##*:}
  [[ -x $from ]] || continue
  if ! cmp -s "$from" "$to"; then
    cp "$from" "$to.new"
    mv -f "$to.new" "$to"  # also while the old one runs
  fi
done

pages=$built/supervisor/cli/man_pages
if [[ -d $pages ]]; then
  mkdir -p "$directory/../man"
  rm -f "$directory"/../man/*.1
  install -m 644 -t "$directory/../man" "$pages"/*.1
fi
