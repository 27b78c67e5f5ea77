// Connect: how controllers come to be, and every refusal with the field that it names.
#include <cstddef>
#include <cstring>
#include <string>

#include "gtest/gtest.h"
#include "tests/worker/examples/nvmed/hex.h"
#include "tests/worker/examples/nvmed/target_fixture.h"

namespace baton::nvmed {
namespace {

class ConnectTest : public TargetFixture {
 protected:
  void ExpectRefusal(const ConnectRequest& request, StatusCode status, uint64_t result = 0) {
    const std::vector<uint8_t> before = Saved();
    const Answer answer = Connect(request);
    EXPECT_EQ(answer.status, status) << std::hex << static_cast<int>(answer.status);
    EXPECT_EQ(answer.result, result);
    EXPECT_EQ(connected_, nullptr);
    EXPECT_EQ(Saved(), before) << "nothing is changed by it";
  }
  // The result is the offset of the wrong field, and bit 16 is set if that is in the data.
  void ExpectInvalid(const ConnectRequest& request, uint64_t result) {
    ExpectRefusal(request, StatusCode::kConnectInvalidParameters, result);
  }
  std::vector<uint8_t> Saved() {
    const auto saved = registry_.Save();
    return {saved.begin(), saved.end()};
  }
  // A controller whose host was told that it may have so many I/O queues.
  ControllerState& AddWithQueues(uint32_t queues) {
    ControllerState& state = Add();
    state.granted_queues = queues;
    return state;
  }

