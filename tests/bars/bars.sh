#!/usr/bin/env bash
# bars.sh [--list | NAME...]: the full-size checks, all of them or NAME. `./run bars` builds everything before.
# The function bar-NAME is the check NAME. The first line of the comment above it says what it shows, and --list prints
# that line. Each bar finds the programs in the directory BATON_BIN and passes by exiting with 0.
# A bar whose comment begins with "Evidence" runs only when it is named. If it exits with 3 it has shown nothing, which
# is no failure, and this exits with 3, too, unless a bar has failed. (3 of another bar is a failure: Bazel's, of a
# test.)
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
export BATON_BIN=$PWD/out/bin

# ---------------------------------------------------------------- what several bars do

# program LABEL: builds it, and prints its path. Only as `path=$(program LABEL)` does its failure end a bar.
program() {
  local path=${1#//}
  bazel build --config=run "$1" >&2 || return
  echo "$(bazel info bazel-bin 2>/dev/null)/${path/://}"
}

# run_test ARGUMENTS...: a test of Bazel, with all that it prints, and never from a cache.
run_test() { bazel test --config=run --nocache_test_results --test_output=all "$@"; }

# in_halves SCHEDULES COMMAND...: COMMAND FIRST_SEED COUNT twice, beside each other, each for half of the schedules.
# BATON_SCHEDULES and BATON_FIRST_SEED say how many and from which seed on.
in_halves() {
  local half=$((${BATON_SCHEDULES:-$1} / 2)) first=${BATON_FIRST_SEED:-1000001} other status=0
  shift
  "$@" "$first" "$half" &
  other=$!
  "$@" "$((first + half))" "$half" || status=$?
  wait "$other" || status=$?
  return "$status"
}

# make_work: a directory $work that goes with the bar.
make_work() {
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
}

# build_other: programs of the commit $BATON_OTHER_COMMIT, the one 30 before this if it names none, in $work/other, and
# this tree's in out/bin. $commit is what it names. The directory $work goes with the bar.
build_other() {
  local labels
  commit=$(git rev-parse --verify "${BATON_OTHER_COMMIT:-HEAD~30}^{commit}")
  work=$(mktemp -d)
  trap 'git worktree remove --force "$work/tree"; rm -rf "$work"' EXIT
  git worktree add --quiet --detach "$work/tree" "$commit"
  mapfile -t labels < <("$work/tree/deploy/scripts/collect_binaries.sh" --labels)
  (
    cd "$work/tree"
    bazel build --config=run "${labels[@]}"
    deploy/scripts/collect_binaries.sh "$work/other"
    bazel shutdown
  )
  mapfile -t labels < <(deploy/scripts/collect_binaries.sh --labels)
  bazel build --config=run "${labels[@]}"
  deploy/scripts/collect_binaries.sh out/bin
}

# ---------------------------------------------------------------- bars

# Bad input and exhausted limits: each ends in an error that names the cause and the cure.
bar-bad-input() {
  bazel test --config=run --nocache_test_results --test_output=errors \
    //tests/supervisor/... //tests/system:limits_test //tests/lib/driver/... //tests/lib:message_channel_test \
    //tests/worker:all
}

# Evidence, not a bar: how many emulated machines stand still in which nothing of Baton's runs, and where.
bar-bare-machines() { tests/bars/bare_machines.sh; }

# rping, rdma_client and Linux's NVMe host through 20 kills of keepers, 20 of brokers, 20 of drivers, 5 batond restarts,
# 5 upgrades of Baton and back.
# On Soft-RoCE; the host has a file system, and fio verifies what it wrote. Twice: nvmed and rdma_client's server
# brokered and rping's native, and the other way round. BATON_KILLS (20), BATON_BROKER_KILLS (20),
# BATON_DRIVER_KILLS (20), BATON_RESTARTS (5), BATON_UPGRADES (5), BATON_SEED (any), BATON_VM_SECONDS (3600) of each machine.
bar-baton-deaths-clients() {
  local mode seed=${BATON_SEED:-$RANDOM}
  for mode in BROKERED NATIVE; do
    echo "nvmed $mode:"
    ./run vm --cpus 2 --mem 3072 --timeout "${BATON_VM_SECONDS:-3600}" tests/vm/baton_deaths.sh "$mode" \
      "${BATON_KILLS:-20}" "${BATON_BROKER_KILLS:-20}" "${BATON_DRIVER_KILLS:-20}" "${BATON_RESTARTS:-5}" \
      "${BATON_UPGRADES:-5}" "$seed"
  done
}

# judge_arrivals FILE MOST: what baton_kill_test printed. For both kinds of workers, the p99 of arrivals after kills is
# at most MOST ms more than that of undisturbed ones. A kind without both figures fails.
judge_arrivals() {
  awk -v most="$2" '
    $1 == "arrivals" { for (i = 4; i <= NF; ++i) if (sub(/^p99_ms=/, "", $i)) p99[$2, $3] = $i }
    END {
      status = 0
      split("brokered native", kinds)
      for (i = 1; i <= 2; ++i) {
        kind = kinds[i]
        if (!((kind, "undisturbed") in p99) || !((kind, "after_kills") in p99)) {
          print kind ": no figures of arrivals"
          status = 1
          continue
        }
        more = p99[kind, "after_kills"] - p99[kind, "undisturbed"]
        printf "%s: p99 of arrivals after kills is %.1f ms more than undisturbed, at most %d\n", kind, more, most
        if (more > most) status = 1
      }
      exit status
    }' "$1"
}

# 2,000 ends and hangs of control, keeper, batond, owners, drivers, brokers and the twins of both, singly and in pairs, while
# peers come and go, on the soft device, brokered and native each; after kills, peers are connected at most 200 ms later, in p99,
# than undisturbed.
# BATON_KILLS, BATON_SEED and BATON_RATE are baton_kill_test's. BATON_LATEST_MS (200).
bar-baton-kills() {
  local test
  test=$(program //tests/crash:baton_kill_test)
  make_work
  BATON_KILLS=${BATON_KILLS:-2000} "$test" | tee "$work/said"
  judge_arrivals "$work/said" "${BATON_LATEST_MS:-200}"
}

# 500 ends and hangs of control, keeper, batond, owners, drivers, brokers and the twins of both, singly and in pairs, while
# peers come and go, on Soft-RoCE, brokered and native each. BATON_KILLS, BATON_SEED and BATON_RATE are baton_kill_test's.
bar-baton-kills-rdma() {
  local test
  test=$(program //tests/crash:baton_kill_test)
  ./run vm --timeout 14400 tests/vm/on_rdma.sh BATON_KILLS="${BATON_KILLS:-500}" \
    ${BATON_SEED:+BATON_SEED="$BATON_SEED"} "$test=*BatonKillTest*"
}

# Upgrades of Baton between this build and one of another commit, both directions: driver and worker are of the one,
# keeper, control and batond go to the other, on to this one under a third name, and back. baton_upgrade_test's other
# cases run with both, too. BATON_OTHER_COMMIT: the other one; the commit 30 before this.
bar-baton-upgrade-builds() {
  local test
  build_other
  test=$(program //tests/system:baton_upgrade_test)
  cmp -s "$work/other/baton-keeper" out/bin/baton-keeper && { echo "the builds do not differ" >&2; exit 1; }
  echo "--- driver and worker of this build"
  BATON_BIN=$PWD/out/bin BATON_OTHER_BIN=$work/other "$test"
  echo "--- driver and worker of ${commit:0:8}"
  BATON_BIN=$work/other BATON_OTHER_BIN=$PWD/out/bin "$test"
}

# The whole demonstration: nothing lost, and median blackouts at most 1/5 of the gap without Baton.
# Hot crashes are compared with clients that have connections to a warm standby, made before: nobody does better.
# Handoffs and upgrades are compared with clients that connect anew. Clients of a graceful restart that have those
# connections see hardly a gap: the demonstration prints that ratio, too, and it is not judged.
bar-blackout() {
  local demo
  demo=$(program //tests/demo:demo)
  "$demo" --require-ratio 5 --output out/bars/blackout
}

# The ledger worker killed at every named crash point, several passings each, on both devices: nothing lost or repeated.
bar-crash-points() {
  local test
  run_test //tests/crash:crash_points_test
  test=$(program //tests/crash:crash_points_test)
  ./run vm --timeout 1800 tests/vm/on_rdma.sh "$test"
}

# Round trips and rates of messages, brokered and native, beside those of another build, in turns: at most 1.10 times it.
# On the soft device, medians of BATON_ROUNDS (31). BATON_OTHER_COMMIT: the other one; the commit 30 before this.
# BATON_MOST (1.10).
bar-data-path() {
  build_other
  tests/bars/data_path.py out/bin "$work/other"
}

# Evidence: the demonstration of this tree beside that of another build, BATON_OTHER_DEMO, in turns.
bar-demo-medians() { tests/bars/demo_medians.py; }

# baton-get fetches 2 GiB from filed on soft, and 200 MiB on Soft-RoCE, through 10 upgrades and 10 kills, byte-identical.
# In files of 4 KiB to 256 MiB, over one connection each time, brokered and native. BATON_MEBIBYTES (2048) on soft, for
# which /tmp needs twice as much; BATON_UPGRADES (10), BATON_KILLS (10), BATON_SEED (any), BATON_VM_SECONDS (3600) of
# each machine.
bar-filed() {
  local mode name programs=() ends=("${BATON_UPGRADES:-10}" "${BATON_KILLS:-10}" "${BATON_SEED:-$RANDOM}")
  for name in batond baton baton-{control,driver,get,keeper,launch,nic} filed-v{1,2}{,.so}; do
    programs+=(--program "out/bin/$name")
  done
  make_work
  for mode in BROKERED NATIVE; do
    echo "soft, $mode:"
    TEST_TMPDIR=$work tests/vm/run_on_soft.sh "${programs[@]}" tests/vm/filed.sh "$mode" "${BATON_MEBIBYTES:-2048}" \
      67108864 "${ends[@]}"
    echo "Soft-RoCE, $mode:"
    ./run vm --cpus 2 --mem 3072 --timeout "${BATON_VM_SECONDS:-3600}" tests/vm/filed.sh "$mode" 200 4194304 "${ends[@]}"
  done
}

# 2,000 brokers die at random moments under checked load, some with their twins, or with the owner of all shards.
# BATON_DEATHS (2000), BATON_SEED (any).
bar-broker-deaths() {
  run_test --test_timeout=7200 --test_env=BATON_BROKER_DEATHS="${BATON_DEATHS:-2000}" \
    --test_env=BATON_SEED="${BATON_SEED:-$RANDOM}" --test_filter='*AtRandomMoments' //tests/system:broker_death_test
}

# 100 brokers, and 100 baton-drivers, die in a row: what follows has no descriptor, process or memory more than before.
bar-deaths-in-a-row() {
  run_test --test_timeout=3600 --test_env=BATON_BROKER_DEATHS=100 --test_env=BATON_DRIVER_DEATHS=100 \
    --test_filter='*shouldNotGrowWithDeaths' //tests/system:{broker,driver}_death_test
}

# 2,000 times baton-driver dies at a random moment under checked load, some with the owner of all shards, while peers come
# and go. BATON_DEATHS (2000), BATON_SEED (any).
bar-driver-deaths() {
  run_test --test_timeout=7200 --test_env=BATON_DRIVER_DEATHS="${BATON_DEATHS:-2000}" \
    --test_env=BATON_SEED="${BATON_SEED:-$RANDOM}" --test_filter='*AtRandomMoments' //tests/system:driver_death_test
}

# 500 times each on Soft-RoCE, a broker and a baton-driver die at random moments under checked load, some with their
# twins or the owner of all shards, while peers come and go. BATON_DEATHS (500), BATON_SEED (any).
bar-deaths-rdma() {
  local brokers drivers
  brokers=$(program //tests/system:broker_death_test)
  drivers=$(program //tests/system:driver_death_test)
  ./run vm --cpus 2 --timeout 7200 tests/vm/on_rdma.sh BATON_BROKER_DEATHS="${BATON_DEATHS:-500}" \
    BATON_DRIVER_DEATHS="${BATON_DEATHS:-500}" ${BATON_SEED:+BATON_SEED="$BATON_SEED"} \
    "$brokers=*AtRandomMoments" "$drivers=*AtRandomMoments"
}

# A broker that takes over is killed after each of 1,000 consecutive instructions of that: the next one repeats it, and
# each message arrives once. BATON_STEPS (1000), BATON_SEED (any).
bar-broker-steps() {
  run_test --test_timeout=7200 --test_env=BATON_BROKER_STEPS="${BATON_STEPS:-1000}" \
    --test_env=BATON_SEED="${BATON_SEED:-$RANDOM}" --test_filter='*CutShort' //tests/supervisor/driver:brokered_engine_test
}

# A twin of baton-driver that takes over is killed at each entry into a system call of that and at each exit, and after
# each of 1,000 instructions; with brokered and with native workers: the twin that it has forked goes on, all zero.
# BATON_DRIVER_STEP=N: at every Nth of these places.
bar-driver-steps() {
  run_test --test_timeout=7200 --test_env=BATON_DRIVER_STEP="${BATON_DRIVER_STEP:-1}" //tests/crash:driver_steps_test
}

# Each fuzzer runs 10 million inputs, or 20 minutes, and finds nothing.
bar-fuzz() { ./run fuzz --runs 10000000 --seconds 1200; }

# The fuzzers find each defect of tests/fuzz/BUILD.bazel in 10 minutes.
bar-fuzz-mutants() { ./run fuzz --mutants --seconds 600; }

# 2,000 owners of a heap killed at random, and one after each instruction of an allocation and of a free: no leak.
# BATON_KILLS (2000), BATON_STRIDE (1), BATON_SEED (any).
bar-heap-kills() {
  run_test --test_timeout=7200 --test_env=BATON_KILLS="${BATON_KILLS:-2000}" \
    --test_env=BATON_STRIDE="${BATON_STRIDE:-1}" --test_env=BATON_SEED="${BATON_SEED:-$RANDOM}" \
    //tests/crash:heap_kills_test
}

# batond, driver, brokers, keeper and control with 64 idle connections use under 1 % of a core in all.
bar-idle() { run_test --test_env=BATON_IDLE_SECONDS="${BATON_IDLE_SECONDS:-30}" //tests/system:idle_test; }

# 100 keepers of a service die in a row, with brokered workers and with native ones: peers notice nothing, and
# driver, batond and control have no descriptor, process or memory more than before.
bar-keeper-deaths() {
  run_test --test_timeout=3600 --test_env=BATON_KEEPER_DEATHS="${BATON_KEEPER_DEATHS:-100}" \
    --test_filter='*shouldGoUnnoticedByPeersAndWorkers' //tests/system:keeper_death_test
}

# simulate_keepers PROGRAM FIRST_SEED COUNT
simulate_keepers() { BATON_FIRST_SEED=$2 BATON_SCHEDULES=$3 "$1" --gtest_filter='*EveryPromise*'; }

# 300,000 simulated schedules of keepers that die between any two steps of taking over and of work, in two processes.
bar-keeper-simulation() {
  local simulation
  simulation=$(program //tests/simulation:keeper_simulation_test)
  in_halves 300000 simulate_keepers "$simulation"
}

# A keeper is killed at each entry into a system call of its taking over and at each exit, and after each
# of 1,000 instructions from its receipt of what its predecessor has left; with brokered and with native
# workers: 0 lost, 0 repeated, 0 reordered, 0 disconnected. The next keeper has the same sessions and policy.
# BATON_KEEPER_STEP=N: at every Nth of these places.
bar-keeper-steps() {
  run_test --test_timeout=7200 --test_env=BATON_KEEPER_STEP="${BATON_KEEPER_STEP:-1}" //tests/crash:keeper_steps_test
}

# 2,000 owners killed at random in each of leases, SendFile, memd and filed, brokered and native; and at named points.
# No byte leaks, none is given out twice, none is sent twice or lost; heap-kills is the same of allocations alone, and
# //tests/crash:stream_kill_test of rings. In memd and filed, it is said in which part of a client's work the kills came.
# BATON_KILLS (2000), BATON_SEED (any).
bar-memory-kills() {
  run_test --test_timeout=7200 --local_test_jobs=1 --test_env=BATON_KILLS="${BATON_KILLS:-2000}" \
    --test_env=BATON_SEED="${BATON_SEED:-$RANDOM}" \
    //tests/worker:{,native_}leases_test //tests/worker:{,native_}file_sender_test \
    //tests/worker/examples:{memd,filed_crash}_test
}

# The model of the handover has no wrong state, in larger sizes too, and all its mutants are caught.
bar-model() { tests/model/check.sh deep; }

# Deliberate defects, each a line of our sources, are each caught by a test; writes tests/simulation/MUTANTS.md.
bar-mutants() {
  local simulation=//tests/simulation mutations tests mutation bin files=() status=0
  mapfile -t mutations < <(bazel query --output=label "labels(srcs, $simulation:mutations)" 2>/dev/null)
  mapfile -t tests < <(bazel query --output=label "attr(tags, '\\bmutant\\b', $simulation:all)" 2>/dev/null)
  [[ ${#tests[@]} -gt 0 && ${#tests[@]} -eq ${#mutations[@]} ]]
  bazel test --config=run --keep_going --nocache_test_results --test_env=BATON_FIRST_SEED=1 \
    --test_env=BATON_PUMP_MS=10000 "${tests[@]}" || status=$?
  bazel build --config=run $simulation:mutations
  bin=$(bazel info bazel-bin 2>/dev/null)
  for mutation in "${mutations[@]}"; do files+=("$bin/tests/simulation/${mutation#*:}"); done
  [[ $status -eq 0 ]] || exit "$status"
  tests/simulation/mutants_table.sh write tests/simulation/MUTANTS.md \
    "$(bazel info bazel-testlogs 2>/dev/null)/tests/simulation" "${files[@]}"
  cat tests/simulation/MUTANTS.md
}

# A native service under checked load on Soft-RoCE: 100 upgrades, 100 kills, in turn; 0 lost, 0 duplicated, 0 reordered.
# BATON_ALTERNATIONS (100), BATON_SEED (any), BATON_VM_SECONDS (7200).
bar-native-alternations() {
  ./run vm --timeout "${BATON_VM_SECONDS:-7200}" tests/vm/native_kills.sh alternations \
    "${BATON_ALTERNATIONS:-100}" ${BATON_SEED:+"$BATON_SEED"}
}

# The benches of connections, failover and memory have all their figures on Soft-RoCE, too. None is judged.
bar-bench-figures() { bazel test --config=run --test_output=errors //tests/vm:bench_figures; }

# Native services on Soft-RoCE under checked load: 50 kills with shared receives, 50 handoffs, hangs.
# BATON_SECONDS (3600) is the most that each takes; BATON_SEED is that of the kills.
bar-native-events() {
  local limit=${BATON_SECONDS:-3600}
  local machine=(./run vm --timeout "$((limit + 300))")
  "${machine[@]}" tests/vm/native_kills.sh shared_receives 50 "$limit" ${BATON_SEED:+"$BATON_SEED"}
  "${machine[@]}" tests/vm/native_kills.sh handoffs 50
  "${machine[@]}" tests/vm/native_failures.sh failures
}

# Kill of a native owner to its standby's first reply: at most 1/15 of reconnecting one connection, 1/80 of 100.
# That baseline is the simplest thing without Baton, and not the fairest: clients can have connections to a warm
# standby, made before. Native workers beside these: ./run demo --mode native. Brokered ones: ./run bench failover.
# In one machine, medians of BATON_KILLS of each kind (12), by a clock that counts instructions:
# whatever else the host does is no silence.
bar-native-failover() {
  ./run vm --count-instructions --timeout 3600 tests/vm/native_failures.sh failover "${BATON_KILLS:-12}" 15 80
}

# 3,000 drivers killed at random on Soft-RoCE with the device's queues in their hands, twice: owners
# that sleep, and owners that do not. 0 lost, 0 repeated, 0 reordered.
# BATON_NATIVE_KILLS and BATON_NATIVE_SEED are native_kills_test's.
bar-native-kills() {
  local test
  test=$(program //tests/native:native_kills_test)
  make_work
  cat >"$work/kills.sh" <<'END'
export BATON_NATIVE_KILLS=$2
[[ -z $3 ]] || export BATON_NATIVE_SEED=$3
"$1"
rdma statistic show link rxe0/1
END
  ./run vm --timeout 7200 "$work/kills.sh" "$test" "${BATON_NATIVE_KILLS:-3000}" "${BATON_NATIVE_SEED:-}"
}

# 3,000 owners of a native service killed at random under checked load on Soft-RoCE: 0 lost, 0 duplicated, 0 reordered.
# BATON_KILLS (3000), of which BATON_KILLS_DONE (0) were made by earlier runs, in machines of 250 each;
# BATON_SEED of the first machine (any; the others count on). After BATON_SECONDS (14400) it stops,
# says how it is resumed, and fails.
bar-native-kills-service() {
  local kills=${BATON_KILLS:-3000} total=${BATON_KILLS_DONE:-0} seed=${BATON_SEED:-$((RANDOM % 10000))}
  local limit=${BATON_SECONDS:-14400} left wanted output made
  # Eight workers: with four, a worker lives for less than 2 s when kills follow each other closely, and
  # the keeper, which takes that for an object that crashes at once, waits longer and longer, to 5 s,
  # before it forks another.
  local workers=8
  # Without a keeper of its own to fork from, a machine has nothing to go on with: each begins anew.
  while [[ $total -lt $kills ]]; do
    left=$((limit - SECONDS))
    if [[ $left -lt 120 ]]; then
      echo "$total of $kills kills in time; go on with BATON_KILLS_DONE=$total BATON_SEED=$seed"
      exit 1
    fi
    wanted=$((kills - total < 250 ? kills - total : 250))
    output=$(./run vm --timeout "$((left + 300))" tests/vm/native_kills.sh kills "$wanted" \
      "$((left - 60))" "$workers" "$seed") || { echo "$output" && echo "seed $seed failed after $total" && exit 1; }
    echo "${output##*$'\n'}"
    grep -E 'blackouts|"sent"|longest wait' <<<"$output"
    made=$(sed -n 's/^\([0-9]*\) kills with seed .*/\1/p' <<<"$output")
    total=$((total + made)) seed=$((seed + 1))
  done
  echo "$total kills"
}

# 10,000 drivers killed at random on the soft device in each of eight behaviours of its NIC, which hears
# rings late, repeated, reordered or before they come, for example; and 10,000 twice on a NIC without
# any: owners that sleep, and owners that do not. 0 lost, 0 repeated, 0 reordered.
# BATON_NATIVE_KILLS and BATON_NATIVE_SEED are native_kills_test's.
bar-native-kills-soft() {
  local test
  test=$(program //tests/native:native_kills_test)
  BATON_NATIVE_KILLS=${BATON_NATIVE_KILLS:-10000} "$test"
}

# Debian's rping against native pingd on Soft-RoCE, one client and eight, under upgrades and kills of the owner.
# And, in a machine of its own, against its own server, which says how many retries are Soft-RoCE's.
# BATON_PINGS of the client (60000), BATON_PINGS_OF_EIGHT of each of eight (20000), BATON_UPGRADES (20),
# BATON_KILLS (50), BATON_SEED (any), BATON_VM_SECONDS (7200) of each machine.
bar-native-pingd() {
  local pings=${BATON_PINGS:-60000} pings_of_eight=${BATON_PINGS_OF_EIGHT:-20000}
  local machine=(./run vm --timeout "${BATON_VM_SECONDS:-7200}")
  echo "rping alone:"
  "${machine[@]}" tests/vm/pingd.sh alone "$pings"
  echo "native pingd:"
  "${machine[@]}" tests/vm/pingd.sh native "$pings" "$pings_of_eight" "${BATON_UPGRADES:-20}" "${BATON_KILLS:-50}" \
    ${BATON_SEED:+"$BATON_SEED"}
}

# A driver is killed at every one of 1,000 consecutive instructions on Soft-RoCE, single-stepped, from
# the start of its loop's turn and of its recovery, and from places further on in both: 0 lost, 0
# repeated, 0 reordered. Then the controls: 300 kills beside a post, with a recovery that is right,
# one that posts everything again, and one that posts nothing again; the harm is what is predicted.
# BATON_NATIVE_STEPS, BATON_NATIVE_KILLS and BATON_NATIVE_SEED are the tests'.
bar-native-steps() {
  local names=(steps_test controls_test always_reposting_test never_reposting_test) bin
  bazel build --config=run "${names[@]/#///tests/native:}"
  bin=$(bazel info bazel-bin 2>/dev/null)/tests/native
  make_work
  cat >"$work/steps.sh" <<'END'
export BATON_NATIVE_STEPS=$1 BATON_NATIVE_STRIDE=1 BATON_NATIVE_KILLS=$2
[[ -z $3 ]] || export BATON_NATIVE_SEED=$3
status=0
for test in "${@:4}"; do "$test" || status=1; done
exit "$status"
END
  ./run vm --timeout 14400 "$work/steps.sh" "${BATON_NATIVE_STEPS:-1000}" "${BATON_NATIVE_KILLS:-300}" \
    "${BATON_NATIVE_SEED:-}" "${names[@]/#/$bin/}"
}

# nvmed, both kinds, and Linux's NVMe host on Soft-RoCE: fio, a file system, 24 queues, latency, throughput.
# First the kernel's own target: that a block that is bad would be found.
# BATON_NVMED of them ("control writes wire files latency throughput hosts"), BATON_UPGRADES (20), BATON_KILLS (50),
# BATON_SEED (any), BATON_VM_SECONDS (7200) of each machine.
bar-nvmed() {
  local upgrades=${BATON_UPGRADES:-20} kills=${BATON_KILLS:-50} seed=${BATON_SEED:-$RANDOM} part kind mode backing
  local machine=(./run vm --cpus 4 --mem 3072 --timeout "${BATON_VM_SECONDS:-7200}")
  for part in ${BATON_NVMED:-control writes wire files latency throughput hosts}; do
    for kind in "BROKERED file" "NATIVE memory"; do
      read -r mode backing <<<"$kind"
      echo "$part, $mode, $backing:"
      case $part in
        control) [[ $mode == NATIVE ]] || "${machine[@]}" tests/vm/nvmet.sh baseline ;;
        writes) "${machine[@]}" tests/vm/nvmed.sh writes "$mode" "$backing" "$upgrades" "$kills" "$seed" 48 ;;
        wire)
          "${machine[@]}" --peer tests/vm/nvmed.sh tests/vm/nvmed.sh wire "$mode" "$backing" \
            "$upgrades" "$kills" "$seed"
          ;;
        files) "${machine[@]}" tests/vm/nvmed.sh files "$mode" "$backing" 200 10 "$seed" ;;
        latency) "${machine[@]}" tests/vm/nvmed_figures.sh latency "$mode" "$backing" 20 100 10 ;;
        throughput)
          # Both at once.
          [[ $mode == BROKERED ]] || "${machine[@]}" tests/vm/nvmed_figures.sh throughput 5 5 0.7
          ;;
        hosts) "${machine[@]}" tests/vm/nvmed.sh hosts "$mode" "$backing" "$upgrades" "$kills" "$seed" ;;
        *) echo "nvmed: no bar $part" >&2 && exit 2 ;;
      esac
    done
  done
}

# Debian's rping and rdma_client against pingd on Soft-RoCE, under upgrades and kills, in one machine and across two.
# BATON_PINGS of the client (60000), BATON_PINGS_OF_EIGHT of each of eight (20000), BATON_UPGRADES (20),
# BATON_KILLS (50), BATON_VM_SECONDS (7200) of each machine.
bar-pingd() {
  local pings=${BATON_PINGS:-60000} pings_of_eight=${BATON_PINGS_OF_EIGHT:-20000}
  local upgrades=${BATON_UPGRADES:-20} kills=${BATON_KILLS:-50} faulty
  local machine=(./run vm --timeout "${BATON_VM_SECONDS:-7200}")
  faulty=$(program //worker/examples/pingd:pingd-v1-test-hooks)
  echo "rping alone:"
  "${machine[@]}" tests/vm/pingd.sh alone "$pings"
  echo "pingd:"
  "${machine[@]}" tests/vm/pingd.sh brokered "$pings" "$pings_of_eight" "$upgrades" "$kills" "$faulty"
  make_work
  # A peer's script has no arguments.
  echo "exec $PWD/tests/vm/pingd.sh $pings $pings_of_eight" >"$work/peer.sh"
  "${machine[@]}" --peer "$work/peer.sh" tests/vm/pingd.sh wire "$upgrades" "$kills"
}

# 1,000 random operator commands of four clients, workers and control killed in between, under a checked load.
bar-random-commands() {
  run_test --test_timeout=1800 --test_env=BATON_COMMANDS="${BATON_COMMANDS:-1000}" \
    ${BATON_SEED:+--test_env=BATON_SEED="$BATON_SEED"} //tests/system:random_commands_test
}

# 10,000 random kills of the ledger worker, hung and crashed, with and without standby, control and batond, under load.
# Brokers, twins and keepers die with every second, fifth and fourth of them.
bar-random-kills() {
  run_test --test_timeout=3000 \
    --test_env=BATON_KILLS="${BATON_KILLS:-10000}" --test_env=BATON_RATE="${BATON_RATE:-12000}" \
    ${BATON_SEED:+--test_env=BATON_SEED="$BATON_SEED"} //tests/crash:random_kill_test
}

# 1,000 owners killed or hung at random under checked load on Soft-RoCE: 0 lost, 0 duplicated.
# BATON_KILLS and BATON_SEED are random_kill_test's.
bar-random-kills-rdma() {
  local test
  test=$(program //tests/crash:random_kill_test)
  ./run vm --timeout 28800 tests/vm/on_rdma.sh BATON_KILLS="${BATON_KILLS:-1000}" \
    ${BATON_SEED:+BATON_SEED="$BATON_SEED"} "$test=*.shouldLoseAndRepeatNothing"
}

# 1,000,000 messages from a fast sender to a slow receiver, with handoffs and 1,000 kills, brokered and native each.
# None is lost, repeated or torn, nobody is told "receiver not ready", and at rest all credit is with one of the ends.
# BATON_MESSAGES (1000000), BATON_KILLS (1000), BATON_SEED (any) are stream_kill_test's.
bar-streams() {
  run_test --test_timeout=6000 --test_env=BATON_MESSAGES="${BATON_MESSAGES:-1000000}" \
    --test_env=BATON_KILLS="${BATON_KILLS:-1000}" ${BATON_SEED:+--test_env=BATON_SEED="$BATON_SEED"} \
    --test_filter='*BetweenAFastSenderAndASlowReceiver/*' //tests/crash:stream_kill_test
}

# Unit tests are clean under AddressSanitizer with UBSan and under ThreadSanitizer.
bar-sanitizers() {
  ./run asan
  ./run tsan
}

# simulate_service PROGRAM FIRST_SEED COUNT
simulate_service() { "$1" --first "$2" --schedules "$3"; }

# 300,000 simulated schedules of a service whose brokers drive, in two processes.
bar-broker-simulation() {
  local simulate
  simulate=$(program //tests/simulation:simulate)
  in_halves 300000 simulate_brokers "$simulate"
}

# simulate_brokers PROGRAM FIRST_SEED COUNT
simulate_brokers() { "$1" --brokers 1 --first "$2" --schedules "$3"; }

# 1,000,000 simulated schedules of a whole service, in two processes, each interleaving from a seed.
bar-simulation() {
  local simulate
  simulate=$(program //tests/simulation:simulate)
  in_halves 1000000 simulate_service "$simulate"
}

# ./run vm: from a warm cache to the script's first line in less than 10 seconds, the best of three.
bar-vm() {
  local best=999999 begin output line took pid
  make_work
  echo 'echo first; sleep infinity' >"$work/script.sh"
  ./run vm --timeout 1 "$work/script.sh" 2>/dev/null || true  # packages and kernel are there now
  for _ in 1 2 3; do
    begin=$(date +%s%3N)
    coproc machine { exec ./run vm --timeout 600 "$work/script.sh" 2>"$work/console"; }
    # shellcheck disable=SC2154  # coproc sets it
    output=${machine[0]}
    read -r line <&"$output" || true
    took=$(($(date +%s%3N) - begin))
    # shellcheck disable=SC2154
    pid=$machine_PID
    [[ $line == first ]] || { echo "vm: no line came: $(cat "$work/console")" >&2; exit 1; }
    kill "$pid"
    wait "$pid" || true
    echo "first line after $took ms"
    [[ $took -ge $best ]] || best=$took
  done
  [[ $best -lt 10000 ]]
}

# ---------------------------------------------------------------- which of them run, and what comes out

# A bar has a process of its own, where `set -e` counts, and traps and SECONDS are its own.
if [[ ${1:-} == --alone ]]; then
  "bar-$2"
  exit
fi

# What each shows, in the order of the functions.
declare -A shows=()
names=() bars=()
while read -r name line; do
  names+=("$name")
  shows[$name]=$line
  [[ $line == Evidence* ]] || bars+=("$name")
done < <(awk '
  /^# / { comment = comment ? comment : substr($0, 3); next }
  /^bar-/ { sub(/^bar-/, ""); sub(/\(.*/, ""); print $0 " " comment }
  { comment = "" }' tests/bars/bars.sh)

if [[ ${1:-} == --list ]]; then
  for name in "${names[@]}"; do printf '%-24s %s\n' "$name" "${shows[$name]}"; done
  exit
fi
names=("${bars[@]}")
[[ $# -eq 0 ]] || names=("$@")

passed=0 not_shown=0
summary=()
for name in "${names[@]}"; do
  if [[ ! -v shows[$name] ]]; then
    echo "run: no bar \"$name\"; ./run bars --list names them" >&2
    exit 1
  fi
  echo "--- Bar $name" >&2
  started=$SECONDS
  status=0
  tests/bars/bars.sh --alone "$name" || status=$?
  if [[ $status -eq 0 ]]; then
    passed=$((passed + 1))
    summary+=("$(printf 'passed  %5ds  %s' $((SECONDS - started)) "$name")")
  elif [[ $status -eq 3 && ${shows[$name]} == Evidence* ]]; then
    not_shown=$((not_shown + 1))
    summary+=("$(printf 'nothing %5ds  %s' $((SECONDS - started)) "$name")")
  else
    summary+=("$(printf 'FAILED  %5ds  %s' $((SECONDS - started)) "$name")")
  fi
done
failed=$((${#names[@]} - passed - not_shown))
[[ ${#summary[@]} -eq 0 ]] || printf '%s\n' "${summary[@]}"
echo "$passed passed, $failed failed$([[ $not_shown -eq 0 ]] || echo ", $not_shown have shown nothing")"
[[ $failed -eq 0 ]]
[[ $not_shown -eq 0 ]] || exit 3
