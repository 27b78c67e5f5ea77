"""The table and the judgement of demo-medians.sh.

demo_medians.py head                    prints the table's first line
demo_medians.py row SIDE FILE           prints the line of one demonstration, whose --json is in FILE
demo_medians.py judge MOST DIRECTORY    compares the files SIDE.ROUND; ends with 1 if a bar is not met
"""
import json
import pathlib
import statistics
import sys

BARS = ('handoff', 'upgrade', 'crash_hot')
COUNTS = ('lost', 'duplicated', 'reordered', 'corrupt', 'wrong_total', 'disconnects')


def load(path):
    return json.loads(pathlib.Path(path).read_text())


def in_order(result):
    return result['ok'] and not any(result[count] for count in COUNTS)


def median_of(result, event):
    return result[event]['blackout_us']['p50']


def head():
    print(f"{'':8}" + ''.join(f'{event:>12}' for event in BARS) +
          f"{'quiet':>9}{'defects':>9}{'rate':>8}{'cores':>7}{'others':>8}", flush=True)


def row(side, path):
    result = load(path)
    defects = sum(result[count] for count in COUNTS)
    print(f'{side:8}' + ''.join(f'{median_of(result, event):12.0f}' for event in BARS) +
          f"{result['quiet_us']['p50']:9.0f}{defects:9}{result['rate']:8}"
          f"{result['cores_used']:7.2f}{result['cores_of_others']:8.2f}", flush=True)


def judge(most, directory):
    sides = {side: [load(path) for path in sorted(pathlib.Path(directory).glob(f'{side}.*'))
                    if path.suffix != '.log'] for side in ('other', 'ours')}
    met = True
    for side, results in sides.items():
        good = [result for result in results if in_order(result)]
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


if __name__ == '__main__':
    command, *arguments = sys.argv[1:]
    if command == 'head':
        head()
    elif command == 'row':
        row(*arguments)
    else:
        sys.exit(0 if judge(float(arguments[0]), arguments[1]) else 1)
