// What the soft device may cost: no allocation per message, little memory per idle connection.
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <new>

#include "lib/verbs/soft/soft_device.h"
#include "tests/lib/verbs/verbs_harness.h"

namespace {
uint64_t allocations = 0;
}  // namespace

void* operator new(size_t size) {
  ++allocations;
  if (void* memory = std::malloc(size); memory != nullptr) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace baton::verbs::testing {
namespace {

using soft::CreateSoftDevice;

// One message of `opcode` from client to server, without allocating itself.
bool Exchange(Side& client, Side& server, const SendRequest& request,
              const ReceiveRequest& receive) {
  size_t posted = 0;
  bool sent = false;
  bool received = request.opcode != Opcode::kSend;
  if (!received) {
    EXPECT_TRUE(server.queue_pair->PostReceive(absl::MakeConstSpan(&receive, 1), &posted).ok());
  }
  EXPECT_TRUE(client.queue_pair->PostSend(absl::MakeConstSpan(&request, 1), &posted).ok());
  Completion completion;
  for (int i = 0; i < 1'000'000 && !(sent && received); ++i) {
    client.device->Progress();
    server.device->Progress();
    sent = sent || client.queue->Poll(absl::MakeSpan(&completion, 1)).value() == 1;
    received = received || server.queue->Poll(absl::MakeSpan(&completion, 1)).value() == 1;
  }
  return sent && received;
}

TEST(SoftCost, shouldNotAllocateForMessages) {
  Side client(CreateSoftDevice({}).value());
  Side server(CreateSoftDevice({}).value());
  Buffer ours(client.device.get(), 1 << 20, kAllAccess);
  Buffer theirs(server.device.get(), 1 << 20, kAllAccess);
  Connect(client, server);
  const ScatterGather from = ours.Sge(0, 1000);
  const ScatterGather to = theirs.Sge(0, 1000);
  SendRequest send = Request(Opcode::kSend, 1);
  send.sges = absl::MakeConstSpan(&from, 1);
  SendRequest read = RemoteRequest(Opcode::kRead, 2, theirs.address(), theirs.region->rkey());
  read.sges = send.sges;
  ReceiveRequest receive;
  receive.sges = absl::MakeConstSpan(&to, 1);
  for (int i = 0; i < 200; ++i) {  // the connection moves into memory on the way
    ASSERT_TRUE(Exchange(client, server, send, receive));
  }
  const uint64_t before = allocations;
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(Exchange(client, server, send, receive));
  EXPECT_EQ(allocations, before);
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(Exchange(client, server, read, receive));
  const uint64_t between = allocations;
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(Exchange(client, server, read, receive));
  EXPECT_EQ(allocations, between);
}

// Returns how many connections descriptors allow in one process that has both ends.
int Connections() {
  rlimit limit;
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  return static_cast<int>(std::min<rlim_t>(10'000, (limit.rlim_cur - 200) / 2));
}

struct Crowd {
  void Dial(const Address& address) {
    pairs.push_back(client.MakeQueuePair());
    ids.push_back(client.device->Connect(address, pairs.back().get(), {}).value());
  }
  void Establish(int count, const Address& address) {
    for (int dialed = established; established < count && failure.ok();) {
      for (; dialed < count && dialed < established + 256; ++dialed) Dial(address);
      Turn();
    }
  }
  void Turn() {
    client.Turn();
    server.Turn();
    for (CmEvent& event : server.events) {
      if (event.type != CmEventType::kConnectRequest) continue;
      pairs.push_back(server.MakeQueuePair());
      EXPECT_TRUE(event.new_id->Accept(pairs.back().get(), {}).ok());
      ids.push_back(std::move(event.new_id));
    }
    server.events.clear();
    for (const CmEvent& event : client.events) {
      if (event.type == CmEventType::kEstablished) ++established;
      if (event.type != CmEventType::kEstablished) failure = event.status;
    }
    client.events.clear();
  }

  Side client{CreateSoftDevice({}).value()};
  Side server{CreateSoftDevice({}).value()};
  std::vector<std::unique_ptr<QueuePair>> pairs;
  std::vector<std::unique_ptr<ConnectionId>> ids;
  int established = 0;
  absl::Status failure;
};

TEST(SoftCost, shouldHoldThousandsOfIdleConnectionsInLittleMemory) {
  const int count = Connections();
  Crowd crowd;
  const auto listener = crowd.server.device->Listen({"127.0.0.1", 0}, 1024).value();
  const size_t before = mallinfo2().uordblks;
  crowd.Establish(count, listener->address());
  EXPECT_TRUE(crowd.failure.ok()) << crowd.failure;
  EXPECT_EQ(crowd.established, count);
#ifndef BATON_SANITIZED
  const size_t each = (mallinfo2().uordblks - before) / (2 * static_cast<size_t>(count));
  EXPECT_LT(each, 3072u);  // bytes per end, queue pair included and its memory for queues not
#else
  static_cast<void>(before);
#endif
  for (auto& id : crowd.ids) id.reset();
}

int OpenDescriptors() {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

// By how much a second thousand of connections, both ends counted, has more than the first. It
// depends on no load, so memory keeps to what is recorded within a fiftieth.
TEST(SoftCost, shouldTakeWhatIsRecordedForAConnection) {
  constexpr int kEach = 1000;
  ASSERT_GE(Connections(), 2 * kEach) << "RLIMIT_NOFILE is too low";
  Crowd crowd;
  crowd.pairs.reserve(size_t{4} * kEach);
  crowd.ids.reserve(size_t{4} * kEach);
  const auto listener = crowd.server.device->Listen({"127.0.0.1", 0}, 1024).value();
  crowd.Establish(kEach, listener->address());
  const int descriptors = OpenDescriptors();
  const size_t before = mallinfo2().uordblks;
  crowd.Establish(2 * kEach, listener->address());
  ASSERT_EQ(crowd.established, 2 * kEach) << crowd.failure;
  EXPECT_EQ(OpenDescriptors() - descriptors, 2 * kEach);  // a socket for each end
#ifndef BATON_SANITIZED
  constexpr double kRecordedBytes = 2874;  // of one end, its queue pair included
  const double each = static_cast<double>(mallinfo2().uordblks - before) / (2 * kEach);
  EXPECT_LE(each, kRecordedBytes * 1.02);
  EXPECT_GE(each, kRecordedBytes / 1.02) << "less than recorded, so record it";
#else
  static_cast<void>(before);
#endif
  for (auto& id : crowd.ids) id.reset();
}

}  // namespace
}  // namespace baton::verbs::testing
