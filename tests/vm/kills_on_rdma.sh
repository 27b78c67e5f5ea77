#!/usr/bin/env bash
# kills_on_rdma.sh PROGRAM FILTER KILLS [SEED]: runs a test that kills at random on the machine's RDMA device: so many
# kills (BATON_KILLS), of a seed (BATON_SEED).
set -euo pipefail
export BATON_TEST_DEVICE=rdma BATON_TEST_HOST=$BATON_VM_ADDRESS BATON_KILLS=$3
[[ -z ${4:-} ]] || export BATON_SEED=$4
"$1" --gtest_filter="$2"
rdma statistic show link rxe0/1
