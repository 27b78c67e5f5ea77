// Control of a NIC: what it refuses, and how long objects live.
#include "lib/nic/nic.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/base/check.h"
#include "lib/nic/limits.h"
#include "tests/harness/lingering_socket.h"
#include "tests/lib/nic/harness.h"

namespace baton::nic {
namespace {

using ::testing::HasSubstr;
using verbs::QueuePairState;

class NicTest : public ::testing::Test {
 protected:
  // A call socket, to send anything on. The file that it is of is `file_`.
  FileDescriptor CallSocket() {
    file_ = nic_.Connect();
    control::OpenObjects open;
    open.header = {static_cast<uint16_t>(control::Op::kOpenObjects), sizeof(open), 1};
    BATON_CHECK(SendMessage(file_.get(), open));
    ControlMessage message;
    BATON_CHECK(Await(file_.get(), &message) == Received::kMessage);
    FileDescriptor calls = AddSocketTo(file_.get());
    BATON_CHECK(calls);
    return calls;
  }
  // Nothing, where the NIC refuses it.
  FileDescriptor AddSocketTo(int file) {
    int ends[2];
    BATON_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
    const FileDescriptor ours(ends[0]);
    const FileDescriptor theirs(ends[1]);
    control::AddSocket request;
    request.header = {static_cast<uint16_t>(control::Op::kAddSocket), sizeof(request), 2};
    BATON_CHECK(SendMessage(file, request, theirs.get()));
    ControlMessage message;
    BATON_CHECK(Await(ours.get(), &message) == Received::kMessage);
    return std::move(message.passed);
  }
  // Sends a message with all of `passed`.
  template <typename Message>
  static bool SendWithAll(int socket, Message message, const std::vector<int>& passed) {
    iovec data = {&message, sizeof(message)};
    alignas(cmsghdr) char ancillary[CMSG_SPACE(sizeof(int) * 253)] = {};
    msghdr header = {};
    header.msg_iov = &data;
    header.msg_iovlen = 1;
    header.msg_control = ancillary;
    header.msg_controllen = CMSG_SPACE(sizeof(int) * passed.size());
    cmsghdr* const item = CMSG_FIRSTHDR(&header);
    item->cmsg_level = SOL_SOCKET;
    item->cmsg_type = SCM_RIGHTS;
    item->cmsg_len = CMSG_LEN(sizeof(int) * passed.size());
    std::memcpy(CMSG_DATA(item), passed.data(), sizeof(int) * passed.size());
    return sendmsg(socket, &header, 0) == static_cast<ssize_t>(sizeof(message));
  }
  Received Await(int socket, ControlMessage* message) {
    Received received = Received::kNothing;
    nic_.TurnUntil([&] { return (received = Receive(socket, message)) != Received::kNothing; });
    return received;
  }
  bool Settled() {
    return nic_.TurnUntil([this] { return !nic_.nic().Progress(); });
  }

