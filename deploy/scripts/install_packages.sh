#!/usr/bin/env bash
# Installs the Debian 12 packages of the GROUPS named as arguments that are not there yet:
#   build       to build and test
#   lint        to format, lint and draw figures
#   sanitizers  to build with sanitizers, and fuzzers
#   vm          to run a virtual machine with an RDMA device
#   node        to test with a client in JavaScript
# Calls apt only when something is missing, so it works without a network once all is there.
set -euo pipefail

declare -A GROUPS_OF_PACKAGES=(
  [build]="abigail-tools bazel-bootstrap bazel-rules-java ca-certificates clang-14 cmake dpkg-dev fish g++ git gnuplot-nox
    groff-base ibverbs-providers iproute2 libabsl-dev libboost-dev libcli11-dev libgmock-dev
    libgrpc++-dev libgtest-dev libibverbs-dev libnl-3-dev libprotobuf-dev
    librdmacm-dev libspdlog-dev libssl-dev libsystemd-dev lld-14 mandoc nlohmann-json3-dev openssl pkg-config procps
    prometheus-cpp-dev protobuf-compiler protobuf-compiler-grpc python3-cffi python3-yaml spin systemd tcc zsh"
  [lint]="clang-14 clang-format clang-tidy dpic libclang-14-dev llvm-14-dev shellcheck"
  [sanitizers]="libclang-rt-14-dev"
  [node]="nodejs npm"
  [vm]="busybox-static cpio e2fsprogs fio ibverbs-providers ibverbs-utils iproute2 jq kmod nvme-cli
    perftest qemu-system-x86 rdma-core rdmacm-utils systemd udev xz-utils"
)

missing=()
for group in "$@"; do
  # shellcheck disable=SC2086  # a list of words
  for package in ${GROUPS_OF_PACKAGES[$group]}; do
    status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
    [[ $status == installed ]] || missing+=("$package")
  done
done
[[ ${#missing[@]} -gt 0 ]] || exit 0

as_root=()
if [[ $(id -u) -ne 0 ]]; then
  if ! command -v sudo >/dev/null; then
    echo "run: these packages are missing, and neither root nor sudo is there to install them:" >&2
    echo "  apt-get install ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi

echo "--- Installing ${#missing[@]} packages: ${missing[*]}" >&2
# Waits for another program that installs packages, five minutes at most.
apt() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q \
    -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 "$@" >&2
}
apt update
apt install -y --no-install-recommends "${missing[@]}"
