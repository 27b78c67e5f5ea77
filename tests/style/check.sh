#!/usr/bin/env bash
# check.sh CHECK: looks for faults of the source tree, prints one line for each, and fails when there is any. CHECK is
# a function of this file whose name begins with check_; a test has the same name.
set -euo pipefail
called_in=$PWD
cd "$(dirname "$(readlink -f "$0")")/../.."
export LC_ALL=C.UTF-8

# fault MESSAGE
faults=0
fault() {
  echo "$1"
  faults=$((faults + 1))
}

# ---------------------------------------------------------------- tools that have rules of their own

# The C++ is as clang-format has it. ./run format changes it.
check_format() {
  deploy/scripts/source_files.sh '*.h' '*.cc' | xargs -r -P2 -n16 clang-format --dry-run --Werror
}

# The shell scripts are as shellcheck wants them.
check_shell() { deploy/scripts/source_files.sh run '*.sh' .ci/run | xargs -P2 -n16 shellcheck -x; }

# Each figure of the documents is what deploy/scripts/draw_figures.sh draws of its text.
check_figures() { deploy/scripts/draw_figures.sh --check; }

# clang-tidy finds nothing in the C++ that has changed (deploy/scripts/lint.sh --changed), as far as that is
# not too much for a test: a file takes some ten seconds. Bazel puts the generated headers where it calls this.
check_changed() {
  if ! git rev-parse --verify --quiet HEAD~1 >/dev/null; then
    # shellcheck source=tests/harness/skip.sh
    source tests/harness/skip.sh
    skip StyleTest shouldFindNothingInChangedFiles "there is no history to compare with"
  fi
  BATON_GENERATED=$called_in BATON_LINT_AT_MOST=2 deploy/scripts/lint.sh --changed
}

# ---------------------------------------------------------------- style

# no_line_matches REGEX MESSAGE PATTERN...: every line of the files that matches is a fault.
no_line_matches() {
  local regex=$1 message=$2 line
  shift 2
  while IFS= read -r line; do
    fault "${line%%:*}:$(cut -d: -f2 <<<"$line"): $message"
  done < <(deploy/scripts/source_files.sh "$@" | grep -vxF tests/style/check.sh |
    tr '\n' '\0' | xargs -0 -r grep -nHE -- "$regex" || true)
}

# perl_says_nothing PROGRAM PATTERN...: what PROGRAM (Perl, which has the whole of each file) prints is a fault each.
perl_says_nothing() {
  local program=$1 line
  shift
  while IFS= read -r line; do
    fault "$line"
  done < <(deploy/scripts/source_files.sh "$@" | tr '\n' '\0' | xargs -0 -r perl -0777 -ne "$program")
}

# What neither the compiler nor clang-format sees in the tracked files. It is the first step of `./run lint`, too.
check_style() {
  local script
  no_line_matches '^.{101,}' "more than 100 columns" '*.h' '*.cc'
  no_line_matches $'\t' "a tab" '*.h' '*.cc' '*.proto' '*.sh' run
  no_line_matches '[[:blank:]]+$' "blanks at the end of the line" \
    '*.h' '*.cc' '*.proto' '*.sh' '*.bazel' '*.bzl' run
  no_line_matches '\b(FIXME|XXX|HACK)\b|\bTODO\b($|[^(])' "a TODO names its owner: TODO(name)" \
    '*.h' '*.cc' '*.proto' '*.sh' run
  no_line_matches '^#pragma once' "include guards, not #pragma once" '*.h'
  no_line_matches '^ *using namespace ' "no using namespace" '*.h' '*.cc'
  no_line_matches '\bassert\(' "BATON_CHECK (or a status), not assert" '*.h' '*.cc'
  # grep -q ends at the first match, and SIGPIPE ends the program that writes into the pipe: with
  # pipefail, the match counts as a failure.
  no_line_matches '[|] *grep -[a-zA-Z]*q' "grep >/dev/null at the end of a pipe, not grep -q" '*.sh' run
  no_line_matches '"-l[a-z]' "a library of the system is wrapped once, in lib/system" 'lib/a*/BUILD.bazel' \
    'lib/[b-r]*/BUILD.bazel' 'supervisor/**BUILD.bazel' 'tests/**BUILD.bazel' 'worker/**BUILD.bazel'

  # shellcheck disable=SC2016  # Perl's variables
  perl_says_nothing '
    my $guard = $ARGV =~ s{^(?:tests|worker)/kit/include/}{}r;  # as others include it
    $guard = uc($guard =~ tr{/.-}{___}r) . "_";
    /^#ifndef \Q$guard\E$/m && /^#define \Q$guard\E$/m && m{^#endif  // \Q$guard\E\n\z}m or
      print "$ARGV:1: the include guard is not $guard\n"' '*.h'
  # shellcheck disable=SC2016
  perl_says_nothing '/\n\z/ || !length or print "$ARGV: no newline at its end\n"' \
    '*.h' '*.cc' '*.proto' '*.sh' '*.bazel' '*.bzl' '*.md'

  while IFS= read -r script; do
    [[ -x $script ]] || fault "$script:1: not executable"
    [[ $(head -n1 "$script") == '#!/usr/bin/env bash' ]] || fault "$script:1: not #!/usr/bin/env bash"
    grep -qE '^set -euo pipefail$|^exec ' "$script" || fault "$script:1: no set -euo pipefail"
  done < <(deploy/scripts/source_files.sh '*.sh' run .ci/run)
}

