#include "tests/fuzz/honest_client.h"

#include <sys/socket.h>

#include <utility>

#include "lib/base/check.h"

namespace baton::fuzz {
namespace {

std::unique_ptr<nic::Client> Open(nic::Nic* nic) {
  int ends[2];
  BATON_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
  BATON_CHECK(nic->Add(FileDescriptor(ends[0])).ok());
  auto client = nic::Client::Open(FileDescriptor(ends[1]), [nic] { nic->Progress(); });
  BATON_CHECK(client.ok());
  return *std::move(client);
}

}  // namespace

HonestClient::HonestClient(nic::Nic* nic)
    : client_(Open(nic)),
      shard_(client_.get(), {}),
      driver_(&shard_),
      victim_{{shard_.number(0), shard_.number(1)},
              shard_.completion_queue(),
              shard_.key(),
              shard_.AddressOf(shard_.data())},
      traffic_({&driver_[0], &driver_[1], &driver_.queue(), shard_.data(), victim_.address,
                victim_.key, [nic] { nic->Progress(); }}) {}

}  // namespace baton::fuzz
