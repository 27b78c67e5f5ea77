#!/usr/bin/env python3
"""Comments have a subject: few in lib, supervisor and worker begin with a word that stands in place of one.

"Of a connection that ..." and "Who died may ..." are read twice. "The peer ...", "Returns ...", "A noun phrase" are not.
"""
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(os.path.realpath(__file__)).parents[2]
MOST = 20
WITHOUT_A_SUBJECT = re.compile(r'(Of|As|That|Who|Whoever|Whom|Whose|Likewise|What|Those who|(For|To|By|With) (who|whom|whoever)) ')
COMMENT = re.compile(r'^(?P<code>.*?)(?:^|\s)//+ (?P<text>.*)')


def beginnings(path):
    """(line number, text) of the first line of each comment."""
    goes_on = False
    for number, line in enumerate(path.read_text().splitlines(), 1):
        found = COMMENT.match(line)
        alone = found is not None and not found['code'].strip()
        if found and not (alone and goes_on):
            yield number, found['text']
        goes_on = alone


def main():
    sources = subprocess.run(
        ['deploy/scripts/source_files.sh'] +
        [f'{folder}/*.{ending}' for folder in ('lib', 'supervisor', 'worker') for ending in ('h', 'cc')],
        cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    found = [f'{name}:{number}: {text}' for name in sources for number, text in beginnings(ROOT / name)
             if WITHOUT_A_SUBJECT.match(text)]
    if len(found) > MOST:
        print('\n'.join(found))
    print(f'{len(found)} comments begin without a subject, at most {MOST}')
    return 1 if len(found) > MOST else 0


if __name__ == '__main__':
    sys.exit(main())
