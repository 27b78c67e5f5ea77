// A port is one listener's, in TCP's port space and in the device's: verbs.h, Listen. Its own
// program as a child is many listeners.
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <barrier>
#include <cstdlib>
#include <iostream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "lib/base/file_descriptor.h"
#include "lib/verbs/port_owner.h"
#include "lib/verbs/socket_address.h"
#include "tests/harness/child_process.h"
#include "tests/lib/verbs/devices.h"

namespace baton::verbs::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kThreads = 5;
constexpr int kListenersPerThread = 10;
constexpr int kProcesses = 4;
constexpr std::chrono::seconds kPatience(120);

// ---------------------------------------------------------------- the child

// Threads with a device each, all of which ask for ports when they are told to.
int ListenInThreads(const DeviceFactory& factory) {
  std::vector<std::unique_ptr<Device>> devices;
  for (int i = 0; i < kThreads; ++i) devices.push_back(factory.create().value());
  std::vector<std::vector<std::unique_ptr<Listener>>> listeners(kThreads);
  std::cout << "opened" << std::endl;
  std::string line;
  if (!std::getline(std::cin, line)) return 1;
  std::barrier start(kThreads);
  std::vector<std::jthread> threads;
  for (size_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      start.arrive_and_wait();
      for (int j = 0; j < kListenersPerThread; ++j) {
        listeners[i].push_back(devices[i]->Listen({factory.host, 0}, 1).value());
      }
    });
  }
  threads.clear();
  std::string ports;
  for (const auto& of_thread : listeners) {
    for (const auto& listener : of_thread) absl::StrAppend(&ports, " ", listener->address().port);
  }
  std::cout << "ports" << ports << std::endl;
  std::getline(std::cin, line);  // until the end of the input
  return 0;
}

int ListenInThreads(const std::string& device) {
  for (const DeviceFactory& factory : AllDevices()) {
    if (factory.name == device) return ListenInThreads(factory);
  }
  return 2;
}

// ---------------------------------------------------------------- the test

