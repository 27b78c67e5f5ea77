#!/usr/bin/env bash
# container_test.sh PACKAGE WORKER PEER: what the recipes of deploy/container say, done without a container
# runtime: each line is read from them and carried out in a root of its own, thrown away afterwards. As
# base of all it has this machine's root (Debian 12, like theirs), without a network. Then what the images
# are for: batond as its image runs it, a worker as its own does, in process and mount namespaces of its
# own, of another user, without capabilities, with nothing of batond's but the directory of sockets; and a
# peer that checks what it is answered.
set -euo pipefail
# shellcheck source=tests/harness/skip.sh
source tests/harness/skip.sh
skip_this() { skip ContainerTest shouldBuildAndRunTheImages "$1"; }
if [[ ${1:-} != --inside ]]; then
  [[ $(id -u) -eq 0 ]] || skip_this "only root can mount roots"
  unshare --mount --net true 2>/dev/null || skip_this "namespaces cannot be made (no CAP_SYS_ADMIN)"
  exec unshare --mount --propagation private --net -- "$0" --inside "$@"
fi
package=$PWD/$2 worker=$PWD/$3 peer=$PWD/$4
recipes=$PWD/deploy/container
work=$(mktemp -d)
log=$work/log
die() {
  printf 'container_test: %s\n' "$*" >&2
  tail -n 30 "$work"/*log >&2 || true
  exit 1
}
batond='' running=''
clean_up() {
  for pid in $running $batond; do kill -KILL "$pid" 2>/dev/null || true; done
  umount --recursive --lazy "$work" && rmdir "$work"
}
trap clean_up EXIT
ip link set lo up

mount -t tmpfs tmpfs "$work"
mkdir -p "$work"/{upper,overlay,root,out,bin}
root=$work/root
mount -t overlay overlay -o "lowerdir=/,upperdir=$work/upper,workdir=$work/overlay" "$root" ||
  skip "there is no overlay of this machine's root"
mount -t tmpfs -o mode=755 tmpfs "$root/run" # no service manager is there
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
rm -f "$root"/usr/bin/baton "$root/usr/bin/ledger"
rm -rf "$root/usr/libexec/baton"

# instructions FILE: one per line, without comments, long lines joined.
instructions() { sed -e '/^#/d' -e '/^[[:space:]]*$/d' -e ':a;/\\$/{N;s/\\\n[[:space:]]*//;ba}' "$1"; }

# exec_form INSTRUCTION TEXT: the words of ["a", "b"], one per line.
exec_form() {
  [[ $2 =~ ^\[(\"[^\"]*\"(,\ )?)+\]$ ]] || die "$1 $2: not in exec form; a shell would not pass signals on"
  grep -o '"[^"]*"' <<<"$2" | tr -d '"'
}

# build RECIPE CONTEXT: sets `entry`, `arguments` and `user`.
build() {
  local word rest from to base=''
  entry=() arguments=()
  while read -r word rest; do
    case $word in
      ARG)
        [[ $rest == BASE=*:* ]] || die "$1: ARG $rest: a base is named with its release"
        base=${rest#BASE=}
        ;;
      FROM)
        # shellcheck disable=SC2016  # as it stands there
        [[ $rest == '${BASE}' && -n $base ]] || die "$1: FROM $rest: the base is an argument"
        ;;
      COPY)
        read -r from to <<<"$rest"
        # shellcheck disable=SC2206  # a pattern
        local files=("$2"/$from)
        [[ -e ${files[0]} && ${#files[@]} -eq 1 ]] || die "$1: COPY $from: ${files[*]}"
        cp "${files[0]}" "$root$to"
        ;;
      RUN) chroot "$root" /bin/sh -c "$rest" >"$log" 2>&1 </dev/null || die "$1: RUN $rest" ;;
      USER) user=$rest ;;
      STOPSIGNAL) [[ $rest == SIGTERM ]] || die "$1: STOPSIGNAL $rest: what is asked to stop heeds SIGTERM" ;;
      ENTRYPOINT) mapfile -t entry < <(exec_form ENTRYPOINT "$rest") ;;
      CMD) mapfile -t arguments < <(exec_form CMD "$rest") ;;
      *) die "$1: $word: this test cannot do that" ;;
    esac
  done < <(instructions "$1")
  [[ -n ${user:-} ]] || die "$1: no USER: whose it runs as is to be said"
  [[ -x $root${entry[0]:-/none} ]] || die "$1: ENTRYPOINT ${entry[*]}: there is no such program"
}

export DEBIAN_FRONTEND=noninteractive
# There is no network to try again, and nobody reads manuals here.
echo 'Acquire::Retries "0";' >"$root/etc/apt/apt.conf.d/99-no-network"
rm -f "$root/var/lib/man-db/auto-update"
cp "$package" "$work/out/baton_1.2.3_amd64.deb"
build "$recipes/Containerfile" "$work/out"
[[ $user == root ]] || die "batond as user $user has no capabilities in a container"
for left in /tmp/baton.deb /var/lib/apt/lists/lock; do
  [[ ! -e $root$left ]] || die "$left stays in the image"
