#!/usr/bin/env bash
# mutants_table.sh write TABLE LOGS MUTATION...: the table of mutants, with what test logs say of how
#   each was caught: of `bazel test`, in a tree of //tests/simulation:NAME_mutant_test.
# mutants_table.sh check TABLE MUTATION...: whether the table names these mutants, with the lines as
#   they are now, and no others. How each was caught is not compared: it changes with the sources.
set -euo pipefail

# rows MUTATION...: all but the last cell of each, in a line for each.
rows() {
  # shellcheck disable=SC2016  # Perl's, not the shell's
  perl -e '
    # Code in a cell of a table.
    sub code { join " ", map { s/^[ \t]*//; s/\|/\\|/g; "`$_`" } grep { !/^[ \t]*$/ } @_ }
    for my $mutation (@ARGV) {
      open my $file, "<", $mutation or die "$mutation: $!\n";
      my %lines;
      while (<$file>) { chomp; push @{$lines{$1}}, $2 if /^(name|source|test|<|>) (.*)/ }
      my ($name, $source, $test) = map { $lines{$_}[0] } qw(name source test);
      for ($source, $test) { s|^//||; s|:|/| }
      $test =~ s/ /: /;
      my $before = code(@{$lines{"<"}}) || "(a line more)";
      my $after = code(@{$lines{">"}}) || "(left out)";
      print "| $name | $source | $before | $after | $test |\n";
    }' "$@"
}

# caught LOGS NAME: the last cell.
caught() {
  local log=$1/$2_mutant_test/test.log
  sed -n 's/^caught: //p' "$log" | tail -n1 | cut -c1-100 | sed -e 's/|/\\|/g'
}

mode=$1
table=$2
shift 2
if [[ $mode == check ]]; then
  rows=$(rows "$@")
  # shellcheck disable=SC2001  # of each line
  if ! diff <(grep '^| [a-z]' "$table" | sed -e 's/ [^|]*|$//' -e 's/[[:blank:]]*$//' | sort) \
    <(sed -e 's/[[:blank:]]*$//' <<<"$rows" | sort); then
    echo "tests/simulation/MUTANTS.md is not what the mutants are: ./run bars mutants writes it anew"
    exit 1
  fi
  echo "$# mutants"
  exit 0
fi

logs=$1
shift
{
  cat <<'END'
# Mutants

For those who ask whether a test would notice: deliberate defects of Baton's own sources, and the test that
notices each. `./run bars mutants` tries them all and writes this table; one alone is
`./run test //tests/simulation:NAME_mutant_test`. tests/simulation/BUILD.bazel has the defects, and
tests/simulation/mutants.bzl says how one is made. A schedule is one random interleaving of a whole
service; their seeds count from 1, so the number of the one that was caught is how many it took. The
model of the handover has mutants of its own: tests/model/check.sh.

| Mutant | Source | As it is | As it becomes | Test that notices | How |
|---|---|---|---|---|---|
END
  for mutation in "$@"; do
    printf '%s' "$(rows "$mutation")"
    printf ' %s |\n' "$(caught "$logs" "$(sed -n 's/^name //p' "$mutation")")"
  done
} >"$table"
