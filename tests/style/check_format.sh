#!/usr/bin/env bash
# The C++ is as clang-format has it; prints what it would change. ./run format changes it.
exec "$(dirname "$(readlink -f "$0")")/../../deploy/scripts/format.sh" --check