  EmbeddedNic nic_;
  FileDescriptor file_;
};

TEST_F(NicTest, shouldRefuseMalformedMessagesOfEveryLength) {
  std::mt19937_64 random(20261123);
  for (size_t length = 0; length <= control::kMaxControlBytes + 8; ++length) {
    const FileDescriptor calls = CallSocket();
    std::vector<uint8_t> bytes(length);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
    const bool whole =
        length >= sizeof(control::RequestHeader) && length <= control::kMaxControlBytes;
    if (whole) {  // its header can be believed
      const control::RequestHeader header = {static_cast<uint16_t>(1 + random() % 12),
                                             static_cast<uint16_t>(length), 7};
      std::memcpy(bytes.data(), &header, sizeof(header));
    }
    ASSERT_EQ(send(calls.get(), bytes.data(), length, 0), static_cast<ssize_t>(length));
    ControlMessage message;
    const Received received = Await(calls.get(), &message);
    if (!whole) {
      ASSERT_EQ(received, Received::kEnded) << length;
    } else {
      ASSERT_EQ(received, Received::kMessage) << length;
      control::Reply reply;
      ASSERT_EQ(message.size, sizeof(reply));
      std::memcpy(&reply, message.bytes.data(), sizeof(reply));
      ASSERT_EQ(reply.tag, 7u);
      // CHANNEL has no body, so what is refused there is nothing.
      const bool fine = bytes[0] == static_cast<uint8_t>(control::Op::kChannel) && length == 8;
      ASSERT_EQ(reply.error != 0, !fine) << length;
    }
    ASSERT_EQ(nic_.nic().contexts(), 1u);
    file_.Reset();
    ASSERT_TRUE(Settled());
    ASSERT_EQ(nic_.nic().contexts(), 0u);
  }
  nic_.TakeComplaints();
}

// Whole messages with anything in them, and what is there stays usable.
TEST_F(NicTest, shouldBearAnyMessage) {
  const std::unique_ptr<Client> client = nic_.Open();
  Shard shard(client.get(), {});
  Driver driver(&shard);
  const FileDescriptor calls = CallSocket();
  const SharedFile file(1 << 16);
  control::File with_file;
  with_file.header = {static_cast<uint16_t>(control::Op::kFile), sizeof(with_file), 1};
  ASSERT_TRUE(SendMessage(calls.get(), with_file, file.fd()));
  ControlMessage message;
  ASSERT_EQ(Await(calls.get(), &message), Received::kMessage);
  constexpr size_t kSizes[] = {8, 16, 24, 32, 48, 56, 88};
  std::mt19937_64 random(20261124);
  for (int round = 0; round < 20'000; ++round) {
    std::vector<uint32_t> words(kSizes[random() % std::size(kSizes)] / 4);
    for (uint32_t& word : words) {
      word = static_cast<uint32_t>(random() % 3 == 0 ? random() : random() % 4);
      if (random() % 4 == 0) word = 1u << random() % 32;
    }
    const control::RequestHeader header = {static_cast<uint16_t>(3 + random() % 9),
                                           static_cast<uint16_t>(words.size() * 4), 7};
    std::memcpy(words.data(), &header, sizeof(header));
    ASSERT_GT(send(calls.get(), words.data(), words.size() * 4, 0), 0);
    ASSERT_EQ(Await(calls.get(), &message), Received::kMessage) << round;
  }
  const verbs::ScatterGather sge = shard.SgeOf(&shard.word(0), 8);
  verbs::SendRequest add =
      RequestOf(verbs::Opcode::kFetchAndAdd, 1, sge, shard.AddressOf(&shard.word(1)), shard.key());
  add.compare_add = 3;
  driver.Send(0, add);
  EXPECT_TRUE(nic_.TurnUntil([&] { return shard.word(1) == 3; }));
}

TEST_F(NicTest, shouldEndWhoSaysNothingKnownFirst) {
  for (const uint32_t version : {0u, control::kControlVersion + 1}) {
    const FileDescriptor socket = nic_.Connect();
    control::OpenObjects open;
    open.header = {static_cast<uint16_t>(control::Op::kOpenObjects), sizeof(open), 1};
    open.version = version;
    ASSERT_TRUE(SendMessage(socket.get(), open));
    ControlMessage message;
    ASSERT_EQ(Await(socket.get(), &message), Received::kMessage);
    EXPECT_THAT(reinterpret_cast<const char*>(message.bytes.data()) + 16, HasSubstr("version"));
    EXPECT_EQ(Await(socket.get(), &message), Received::kEnded);
  }
  const FileDescriptor socket = nic_.Connect();
  control::Query query;
  query.header = {static_cast<uint16_t>(control::Op::kQuery), sizeof(query), 1};
  ASSERT_TRUE(SendMessage(socket.get(), query));
  ControlMessage message;
  EXPECT_EQ(Await(socket.get(), &message), Received::kEnded);
  EXPECT_EQ(nic_.nic().contexts(), 0u);
}

TEST_F(NicTest, shouldTakeOnlySealedFilesAndEachOnce) {
  const std::unique_ptr<Client> client = nic_.Open();
  const SharedFile file(8192);
  const absl::StatusOr<uint32_t> first = client->AddFile(file.fd());
  ASSERT_TRUE(first.ok()) << first.status();
  const FileDescriptor again(dup(file.fd()));
  EXPECT_EQ(client->AddFile(again.get()).value_or(0), *first);
  const SharedFile unsealed(8192, F_SEAL_GROW);
  const absl::Status refused = client->AddFile(unsealed.fd()).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("F_SEAL_SHRINK"));
  EXPECT_TRUE(absl::IsInvalidArgument(client->AddFile(-1).status()));
}

TEST_F(NicTest, shouldRefusePlacesOutsideOfTheFile) {
  const std::unique_ptr<Client> client = nic_.Open();
  const SharedFile file(1 << 16);
  const uint32_t number = client->AddFile(file.fd()).value_or(0);
  const auto place = [number](uint64_t offset) { return control::Place{number, 0, offset}; };
  const auto refused = [](const absl::Status& status) {
    EXPECT_TRUE(absl::IsInvalidArgument(status) || absl::IsNotFound(status)) << status;
  };
  refused(client->AddRegion(place(0), (1 << 16) + 1, 0x1000, 1).status());
  refused(client->AddRegion(place(1), 1 << 16, 0x1000, 1).status());
  refused(client->AddRegion(place(0), 0, 0x1000, 1).status());
  refused(client->AddRegion(place(0), 64, ~uint64_t{0} - 8, 1).status());
  refused(client->AddRegion(place(0), 64, 0x1000, 16).status());
  refused(client->AddRegion(place(0), 64, 0x1000, verbs::kRemoteWrite).status());
  refused(client->AddRegion({number + 1, 0, 0}, 64, 0x1000, 1).status());
  refused(client->AddRegister(place(64)).status());
  refused(client->AddRegister(place(1 << 16)).status());
  const uint32_t reg = client->AddRegister(place(0))->number;
  refused(client->AddCompletionQueue(place(4096), {1024}, reg, 0).status());
  refused(client->AddCompletionQueue(place(4096), {3}, reg, 0).status());
  refused(client->AddCompletionQueue(place(4096), {0}, reg, 0).status());
  refused(client->AddCompletionQueue(place(4104), {4}, reg, 0).status());
  refused(client->AddCompletionQueue(place(4096), {4}, reg + 1, 0).status());
  refused(client->AddCompletionQueue(place(4096), {4}, reg, 99).status());
  const uint32_t queue = client->AddCompletionQueue(place(4096), {4}, reg, 0).value_or(0);
  const auto make = [&](uint64_t at, const verbs::mlx5::QueuePairLayout& layout, uint32_t with) {
    return client
        ->AddQueuePair(place(at), layout, {.reg = reg, .send_queue = with, .receive_queue = queue})
        .status();
  };
  refused(make(8192, {1024, 16, 16}, queue));
  refused(make(8192, {16, 15, 16}, queue));
  refused(make(8192, {16, 16, 8}, queue));
  refused(make(8192, {16, 16, 2048}, queue));
  refused(make(8192, {65536, 16, 16}, queue));
  refused(make(8192 + 32, {16, 16, 16}, queue));
  refused(make(8192, {16, 16, 16}, queue + 1));
  EXPECT_TRUE(make(8192, {16, 16, 16}, queue).ok());
}

TEST_F(NicTest, shouldKeepObjectsOfFilesApart) {
  const std::unique_ptr<Client> one = nic_.Open();
  const std::unique_ptr<Client> other = nic_.Open();
  Shard shard(one.get(), {});
  EXPECT_TRUE(absl::IsNotFound(other->Query(shard.number(0)).status()));
  EXPECT_TRUE(absl::IsNotFound(other->Modify(shard.number(0), QueuePairState::kError)));
  EXPECT_TRUE(absl::IsNotFound(other->Destroy(control::Kind::kQueuePair, shard.number(0))));
  EXPECT_TRUE(absl::IsNotFound(other->Destroy(control::Kind::kRegion, shard.key())));
  EXPECT_TRUE(
      absl::IsNotFound(other->Destroy(control::Kind::kCompletionQueue, shard.completion_queue())));
  EXPECT_EQ(one->Query(shard.number(0)).value_or(QueuePairState::kReset),
            QueuePairState::kReadyToSend);
}

TEST_F(NicTest, shouldShareReceivesWithinAFileAlone) {
  const std::unique_ptr<Client> one = nic_.Open();
  const std::unique_ptr<Client> other = nic_.Open();
  const SharedFile file(1 << 16);
  // A register, a completion queue, a shared receive queue and a queue pair, of each client.
  const auto place = [&](const std::unique_ptr<Client>& client, uint64_t offset) {
    return control::Place{client->AddFile(file.fd()).value_or(0), 0, offset};
  };
  const auto share = [&](const std::unique_ptr<Client>& client, uint32_t slots, uint32_t bytes) {
    control::SharedReceiveQueue message;
    message.slots = place(client, 16384);
    message.record = place(client, 12288);
    message.slot_count = slots;
    message.slot_bytes = bytes;
    return client->Add(message);
  };
  const auto make = [&](const std::unique_ptr<Client>& client, uint32_t receives, uint32_t shared) {
    const uint32_t reg = client->AddRegister(place(client, 0))->number;
    const uint32_t queue = client->AddCompletionQueue(place(client, 4096), {4}, reg, 0).value_or(0);
    return client->AddQueuePair(
        place(client, 8192), {4, receives, 16},
        {.reg = reg, .send_queue = queue, .receive_queue = queue, .shared_receive_queue = shared});
  };
  for (const uint32_t wrong : {0u, 1u, 3u, 65'536u}) {
    EXPECT_TRUE(absl::IsInvalidArgument(share(one, wrong, 32).status())) << wrong;
  }
  for (const uint32_t wrong : {16u, 48u, 1024u}) {
    EXPECT_TRUE(absl::IsInvalidArgument(share(one, 8, wrong).status())) << wrong;
  }
  EXPECT_FALSE(share(one, 2048, 32).ok());  // not in the file
  const uint32_t shared = share(one, 8, 32).value_or(0);
  EXPECT_TRUE(absl::IsNotFound(make(other, 0, shared).status()));
  EXPECT_TRUE(absl::IsNotFound(other->ArmLimit(shared, 3)));
  EXPECT_TRUE(absl::IsNotFound(other->Destroy(control::Kind::kSharedReceiveQueue, shared)));
  EXPECT_TRUE(absl::IsInvalidArgument(make(one, 4, shared).status()));
  const uint32_t queue_pair = make(one, 0, shared).value_or(0);
  EXPECT_TRUE(one->ArmLimit(shared, 3).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(one->Destroy(control::Kind::kSharedReceiveQueue, shared)));
  EXPECT_TRUE(one->Destroy(control::Kind::kQueuePair, queue_pair).ok());
  EXPECT_TRUE(one->Destroy(control::Kind::kSharedReceiveQueue, shared).ok());
}

// The record of receives that a queue pair with shared ones does not have.
TEST_F(NicTest, shouldRestWhateverAClientSaysOfReceivesThatItShares) {
  const std::unique_ptr<Client> client = nic_.Open();
  const SharedFile file(1 << 16);
  const uint32_t number = client->AddFile(file.fd()).value_or(0);
  const auto place = [&](uint64_t offset) { return control::Place{number, 0, offset}; };
  control::SharedReceiveQueue message;
  message.slots = place(16384);
  message.record = place(12288);
  message.slot_count = 8;
  message.slot_bytes = 32;
  const uint32_t shared = client->Add(message).value_or(0);
  const uint32_t reg = client->AddRegister(place(0))->number;
  const uint32_t queue = client->AddCompletionQueue(place(4096), {4}, reg, 0).value_or(0);
  const absl::StatusOr<uint32_t> queue_pair = client->AddQueuePair(
      place(8192), {4, 0, 16},
      {.reg = reg, .send_queue = queue, .receive_queue = queue, .shared_receive_queue = shared});
  ASSERT_TRUE(queue_pair.ok()) << queue_pair.status();
  auto* const records = reinterpret_cast<__be32*>(file.begin() + 8192);
  verbs::mlx5::StoreRecord(&records[MLX5_RCV_DBR], 1);
  ASSERT_TRUE(client->Modify(*queue_pair, QueuePairState::kError).ok());
  int turns = 0;
  while (nic_.nic().Progress()) ASSERT_LT(++turns, 1000);
}

TEST_F(NicTest, shouldChangeStatesAsVerbsDo) {
  const std::unique_ptr<Client> client = nic_.Open();
  Shard shard(client.get(), {});
  const uint32_t number = shard.number(0);
  EXPECT_FALSE(client->Modify(number, QueuePairState::kInit).ok());
  EXPECT_FALSE(ConnectQueuePair(client.get(), number, shard.number(1)).ok());
  EXPECT_FALSE(client->Modify(number, QueuePairState::kReadyToReceive).ok());
  EXPECT_FALSE(client->Modify(number, static_cast<QueuePairState>(9)).ok());
  EXPECT_TRUE(client->Modify(number, QueuePairState::kReset).ok());
  EXPECT_FALSE(client->Modify(number, QueuePairState::kError).ok());
  EXPECT_TRUE(client->Modify(number, QueuePairState::kInit).ok());
  EXPECT_FALSE(ConnectQueuePair(client.get(), number, 0).ok());
  EXPECT_FALSE(ConnectQueuePair(client.get(), number, 1, 8).ok());
  EXPECT_TRUE(ConnectQueuePair(client.get(), number, shard.number(1)).ok());
}

// This is how programs have a NIC: their queue pairs have connections.
TEST(NicWithoutLoopbackTest, shouldNotConnectQueuePairsByModify) {
  EmbeddedNic nic(verbs::soft::SoftDeviceOptions{});
  const std::unique_ptr<Client> client = nic.Open();
  const SharedFile file(16384);
  const uint32_t file_number = client->AddFile(file.fd()).value_or(0);
  const auto place = [&](uint64_t offset) { return control::Place{file_number, 0, offset}; };
  const uint32_t reg = client->AddRegister(place(0))->number;
  const uint32_t queue = client->AddCompletionQueue(place(4096), {4}, reg, 0).value_or(0);
  const uint32_t number =
      client
          ->AddQueuePair(place(8192), {4, 4, 16},
                         {.reg = reg, .send_queue = queue, .receive_queue = queue})
          .value_or(0);
  EXPECT_TRUE(absl::IsInvalidArgument(ConnectQueuePair(client.get(), number, number)));
  EXPECT_EQ(client->Query(number).value_or(QueuePairState::kError), QueuePairState::kInit);
}

TEST_F(NicTest, shouldDestroyNothingThatIsUsed) {
  const std::unique_ptr<Client> client = nic_.Open();
  Shard shard(client.get(), {});
  const auto destroy = [&](control::Kind kind, uint32_t number) {
    return client->Destroy(kind, number);
  };
  using control::Kind;
  EXPECT_TRUE(
      absl::IsFailedPrecondition(destroy(Kind::kCompletionQueue, shard.completion_queue())));
  EXPECT_TRUE(absl::IsFailedPrecondition(destroy(Kind::kRegister, shard.reg())));
  EXPECT_TRUE(destroy(Kind::kFile, shard.file()).ok());  // its memory stays with its objects
  for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(destroy(Kind::kQueuePair, shard.number(i)).ok());
  EXPECT_TRUE(destroy(Kind::kCompletionQueue, shard.completion_queue()).ok());
  EXPECT_TRUE(destroy(Kind::kRegister, shard.reg()).ok());
  EXPECT_TRUE(destroy(Kind::kRegion, shard.key()).ok());
  EXPECT_TRUE(absl::IsNotFound(destroy(Kind::kRegion, shard.key())));
}

// A register beside that of a client's shard, which rings what a correct driver would not.
class WrongBell {
 public:
  explicit WrongBell(Client* client) : made_(Make(client, page_.fd())) {}

  void Ring(uint32_t qp_number) { bell_.Ring(BytesOf(0, qp_number << 8)); }
  void Arm(uint32_t cq_number) { bell_.Arm(BytesOf(1 << 28, cq_number)); }
  uint32_t number() const { return made_.number; }

 private:
  static Client::Made Make(Client* client, int page) {
    return *client->AddRegister({client->AddFile(page).value_or(0), 0, 0});
  }
  static uint64_t BytesOf(uint32_t first, uint32_t second) {
    const __be32 words[] = {htobe32(first), htobe32(second)};
    uint64_t bytes;
    std::memcpy(&bytes, words, sizeof(bytes));
    return bytes;
  }

  const SharedFile page_{4096};
  const Client::Made made_;
  verbs::mlx5::FifoDoorbell bell_{reinterpret_cast<verbs::mlx5::DoorbellPage*>(page_.begin()),
                                  made_.descriptor.get()};
};

TEST_F(NicTest, shouldNameWhoRingsAnothersRegister) {
  const std::unique_ptr<Client> client = nic_.Open();
  const Shard shard(client.get(), {});
  WrongBell bell(client.get());
  bell.Ring(shard.number(0));
  ASSERT_TRUE(Settled());
  EXPECT_EQ(client->Query(shard.number(0)).value_or(QueuePairState::kReset),
            QueuePairState::kError);
  const std::vector<std::string> complaints = nic_.TakeComplaints();
  ASSERT_EQ(complaints.size(), 1u);
  EXPECT_THAT(complaints[0], HasSubstr("of another one"));
  EXPECT_THAT(complaints[0], HasSubstr(absl::StrCat("of process ", getpid(), ": ")));
}

TEST_F(NicTest, shouldFailACompletionQueueThatAnotherRegisterArms) {
  const std::unique_ptr<Client> client = nic_.Open();
  Shard shard(client.get(), {});
  WrongBell bell(client.get());
  bell.Arm(shard.completion_queue());
  ASSERT_TRUE(Settled());
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(client->Query(shard.number(i)).value_or(QueuePairState::kReset),
              QueuePairState::kError);
  }
  const std::vector<std::string> complaints = nic_.TakeComplaints();
  ASSERT_EQ(complaints.size(), 1u);
  EXPECT_THAT(complaints[0], HasSubstr(absl::StrCat("of process ", getpid(), ": ")));
  EXPECT_THAT(complaints[0], HasSubstr(absl::StrCat("completion queue ", shard.completion_queue(),
                                                    ": register ", bell.number())));
}

// The queue pairs of the register that was rung fail, and nothing of the other client.
TEST_F(NicTest, shouldFailWhoRingsWhatIsAnotherClients) {
  const std::unique_ptr<Client> victim = nic_.Open();
  const Shard theirs(victim.get(), {});
  const std::unique_ptr<Client> client = nic_.Open();
  for (const bool arms : {false, true}) {
    Shard shard(client.get(), {});
    Driver driver(&shard);
    const __be32 words[] = {0, htobe32(arms ? theirs.completion_queue() : theirs.number(0) << 8)};
    uint64_t bytes;
    std::memcpy(&bytes, words, sizeof(bytes));
    for (int i = 0; i < 3; ++i) arms ? driver.bell().Arm(bytes) : driver.bell().Ring(bytes);
    ASSERT_TRUE(Settled());
    EXPECT_EQ(driver[0].state(), QueuePairState::kError);
    EXPECT_EQ(driver[1].state(), QueuePairState::kError);
    const std::vector<std::string> complaints = nic_.TakeComplaints();
    ASSERT_EQ(complaints.size(), 1u);
    EXPECT_THAT(complaints[0], HasSubstr(arms ? "completion queue" : "queue pair"));
    EXPECT_THAT(complaints[0], HasSubstr("of another client"));
  }
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(victim->Query(theirs.number(i)).value_or(QueuePairState::kReset),
              QueuePairState::kReadyToSend);
  }
}

