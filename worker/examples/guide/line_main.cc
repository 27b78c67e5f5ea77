// line: talks to a service of the guide.
//   line HOST:PORT            sends each line of standard input and prints the answers
//   line HOST:PORT SECONDS    sends "1" again and again; each answer has to begin with a number
//                             that is one more than the one before
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "worker/examples/common/device_factory.h"
#include "worker/examples/guide/line_client.h"

namespace baton::guide {
namespace {

absl::Status Talk(LineClient& client) {
  for (std::string line; std::getline(std::cin, line);) {
    BATON_ASSIGN_OR_RETURN(const std::string answer, client.Ask(line));
    std::cout << answer << std::endl;
  }
  return absl::OkStatus();
}

absl::Status Count(LineClient& client, int seconds) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::seconds(seconds);
  uint64_t answers = 0;
  Clock::duration longest{};
  for (auto begun = Clock::now(); begun < end; begun = Clock::now()) {
    BATON_ASSIGN_OR_RETURN(const std::string answer, client.Ask("1"));
    longest = std::max(longest, Clock::now() - begun);
    if (std::strtoull(answer.c_str(), nullptr, 10) != ++answers) {
      return absl::DataLossError(absl::StrCat("answer ", answers, " is \"", answer, "\""));
    }
  }
  std::cout << answers << " answers, none lost and none repeated; the longest took "
            << std::chrono::duration<double, std::milli>(longest).count() << " ms" << std::endl;
  return absl::OkStatus();
}

// Tries again for five seconds while nobody listens there: the service may just be starting.
absl::StatusOr<std::unique_ptr<LineClient>> Connect(const verbs::Address& address) {
  const char* const name = std::getenv("LINE_DEVICE");
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  for (;;) {
    BATON_ASSIGN_OR_RETURN(auto device, examples::OpenDevice(name != nullptr ? name : "soft"));
    auto client = LineClient::Connect(std::move(device), address);
    if (client.ok() || std::chrono::steady_clock::now() > end) return client;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

absl::Status Run(int argc, char** argv) {
  BATON_ASSIGN_OR_RETURN(const verbs::Address address, examples::ParseAddress(argv[1]));
  BATON_ASSIGN_OR_RETURN(const auto client, Connect(address));
  return argc > 2 ? Count(*client, std::atoi(argv[2])) : Talk(*client);
}

}  // namespace
}  // namespace baton::guide

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: line HOST:PORT [SECONDS]; LINE_DEVICE: soft, rdma or rdma:NAME [soft]\n";
    return 2;
  }
  const absl::Status status = baton::guide::Run(argc, argv);
  if (!status.ok()) std::cerr << "error: " << status.message() << std::endl;
  return status.ok() ? 0 : 1;
}
