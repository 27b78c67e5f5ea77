// Leases, memory of the application's own and held descriptors in the C interface. Linked with each
// kind of worker.
#include <baton/baton.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/file_descriptor.h"
#include "lib/verbs/verbs.h"
#include "tests/lib/driver/own_memory.h"
#include "tests/lib/driver/raw_peer.h"
#include "tests/worker/kit/c_worker.h"

namespace baton {
namespace {

using driver::testing::OwnMemory;
using driver::testing::RawPeer;
using testing::CWorker;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using verbs::CompletionStatus;
using verbs::Opcode;

constexpr uint32_t kFormat = 1;
constexpr uint32_t kMost = 2;  // leases of a peer
constexpr uint64_t kSecond = 1'000'000'000;
constexpr uint32_t kReadWrite = BATON_REMOTE_READ | BATON_REMOTE_WRITE;

baton_lease_request RequestOf(uint64_t number, uint64_t bytes, uint32_t access = kReadWrite) {
  baton_lease_request request = {};
  request.size = sizeof(request);
  request.request = number;
  request.bytes = bytes;
  request.duration_ns = 60 * kSecond;
  request.access = access;
  return request;
}

baton_leases* LeasesOf(baton_connection* connection) {
  size_t length = 0;
  const uint8_t* const state = baton_connection_state(connection, &length);
  baton_leases* leases = nullptr;
  EXPECT_EQ(baton_load_leases(connection, state, length, kMost, &leases), BATON_OK)
      << baton_error();
  return leases;
}

// Stages the state, and forgets the leases.
void Save(baton_connection* connection, baton_leases* leases) {
  size_t length = 0;
  const uint8_t* const state = baton_leases_state(leases, &length);
  EXPECT_EQ(baton_set_state(baton_connection_shard(connection), connection, state, length, kFormat),
            BATON_OK)
      << baton_error();
  baton_forget_leases(leases);
}

std::vector<baton_lease> AllOf(const baton_leases* leases) {
  std::vector<baton_lease> all;
  baton_for_each_lease(
      leases,
      [](void* context, const baton_lease* lease) {
        static_cast<std::vector<baton_lease>*>(context)->push_back(*lease);
      },
      &all);
  return all;
}

std::vector<baton_region> RegionsOf(const CWorker& worker) {
  std::vector<baton_region> regions;
  baton_for_each_region(
      worker.handle(),
      [](void* context, const baton_region* region) {
        static_cast<std::vector<baton_region>*>(context)->push_back(*region);
      },
      &regions);
  return regions;
}

std::vector<uint64_t> HeldBy(const CWorker& worker, uint64_t tag) {
  std::vector<uint64_t> numbers;
  EXPECT_EQ(baton_for_each_held_descriptor(
                worker.handle(), tag,
                [](void* context, uint64_t number) {
                  static_cast<std::vector<uint64_t>*>(context)->push_back(number);
                },
                &numbers),
            BATON_OK)
      << baton_error();
  return numbers;
}

// Gives each peer that connects a lease, and ends it with the connection.
class Lessor {
 public:
  Lessor() {
    worker.on_adopt = [this](baton_shard* shard) { Adopt(shard); };
    worker.on_completion = [this](baton_shard* shard, const baton_completion& done) {
      Handle(shard, done);
    };
  }

  baton_connection* connection = nullptr;  // the peer's
  std::vector<baton_lease> leases;         // that were granted, or found

 private:
  void Adopt(baton_shard* shard) {
    baton_for_each_connection(
        shard,
        [](void* context, baton_connection* one) { static_cast<Lessor*>(context)->Find(one); },
        this);
    EXPECT_EQ(baton_free_lost(
                  shard,
                  [](void* context, const baton_buffer* buffer) {
                    return static_cast<Lessor*>(context)->known_.count(buffer->offset) > 0;
                  },
                  this),
              BATON_OK)
        << baton_error();
  }
  void Find(baton_connection* one) {
    connection = one;
    baton_leases* const found = LeasesOf(one);
    leases = AllOf(found);
    for (const baton_lease& lease : leases) known_.insert(lease.offset);
    baton_forget_leases(found);
  }
  void Handle(baton_shard* shard, const baton_completion& done) {
    if (done.kind == BATON_CONNECT_REQUEST) {
      connection = done.connection;
      baton_leases* const given = LeasesOf(done.connection);
      const baton_lease_request request = RequestOf(/*number=*/7, /*bytes=*/4096);
      baton_lease lease = {};
      lease.size = sizeof(lease);
      EXPECT_EQ(baton_allocate_lease(given, &request, baton_lease_clock(), &lease), BATON_OK)
          << baton_error();
      leases.push_back(lease);
      Save(done.connection, given);
      EXPECT_EQ(baton_accept(shard, done.connection, nullptr, nullptr, 0), BATON_OK);
    } else if (done.kind == BATON_DISCONNECTED) {
      baton_leases* const left = LeasesOf(done.connection);
      EXPECT_EQ(baton_free_all_leases(left), BATON_OK) << baton_error();
      baton_forget_leases(left);
      connection = nullptr;
    }
  }

