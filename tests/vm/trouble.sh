#!/usr/bin/env bash
# The rdma device's addresses and ports, and what it does when its link goes down and up and when its
# peer cannot be reached. Runs the test program that is its argument. What needs the interface as it
# was comes first.
set -euo pipefail
"$1" --gtest_filter='RdmaGid.*:RdmaPorts.*' --gtest_output="xml:$BATON_VM_RESULTS/addresses.xml"
"$1" --gtest_filter='RdmaTrouble.*' --gtest_output="xml:$BATON_VM_RESULTS/trouble.xml"
