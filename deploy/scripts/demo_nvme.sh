#!/usr/bin/env bash
# demo_nvme.sh [--mode brokered|native] [--upgrades N] [--kills N] [--restarts N] [--seed N]: Linux's NVMe
# host, in a virtual machine, keeps its files on nvmed, which is upgraded and killed; then the same on the
# kernel's own target, which is restarted. Draws the latencies to out/demo/nvme.svg.
# Finds the programs in $BATON_BIN.
set -euo pipefail
cd "$(dirname "$0")/../.."

usage() { sed -n '2,6s/^# //p' "$0" >&2; exit 2; }
mode=brokered upgrades=3 kills=10 restarts=3 seed=$RANDOM
while [[ $# -gt 0 ]]; do
  if [[ $1 == --*=* ]]; then set -- "${1%%=*}" "${1#*=}" "${@:2}"; fi
  [[ $# -ge 2 ]] || usage
  case $1 in
    --mode) [[ $2 == brokered || $2 == native ]] || usage ;;&
    --upgrades | --kills | --restarts | --seed) [[ $2 =~ ^[0-9]{1,5}$ ]] || usage ;;&
    --mode) mode=$2 ;;
    --upgrades) upgrades=$2 ;;
    --kills) kills=$2 ;;
    --restarts) restarts=$2 ;;
    --seed) seed=$2 ;;
    *) usage ;;
  esac
  shift 2
done

echo "--- nvmed, $mode, --seed $seed: $upgrades upgrades, $kills kills; the kernel's target: $restarts restarts" >&2
mkdir -p out/demo
deploy/vm/run_vm.sh --cpus 4 --mem 3072 --timeout 1800 --results out/demo \
  tests/vm/nvmed_figures.sh demo "${mode^^}" "$upgrades" "$kills" "$restarts" "$seed"

# Each act's seconds and longest latency (ms) in steps of 20 ms, and its events as arrows.
script=out/demo/nvme.gnuplot
for act in nvmed nvmet; do
  start=$(awk -F ', *' 'NR == 1 { print $1; exit }' "out/demo/$act.latencies")
  awk -F ', *' -v start="$start" '
    { at = int(($1 - start) / 20); if ($2 > longest[at]) longest[at] = $2; if (at > last) last = at }
    END { for (at = 0; at <= last; ++at) if (at in longest) printf "%.2f %.3f\n", at / 50, longest[at] / 1e6 }' \
    "out/demo/$act.latencies" >"out/demo/$act.dat"
  awk -v start="$start" '
    BEGIN { colour["upgrade"] = "#2ca02c"; colour["kill"] = colour["restart"] = "#d62728" }
    $3 in colour {
      at = ($1 - start) / 1000
      printf "set arrow from first %.3f, graph 0 to first %.3f, graph 1 nohead lc rgb \"%s\" lw 0.7 back\n", at, at, colour[$3]
    }' "out/demo/$act.windows" >"out/demo/$act.arrows"
done
cat >"$script" <<'END'
set terminal svg size 1000,640 dynamic background '#ffffff' font 'Helvetica,13'
set output 'out/demo/nvme.svg'
set multiplot layout 2,1
set logscale y
set yrange [0.1:5000]
set grid y lc rgb '#dddddd'
set ylabel 'longest I/O, ms'
set key outside center above horizontal samplen 2
set title "The host's I/O while nvmed is upgraded and killed"
load 'out/demo/nvmed.arrows'
plot 'out/demo/nvmed.dat' using 1:2 with points pt 7 ps 0.2 lc rgb '#1f77b4' notitle, \
  NaN with lines lc rgb '#2ca02c' title 'upgrade', NaN with lines lc rgb '#d62728' title 'kill'
unset arrow
set xlabel 'seconds'
set title "The same while the kernel's own target is restarted"
load 'out/demo/nvmet.arrows'
plot 'out/demo/nvmet.dat' using 1:2 with points pt 7 ps 0.2 lc rgb '#1f77b4' notitle, \
  NaN with lines lc rgb '#d62728' title 'restart'
END
gnuplot "$script"
echo "picture: out/demo/nvme.svg"