// A client that posts to a queue pair in the error state costs others no more than a short flush.
TEST_F(NicTest, shouldFlushNoMoreInATurnThanOthersCanWaitFor) {
  constexpr uint32_t kSlots = 4096;
  const std::unique_ptr<Client> client = nic_.Open();
  Shard shard(client.get(), {.send_slots = 16, .receive_slots = kSlots, .entry_count = 2 * kSlots});
  auto* const records = reinterpret_cast<__be32*>(shard.queue_pair(0));
  verbs::mlx5::StoreRecord(&records[MLX5_RCV_DBR], kSlots);
  const auto written = [&] {  // owner bytes that a first pass through the queue has left
    const uint8_t* const entries = reinterpret_cast<uint8_t*>(shard.page()) +
                                   sizeof(verbs::mlx5::DoorbellPage) +
                                   verbs::mlx5::CompletionQueueLayout::kEntries;
    uint32_t count = 0;
    while (count < kSlots && entries[count * 64 + 63] >> 4 == MLX5_CQE_RESP_ERR) ++count;
    return count;
  };
  ASSERT_TRUE(client->Modify(shard.number(0), QueuePairState::kError).ok());
  uint32_t before = written();
  EXPECT_LT(before, kSlots);
  while (before < kSlots) {
    nic_.nic().Progress();
    const uint32_t now = written();
    ASSERT_GT(now, before);
    ASSERT_LE(now - before, 300u);
    before = now;
  }
}

