#!/usr/bin/env python3
"""Checks the Markdown of the tree.

README.md is short and leads to every document. Each document says in its first line whom it is for, and one with
several headings lists them. No link is broken: a link to another place of this tree names a file that is there, and
where it has an anchor, a heading of that file. A listing after a line `<!-- listing: PATH -->` stands in the file PATH
of the tree, its indentation aside. Each `//folder:name` is a target, each `./run COMMAND` a command of ./run, and each
document's table of folders and what they may depend on agrees with the BUILD files. Each field of the configuration
is in its reference.
"""
import os
import pathlib
import re
import subprocess
import sys
import textwrap

ROOT = pathlib.Path(os.path.realpath(__file__)).parents[2]
MOST_LINES_OF_README = 180
MOST_HEADINGS_WITHOUT_A_LIST = 3
LINK = re.compile(r'\[[^\]]*\]\(([^)\s]+)\)')
LISTING = re.compile(r'(?m)^<!-- listing: (\S+) -->\n+```\w*\n(.*?)^```', re.DOTALL)
TARGET = re.compile(r'(?<![\w/:])//((?:lib|supervisor|worker|proto|tests|deploy)[\w/.-]*)(?::([\w.-]+))?')


def anchor(heading):
    """The anchor that GitHub gives a heading."""
    plain = re.sub(r'[`*]|\[([^\]]*)\]\([^)]*\)', r'\1', heading)
    return re.sub(r'[^\w\- ]', '', plain.strip().lower()).replace(' ', '-')


def without_listings(text):
    return re.sub(r'(?ms)^```.*?^```', '', text)


def headings(path, level='#+'):
    return re.findall(rf'(?m)^{level} (.*)$', without_listings(path.read_text()))


def links(path):
    return LINK.findall(re.sub(r'`[^`\n]*`', '', without_listings(path.read_text())))


def folder_of(path):
    return str(path.parent.relative_to(ROOT))


def link_faults(path, documents, waiting):
    """Adds the documents that `path` leads to to `waiting`."""
    for link in links(path):
        if re.match(r'[a-z]+:', link):
            continue
        name, _, place = link.partition('#')
        target = (path.parent / name).resolve() if name else path
        if not target.exists():
            yield f'{link}: there is no such file'
        elif place and target.suffix == '.md' and place not in map(anchor, headings(target)):
            yield f'{link}: there is no such heading'
        elif target in documents:
            waiting.append(target)


def form_faults(path):
    """Whom it is for, and what is in it."""
    text = path.read_text()
    if path == ROOT / 'README.md':
        lines = text.count('\n')
        if lines > MOST_LINES_OF_README:
            yield f'{lines} lines, more than {MOST_LINES_OF_README}'
    elif not re.match(r'# .*\n+For ', text):
        yield 'its first line does not say whom it is for ("For operators who ...")'
    sections = headings(path, '##')
    if len(sections) > MOST_HEADINGS_WITHOUT_A_LIST and path != ROOT / 'README.md':
        head = without_listings(text).partition('\n## ')[0]
        for section in sections:
            if f'(#{anchor(section)})' not in head:
                yield f'its list of contents lacks "{section}"'


def listing_faults(path):
    for source, listing in LISTING.findall(path.read_text()):
        if not (ROOT / source).is_file():
            yield f'listing: there is no file {source}'
        elif textwrap.dedent(listing).rstrip() not in dedented_at_any_depth((ROOT / source).read_text(), listing):
            yield f'a listing is not in {source}: {listing.strip().splitlines()[0]}'


def dedented_at_any_depth(text, listing):
    """`text` with the indentation taken away that its first line of `listing` has."""
    first = textwrap.dedent(listing).splitlines()[0]
    found = re.search(rf'(?m)^( *){re.escape(first)}$', text)
    depth = len(found.group(1)) if found else 0
    return re.sub(rf'(?m)^ {{{depth}}}', '', text) if depth else text


def is_target(folder, name):
    build = ROOT / folder / 'BUILD.bazel'
    if not build.is_file():
        return False
    if name in (None, 'all', '...'):
        return True
    plain = re.sub(r'^native_|(_mutant)?_test$|_soft$', '', name)
    text = build.read_text()
    # A list of tests names their sources, which may be in folders below.
    return any(re.search(rf'"(\w+/)*{re.escape(stem)}(\.cc)?"', text) for stem in (name, plain, plain + '_test'))


def command_faults(path, commands):
    text = path.read_text()
    for folder, name in TARGET.findall(text):
        folder = folder.rstrip('.')
        if folder.endswith('/...') or name == 'NAME' or name == 'NAME_mutant_test':
            continue
        if not is_target(folder.rstrip('/'), name or None):
            yield f'there is no target //{folder}:{name}'
    for command in re.findall(r'(?:\./|`)run ([a-z]+)', text):
        if command not in commands:
            yield f'./run has no command "{command}"'


def dependency_faults(path):
    """Of a table with a column "may depend on"."""
    column = None
    for line in without_listings(path.read_text()).splitlines():
        cells = [cell.strip() for cell in line.strip('|').split('|')] if line.startswith('|') else None
        if cells is None:
            column = None
        elif 'may depend on' in cells:
            column = cells.index('may depend on')
        elif column is not None and not cells[0].startswith('-'):
            folder = cells[0].strip('`')
            allowed = set(re.findall(r'`([^`]*)`', cells[column])) | {folder, 'lib/system', 'lib/bazel'}
            build = (ROOT / folder / 'BUILD.bazel').read_text()
            used = set(re.findall(r'"//((?:lib|supervisor|worker|proto|tests)[\w/]*)', build))
            for other in sorted(used - allowed - {folder for folder in used if folder.startswith('tests')}):
                yield f'{folder} depends on {other}, which its row does not permit'


def configuration_faults():
    """Each field of the configuration is documented."""
    page = 'deploy/docs/configuration.md'
    named = set(re.findall(r'[`\s](\w+)[`:\s{]', (ROOT / page).read_text()))
    for field in re.findall(r'(?m)^  (?:  )?(?:repeated )?[\w.]+ (\w+) = \d+',
                            (ROOT / 'proto/baton/v1/config.proto').read_text()):
        if field not in named:
            yield f'{page}: the field {field} of config.proto is missing'


def main():
    listed = subprocess.run(['deploy/scripts/source_files.sh', '*.md'], cwd=ROOT, check=True,
                            stdout=subprocess.PIPE, text=True).stdout.split()
    documents = {ROOT / name for name in listed}
    usage = re.search(r"(?s)<<'END'\n(.*?)\nEND", (ROOT / 'run').read_text()).group(1)
    commands = set(re.findall(r'(?m)^  ([a-z]+)\b', usage))
    faults, reached, waiting = [], set(), [ROOT / 'README.md']
    while waiting:
        path = waiting.pop()
        if path in reached:
            continue
        reached.add(path)
        for check in (link_faults(path, documents, waiting), form_faults(path), listing_faults(path),
                      command_faults(path, commands), dependency_faults(path)):
            faults += [f'{path.relative_to(ROOT)}: {fault}' for fault in check]
    faults += configuration_faults()
    faults += [f'{path.relative_to(ROOT)}: nothing leads here from README.md'
               for path in sorted(documents - reached)]
    print('\n'.join(faults + [f'{len(reached)} documents, {len(faults)} faults']))
    return 1 if faults else 0


if __name__ == '__main__':
    sys.exit(main())