done
[[ -e $root/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so ]] || die "no provider is in the image"
cp -a "$work/upper/usr/bin/baton" "$work/bin/baton"

# batond, with the capabilities that the manifests give it, and a configuration from outside.
mkdir -p "$root/etc/baton"
cat >"$root/etc/baton/baton.textproto" <<END
state_dir: "/run/baton"
services { name: "ledger" device { soft {} } worker_uids: 10001 hang_timeout_ms: 2000 }
END
WATCHDOG_USEC=5000000 \
  chroot "$root" setpriv --bounding-set=-all,+kill,+ipc_lock "${entry[@]}" "${arguments[@]}" \
  >"$work/batond.log" 2>&1 &
batond=$!
baton() { chroot "$root" /usr/bin/baton "$@"; }
keeper() { baton service describe ledger -o json | python3 -c 'import json, sys; print(json.load(sys.stdin)["service"]["keeper_pid"])'; }
until grep -q '^batond ready' "$work/batond.log"; do
  kill -0 "$batond" 2>/dev/null || die "batond does not start"
  sleep 0.05
done
baton status >"$log" || die "baton status, which the manifests ask, fails"
echo "batond runs as its image says"

cp "$worker" "$work/bin/ledger-v1"
user=''
build "$recipes/ledger.Containerfile" "$work/bin"
uid=${user%%:*} gid=${user##*:}
[[ $uid =~ ^[0-9]+$ && $uid != 0 ]] || die "a worker as user $user"

# start_worker NAME
start_worker() {
  : >"$work/$1.log"
  # shellcheck disable=SC2016  # its own arguments
  unshare --pid --mount --ipc --uts --fork --kill-child chroot "$root" /bin/sh -c \
    'mount -t proc proc /proc && exec "$@"' sh setpriv --reuid "$uid" --regid "$gid" --clear-groups \
    --bounding-set=-all --no-new-privs "${entry[@]}" "${arguments[@]}" >"$work/$1.log" 2>&1 &
  running+=" $!"
  until grep -q ' ready ' "$work/$1.log"; do
    kill -0 "$!" 2>/dev/null || die "$1 does not start"
    sleep 0.05
  done
}
start_worker first
start_worker second
workers() { baton worker list ledger --no-headers -o wide; }
[[ $(workers | grep -c " ready .* $uid ") -eq 2 ]] || die "not two workers of user $uid: $(workers)"

# The owner hangs under load. The keeper has to see its process, and may have to kill another user's.
"$peer" --connect 127.0.0.1:7471 --connections 4 --rate 200 --duration 8 >"$work/peer.log" 2>&1 &
asking=$!
running+=" $asking"
until [[ $(baton connection list ledger --no-headers | wc -l) -eq 4 ]]; do sleep 0.05; done
owner=$(baton worker list ledger -o json | python3 -c '
import json, sys
print([one["worker"]["pid"] for one in json.load(sys.stdin)["workers"] if one["worker"]["shards"]][0])')
kill -STOP "$owner"
kept=$(keeper)
kill -KILL "$(pgrep -P "$batond" -x batond)"
until [[ $(grep -c '^batond ready' "$work/batond.log") -eq 2 ]]; do
  kill -0 "$batond" 2>/dev/null || die "the container has ended with batond"
  sleep 0.05
done
[[ $(keeper) == "$kept" ]] || die "the next batond has another keeper"
echo "batond died and was started again"
wait "$asking" || die "the peer has lost something"
baton events ledger >"$log" 2>&1 || baton events >"$log"
grep -q 'worker_killed.*no sign of life' "$log" || die "the worker that hung was not killed"
! grep -q worker_not_killed "$log" || die "the keeper could not kill a worker in a container of its own"
[[ $(workers | wc -l) -eq 1 ]] || die "the other worker is not alone: $(workers)"
echo "a worker in a container of its own hung, and was followed by another: $(tail -n 1 "$work/peer.log")"

kill -STOP "$(pgrep -P "$batond" -x batond)"
until [[ $(grep -c '^batond ready' "$work/batond.log") -eq 3 ]]; do
  kill -0 "$batond" 2>/dev/null || die "the container has ended with batond"
  sleep 0.05
done
[[ $(keeper) == "$kept" ]] || die "the batond after the one that hung has another keeper"
# The driver tells it once it has been taken in.
until { baton events >"$log" || die "baton events fails"; } &&
  grep -q 'batond_followed.*hung, and was killed' "$log"; do
  kill -0 "$batond" 2>/dev/null || die "the container has ended with batond"
  sleep 0.05
done
echo "batond hung, was killed and started again"

kill -TERM "$batond"
wait "$batond" || die "batond ends with status $?"
batond=''