// An overflow of one register is no look at the queues of another.
TEST_F(NicTest, shouldLookAtTheQueuesOfARegisterAlone) {
  const std::unique_ptr<Client> client = nic_.Open();
  Shard one(client.get(), {});
  Shard other(client.get(), {});
  for (const Shard* shard : {&one, &other}) {  // queued, and not rung
    ASSERT_TRUE(client->Modify(shard->number(0), QueuePairState::kError).ok());
    ASSERT_TRUE(Settled());
    auto* const records = reinterpret_cast<__be32*>(shard->queue_pair(0));
    verbs::mlx5::StoreRecord(&records[MLX5_RCV_DBR], 1);
  }
  ASSERT_TRUE(Settled());
  std::atomic_ref(one.page()->attention).store(verbs::mlx5::kOverflow);
  ASSERT_TRUE(Settled());
  const auto owner_byte = [](const Shard& shard) {
    return reinterpret_cast<const uint8_t*>(
               shard.page())[sizeof(verbs::mlx5::DoorbellPage) +
                             verbs::mlx5::CompletionQueueLayout::kEntries + 63] >>
           4;
  };
  EXPECT_EQ(owner_byte(one), MLX5_CQE_RESP_ERR);
  EXPECT_EQ(owner_byte(other), MLX5_CQE_INVALID);
  // A register that rings something stays, whatever else is destroyed.
  EXPECT_TRUE(client->Destroy(control::Kind::kQueuePair, one.number(0)).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(client->Destroy(control::Kind::kRegister, one.reg())));
}

