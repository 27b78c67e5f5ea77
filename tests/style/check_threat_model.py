#!/usr/bin/env python3
"""Checks that every claim of the threat model has a test, and that what it cites is there.

In a table that begins with "| Cannot |" each row has, in its last column, `tests/path/of/file`, then `Suite.case` or
"words" that are in that file, any number of them, and maybe another file. A rule of Bazel's names each such file.
"""
import functools
import os
import pathlib
import re
import sys

ROOT = pathlib.Path(os.path.realpath(__file__)).parents[2]
PAGE = 'deploy/threat_model.md'
CITED = re.compile(r'`([^`]+)`|"([^"]+)"')


@functools.lru_cache(maxsize=None)
def text_of(path):
    return path.read_text()


def is_run(path):
    """Whether a rule of the file's package names it, in full or in part."""
    package = next(parent for parent in path.parents if (parent / 'BUILD.bazel').is_file())
    names = '|'.join(map(re.escape, (re.sub(r'_test$', '', path.stem), path.stem, path.name)))
    return re.search(rf'"(?:[a-z0-9_]+/)*(?:{names})"', text_of(package / 'BUILD.bazel')) is not None


def has_case(path, suite, case):
    """Whether it is there, on one line or on two."""
    return re.search(rf'\bTEST(_F|_P)?\(\s*{suite},\s*{case}\)', text_of(path)) is not None


def column_faults(column):
    """What is wrong with the last column of a row."""
    path, cited = None, False
    for name, words in CITED.findall(column):
        if name.startswith('tests/'):
            if path and not cited:
                yield f'nothing of {path.relative_to(ROOT)} is cited'
            path, cited = ROOT / name, False
            if not path.is_file():
                yield f'there is no file {name}'
                return
            if not is_run(path):
                yield f'no rule beside {name} names it'
        elif words or '.' in name:
            cited = True
            if path is None:
                yield f'{name or words} comes before a file'
            elif words and words not in text_of(path):
                yield f'{path.relative_to(ROOT)} does not say "{words}"'
            elif name and not has_case(path, *name.split('.', 1)):
                yield f'{path.relative_to(ROOT)} has no case {name}'
    if not cited:
        yield 'a claim without a test'


def main():
    faults, claims, in_claims = [], 0, False
    for number, line in enumerate((ROOT / PAGE).read_text().splitlines(), 1):
        if line.startswith('| Cannot |'):
            in_claims = True
        elif line.endswith('| Test |'):
            faults.append(f'{PAGE}:{number}: a table of tests that does not begin with Cannot')
        elif not line.startswith('|'):
            in_claims = False
        elif in_claims and not line.startswith('|---'):
            claims += 1
            faults += [f'{PAGE}:{number}: {fault}' for fault in column_faults(line.rstrip('| ').rpartition(' | ')[2])]
    for name in re.findall(r'`((?:deploy|lib|proto|supervisor|worker)/[^` ]+)`', text_of(ROOT / PAGE)):
        if not (ROOT / name).exists():
            faults.append(f'{PAGE}: there is no file {name}')
    if claims == 0:
        faults.append(f'{PAGE}: no claims')
    print('\n'.join(faults + [f'{claims} claims, {len(faults)} faults']))
    return 1 if faults else 0


if __name__ == '__main__':
    sys.exit(main())
