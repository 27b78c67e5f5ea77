#!/usr/bin/env bash
# machine_is_quiet.sh: ends with 0 if less than a tenth of a processor was used in five seconds, and with 1
# otherwise. The benchmark calls such a round quiet (kQuietCores in tests/bench/suite.h).
set -euo pipefail
seconds=5
# Prints the ticks in which a processor was neither idle nor waiting for a disk, stolen ones included.
busy() { awk '$1 == "cpu" { printf "%d\n", $2 + $3 + $4 + $7 + $8 + $9 }' /proc/stat; }
before=$(busy)
sleep "$seconds"
used=$(($(busy) - before))
((10 * used < seconds * $(getconf CLK_TCK)))