  std::set<uint64_t> known_;

 public:
  CWorker worker;  // detached first
};

class MemoryInterfaceTest : public testing::CWorkerFixture {
 protected:
  void StartWithHeap() {
    Start([](v1::ServiceConfig* service) {
      service->set_connection_state_bytes(BATON_LEASES_BYTES(kMost));
      service->set_shard_heap_bytes(1 << 20);
    });
  }
  // Does one request of the peer, and returns its outcome.
  CompletionStatus Do(std::initializer_list<CWorker*> workers, Opcode opcode,
                      const baton_lease& lease, uint32_t bytes) {
    const size_t before = peer_.sent.size();
    verbs::SendRequest request;
    request.opcode = opcode;
    request.remote_address = lease.remote_address;
    request.rkey = lease.rkey;
    peer_.Post(request, bytes);
    EXPECT_TRUE(Until(
        workers, [&] { peer_.Turn(); }, [&] { return peer_.sent.size() > before; }));
    return peer_.sent.size() > before ? peer_.sent.back().status : CompletionStatus::kGeneralError;
  }

  RawPeer peer_;
};

TEST_F(MemoryInterfaceTest, shouldKeepALeaseOverTheReplacementOfItsWorker) {
  ASSERT_NO_FATAL_FAILURE(StartWithHeap());
  Lessor lessor, successor;
  CWorker& first = lessor.worker;
  CWorker& second = successor.worker;
  ASSERT_NO_FATAL_FAILURE(Begin(first));
  peer_.Connect(first.Listen());
  ASSERT_TRUE(Until(
      {&first}, [&] { peer_.Turn(); }, [&] { return peer_.established; }));
  ASSERT_EQ(lessor.leases.size(), 1u);
  const baton_lease lease = lessor.leases[0];
  EXPECT_EQ(lease.bytes, 4096u);
  std::memcpy(peer_.send_slot(0), "written", 7);
  ASSERT_EQ(Do({&first}, Opcode::kWrite, lease, 7), CompletionStatus::kSuccess);

  ASSERT_NO_FATAL_FAILURE(Replace(first, second));
  ASSERT_EQ(successor.leases.size(), 1u);
  EXPECT_EQ(successor.leases[0].id, lease.id);
  EXPECT_EQ(successor.leases[0].rkey, lease.rkey);
  EXPECT_EQ(successor.leases[0].remote_address, lease.remote_address);
  EXPECT_EQ(std::memcmp(second.buffers() + lease.offset, "written", 7), 0);
  ASSERT_EQ(Do({&second}, Opcode::kRead, lease, 7), CompletionStatus::kSuccess);
  EXPECT_EQ(std::memcmp(peer_.send_slot(1), "written", 7), 0);

  ASSERT_NE(successor.connection, nullptr);
  baton_leases* const leases = LeasesOf(successor.connection);
  EXPECT_EQ(baton_leases_next_end(leases), lease.ends_ns);
  ASSERT_EQ(baton_free_lease(leases, lease.id), BATON_OK) << baton_error();
  EXPECT_EQ(baton_leases_next_end(leases), 0u);
  Save(successor.connection, leases);
  ASSERT_EQ(baton_commit(second.shard), BATON_OK) << baton_error();
  EXPECT_EQ(Do({&second}, Opcode::kRead, lease, 7), CompletionStatus::kRemoteAccessError);
}

TEST_F(MemoryInterfaceTest, shouldRenewALeaseAndFreeItWhenItsTimeIsOver) {
  ASSERT_NO_FATAL_FAILURE(StartWithHeap());
  Lessor lessor;
  CWorker& worker = lessor.worker;
  ASSERT_NO_FATAL_FAILURE(Begin(worker));
  peer_.Connect(worker.Listen());
  ASSERT_TRUE(Until(
      {&worker}, [&] { peer_.Turn(); }, [&] { return peer_.established; }));
  baton_leases* const leases = LeasesOf(lessor.connection);
  const uint64_t now = baton_lease_clock();
  baton_lease lease = {};
  lease.size = sizeof(lease);
  ASSERT_EQ(baton_renew_lease(leases, lessor.leases[0].id, kSecond, now, &lease), BATON_OK);
  EXPECT_EQ(lease.ends_ns, now + kSecond);
  EXPECT_EQ(baton_free_overdue_leases(leases, now), BATON_OK) << baton_error();
  EXPECT_EQ(AllOf(leases).size(), 1u);
  EXPECT_EQ(baton_free_overdue_leases(leases, now + kSecond), BATON_OK) << baton_error();
  EXPECT_THAT(AllOf(leases), IsEmpty());
  EXPECT_EQ(baton_renew_lease(leases, lease.id, kSecond, now, &lease), BATON_NOT_FOUND);
  Save(lessor.connection, leases);
  ASSERT_EQ(baton_commit(worker.shard), BATON_OK) << baton_error();
}

TEST_F(MemoryInterfaceTest, shouldRevokeALeaseThatWasAbandoned) {
  ASSERT_NO_FATAL_FAILURE(StartWithHeap());
  Lessor lessor;
  CWorker& worker = lessor.worker;
  ASSERT_NO_FATAL_FAILURE(Begin(worker));
  peer_.Connect(worker.Listen());
  ASSERT_TRUE(Until(
      {&worker}, [&] { peer_.Turn(); }, [&] { return peer_.established; }));
  baton_leases* const leases = LeasesOf(lessor.connection);
  const baton_lease_request request = RequestOf(/*number=*/8, /*bytes=*/64);
  baton_lease lease = {};
  lease.size = sizeof(lease);
  ASSERT_EQ(baton_allocate_lease(leases, &request, baton_lease_clock(), &lease), BATON_OK)
      << baton_error();
  const baton_lease_request third = RequestOf(/*number=*/9, /*bytes=*/64);
  EXPECT_EQ(baton_allocate_lease(leases, &third, baton_lease_clock(), &lease),
            BATON_RESOURCE_EXHAUSTED);
  baton_forget_leases(leases);
  baton_abandon(worker.shard);
  ASSERT_EQ(baton_revoke_lost(worker.shard), BATON_OK) << baton_error();
  EXPECT_EQ(Do({&worker}, Opcode::kWrite, lease, 8), CompletionStatus::kRemoteAccessError);
}

TEST_F(MemoryInterfaceTest, shouldSendFromMemoryOfTheApplication) {
  ASSERT_NO_FATAL_FAILURE(StartWithHeap());
  baton_connection* connection = nullptr;
  int sends = 0;
  bool established = false;
  CWorker worker, next;
  worker.on_completion = [&](baton_shard* shard, const baton_completion& done) {
    connection = done.connection;
    if (done.kind == BATON_CONNECT_REQUEST) {
      EXPECT_EQ(baton_accept(shard, connection, nullptr, nullptr, 0), BATON_OK);
    }
    established |= done.kind == BATON_ESTABLISHED;
    if (done.kind == BATON_SEND) ++sends;
  };
  ASSERT_NO_FATAL_FAILURE(Begin(worker));
  OwnMemory memory;
  memory.Put(4096 + 10, "own memory");
  uint64_t number = 0;
  ASSERT_EQ(baton_hold_descriptor(worker.handle(), memory.fd(), 0, &number), BATON_OK)
      << baton_error();
  baton_region region = {};
  region.size = sizeof(region);
  ASSERT_EQ(baton_register_memory(worker.handle(), number, 4096, 8192, BATON_REMOTE_READ, &region),
            BATON_OK)
      << baton_error();
  EXPECT_EQ(region.descriptor, number);
  EXPECT_EQ(region.offset, 4096u);
  EXPECT_EQ(region.length, 8192u);
  peer_.Receive();
  peer_.Connect(worker.Listen());
  ASSERT_TRUE(Until(
      {&worker}, [&] { peer_.Turn(); }, [&] { return peer_.established && established; }));
  const baton_buffer piece = baton_region_buffer(region.id, 10, 10);
  baton_send_work work = {};
  work.size = sizeof(work);
  work.buffer_count = 1;
  for (const baton_buffer& wrong :
       {baton_region_buffer(0, 10, 10), baton_region_buffer(region.id, uint64_t{1} << 48, 10)}) {
    work.buffers = &wrong;
    EXPECT_EQ(baton_send(worker.shard, connection, &work), BATON_INVALID_ARGUMENT);
  }
  work.buffers = &piece;
  ASSERT_EQ(baton_send(worker.shard, connection, &work), BATON_OK) << baton_error();
  ASSERT_EQ(baton_commit(worker.shard), BATON_OK) << baton_error();
  ASSERT_TRUE(Until(
      {&worker}, [&] { peer_.Turn(); }, [&] { return peer_.received.size() == 1 && sends == 1; }));
  EXPECT_THAT(peer_.received, ElementsAre("own memory"));

  // The region outlives its worker.
  ASSERT_NO_FATAL_FAILURE(Replace(worker, next));
  ASSERT_EQ(RegionsOf(next).size(), 1u);
  EXPECT_EQ(RegionsOf(next)[0].rkey, region.rkey);
  EXPECT_EQ(baton_unregister_memory(next.handle(), region.id), BATON_OK) << baton_error();
  EXPECT_THAT(RegionsOf(next), IsEmpty());
  EXPECT_EQ(baton_unregister_memory(next.handle(), region.id), BATON_NOT_FOUND);
}

TEST_F(MemoryInterfaceTest, shouldHandAHeldDescriptorToTheSuccessor) {
  ASSERT_NO_FATAL_FAILURE(StartWithHeap());
  CWorker first, second;
  ASSERT_NO_FATAL_FAILURE(Begin(first));
  const std::string path = keeper_.directory().File("held");
  FileDescriptor file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_EQ(write(file.get(), "text", 4), 4);
  uint64_t number = 0;
  ASSERT_EQ(baton_hold_descriptor(first.handle(), file.get(), /*tag=*/5, &number), BATON_OK)
      << baton_error();
  EXPECT_NE(number, 0u);
  ASSERT_EQ(unlink(path.c_str()), 0);
  file.Reset();
  ASSERT_NO_FATAL_FAILURE(Replace(first, second));

  EXPECT_THAT(HeldBy(second, 5), ElementsAre(number));
  EXPECT_THAT(HeldBy(second, 6), IsEmpty());
  int fd = -1;
  ASSERT_EQ(baton_take_descriptor(second.handle(), number, &fd), BATON_OK) << baton_error();
  const FileDescriptor taken(fd);
  char text[5] = {};
  EXPECT_EQ(pread(taken.get(), text, 4, 0), 4);
  EXPECT_STREQ(text, "text");
  for (int i = 0; i < 2; ++i) EXPECT_EQ(baton_drop_descriptor(second.handle(), number), BATON_OK);
  EXPECT_EQ(baton_take_descriptor(second.handle(), number, &fd), BATON_NOT_FOUND);
  EXPECT_THAT(HeldBy(second, 5), IsEmpty());
}

TEST_F(MemoryInterfaceTest, shouldSayWhatIsWrong) {
  ASSERT_NO_FATAL_FAILURE(Start(nullptr));
  CWorker worker;
  ASSERT_NO_FATAL_FAILURE(Begin(worker));
  const auto none = [](void*, const baton_buffer*) { return false; };
  EXPECT_EQ(baton_free_lost(worker.shard, nullptr, nullptr), BATON_INVALID_ARGUMENT);
  EXPECT_EQ(baton_free_lost(worker.shard, none, nullptr), BATON_FAILED_PRECONDITION);
  EXPECT_THAT(baton_error(), HasSubstr("shard_heap_bytes"));
  EXPECT_EQ(baton_revoke_lost(worker.shard), BATON_FAILED_PRECONDITION);
  uint64_t number = 0;
  EXPECT_EQ(baton_hold_descriptor(worker.handle(), -1, 0, &number), BATON_INVALID_ARGUMENT);
  EXPECT_EQ(number, 0u);
  baton_region region = {};
  region.size = sizeof(region);
  EXPECT_EQ(baton_register_memory(worker.handle(), 99, 0, 4096, 0, &region), BATON_NOT_FOUND);
  EXPECT_EQ(region.id, 0u);
  baton_forget_leases(nullptr);
}

}  // namespace
}  // namespace baton
