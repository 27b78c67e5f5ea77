#!/usr/bin/env bash
# What neither the compiler nor clang-format sees in the tracked files. Prints one line per offence
# and fails when there is any. Runs as a test and as the first step of `./run lint`.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
export LC_ALL=C.UTF-8

files() { deploy/scripts/source_files.sh "$@"; }

offences=0
offence() {
  echo "$1"
  offences=$((offences + 1))
}

# matches REGEX MESSAGE PATTERN...: every line of the files that matches is an offence.
matches() {
  local regex=$1 message=$2 line
  shift 2
  while IFS= read -r line; do
    offence "${line%%:*}:$(cut -d: -f2 <<<"$line"): $message"
  done < <(files "$@" | grep -vxF tests/style/check_style.sh |
    tr '\n' '\0' | xargs -0 -r grep -nHE -- "$regex" || true)
}

matches '^.{101,}' "more than 100 columns" '*.h' '*.cc'
matches $'\t' "a tab" '*.h' '*.cc' '*.proto' '*.sh' run
matches '[[:blank:]]+$' "blanks at the end of the line" '*.h' '*.cc' '*.proto' '*.sh' '*.bazel' '*.bzl' run
matches '\b(FIXME|XXX|HACK)\b|\bTODO\b($|[^(])' "a TODO names its owner: TODO(name)" '*.h' '*.cc' '*.proto' '*.sh' run
matches '^#pragma once' "include guards, not #pragma once" '*.h'
matches '^ *using namespace ' "no using namespace" '*.h' '*.cc'
matches '\bassert\(' "BATON_CHECK (or a status), not assert" '*.h' '*.cc'
# grep -q ends at the first match, and SIGPIPE ends the program that writes into the pipe: with
# pipefail, the match counts as a failure.
matches '[|] *grep -[a-zA-Z]*q' "grep >/dev/null at the end of a pipe, not grep -q" '*.sh' run
matches '"-l[a-z]' "a library of the system is wrapped once, in lib/system" 'lib/a*/BUILD.bazel' \
  'lib/[b-r]*/BUILD.bazel' 'supervisor/**BUILD.bazel' 'tests/**BUILD.bazel' \
  'worker/**BUILD.bazel'

# faults PROGRAM PATTERN...: what PROGRAM (Perl, which has the whole of each file) prints is an offence each.
faults() {
  local program=$1 line
  shift
  while IFS= read -r line; do
    offence "$line"
  done < <(files "$@" | tr '\n' '\0' | xargs -0 -r perl -0777 -ne "$program")
}

# shellcheck disable=SC2016  # Perl's variables
faults '
  my $guard = $ARGV =~ s{^(?:tests|worker)/kit/include/}{}r;  # as others include it
  $guard = uc($guard =~ tr{/.-}{___}r) . "_";
  /^#ifndef \Q$guard\E$/m && /^#define \Q$guard\E$/m && m{^#endif  // \Q$guard\E\n\z}m or
    print "$ARGV:1: the include guard is not $guard\n"' '*.h'

while IFS= read -r script; do
  [[ -x $script ]] || offence "$script:1: not executable"
  [[ $(head -n1 "$script") == '#!/usr/bin/env bash' ]] || offence "$script:1: not #!/usr/bin/env bash"
  grep -qE '^set -euo pipefail$|^exec ' "$script" || offence "$script:1: no set -euo pipefail"
done < <(files '*.sh' run .ci/run)

# shellcheck disable=SC2016  # Perl's variables
faults '/\n\z/ || !length or print "$ARGV: no newline at its end\n"' \
  '*.h' '*.cc' '*.proto' '*.sh' '*.bazel' '*.bzl' '*.md'

[[ $offences -eq 0 ]] || echo "$offences offences against the style"
[[ $offences -eq 0 ]]
