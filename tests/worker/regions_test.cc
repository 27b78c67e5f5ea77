// Memory of a worker's own: sends from it, READs of peers, and what its successors find.
#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "lib/base/file_descriptor.h"
#include "lib/base/mapped_memory.h"
#include "lib/base/status.h"
#include "tests/lib/driver/own_memory.h"
#include "tests/worker/worker_fixture.h"

namespace baton {
namespace {

using driver::testing::OwnMemory;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::RawPeer;
using testing::ScriptedService;
using ::testing::SizeIs;
using testing::WorkerFixture;
using verbs::CompletionStatus;
using verbs::Opcode;
using Kind = Completion::Kind;

// The guide has these two.
absl::StatusOr<Worker::Region> Share(Worker& worker, int memfd, uint64_t bytes) {
  if (fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    return ErrnoStatus(errno, "sealing the memory");
  }
  BATON_ASSIGN_OR_RETURN(const uint64_t number, worker.HoldDescriptor(memfd));
  return worker.RegisterMemory(number, /*offset=*/0, bytes, verbs::kRemoteRead);
}
absl::Status SendPiece(Shard& shard, Connection& connection, const Worker::Region& region,
                       uint64_t from, uint32_t bytes) {
  const std::array piece = {region.At(from, bytes)};
  return shard.Send(connection, {.buffers = piece});
}

class RegionsTest : public WorkerFixture {
 protected:
  void Prepare(const keeper::testing::KeeperThread::Change& change = nullptr) {
    Start(change);
    for (ScriptedService* service : {&first, &second}) {
      service->on_completion = [](Shard& shard, const Completion& completion) {
        AcceptWith(shard, completion, 4);
      };
    }
    worker = Add(&first);
    ASSERT_TRUE(Until([&] { return first.shards.size() == 1; }));
  }
  Connection* Established() {
    Connect(peer, *worker);
    EXPECT_TRUE(Until([&] { return peer.established && first.Count(Kind::kEstablished) == 1; }));
    return first.completions.back().connection;
  }
  static absl::StatusOr<Worker::Region> Register(Worker& by, const OwnMemory& memory,
                                                 uint64_t offset, uint64_t length,
                                                 uint32_t access = 0) {
    const absl::StatusOr<uint64_t> number = by.HoldDescriptor(memory.fd());
    if (!number.ok()) return number.status();
    return by.RegisterMemory(*number, offset, length, access);
  }
  Shard& shard() { return *first.shards.at(0); }
  absl::Status Send(Connection& connection, const std::vector<Buffer>& buffers,
                    Opcode opcode = Opcode::kSend) {
    SendWork work;
    work.opcode = opcode;
    work.buffers = buffers;
    work.remote_address = peer.address();
    work.rkey = peer.rkey();
    return shard().Send(connection, work);
  }