// A socket of TCP's; what is wrong with it is in `error`.
struct TcpSocket {
  enum Kind { kBound, kListening };
  TcpSocket(const Address& address, Kind kind, bool reuse = true) {
    const SocketAddress at = ToSocketAddress(address).value();
    fd.Reset(socket(at.get()->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int on = reuse ? 1 : 0;
    setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (bind(fd.get(), at.get(), at.size) != 0) error = errno;
    if (error == 0 && kind == kListening && listen(fd.get(), 8) != 0) error = errno;
  }
  uint16_t port() const { return BoundAddressOf(fd.get()).port; }

  FileDescriptor fd;
  int error = 0;
};

std::string Me() { return absl::StrCat("(pid ", getpid(), ")"); }

class Ports : public ::testing::TestWithParam<DeviceFactory> {
 protected:
  Address At(uint16_t port) const { return {GetParam().host, port}; }
  std::string Any() const {
    return GetParam().host.find(':') == std::string::npos ? "0.0.0.0" : "::";
  }
  absl::StatusOr<std::unique_ptr<Listener>> Listen(const Address& address) {
    return device->Listen(address, 8);
  }
  // Leaves a connection that has ended, and was the server's to end: TIME_WAIT at this port.
  uint16_t PortWithEndedConnection() const {
    const TcpSocket server(At(0), TcpSocket::kListening);
    const Address address = At(server.port());
    const SocketAddress at = ToSocketAddress(address).value();
    FileDescriptor client(socket(at.get()->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(connect(client.get(), at.get(), at.size), 0);
    FileDescriptor accepted(accept(server.fd.get(), nullptr, nullptr));
    EXPECT_EQ(shutdown(accepted.get(), SHUT_WR), 0);
    char byte;
    EXPECT_EQ(read(client.get(), &byte, 1), 0);  // it has heard of it
    client.Reset();
    EXPECT_EQ(read(accepted.get(), &byte, 1), 0);
    accepted.Reset();
    EXPECT_EQ(TcpSocket(address, TcpSocket::kBound, /*reuse=*/false).error, EADDRINUSE);
    return address.port;
  }

  std::unique_ptr<Device> device = GetParam().create().value();
};

TEST_P(Ports, shouldKeepTcpFromThePortOfAListener) {
  auto listener = Listen(At(0)).value();
  const uint16_t port = listener->address().port;
  for (const bool reuse : {true, false}) {
    EXPECT_EQ(TcpSocket(At(port), TcpSocket::kListening, reuse).error, EADDRINUSE) << reuse;
    EXPECT_EQ(TcpSocket({Any(), port}, TcpSocket::kListening, reuse).error, EADDRINUSE) << reuse;
  }
  listener.reset();
  EXPECT_EQ(TcpSocket(At(port), TcpSocket::kListening).error, 0);
}

TEST_P(Ports, shouldRefuseAPortThatTcpHasAndNameItsOwner) {
  auto in_the_way = std::make_unique<TcpSocket>(At(0), TcpSocket::kListening);
  const uint16_t port = in_the_way->port();
  const absl::Status refused = NamePortOwner(Listen(At(port)).status());
  EXPECT_EQ(refused.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(
      std::string(refused.message()),
      AllOf(HasSubstr(ToString(At(port))), HasSubstr("ports_test"), HasSubstr(Me()),
            HasSubstr("listens there with TCP"), HasSubstr("stop it or choose another port")));
  in_the_way.reset();
  EXPECT_TRUE(Listen(At(port)).ok());
}

// The listener's address is among those of the other, or the other way round.
TEST_P(Ports, shouldRefuseAPortThatIsTakenAtAllAddresses) {
  const TcpSocket at_all({Any(), 0}, TcpSocket::kListening);
  const absl::Status refused = NamePortOwner(Listen(At(at_all.port())).status());
  EXPECT_EQ(refused.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(
      std::string(refused.message()),
      AllOf(HasSubstr(Me()), HasSubstr(absl::StrCat("at ", ToString({Any(), at_all.port()})))));
  const TcpSocket at_one(At(0), TcpSocket::kListening);
  const absl::Status of_all = NamePortOwner(Listen({Any(), at_one.port()}).status());
  EXPECT_EQ(of_all.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(of_all.message()), HasSubstr(Me()));
}

// Linux's IPv6 listeners take IPv4's connections, too.
TEST_P(Ports, shouldRefuseAPortThatIsTakenInTheOtherFamily) {
  const TcpSocket at_all({"::", 0}, TcpSocket::kListening);
  const absl::Status refused = NamePortOwner(Listen(At(at_all.port())).status());
  EXPECT_EQ(refused.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(refused.message()), HasSubstr(Me()));
  if (Any() == "::") return;
  const TcpSocket mapped({"::ffff:" + GetParam().host, 0}, TcpSocket::kListening);
  const absl::Status of_mapped = NamePortOwner(Listen(At(mapped.port())).status());
  EXPECT_EQ(of_mapped.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(of_mapped.message()), HasSubstr(Me()));
}

TEST_P(Ports, shouldRefuseAPortThatASocketIsBoundTo) {
  for (const bool reuse : {true, false}) {
    const TcpSocket bound(At(0), TcpSocket::kBound, reuse);
    absl::StatusOr<std::unique_ptr<Listener>> listener = Listen(At(bound.port()));
    if (listener.ok()) {  // beside one that would share: it does not get to listen
      EXPECT_TRUE(reuse);
      EXPECT_NE(listen(bound.fd.get(), 8), 0);
      continue;
    }
    const absl::Status refused = NamePortOwner(listener.status());
    EXPECT_EQ(refused.code(), absl::StatusCode::kAlreadyExists);
    // Linux tells of it from 6.8 on.
    EXPECT_THAT(std::string(refused.message()),
                ::testing::AnyOf(HasSubstr(Me()), HasSubstr("does not tell whose")));
  }
}

TEST_P(Ports, shouldNameTheOwnerOfAnotherListener) {
  const auto listener = Listen(At(0)).value();
  const auto other = GetParam().create().value();
  const absl::Status refused = NamePortOwner(other->Listen(listener->address(), 8).status());
  EXPECT_EQ(refused.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("ports_test"));
  if (GetParam().name.rfind("softOfAProcess", 0) == 0) return;  // its NIC, a fork of this process
  EXPECT_THAT(std::string(refused.message()), HasSubstr(Me()));
}

TEST_P(Ports, shouldNotMindEndedConnectionsOfAnEarlierServer) {
  const uint16_t port = PortWithEndedConnection();
  auto listener = Listen(At(port));
  ASSERT_TRUE(listener.ok()) << listener.status();
  EXPECT_EQ((*listener)->address().port, port);
  // It keeps others out as ever.
  EXPECT_EQ(TcpSocket(At(port), TcpSocket::kListening).error, EADDRINUSE);
  EXPECT_EQ(GetParam().create().value()->Listen(At(port), 8).status().code(),
            absl::StatusCode::kAlreadyExists);
  listener->reset();
  EXPECT_TRUE(Listen(At(port)).ok());
}

TEST_P(Ports, shouldGiveAPortToOneOfThoseWhoAskAtOnce) {
  constexpr int kRounds = 20;
  constexpr int kAskers = 4;
  std::vector<std::unique_ptr<Device>> devices;
  for (int i = 0; i < kAskers; ++i) devices.push_back(GetParam().create().value());
  for (int round = 0; round < kRounds; ++round) {
    const bool ended = round % 2 == 0;
    const uint16_t port =
        ended ? PortWithEndedConnection() : TcpSocket(At(0), TcpSocket::kBound).port();
    std::vector<absl::StatusOr<std::unique_ptr<Listener>>> listeners(kAskers);
    std::barrier start(kAskers);
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < kAskers; ++i) {
      threads.emplace_back([&, i] {
        start.arrive_and_wait();
        listeners[i] = devices[i]->Listen(At(port), 1);
      });
    }
    threads.clear();
    int got = 0;
    for (const auto& listener : listeners) {
      got += listener.ok() ? 1 : 0;
      if (listener.ok()) continue;
      EXPECT_EQ(listener.status().code(), absl::StatusCode::kAlreadyExists) << listener.status();
    }
    // Two that go from being bound to listening at the same time may both be refused.
    EXPECT_LE(got, 1);
    if (!ended && GetParam().name == "rdma") {
      EXPECT_EQ(got, 1);
    }
    listeners.clear();
    EXPECT_TRUE(Listen(At(port)).ok());
  }
}

TEST_P(Ports, shouldNotChooseOnePortTwiceAmong200Listeners) {
  std::vector<std::unique_ptr<harness::ChildProcess>> children;
  for (int i = 0; i < kProcesses; ++i) {
    harness::ChildOptions options;
    options.program = "/proc/self/exe";
    options.arguments = {"--listen", GetParam().name};
    children.push_back(harness::ChildProcess::Start(options).value());
    ASSERT_EQ(children.back()->ReadLine(kPatience).value(), "opened");
  }
  for (const auto& child : children) ASSERT_TRUE(child->WriteLine("go").ok());
  std::set<uint16_t> ports;
  for (const auto& child : children) {
    const absl::StatusOr<std::string> line = child->ReadLine(kPatience);
    ASSERT_TRUE(line.ok()) << line.status();
    const std::vector<std::string> words = absl::StrSplit(*line, ' ');
    ASSERT_EQ(words.size(), 1u + kThreads * kListenersPerThread) << *line;
    for (size_t i = 1; i < words.size(); ++i) {
      const auto port = static_cast<uint16_t>(std::stoi(words[i]));
      EXPECT_TRUE(ports.insert(port).second) << port;
      EXPECT_EQ(TcpSocket(At(port), TcpSocket::kListening).error, EADDRINUSE) << port;
      EXPECT_EQ(Listen(At(port)).status().code(), absl::StatusCode::kAlreadyExists) << port;
    }
  }
  EXPECT_EQ(ports.size(), size_t{kProcesses * kThreads * kListenersPerThread});
}

INSTANTIATE_TEST_SUITE_P(Devices, Ports, ::testing::ValuesIn(AllDevices()), DeviceName);

}  // namespace
}  // namespace baton::verbs::testing

int main(int argc, char** argv) {
  if (argc == 3 && argv[1] == std::string("--listen")) {
    return baton::verbs::testing::ListenInThreads(argv[2]);
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
