#!/usr/bin/env bash
# Each figure of the documents is what deploy/scripts/draw_figures.sh draws of its text.
set -euo pipefail
exec "$(dirname "$(readlink -f "$0")")/../../deploy/scripts/draw_figures.sh" --check