  ScriptedService& first = NewService();
  ScriptedService& second = NewService();
  Worker* worker = nullptr;
  RawPeer peer;
};

TEST_F(RegionsTest, shouldSendFromItsOwnMemory) {
  ASSERT_NO_FATAL_FAILURE(Prepare());
  OwnMemory memory;
  const auto region = Register(*worker, memory, 4096, 8192);
  ASSERT_TRUE(region.ok()) << region.status();
  EXPECT_EQ(region->length, 8192u);
  EXPECT_EQ(region->offset, 4096u);
  EXPECT_EQ(region->access, 0u);
  memory.Put(4096, "first");
  memory.Put(4096 + 8190, "..");
  std::copy_n("<>", 2, worker->buffers().begin());
  Connection& connection = *Established();
  for (int i = 0; i < 3; ++i) peer.Receive();
  EXPECT_EQ(Send(connection, {region->At(0, 5)}), absl::OkStatus());
  EXPECT_EQ(Send(connection, {region->At(1, 4)}), absl::OkStatus());
  EXPECT_EQ(Send(connection, {{0, 2}, region->At(8190, 2)}), absl::OkStatus());
  ASSERT_EQ(shard().Commit(), absl::OkStatus());
  ASSERT_TRUE(Until([&] { return peer.received.size() == 3 && first.Count(Kind::kSend) == 3; }));
  EXPECT_THAT(peer.received, ElementsAre("first", "irst", "<>.."));
  // A WRITE, too.
  EXPECT_EQ(Send(connection, {region->At(0, 5)}, Opcode::kWrite), absl::OkStatus());
  ASSERT_EQ(shard().Commit(), absl::OkStatus());
  ASSERT_TRUE(Until([&] { return first.Count(Kind::kSend) == 4; }));
  EXPECT_EQ(std::memcmp(peer.memory(), "first", 5), 0);
  EXPECT_EQ(worker->UnregisterMemory(region->id), absl::OkStatus());
  EXPECT_THAT(worker->Regions(), IsEmpty());
}

TEST_F(RegionsTest, shouldDoWhatTheGuideDoes) {
  ASSERT_NO_FATAL_FAILURE(Prepare());
  OwnMemory memory(8192, /*seals=*/0);
  memory.Put(4096, "piece");
  const auto region = Share(*worker, memory.fd(), 8192);
  ASSERT_TRUE(region.ok()) << region.status();
  Connection& connection = *Established();
  peer.Receive();
  ASSERT_EQ(SendPiece(shard(), connection, *region, 4096, 5), absl::OkStatus());
  ASSERT_EQ(shard().Commit(), absl::OkStatus());
  ASSERT_TRUE(Until([&] { return peer.received.size() == 1; }));
  EXPECT_THAT(peer.received, ElementsAre("piece"));
}

TEST_F(RegionsTest, shouldLetPeersReadIt) {
  ASSERT_NO_FATAL_FAILURE(Prepare());
  OwnMemory memory;
  memory.Put(10, "read me!");
  const auto region = Register(*worker, memory, 10, 8, verbs::kRemoteRead);
  ASSERT_TRUE(region.ok()) << region.status();
  Established();
  verbs::SendRequest request;
  request.opcode = Opcode::kRead;
  request.rkey = region->rkey;
  request.remote_address = region->remote_address;
  peer.Post(request, 8);
  ASSERT_TRUE(Until([&] { return peer.sent.size() == 1; }));
  EXPECT_EQ(peer.sent[0].status, CompletionStatus::kSuccess);
  EXPECT_EQ(std::memcmp(peer.send_slot(0), "read me!", 8), 0);
  // No number of a grant names a region.
  EXPECT_EQ(worker->RevokeGrant(arena::GrantOfRegion(region->id)).code(),
            absl::StatusCode::kNotFound);
  ASSERT_EQ(worker->UnregisterMemory(region->id), absl::OkStatus());
  EXPECT_EQ(worker->UnregisterMemory(region->id).code(), absl::StatusCode::kNotFound);
  peer.Post(request, 8);
  ASSERT_TRUE(Until([&] { return peer.sent.size() == 2; }));
  EXPECT_EQ(peer.sent[1].status, CompletionStatus::kRemoteAccessError);
}

TEST_F(RegionsTest, shouldStageNothingThatARegionIsNotFor) {
  ASSERT_NO_FATAL_FAILURE(Prepare());
  OwnMemory memory;
  const Worker::Region region = Register(*worker, memory, 0, 4096, verbs::kRemoteRead).value();
  Connection& connection = *Established();
  const auto expect_refused = [](const absl::Status& refused, const char* why) {
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(refused.message()), HasSubstr(why));
  };
  const std::array all = {region.At(0, 8)};
  expect_refused(shard().Receive(connection, all, 0), "buffers[0]: region 1 is for sends");
  for (const Opcode opcode : {Opcode::kRead, Opcode::kCompareAndSwap, Opcode::kFetchAndAdd}) {
    expect_refused(Send(connection, {region.At(0, 8)}, opcode), "region 1 is for sends");
  }
  expect_refused(Send(connection, {region.At(4090, 8)}),
                 "8 bytes at 4090 are not within the 4096 bytes of region 1");
  expect_refused(Send(connection, {{0, 1}, region.At(4096, 1)}), "buffers[1]");
  Worker::Region none;
  none.id = 2;
  expect_refused(Send(connection, {none.At(0, 1)}), "0 bytes of region 2");
  none.id = 65;
  expect_refused(Send(connection, {none.At(0, 1)}), "are not within the service's");
  EXPECT_EQ(shard().Commit(), absl::OkStatus());
  EXPECT_EQ(connection.next_send(), 0u);
}

// RDMA devices have it. The soft device, which another process is, refuses it.
TEST_F(RegionsTest, shouldSendFromHugePagesWhereTheDeviceCan) {
  constexpr size_t kBytes = 2 << 20;
  const FileDescriptor memfd(
      memfd_create("huge", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB | MFD_HUGE_2MB));
  if (!memfd) GTEST_SKIP() << ErrnoStatus(errno, "memfd_create with MFD_HUGETLB").message();
  ASSERT_EQ(ftruncate(memfd.get(), kBytes), 0);
  ASSERT_EQ(fcntl(memfd.get(), F_ADD_SEALS, OwnMemory::kSeals), 0);
  void* const mapped =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, memfd.get(), /*offset=*/0);
  if (mapped == MAP_FAILED) {
    GTEST_SKIP() << "no huge page of 2 MiB is free here: write 1 to /proc/sys/vm/nr_hugepages";
  }
  const MappedMemory memory(static_cast<uint8_t*>(mapped), Unmap{kBytes});
  std::memcpy(memory.get() + 4096, "huge", 4);
  ASSERT_NO_FATAL_FAILURE(Prepare());
  const absl::StatusOr<uint64_t> number = worker->HoldDescriptor(memfd.get());
  ASSERT_TRUE(number.ok()) << number.status();
  const auto region = worker->RegisterMemory(*number, 4096, 8192);
  if (fabric.device == "soft") {
    EXPECT_FALSE(region.ok());
    return;
  }
  ASSERT_TRUE(region.ok()) << region.status();
  Connection& connection = *Established();
  peer.Receive();
  ASSERT_EQ(Send(connection, {region->At(0, 4)}), absl::OkStatus());
  ASSERT_EQ(shard().Commit(), absl::OkStatus());
  ASSERT_TRUE(Until([&] { return peer.received.size() == 1 && first.Count(Kind::kSend) == 1; }));
  EXPECT_THAT(peer.received, ElementsAre("huge"));
  EXPECT_EQ(worker->UnregisterMemory(region->id), absl::OkStatus());
}