// A clogged eventfd would let the NIC sleep over its rings.
TEST_F(NicTest, shouldEmptyTheEventfdOfARegister) {
  const std::unique_ptr<Client> client = nic_.Open();
  Shard shard(client.get(), {});
  const uint64_t most = ~uint64_t{1};
  for (const bool blocks : {false, true}) {
    if (blocks) {
      ASSERT_EQ(fcntl(shard.wake(), F_SETFL, 0), 0);
    }
    ASSERT_EQ(write(shard.wake(), &most, sizeof(most)), static_cast<ssize_t>(sizeof(most)));
    ASSERT_TRUE(Settled());
    pollfd entry = {shard.wake(), POLLIN, 0};
    EXPECT_EQ(poll(&entry, 1, 0), 0);
  }
}

// Nobody else waits for a descriptor that does not close: here, a socket that lingers, alone or
// behind as many others as the kernel passes.
TEST_F(NicTest, shouldNotWaitForWhatAClientPassed) {
  const SharedFile file(4096);
  for (const size_t superfluous : {size_t{0}, size_t{2}, size_t{252}}) {
    SCOPED_TRACE(superfluous);
    harness::LingeringSocket socket;
    const FileDescriptor calls = CallSocket();
    control::File with_file;
    with_file.header = {static_cast<uint16_t>(control::Op::kFile), sizeof(with_file), 1};
    std::vector<int> passed(superfluous, file.fd());
    passed.push_back(socket.lingers.get());
    ASSERT_TRUE(SendWithAll(calls.get(), with_file, passed));
    socket.lingers.Reset();  // the NIC has the last copy
    ControlMessage message;
    EXPECT_EQ(Await(calls.get(), &message),
              superfluous == 0 ? Received::kMessage : Received::kEnded);
    EXPECT_NE(nic_.Open(), nullptr);
  }
  EXPECT_EQ(nic_.TakeComplaints().size(), 2u);
}

