#!/usr/bin/env bash
# The rdma device when its link or itself is taken away. Runs the test program that is its argument.
set -euo pipefail
exec "$1" --gtest_output="xml:$BATON_VM_RESULTS/trouble.xml"
