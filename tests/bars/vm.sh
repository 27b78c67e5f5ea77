#!/usr/bin/env bash
# ./run vm: exit status, arguments, output and time-out of the script, and two machines on a wire.
set -euo pipefail
deploy/scripts/install_packages.sh vm

die() { echo "vm: $*" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Status, arguments, and an output file that others write, too.
cat >"$work/arguments.sh" <<'END'
printf '<%s>' "$@"
echo
echo "as $(id -un) with $(rdma link show rxe0/1 | awk '{print $4}')" >&2
touch /usr/was-here
exit 7
END
status=0
{
  echo before
  ./run vm "$work/arguments.sh" 'two words' '' "quote'" || status=$?
  echo after
} >"$work/out"
[[ $status -eq 7 ]] || die "exit status $status, not 7"
diff "$work/out" - <<'END' || die "the output differs"
before
<two words><><quote'>
as root with ACTIVE
after
END
[[ ! -e /usr/was-here ]] || die "the machine wrote on the host"

# Output comes while the script runs: this one ends by its time-out only.
echo 'echo first; sleep infinity' >"$work/endless.sh"
coproc machine { ./run vm --timeout 60 "$work/endless.sh" 2>"$work/console"; }
# shellcheck disable=SC2154  # coproc sets it
pid=$machine_PID
read -r line <&"${machine[0]}" || die "no line came"
[[ $line == first ]] || die "\"$line\" came"
status=0
wait "$pid" || status=$?
[[ $status -eq 124 ]] || die "exit status $status after the time-out, not 124"
grep -q 'did not end within 60 s' "$work/console" || die "the time-out was not said"

# Two machines: each message of 1,000 bytes comes back over the wire.
echo 'exec rping -s -a 10.0.0.2 -v -S 1000 -C 10' >"$work/server.sh"
cat >"$work/client.sh" <<'END'
until pings=$(rping -c -a 10.0.0.2 -v -V -S 1000 -C 10 2>/dev/null | grep -c 'ping data'); do
  sleep 1
done
echo "$pings came back"
END
came=$(./run vm --timeout 120 --peer "$work/server.sh" "$work/client.sh")
[[ $(grep -v '^peer: ' <<<"$came") == "10 came back" ]] || die "between two machines: $came"
echo "status, arguments, output, time-out and peer are as they should be"
