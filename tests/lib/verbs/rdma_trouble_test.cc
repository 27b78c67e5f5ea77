// What becomes of the rdma device when the machine takes its link or itself away. Needs to be root
// on a machine whose rxe0 is this test's to break: the virtual one.
#include <gtest/gtest.h>
#include <rdma/rdma_cma.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "lib/verbs/port_owner.h"
#include "lib/verbs/socket_address.h"
#include "tests/harness/wait_until.h"
#include "tests/lib/verbs/connected_test.h"

namespace baton::verbs::testing {
namespace {

int Shell(const std::string& command) { return std::system(command.c_str()); }

DeviceFactory Rdma() {
  return {"rdma", [] { return rdma::CreateRdmaDevice({}); }, std::getenv("BATON_VM_ADDRESS")};
}

// Under rxe0.
std::string Interface() {
  static const std::string name = Rdma().create().value()->info().network_interface;
  return name;
}

class RdmaTrouble : public ::testing::Test {
 protected:
  static bool Has(const Side& side, DeviceEventType type) {
    return std::any_of(side.device_events.begin(), side.device_events.end(),
                       [type](const DeviceEvent& event) { return event.type == type; });
  }
  static bool Has(const Side& side, CmEventType type) {
    return std::any_of(side.events.begin(), side.events.end(),
                       [type](const CmEvent& event) { return event.type == type; });
  }
  // A message from one to the other arrives.
  static bool Works(Side& client, Side& server) {
    Buffer ours(client.device.get(), 4096, kAllAccess);
    Buffer theirs(server.device.get(), 4096, kAllAccess);
    return PostReceive(*server.queue_pair, 71, {theirs.Sge(0, 64)}).ok() &&
           PostSend(*client.queue_pair, Request(Opcode::kSend, 72), {ours.Sge(0, 64)}).ok() &&
           AwaitCompletion(server, client).status == CompletionStatus::kSuccess &&
           AwaitCompletion(client, server).status == CompletionStatus::kSuccess;
  }
  void SetUp() override { ASSERT_FALSE(Interface().empty()); }
  void TearDown() override {
    Shell("ip link set " + Interface() + " up");
    Shell("rdma link show rxe0/1 >/dev/null 2>&1 || rdma link add rxe0 type rxe netdev " +
          Interface());
  }
};

struct Pair {
  Pair() { Connect(client, server, {.host = Rdma().host}); }
  Side client{Rdma().create().value()};
  Side server{Rdma().create().value()};
};

TEST_F(RdmaTrouble, shouldTellOfALinkThatGoesDownAndUp) {
  Pair pair;
  EXPECT_EQ(pair.client.device->info().port_state, PortState::kActive);
  EXPECT_EQ(pair.client.device->info().network_interface, Interface());
  EXPECT_EQ(pair.client.device->info().active_mtu, 4096u);
  ASSERT_EQ(Shell("ip link set " + Interface() + " down"), 0);
  EXPECT_TRUE(Pump(pair.client, pair.server, [&] {
    return Has(pair.client, DeviceEventType::kPortDown) &&
           Has(pair.server, DeviceEventType::kPortDown);
  }));
  EXPECT_EQ(pair.client.device->info().port_state, PortState::kDown);
  ASSERT_EQ(Shell("ip link set " + Interface() + " up"), 0);
  EXPECT_TRUE(Pump(pair.client, pair.server, [&] {
    return Has(pair.client, DeviceEventType::kPortUp) && Has(pair.server, DeviceEventType::kPortUp);
  }));
  EXPECT_EQ(pair.client.device->info().port_state, PortState::kActive);
  // Nothing was sent meanwhile: the connection knows of nothing.
  EXPECT_TRUE(Works(pair.client, pair.server));
}

TEST_F(RdmaTrouble, shouldEndAConnectionThatSendsWhileTheLinkIsDown) {
  Pair pair;
  ASSERT_EQ(Shell("ip link set " + Interface() + " down"), 0);
  Buffer ours(pair.client.device.get(), 4096, kAllAccess);
  ASSERT_TRUE(PostSend(*pair.client.queue_pair, Request(Opcode::kSend, 1), {ours.Sge(0, 64)}).ok());
  const Completion completion = AwaitCompletion(pair.client, pair.server);
  EXPECT_EQ(completion.wr_id, 1u);
  EXPECT_NE(CompletionStatusName(completion.status),
            CompletionStatusName(CompletionStatus::kSuccess));
  RecordProperty("told", std::string(CompletionStatusName(completion.status)));
  EXPECT_EQ(pair.client.queue_pair->state(), QueuePairState::kError);
  // It is given up at once, and nobody is told through a port that is down: Soft-RoCE could make no
  // other connection after that.
  EXPECT_TRUE(pair.client.id->Disconnect().ok());
  CmEvent event;
  EXPECT_TRUE(AwaitEvent(pair.client, pair.server, CmEventType::kDisconnected, &event));
  pair.client.id.reset();
  ASSERT_EQ(Shell("ip link set " + Interface() + " up"), 0);
  EXPECT_TRUE(AwaitEvent(pair.server, pair.client, CmEventType::kDisconnected, &event));
  Pair again;
  EXPECT_TRUE(Works(again.client, again.server));
}

TEST_F(RdmaTrouble, shouldReportUnreachableWhileTheLinkIsDown) {
  Side client(Rdma().create().value());
  ASSERT_EQ(Shell("ip link set " + Interface() + " down"), 0);
  client.id = client.device->Connect({Rdma().host, 4711}, client.queue_pair.get(), {}).value();
  CmEvent event;
  ASSERT_TRUE(AwaitEvent(client, client, CmEventType::kUnreachable, &event));
  EXPECT_FALSE(event.status.ok());
  RecordProperty("told", std::string(event.status.message()));
}

// From here to nowhere.
TEST_F(RdmaTrouble, shouldReportAPeerWithoutARouteAsUnreachable) {
  Side client(Rdma().create().value());
  client.id = client.device->Connect({"192.0.2.1", 4711}, client.queue_pair.get(), {}).value();
  CmEvent event;
  ASSERT_TRUE(AwaitEvent(client, client, CmEventType::kUnreachable, &event));
  EXPECT_FALSE(event.status.ok());
  EXPECT_EQ(client.queue_pair->state(), QueuePairState::kInit);
}

// The kernel would ask it for more than a minute.
TEST_F(RdmaTrouble, shouldReportAPeerThatDoesNotAnswerAsUnreachable) {
  Pair pair;
  rdma::RdmaDeviceOptions options;
  options.connect_timeout_ms = 500;
  Side client(rdma::CreateRdmaDevice(options).value());
  const std::string host = Rdma().host;
  const std::string nobody = host.substr(0, host.rfind('.')) + ".77";
  client.id = client.device->Connect({nobody, 4711}, client.queue_pair.get(), {}).value();
  CmEvent event;
  ASSERT_TRUE(AwaitEvent(client, client, CmEventType::kUnreachable, &event));
  EXPECT_EQ(event.id, client.id.get());
  EXPECT_EQ(event.status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_NE(event.status.message().find(nobody + ":4711 has not answered for 500 ms"),
            absl::string_view::npos)
      << event.status;
  EXPECT_EQ(client.queue_pair->state(), QueuePairState::kInit);
  EXPECT_TRUE(Works(pair.client, pair.server));
}

TEST_F(RdmaTrouble, shouldRefuseMoreThanACompletionQueueCanHave) {
  const auto device = Rdma().create().value();
  const uint32_t most = device->limits().max_completion_queue_entries;
  EXPECT_TRUE(device->CreateCompletionQueue(most).ok());
  const absl::Status status = device->CreateCompletionQueue(most + 1).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find(std::to_string(most)), absl::string_view::npos) << status;
}

// ---- One of several addresses.

absl::StatusOr<std::unique_ptr<Device>> WithGid(uint8_t index) {
  rdma::RdmaDeviceOptions options;
  options.gid_index = index;
  return rdma::CreateRdmaDevice(options);
}

class RdmaGid : public RdmaTrouble {
 protected:
  // The index of the GID that is the machine's address.
  static uint8_t Index() {
    for (const std::string& gid : Rdma().create().value()->info().gids) {
      if (gid.find(": " + Rdma().host + " ") != std::string::npos) {
        return static_cast<uint8_t>(std::stoi(gid));
      }
    }
    ADD_FAILURE() << "no GID is " << Rdma().host;
    return 0;
  }
};

TEST_F(RdmaGid, shouldListenAtItsAddressAlone) {
  const auto device = WithGid(Index()).value();
  EXPECT_EQ(device->Listen({"0.0.0.0", 0}, 8).value()->address().host, Rdma().host);
  EXPECT_EQ(device->Listen({Rdma().host, 0}, 8).value()->address().host, Rdma().host);
  EXPECT_EQ(device->Listen({"192.0.2.1", 0}, 8).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(RdmaGid, shouldBeWhereConnectionsComeFrom) {
  Side client(WithGid(Index()).value());
  Side server(Rdma().create().value());
  Connect(client, server, {.host = Rdma().host});
  EXPECT_EQ(client.id->local_address().host, Rdma().host);
  EXPECT_TRUE(Works(client, server));
}

// The first is of the link alone.
TEST_F(RdmaGid, shouldNameThoseThatCanBeUsedWhereOneCannot) {
  for (const uint8_t index : {0, 200}) {
    const absl::Status status = WithGid(index).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
    EXPECT_NE(status.message().find(Rdma().host), absl::string_view::npos) << status;
  }
}

// ---- The machine's ports.

constexpr char kPortRange[] = "/proc/sys/net/ipv4/ip_local_port_range";

// With few ports to choose from, none of which devices have for themselves.
class RdmaPorts : public RdmaTrouble {
 protected:
  static constexpr uint16_t kFirst = 20000;
  static constexpr uint16_t kLast = 20009;

  void SetUp() override {
    device_ = Rdma().create().value();
    std::ifstream range(kPortRange);
    std::getline(range, before_);
    ASSERT_FALSE(before_.empty());
    std::ofstream(kPortRange) << kFirst << " " << kLast;
    channel_ = rdma_create_event_channel();
    ASSERT_NE(channel_, nullptr);
  }
  void TearDown() override {
    std::ofstream(kPortRange) << before_;
    for (rdma_cm_id* id : ids_) rdma_destroy_id(id);
    rdma_destroy_event_channel(channel_);
  }
  // Takes the port like a program that uses RDMA and knows nothing of TCP.
  void TakeInRdmaAlone(uint16_t port) {
    rdma_cm_id* id = nullptr;
    ASSERT_EQ(rdma_create_id(channel_, &id, nullptr, RDMA_PS_TCP), 0);
    ids_.push_back(id);
    SocketAddress at = ToSocketAddress({Rdma().host, port}).value();
    ASSERT_EQ(rdma_bind_addr(id, at.get()), 0) << port;
  }

  std::unique_ptr<Device> device_;
  std::string before_;
  rdma_event_channel* channel_ = nullptr;
  std::vector<rdma_cm_id*> ids_;
};

TEST_F(RdmaPorts, shouldChooseOneThatBothHaveFree) {
  constexpr uint16_t kFree = 20007;
  for (uint16_t port = kFirst; port <= kLast; ++port) {
    if (port != kFree) TakeInRdmaAlone(port);
  }
  const auto listener = device_->Listen({Rdma().host, 0}, 8);
  ASSERT_TRUE(listener.ok()) << listener.status();
  EXPECT_EQ((*listener)->address().port, kFree);
  const absl::Status none = device_->Listen({Rdma().host, 0}, 8).status();
  EXPECT_EQ(none.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(none.message().find("no port of"), absl::string_view::npos) << none;
}

TEST_F(RdmaPorts, shouldNameWhoHasAPortInRdmaAlone) {
  TakeInRdmaAlone(kFirst);
  const absl::Status refused = NamePortOwner(device_->Listen({Rdma().host, kFirst}, 8).status());
  EXPECT_EQ(refused.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_NE(refused.message().find("rdma_trouble_te (pid " + std::to_string(getpid()) +
                                   ") has it at " + Rdma().host + ":20000 with RDMA"),
            absl::string_view::npos)
      << refused;
}

}  // namespace
}  // namespace baton::verbs::testing
