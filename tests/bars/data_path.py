#!/usr/bin/env python3
"""data_path.py OURS OTHERS: the data path of the programs in the directory OURS beside those in OTHERS, in turns.

On the soft device, in each of BATON_ROUNDS rounds (31), a service of each build runs brokered workers, and then native
ones. They are new each time, because the rates of one service are alike, and differ by half from the next one's. A peer
asks each for BATON_SECONDS (1): one message at a time, and 32. Medians of the rounds: a round trip takes at most
BATON_MOST (1.10) of the others', and the others have at most so much of our rate.
Exits with 1 if not.
"""
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

PATIENCE = 30  # seconds until a service is ready
KINDS = ('brokered', 'native')


def await_line(path, words):
    """Returns the first line of the file with these words."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        for line in path.read_text(errors='replace').splitlines():
            if words in line:
                return line
        time.sleep(0.05)
    sys.exit(f'no "{words}" in {path}:\n{path.read_text(errors="replace")}')


class Service:
    """A ledger, with a batond of its own."""

    def __init__(self, programs, kind, directory, stack):
        self.programs = os.path.realpath(programs)
        said = directory / 'said'
        common = ['--service', 'ledger', '--listen', '127.0.0.1:0', '--socket', f'{directory}/ledger.sock']
        arguments = ['--dev', '--state-dir', f'{directory}', '--service', 'ledger']
        if kind == 'native':
            arguments += ['--native', f'{self.programs}/ledger-v1.so']
            arguments += [f'--native-argument={argument}' for argument in common]
        self.start(stack, said, 'batond', arguments)
        if kind == 'brokered':
            await_line(said, 'batond ready')
            self.start(stack, said, 'ledger-v1', common)
        ready = await_line(said, 'ledger ready')
        self.port = next(word for word in ready.split() if word.startswith('port=')).removeprefix('port=')

    def start(self, stack, said, program, arguments):
        with open(said, 'ab') as output:
            process = subprocess.Popen([f'{self.programs}/{program}', *arguments], stdin=subprocess.DEVNULL,
                                       stdout=output, stderr=output)
        stack.callback(process.wait)
        stack.callback(process.terminate)

    def ask(self, window, seconds):
        """Returns the median round trip in microseconds, and messages each second."""
        peer = subprocess.run([f'{self.programs}/baton-peer', '--connect', f'127.0.0.1:{self.port}', '--window',
                               str(window), '--duration', str(seconds), '--json'], stdout=subprocess.PIPE,
                              text=True, check=True)
        result = json.loads(peer.stdout.splitlines()[-1])
        return result['latency_us']['p50'], result['messages'] / seconds


def measure(programs, rounds, seconds):
    """Returns the figures of all rounds, by what is measured and by side."""
    figures = {}
    for number in range(rounds):
        sides = list(programs) if number % 2 else list(programs)[::-1]
        for kind in KINDS:
            with contextlib.ExitStack() as stack:
                services = {}
                for side in sides:
                    directory = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
                    services[side] = Service(programs[side], kind, directory, stack)
                for window in (1, 32):
                    for side in sides:
                        round_trip, rate = services[side].ask(window, seconds)
                        what = (kind, 'round trip, us') if window == 1 else (kind, 'messages per second')
                        figures.setdefault(what, {}).setdefault(side, []).append(round_trip if window == 1 else rate)
        print(f'round {number + 1} of {rounds}', file=sys.stderr, flush=True)
    return figures


def main(ours, others):
    most = float(os.environ.get('BATON_MOST', 1.10))
    figures = measure({'ours': ours, 'others': others}, int(os.environ.get('BATON_ROUNDS', 31)),
                      float(os.environ.get('BATON_SECONDS', 1)))
    met = True
    for (kind, what), sides in figures.items():
        medians = {side: statistics.median(values) for side, values in sides.items()}
        ratio = medians['ours'] / medians['others']
        if what.startswith('messages'):
            ratio = 1 / ratio
        met &= ratio <= most
        print(f"{kind}, {what}: ours {medians['ours']:.1f}, others {medians['others']:.1f}: {ratio:.3f}, at most {most}")
    return 0 if met else 1


if __name__ == '__main__':
    sys.exit(main(*sys.argv[1:]))