// A listener with a full backlog accepts no other peer.
TEST_F(NicTest, shouldNotCountARequestWhoseIdIsDestroyed) {
  const std::unique_ptr<Client> client = nic_.Open();
  const Shard shard(client.get(), {});
  auto ids = nic::CallSocket::Open(nic_.Connect(), control::Op::kOpenIds,
                                   [this] { nic_.nic().Progress(); });
  ASSERT_TRUE(ids.ok()) << ids.status();
  control::Listen listen;
  listen.backlog = 1;
  PutText("127.0.0.1", listen.address.host);
  const auto listener = ids->Call(listen);
  ASSERT_TRUE(listener.ok()) << listener.status();
  for (size_t i = 0; i < 2; ++i) {
    SCOPED_TRACE(i);
    ASSERT_TRUE(client->Modify(shard.number(i), QueuePairState::kReset).ok());
    ASSERT_TRUE(client->Modify(shard.number(i), QueuePairState::kInit).ok());
    control::Connect connect;
    connect.address = listen.address;
    connect.address.port = static_cast<uint16_t>(listener->more);
    connect.queue_pair = shard.number(i);
    const auto id = ids->Call(connect);
    ASSERT_TRUE(id.ok()) << id.status();
    // The request's id has the next number.
    control::Destroy request;
    request.kind = static_cast<uint32_t>(control::Kind::kConnectionId);
    request.number = id->value + 1;
    EXPECT_TRUE(nic_.TurnUntil([&] { return ids->Call(request).ok(); }));
  }
}