  static constexpr uint64_t kInData = 1 << 16;
};

// ---------------------------------------------------------------- admin queues

TEST_F(ConnectTest, shouldMakeAControllerForAnAdminQueue) {
  ConnectRequest request = Request(0);
  const Answer answer = Connect(request);
  EXPECT_EQ(answer.status, StatusCode::kSuccess);
  EXPECT_EQ(answer.result, 1u);
  ASSERT_NE(connected_, nullptr);
  EXPECT_EQ(connected_, registry_.Find(1));
  EXPECT_TRUE(registry_.touched());
  EXPECT_EQ(connected_->id, 1);
  EXPECT_EQ(connected_->discovery, 0);
  EXPECT_EQ(connected_->keep_alive_ms, 5000u);
  EXPECT_EQ(connected_->admin_connection, 17u);
  EXPECT_EQ(connected_->admin_generation, 18u);
  EXPECT_STREQ(connected_->subsystem_nqn, kOne);
  EXPECT_STREQ(connected_->host_nqn, kHost);
  EXPECT_EQ(std::memcmp(connected_->host_id, request.data.hostid, 16), 0);
  EXPECT_EQ(connected_->configuration, 0u);
  EXPECT_EQ(connected_->granted_queues, 0u);
  // The same host again has another one.
  EXPECT_EQ(Connect(request).result, 2u);
}

TEST_F(ConnectTest, shouldMakeDiscoveryControllersForEveryHost) {
  ConnectRequest request = Request(0, kDynamicController, kDiscoveryNqn, kOtherHost);
  request.command.kato = 0;
  EXPECT_EQ(Connect(request).status, StatusCode::kSuccess);
  EXPECT_EQ(connected_->discovery, 1);
  EXPECT_EQ(connected_->keep_alive_ms, 120'000u) << "it asked for none, and may be gone";
}

TEST_F(ConnectTest, shouldAdmitHostsThatAreNamed) {
  EXPECT_EQ(Connect(Request(0, kDynamicController, kTwo, kHost)).status, StatusCode::kSuccess);
  ExpectRefusal(Request(0, kDynamicController, kTwo, kOtherHost), StatusCode::kConnectInvalidHost);
  EXPECT_EQ(Connect(Request(0, kDynamicController, kOne, kOtherHost)).status, StatusCode::kSuccess);
}

TEST_F(ConnectTest, shouldRefuseOtherFormats) {
  ConnectRequest request = Request(0);
  request.command.recfmt = 1;
  ExpectRefusal(request, StatusCode::kConnectIncompatibleFormat);
}

TEST_F(ConnectTest, shouldRefuseQueuesOtherThanTheConnections) {
  ConnectRequest request = Request(0);
  request.queue_id = 1;
  ExpectInvalid(request, 42);
  request = Request(3);
  request.queue_id = 0;
  ExpectInvalid(request, 42);
  request = Request(9);  // io_queues is 8
  ExpectInvalid(request, 42);
  request = Request(0xffff);
  ExpectInvalid(request, 42);
}

TEST_F(ConnectTest, shouldRefuseSizesThatTheConnectionHasNot) {
  ConnectRequest request = Request(0);
  for (const uint16_t size : {uint16_t{0}, uint16_t{32}, uint16_t{0xffff}}) {
    request.command.sqsize = size;
    ExpectInvalid(request, 44);
  }
  for (const uint16_t size : {uint16_t{1}, uint16_t{31}}) {
    request.command.sqsize = size;
    EXPECT_EQ(Connect(request).status, StatusCode::kSuccess);
  }
}

TEST_F(ConnectTest, shouldRefuseNamesWithoutEnd) {
  ConnectRequest request = Request(0);
  std::memset(request.data.subnqn, 'x', sizeof(request.data.subnqn));
  ExpectInvalid(request, kInData | 256);
  request.data.subnqn[224] = '\0';  // of 224 characters
  ExpectInvalid(request, kInData | 256);
  request = Request(0);
  std::memset(request.data.hostnqn, 'x', sizeof(request.data.hostnqn));
  ExpectInvalid(request, kInData | 512);
  request.data.hostnqn[224] = '\0';
  ExpectInvalid(request, kInData | 512);
  request.data.hostnqn[223] = '\0';
  ASSERT_EQ(Connect(request).status, StatusCode::kSuccess);
  EXPECT_EQ(std::string(connected_->host_nqn), std::string(223, 'x'));
  request.data.hostnqn[0] = '\0';
  ExpectInvalid(request, kInData | 512);
}

TEST_F(ConnectTest, shouldRefuseSubsystemsThatAreNotThere) {
  ExpectInvalid(Request(0, kDynamicController, "nqn.2014-08.org.example:three"), kInData | 256);
  ExpectInvalid(Request(0, kDynamicController, ""), kInData | 256);
  ExpectInvalid(Request(0, kDynamicController, std::string(kOne) + "x"), kInData | 256);
  ExpectInvalid(Request(0, kDynamicController, "nqn.2014-08.org.example:on"), kInData | 256);
}

TEST_F(ConnectTest, shouldMakeOnlyControllersThatTheHostLeavesOpen) {
  for (const uint16_t id : {uint16_t{0}, uint16_t{1}, uint16_t{0xfffe}}) {
    ExpectInvalid(Request(0, id), kInData | 16);
  }
}

TEST_F(ConnectTest, shouldBeBusyWhileAllPlacesAreTaken) {
  for (uint32_t i = 0; i < kPlaces; ++i) Add();
  registry_.Saved();
  ExpectRefusal(Request(0), StatusCode::kConnectControllerBusy);
  EXPECT_FALSE(registry_.touched());
  *registry_.Find(2) = ControllerState();
  EXPECT_EQ(Connect(Request(0)).result, kPlaces + 1);
}

// ---------------------------------------------------------------- I/O queues

TEST_F(ConnectTest, shouldAddQueuesToAController) {
  ControllerState& state = AddWithQueues(8);
  registry_.Saved();
  for (const uint16_t queue : {8, 1}) {
    const Answer answer = Connect(Request(queue, state.id));
    EXPECT_EQ(answer.status, StatusCode::kSuccess);
    EXPECT_EQ(answer.result, state.id);
    EXPECT_EQ(connected_, &state);
  }
  EXPECT_EQ(state.queues, 0x81u);
  EXPECT_TRUE(registry_.touched());
}

TEST_F(ConnectTest, shouldAddTheLastQueueThatCanBe) {
  options_.io_queues = kMaxIoQueues;
  ControllerState& state = AddWithQueues(kMaxIoQueues);
  EXPECT_EQ(Connect(Request(64, state.id)).status, StatusCode::kSuccess);
  EXPECT_EQ(state.queues, uint64_t{1} << 63);
  ExpectInvalid(Request(65, state.id), 42);
}

TEST_F(ConnectTest, shouldRefuseQueuesOfControllersThatAreNotThere) {
  ControllerState& state = AddWithQueues(8);
  for (const uint16_t id : {uint16_t{0}, uint16_t{2}, uint16_t{0xffef}, kDynamicController}) {
    ExpectInvalid(Request(1, id), kInData | 16);
  }
  state.ending = 1;
  ExpectInvalid(Request(1, state.id), kInData | 16);
}

TEST_F(ConnectTest, shouldRefuseQueuesOfOthersControllers) {
  ControllerState& state = AddWithQueues(8);
  ExpectInvalid(Request(1, state.id, kTwo), kInData | 256);
  ExpectInvalid(Request(1, state.id, kDiscoveryNqn), kInData | 256);
  ExpectInvalid(Request(1, state.id, kOne, kOtherHost), kInData | 512);
  ConnectRequest request = Request(1, state.id);
  request.data.hostid[15] ^= 1;
  ExpectInvalid(request, kInData | 0);
}

TEST_F(ConnectTest, shouldRefuseQueuesThatWereNotGranted) {
  ControllerState& state = AddWithQueues(2);
  ExpectInvalid(Request(3, state.id), 42);
  EXPECT_EQ(Connect(Request(2, state.id)).status, StatusCode::kSuccess);
  state.granted_queues = 0;  // the host has not asked yet
  ExpectInvalid(Request(1, state.id), 42);
}

TEST_F(ConnectTest, shouldRefuseAQueueThatIsThere) {
  ControllerState& state = AddWithQueues(8);
  ASSERT_EQ(Connect(Request(2, state.id)).status, StatusCode::kSuccess);
  ExpectRefusal(Request(2, state.id), StatusCode::kCommandSequenceError);
  state.queues = 0;
  EXPECT_EQ(Connect(Request(2, state.id)).status, StatusCode::kSuccess);
}

TEST_F(ConnectTest, shouldRefuseQueuesOfControllersThatAreNotEnabled) {
  ControllerState& state = Add(kOne, kHost, false);
  state.granted_queues = 8;
  ExpectRefusal(Request(1, state.id), StatusCode::kCommandSequenceError);
  Set(state, kEnable);
  EXPECT_EQ(Connect(Request(1, state.id)).status, StatusCode::kSuccess);
  state.queues = 0;
  Set(state, 0);
  ExpectRefusal(Request(1, state.id), StatusCode::kCommandSequenceError);
}

TEST_F(ConnectTest, shouldRefuseIoQueuesOfDiscoveryControllers) {
  ControllerState& state = Add(kDiscoveryNqn);
  ExpectInvalid(Request(1, state.id, kDiscoveryNqn), 42);
}

}  // namespace
}  // namespace baton::nvmed
