// rping -c -a ADDRESS -p PORT [-C COUNT] [-v] [-V] [-S BYTES]: as Debian's, on the device of
// BATON_TEST_DEVICE, for scripts that have rping itself where that is an RDMA device. Every ping is
// checked (PingClient), and written as rping writes it once it has come back. Without COUNT it
// pings until it is killed.
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <limits>

#include "lib/base/status.h"
#include "tests/worker/examples/pingd/ping_client.h"

namespace baton::pingd {
namespace {

struct Flags {
  uint16_t port = 0;
  uint64_t count = std::numeric_limits<uint64_t>::max();
  uint32_t bytes = 64;
};

absl::Status Run(const Flags& flags) {
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<PingClient> client,
                         PingClient::Connect(flags.port, flags.bytes));
  while (client->pings() < flags.count) {
    const uint64_t number = client->pings();
    BATON_RETURN_IF_ERROR(client->Ping());
    std::cout << "ping data: rdma-ping-" << number << ": \n" << std::flush;
  }
  return client->Disconnect();
}

int Main(int argc, char** argv) {
  Flags flags;
  for (int option; (option = getopt(argc, argv, "ca:p:C:vVS:")) != -1;) {
    switch (option) {
      case 'a':
        setenv("BATON_TEST_HOST", optarg, 1);
        break;
      case 'p':
        flags.port = static_cast<uint16_t>(std::atoi(optarg));
        break;
      case 'C':
        flags.count = std::strtoull(optarg, nullptr, 10);
        break;
      case 'S':
        flags.bytes = static_cast<uint32_t>(std::atoi(optarg));
        break;
      case '?':
        return 2;
      default:
        break;
    }
  }
  const absl::Status status = Run(flags);
  if (status.ok()) return 0;
  std::cerr << "rping: " << status << "\n";
  return 1;
}

}  // namespace
}  // namespace baton::pingd

int main(int argc, char** argv) { return baton::pingd::Main(argc, argv); }