TEST_F(NicTest, shouldRefuseAMessageWhoseDescriptorDoesNotFit) {
  const FileDescriptor calls = CallSocket();
  const SharedFile file(4096);
  control::File with_file;
  with_file.header = {static_cast<uint16_t>(control::Op::kFile), sizeof(with_file), 1};
  ASSERT_TRUE(SendMessage(calls.get(), with_file, file.fd()));
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none = {3, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  ControlMessage message;
  const Received received = Await(calls.get(), &message);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_EQ(received, Received::kMessage);
  control::Reply reply;
  std::memcpy(&reply, message.bytes.data(), sizeof(reply));
  EXPECT_EQ(reply.error, static_cast<uint32_t>(ENOSPC));
  ASSERT_TRUE(SendMessage(calls.get(), with_file, file.fd()));
  ASSERT_EQ(Await(calls.get(), &message), Received::kMessage);
  std::memcpy(&reply, message.bytes.data(), sizeof(reply));
  EXPECT_EQ(reply.error, 0u);
}

TEST_F(NicTest, shouldLeaveOtherFilesTheirShare) {
  const std::unique_ptr<Client> greedy = nic_.Open();
  const std::unique_ptr<Client> other = nic_.Open();
  const SharedFile file(1 << 16);
  const auto fill = [&](const std::unique_ptr<Client>& client, size_t most) {
    const uint32_t number = client->AddFile(file.fd()).value_or(0);
    const uint32_t reg = client->AddRegister({number, 0, 0})->number;
    size_t made = 0;
    while (made <= most && client->AddCompletionQueue({number, 0, 4096}, {4}, reg, 0).ok()) {
      ++made;
    }
    return made;
  };
  EXPECT_EQ(fill(greedy, kMaxCompletionQueues), kMaxCompletionQueues / 2);
  EXPECT_EQ(fill(other, kMaxCompletionQueues), kMaxCompletionQueues / 4);
}

// A mapping lives as long as its objects, so its file's number does not count.
TEST_F(NicTest, shouldBoundWhatAFileHasMapped) {
  const std::unique_ptr<Client> client = nic_.Open();
  size_t mapped = 0;
  for (; mapped <= kMaxFiles; ++mapped) {
    const SharedFile file(4096);
    const absl::StatusOr<uint32_t> number = client->AddFile(file.fd());
    if (!number.ok()) {
      EXPECT_TRUE(absl::IsResourceExhausted(number.status())) << number.status();
      break;
    }
    ASSERT_TRUE(client->AddRegion({*number, 0, 0}, 64, 0x1000, 1).ok());
    ASSERT_TRUE(client->Destroy(control::Kind::kFile, *number).ok());
  }
  EXPECT_EQ(mapped, kMaxFiles);
}

// The last copy of the file counts, in whichever process it is.
TEST_F(NicTest, shouldEndObjectsWithTheLastCloseOfTheirFile) {
  std::unique_ptr<Client> client = nic_.Open();
  Shard shard(client.get(), {});
  int gate[2];
  ASSERT_EQ(pipe2(gate, O_CLOEXEC), 0);
  FileDescriptor hold(gate[1]);
  const FileDescriptor wait(gate[0]);
  const pid_t holder = fork();
  if (holder == 0) {
    hold.Reset();
    char byte;
    (void)!read(wait.get(), &byte, 1);  // until this test lets go
    _exit(0);
  }
  client.reset();
  ASSERT_TRUE(Settled());
  EXPECT_EQ(nic_.nic().contexts(), 1u);
  hold.Reset();
  ASSERT_EQ(waitpid(holder, nullptr, 0), holder);
  EXPECT_TRUE(nic_.TurnUntil([this] { return nic_.nic().contexts() == 0; }));
}

// A client that passes its own file to the NIC makes it live no longer.
TEST_F(NicTest, shouldKeepNoSocketThatAClientMade) {
  const FileDescriptor calls = CallSocket();
  control::File with_file;
  with_file.header = {static_cast<uint16_t>(control::Op::kFile), sizeof(with_file), 1};
  ASSERT_TRUE(SendMessage(calls.get(), with_file, file_.get()));
  ASSERT_TRUE(Settled());
  EXPECT_EQ(nic_.nic().contexts(), 1u);
  file_.Reset();
  EXPECT_TRUE(nic_.TurnUntil([this] { return nic_.nic().contexts() == 0; }));
  // The file is passed as the socket for the reply: so the NIC gets its own reply there, no
  // request.
  CallSocket();
  control::AddSocket request;
  request.header = {static_cast<uint16_t>(control::Op::kAddSocket), sizeof(request), 2};
  ASSERT_TRUE(SendMessage(file_.get(), request, file_.get()));
  EXPECT_TRUE(nic_.TurnUntil([this] { return nic_.nic().contexts() == 0; }));
  EXPECT_EQ(nic_.TakeComplaints().size(), 1u);
}

TEST_F(NicTest, shouldServeForkedProcesses) {
  const std::unique_ptr<Client> client = nic_.Open();
  Shard shard(client.get(), {});
  const pid_t forked = fork();
  if (forked == 0) {
    // The NIC is turned by the parent, so this one waits for it.
    const bool fine = [&] {
      const FileDescriptor file(dup(client->file()));
      int ends[2];
      if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) != 0) return false;
      control::AddSocket request;
      request.header = {static_cast<uint16_t>(control::Op::kAddSocket), sizeof(request), 9};
      if (!SendMessage(file.get(), request, ends[1])) return false;
      pollfd entry = {ends[0], POLLIN, 0};
      ControlMessage message;
      return poll(&entry, 1, 30'000) == 1 && Receive(ends[0], &message) == Received::kMessage &&
             message.passed;
    }();
    _exit(fine ? 0 : 1);
  }
  int status = 0;
  ASSERT_TRUE(nic_.TurnUntil([&] { return waitpid(forked, &status, WNOHANG) == forked; }));
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_TRUE(client->Query(shard.number(0)).ok());
}