# Comments have a subject: few begin with a word that stands in place of one.
# "Of a connection that ..." and "Who died may ..." are read twice. "The peer ...", "Returns ..." and "A noun" are not.
check_comments() {
  local most=20 found comment
  # shellcheck disable=SC2016  # Perl's variables
  mapfile -t found < <(deploy/scripts/source_files.sh {lib,proto,supervisor,tests,worker}/\*.{h,cc,proto} | xargs perl -ne '
    my ($code, $text) = m{^(.*?)(?:^|\s)//+ (.*)};
    my $alone = defined $text && $code !~ /\S/;
    undef $text if defined $text && $text =~ /^What / && $ARGV =~ m{^(tests|proto)/};  # names a thing
    print "$ARGV:$.: $text\n" if defined $text && !($alone && $goes_on) && $text =~
      /^(Of|As|That|Who|Whoever|Whom|Whose|Likewise|What|Those who|(For|To|By|With) (who|whom|whoever)) /;
    $goes_on = $alone;
    if (eof) { $goes_on = 0; close ARGV }')  # the next file counts its lines from 1
  echo "${#found[@]} comments begin without a subject, at most $most"
  [[ ${#found[@]} -gt $most ]] || return 0
  for comment in "${found[@]}"; do fault "$comment"; done
}

# ---------------------------------------------------------------- dependencies

# headers_of PACKAGE...: as sources name them.
headers_of() {
  dpkg -L "$@" |
    sed -nE 's#^/usr/(lib/llvm-14/)?include/((x86_64|aarch64)-linux-gnu/|libnl3/|llvm-14/)?([^ ]+\.(h|hpp))$#\4#p'
}

# Nothing is installed that nothing uses: of each library to build with (a -dev package of
# deploy/scripts/install_packages.sh) some source includes a header, and each target of lib/system is
# a dependency of another.
check_dependencies() {
  local included found needed package target packages=0 targets=0
  included=$(deploy/scripts/source_files.sh '*.h' '*.cc' |
    xargs sed -nE 's/^#include [<"]([^>"]+)[>"].*/\1/p' | sort -u)
  while read -r package; do
    packages=$((packages + 1))
    found=$(headers_of "$package")
    if [[ -z $found ]]; then  # it stands for another, of the default version
      needed=$(dpkg-query -W -f='${Depends}' "$package" | sed -E 's/[ ,].*//')
      found=$(headers_of "$needed")
    fi
    grep -qxF -f <(sort -u <<<"$found") <<<"$included" ||
      fault "deploy/scripts/install_packages.sh: $package: no source includes a header of it"
  done < <(grep -oE '[a-z0-9+.-]+-dev\b' deploy/scripts/install_packages.sh |
    # A program, and the runtime of the fuzzers.
    grep -vxE 'dpkg-dev|libclang-rt-.*' | sort -u)

  while read -r target; do
    targets=$((targets + 1))
    deploy/scripts/source_files.sh '*BUILD.bazel' '*.bzl' |
      xargs grep -qE "\"(//lib/system)?:$target\"" || fault "//lib/system:$target: nothing depends on it"
  done < <(sed -nE 's/^    name = "(.*)",$/\1/p' lib/system/BUILD.bazel)

  [[ $packages -ge 10 && $targets -ge 10 ]] || fault "$packages packages, $targets targets: this check is broken"
  echo "$packages packages, $targets targets"
}

# ---------------------------------------------------------------- the runbook

# in_backquotes REGEX: what deploy/runbook.md has between backquotes.
in_backquotes() { grep -oE "\`$1\`" deploy/runbook.md | tr -d "\`" | sort -u; }

# What deploy/runbook.md tells people to look for is there: each `word_with_underscores` is an event that some
# source tells of, a field of the protocol or a metric; each alert is in the rules; each page exists.
check_runbook() {
  local page=deploy/runbook.md word alert file words=0
  while read -r word; do
    words=$((words + 1))
    grep -rqF --include='*.cc' --include='*.h' "\"$word\"" supervisor lib ||
      grep -rqE --include='*.proto' "\b$word = [0-9]+" proto ||
      fault "$page: \`$word\`: nothing tells it"
  done < <(in_backquotes '[a-z]+(_[a-z]+)+')
  while read -r alert; do
    grep -qx " *- alert: $alert" deploy/prometheus/baton-rules.yaml || fault "$page: there is no alert $alert"
  done < <(in_backquotes 'Baton[A-Za-z]+')
  while read -r file; do
    [[ -f $file ]] || fault "$page: there is no $file"
  done < <(in_backquotes '(deploy|supervisor)/[a-z_/]+\.md')
  [[ $words -ge 20 ]] || fault "$page: only $words words were found: this check is broken"
  echo "$words words"
}

[[ ${1:-} == check_* ]] || { echo "check.sh: \"${1:-}\" is no check" >&2; exit 2; }
"$1"
[[ $faults -eq 0 ]] || { echo "$1: $faults faults"; exit 1; }
