#!/usr/bin/env python3
"""Evidence: the demonstration of this tree beside that of another build, in turns.

demo_medians.py [PROGRAM [DIRECTORY]]: PROGRAM is the other demonstration (BATON_OTHER_DEMO), and DIRECTORY has the
programs that it starts (BATON_OTHER_BIN). BATON_ROUNDS rounds (5) of each, the other one first. Each run has to end
with nothing lost, repeated, reordered or disconnected. Of handoffs, upgrades and hot crashes the median of the rounds'
medians is at most BATON_MOST times (1.3) the other's. Prints every round, with what other programs used of the
processors meanwhile: what they take makes every time longer. BATON_DEMO_ARGUMENTS: further arguments of the
demonstrations, and BATON_OUR_ARGUMENTS: of this tree's alone ("--mode native": native workers beside brokered ones of
before). BATON_OUR_DEMO is this tree's where it is not to be built.
Both sides have to run with the same real-time priority. Native workers get none without RLIMIT_RTPRIO (ulimit -r).
Exits with 1 if a bar is not met, and with 3 where there is no other build to compare with.
"""
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(os.path.realpath(__file__)).parents[2]
BARS = ('handoff', 'upgrade', 'crash_hot')
COUNTS = ('lost', 'duplicated', 'reordered', 'corrupt', 'wrong_total', 'disconnects')


def in_order(result):
    return result['ok'] and not any(result[count] for count in COUNTS)


def median_of(result, event):
    return result[event]['blackout_us']['p50']


def build_ours():
    subprocess.run(['bazel', 'build', '--config=run', '//tests/demo:demo'], check=True)
    bazel_bin = subprocess.run(['bazel', 'info', 'bazel-bin'], check=True, stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL, text=True).stdout.strip()
    return f'{bazel_bin}/tests/demo/demo'


def print_head():
    print(f"{'':8}" + ''.join(f'{event:>12}' for event in BARS) +
          f"{'quiet':>9}{'defects':>9}{'rate':>8}{'cores':>7}{'others':>8}", flush=True)


def print_row(side, result):
    defects = sum(result[count] for count in COUNTS)
    print(f'{side:8}' + ''.join(f'{median_of(result, event):12.0f}' for event in BARS) +
          f"{result['quiet_us']['p50']:9.0f}{defects:9}{result['rate']:8}"
          f"{result['cores_used']:7.2f}{result['cores_of_others']:8.2f}", flush=True)


def demonstrate(side, program, directory, arguments):
    """Prints the row of one demonstration and returns its result; None when it gave none, and says why."""
    with tempfile.TemporaryDirectory() as pictures:
        run = subprocess.run([program, '--json', '--baseline-runs', '0', '--output', pictures, *arguments],
                             env={**os.environ, 'BATON_BIN': directory}, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True, errors='replace')
    try:
        result = json.loads(run.stdout)
        print_row(side, result)
        return result
    except (KeyError, ValueError) as error:
        print(f'{side}: no result: {error!r}', *run.stderr.splitlines()[-5:], sep='\n', file=sys.stderr, flush=True)
        return None


def judge(most, sides):
    met = True
    for side, results in sides.items():
        good = [result for result in results if result and in_order(result)]
        print(f'{side}: {len(results)} rounds, {len(results) - len(good)} of them not in order')
        met &= bool(good) and len(good) == len(results)
        sides[side] = good
    if not all(sides.values()):
        return False
    priorities = {side: sorted({result['realtime_priority'] for result in results})
                  for side, results in sides.items()}
    if priorities['ours'] != priorities['other']:
        print(f'not comparable: real-time priorities {priorities}; native workers need '
              'RLIMIT_RTPRIO (ulimit -r), or give both --realtime-priority 0')
        return False
    for event in BARS:
        of = {side: [median_of(result, event) for result in results]
              for side, results in sides.items()}
        middle = {side: statistics.median(values) for side, values in of.items()}
        ratio = middle['ours'] / middle['other']
        met &= ratio <= most
        spread = ', '.join(f'{side} {min(values):.0f} to {max(values):.0f}'
                           for side, values in of.items())
        print(f"{event}: {middle['ours']:.0f} us, the other {middle['other']:.0f}: {ratio:.2f}, "
              f'at most {most}; {spread}')
    return met


def main():
    os.chdir(ROOT)
    named = dict(zip(('BATON_OTHER_DEMO', 'BATON_OTHER_BIN'), sys.argv[1:]))
    of = {**os.environ, **named}
    other, other_bin = of.get('BATON_OTHER_DEMO', ''), of.get('BATON_OTHER_BIN', '')
    if not os.access(other, os.X_OK) or not os.path.isdir(other_bin):
        print('name a demonstration and the directory of its programs: BATON_OTHER_DEMO, BATON_OTHER_BIN',
              file=sys.stderr)
        return 3
    both = of.get('BATON_DEMO_ARGUMENTS', '').split()
    commands = {
        'other': (other, other_bin, both),
        'ours': (of.get('BATON_OUR_DEMO') or build_ours(), of.get('BATON_BIN') or f'{ROOT}/out/bin',
                 both + of.get('BATON_OUR_ARGUMENTS', '').split()),
    }
    sides = {side: [] for side in commands}
    print_head()
    for _ in range(int(of.get('BATON_ROUNDS', '5'))):
        for side, command in commands.items():
            sides[side].append(demonstrate(side, *command))
    return 0 if judge(float(of.get('BATON_MOST', '1.3')), sides) else 1


if __name__ == '__main__':
    sys.exit(main())
