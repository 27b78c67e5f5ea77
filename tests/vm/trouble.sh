#!/usr/bin/env bash
# The rdma device's addresses, and what it does when its link goes down and up and when its peer cannot
# be reached. Runs the test program that is its argument, without the case that waits until the kernel
# has given up on a peer that does not answer (about 70 s, a constant of its connection manager). What
# needs the interface as it was comes first.
set -euo pipefail
"$1" --gtest_filter='RdmaGid.*' --gtest_output="xml:$BATON_VM_RESULTS/addresses.xml"
"$1" --gtest_filter='RdmaTrouble.*-*DoesNotAnswer*' --gtest_output="xml:$BATON_VM_RESULTS/trouble.xml"
