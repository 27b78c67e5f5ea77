#!/usr/bin/env python3
"""Checks the Markdown of the tree: README.md leads to every document, and no link is broken.

A link to another place of this tree names a file that is there, and where it has an anchor, a heading of
that file.
"""
import os
import pathlib
import re
import subprocess
import sys

MOST_LINES_OF_README = 250
LINK = re.compile(r'\[[^\]]*\]\(([^)\s]+)\)')


def anchor(heading):
    """The anchor that GitHub gives a heading."""
    plain = re.sub(r'[`*]|\[([^\]]*)\]\([^)]*\)', r'\1', heading)
    return re.sub(r'[^\w\- ]', '', plain.strip().lower()).replace(' ', '-')


def without_listings(text):
    return re.sub(r'(?ms)^```.*?^```', '', text)


def anchors(path):
    text = without_listings(path.read_text())
    return {anchor(heading) for heading in re.findall(r'(?m)^#+ (.*)$', text)}


def links(path):
    return LINK.findall(re.sub(r'`[^`\n]*`', '', without_listings(path.read_text())))


def main():
    root = pathlib.Path(os.path.realpath(__file__)).parents[2]
    listed = subprocess.run(['deploy/scripts/source_files.sh', '*.md'], cwd=root, check=True,
                            stdout=subprocess.PIPE, text=True).stdout.split()
    documents = {root / name for name in listed if '/corpus/' not in name}
    faults = []
    reached, waiting = set(), [root / 'README.md']
    while waiting:
        path = waiting.pop()
        if path in reached:
            continue
        reached.add(path)
        for link in links(path):
            if re.match(r'[a-z]+:', link):
                continue
            name, _, place = link.partition('#')
            target = (path.parent / name).resolve() if name else path
            if not target.exists():
                faults.append(f'{path.relative_to(root)}: {link}: there is no such file')
            elif place and target.suffix == '.md' and place not in anchors(target):
                faults.append(f'{path.relative_to(root)}: {link}: there is no such heading')
            elif target in documents:
                waiting.append(target)
    faults += [f'{path.relative_to(root)}: nothing leads here from README.md'
               for path in sorted(documents - reached)]
    lines = (root / 'README.md').read_text().count('\n')
    if lines > MOST_LINES_OF_README:
        faults.append(f'README.md: {lines} lines, more than {MOST_LINES_OF_README}')
    print('\n'.join(faults + [f'{len(reached)} documents, {len(faults)} faults']))
    return 1 if faults else 0


if __name__ == '__main__':
    sys.exit(main())