TEST_F(NicTest, shouldGiveOneFileNotAllSockets) {
  const FileDescriptor calls = CallSocket();
  std::vector<FileDescriptor> added;
  for (bool refused = false; !refused;) {
    ASSERT_LE(added.size(), kMaxSocketsOfFile);
    added.push_back(AddSocketTo(file_.get()));
    refused = !added.back();
  }
  EXPECT_EQ(added.size(), kMaxSocketsOfFile - 1);  // with `calls` and the file itself
  added.clear();
  ASSERT_TRUE(Settled());
  EXPECT_TRUE(AddSocketTo(file_.get()));
  EXPECT_NE(nic_.Open(), nullptr);
}

TEST_F(NicTest, shouldNotSleepOverARing) {
  const std::unique_ptr<Client> client = nic_.Open();
  Shard shard(client.get(), {});
  Driver driver(&shard);
  const auto readable = [this] {
    pollfd entry = {nic_.nic().event_fd(), POLLIN, 0};
    return poll(&entry, 1, 0) == 1;
  };
  const verbs::ScatterGather sge = shard.SgeOf(&shard.word(0), 8);
  const verbs::SendRequest write =
      RequestOf(verbs::Opcode::kWrite, 1, sge, shard.AddressOf(&shard.word(1)), shard.key());
  ASSERT_TRUE(Settled());
  driver.Send(0, write);
  EXPECT_FALSE(readable());  // the NIC was awake, so it has to look
  EXPECT_FALSE(nic_.nic().PrepareToWait());
  ASSERT_TRUE(Settled());
  EXPECT_TRUE(nic_.nic().PrepareToWait());
  EXPECT_FALSE(readable());
  driver.Send(0, write);
  EXPECT_TRUE(readable());
  ASSERT_TRUE(Settled());
  EXPECT_TRUE(nic_.nic().PrepareToWait());
  // A clock wakes it for what waits for a receive.
  driver.Send(0, RequestOf(verbs::Opcode::kSend, 2, sge));
  nic_.nic().Progress();
  while (!nic_.nic().PrepareToWait()) nic_.nic().Progress();
  pollfd entry = {nic_.nic().event_fd(), POLLIN, 0};
  EXPECT_EQ(poll(&entry, 1, 30'000), 1);
}

TEST(NicProcessTest, shouldBeLostWithItsProcess) {
  auto nic = std::make_unique<NicProcess>();
  const std::unique_ptr<Client> client = nic->Open();
  EXPECT_TRUE(client->AddChannel().ok());
  nic.reset();
  EXPECT_TRUE(absl::IsUnavailable(client->AddChannel().status()));
  EXPECT_TRUE(absl::IsUnavailable(client->AddChannel().status()));
}

}  // namespace
}  // namespace baton::nic