TEST_F(RegionsTest, shouldBeRefusedWithAReason) {
  ASSERT_NO_FATAL_FAILURE(Prepare());
  EXPECT_EQ(worker->RegisterMemory(4711, 0, 4096).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(worker->RegisterMemory(0, 0, 4096).status().code(), absl::StatusCode::kNotFound);
  const absl::Status unsealed = Register(*worker, OwnMemory(4096, 0), 0, 4096).status();
  EXPECT_EQ(unsealed.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(unsealed.message()), HasSubstr("F_SEAL_SHRINK"));
  const OwnMemory memory(4096);
  EXPECT_THAT(std::string(Register(*worker, memory, 1, 4096).status().message()),
              HasSubstr("4096 bytes at 1 are not within the 4096"));
  for (const uint32_t access : {uint32_t{verbs::kRemoteWrite}, uint32_t{verbs::kLocalWrite}}) {
    EXPECT_EQ(Register(*worker, memory, 0, 4096, access).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  for (const uint32_t id : {0u, 1u, 64u, 65u, ~0u}) {
    EXPECT_EQ(worker->UnregisterMemory(id).code(), absl::StatusCode::kNotFound) << id;
  }
  EXPECT_THAT(worker->Regions(), IsEmpty());
}

TEST_F(RegionsTest, shouldCountAgainstTheQuotasOfGrants) {
  ASSERT_NO_FATAL_FAILURE(Prepare([](v1::ServiceConfig* service) {
    service->mutable_policy()->mutable_worker()->set_granted_bytes(8192);
    service->mutable_policy()->mutable_service()->set_granted_bytes(12288);
  }));
  Worker* const other = Add(&second);
  const OwnMemory memory;
  const Worker::Region region = Register(*worker, memory, 0, 8192).value();
  EXPECT_THAT(std::string(Register(*worker, memory, 0, 1).status().message()),
              HasSubstr("policy.worker.granted_bytes"));
  EXPECT_THAT(std::string(Register(*other, memory, 0, 4097).status().message()),
              HasSubstr("policy.service.granted_bytes"));
  EXPECT_EQ(keeper.Describe().service().accounts().granted_bytes(), 8192u);
  ASSERT_EQ(other->UnregisterMemory(region.id), absl::OkStatus());
  EXPECT_TRUE(Register(*other, memory, 0, 8192).ok());
}

TEST_F(RegionsTest, shouldStayRegisteredWhileACommittedSendNamesIt) {
  ASSERT_NO_FATAL_FAILURE(Prepare());
  OwnMemory memory;
  memory.Put(0, "late");
  const Worker::Region region = Register(*worker, memory, 0, 4096).value();
  Connection& connection = *Established();
  ASSERT_EQ(Send(connection, {region.At(0, 4)}), absl::OkStatus());
  ASSERT_EQ(shard().Commit(), absl::OkStatus());
  // The driver may not have applied it yet, and in any case the peer has no receive for it.
  EXPECT_EQ(worker->UnregisterMemory(region.id).code(), absl::StatusCode::kFailedPrecondition);
  std::vector<Buffer> used;
  shard().ForEachBufferInUse(connection, [&](const Buffer& buffer, bool send) {
    if (send) used.push_back(buffer);
  });
  ASSERT_THAT(used, SizeIs(1));
  EXPECT_EQ(used[0].offset, region.At(0, 4).offset);
  peer.Receive();
  ASSERT_TRUE(Until([&] { return first.Count(Kind::kSend) == 1; }));
  EXPECT_THAT(peer.received, ElementsAre("late"));
  EXPECT_EQ(worker->UnregisterMemory(region.id), absl::OkStatus());
}

TEST_F(RegionsTest, shouldOutliveTheWorkerThatRegisteredIt) {
  ASSERT_NO_FATAL_FAILURE(Prepare());
  OwnMemory memory;
  memory.Put(100, "once");
  const Worker::Region region = Register(*worker, memory, 100, 4096).value();
  Connection& connection = *Established();
  ASSERT_EQ(Send(connection, {region.At(0, 4)}), absl::OkStatus());
  ASSERT_EQ(shard().Commit(), absl::OkStatus());
  Remove(worker);
  Worker* const heir = Add(&second);
  ASSERT_TRUE(Until([&] { return second.shards.size() == 1; }));
  const std::vector<Worker::Region> found = heir->Regions();
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].id, region.id);
  EXPECT_EQ(found[0].length, 4096u);
  EXPECT_EQ(found[0].descriptor, region.descriptor);
  EXPECT_EQ(found[0].offset, 100u);
  EXPECT_EQ(heir->UnregisterMemory(region.id).code(), absl::StatusCode::kFailedPrecondition);
  peer.Receive();
  peer.Receive();
  ASSERT_TRUE(Until([&] { return second.Count(Kind::kSend) == 1; }));
  EXPECT_THAT(peer.received, ElementsAre("once"));
  // The memory is the service's, whatever becomes of the descriptor.
  ASSERT_EQ(heir->DropDescriptor(region.descriptor), absl::OkStatus());
  SendWork work;
  const std::array buffers = {found[0].At(0, 4)};
  work.buffers = buffers;
  Shard& adopted = *second.shards.at(0);
  ASSERT_EQ(adopted.Send(*adopted.connections().at(0), work), absl::OkStatus());
  ASSERT_EQ(adopted.Commit(), absl::OkStatus());
  ASSERT_TRUE(Until([&] { return second.Count(Kind::kSend) == 2; }));
  EXPECT_THAT(peer.received, ElementsAre("once", "once"));
  EXPECT_EQ(heir->UnregisterMemory(region.id), absl::OkStatus());
}

}  // namespace
}  // namespace baton
