// A shard's heap, as an application sees it.
#include "worker/heap.h"

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory_resource>
#include <new>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lib/arena/atomic_access.h"
#include "lib/verbs/verbs.h"
#include "tests/worker/worker_fixture.h"

namespace baton {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::RawPeer;
using testing::ScriptedService;
using testing::WorkerFixture;
using Kind = Completion::Kind;
using Allocated = std::vector<std::pair<uint64_t, bool>>;  // offset, and whether it is kept

constexpr uint64_t kPage = arena::kPageBytes;
constexpr uint64_t kBufferBytes = 1 << 18;
constexpr uint64_t kPages = 64;

// A worker that commits only when the test says so, with a heap of some pages; and an heir.
class HeapTest : public WorkerFixture {
 protected:
  void SetUp() override { ASSERT_NO_FATAL_FAILURE(Serve(kPages)); }

  void Serve(uint64_t pages) {
    Start([pages](v1::ServiceConfig* service) {
      service->set_buffer_bytes(kBufferBytes);
      service->set_shard_heap_bytes(pages * kPage);
    });
    for (ScriptedService* service : {&first, &second}) {
      service->on_completion = [](Shard& shard, const Completion& completion) {
        if (completion.kind != Kind::kConnectRequest) return;
        AcceptWith(shard, completion, 0);
        EXPECT_EQ(shard.Commit(), absl::OkStatus());
      };
    }
    worker = Add(&first, CommitMode::kManual);
    ASSERT_TRUE(Until([&] { return first.shards.size() == 1; }));
    shard = first.shards.at(0);
  }
  void Connect() {
    Establish(peer, *worker);
    ASSERT_TRUE(Until([&] { return first.Count(Kind::kEstablished) == 1; }));
    connection = first.completions.back().connection;
    ASSERT_EQ(shard->Commit(), absl::OkStatus());
  }
  // `shard` and `connection` are the heir's then. What was not committed is lost.
  void Succeed() {
    heir = Add(&second, CommitMode::kManual);
    ASSERT_EQ(Handoff(*heir), absl::OkStatus());
    shard = second.shards.at(0);
    const std::vector<Connection*> connections = shard->connections();
    connection = connections.empty() ? nullptr : connections[0];
  }

  Heap& heap() { return shard->heap(); }
  Buffer Allocate(uint64_t bytes) {
    const absl::StatusOr<Buffer> buffer = heap().Allocate(bytes);
    EXPECT_TRUE(buffer.ok()) << buffer.status();
    return buffer.value_or(Buffer{});
  }
  Buffer AllocateScratch(uint64_t bytes) {
    const absl::StatusOr<Buffer> buffer = heap().AllocateScratch(bytes);
    EXPECT_TRUE(buffer.ok()) << buffer.status();
    return buffer.value_or(Buffer{});
  }
  void Commit() { ASSERT_EQ(shard->Commit(), absl::OkStatus()); }
  void FreeAndCommit(const Buffer& buffer) {
    ASSERT_EQ(heap().Free(buffer), absl::OkStatus());
    ASSERT_NO_FATAL_FAILURE(Commit());
  }
  Allocated All() {
    Allocated all;
    EXPECT_EQ(heap().ForEachAllocated(
                  [&](const Buffer& buffer, bool kept) { all.emplace_back(buffer.offset, kept); }),
              absl::OkStatus());
    return all;
  }
  Heap::Statistics Statistics() {
    const absl::StatusOr<Heap::Statistics> statistics = heap().statistics();
    EXPECT_TRUE(statistics.ok()) << statistics.status();
    return statistics.value_or(Heap::Statistics{});
  }
  // Returns whether the page can be had. Nobody is turned meanwhile.
  bool CanHave(const Buffer& page) {
    std::vector<Buffer> taken;
    bool found = false;
    while (true) {
      const absl::StatusOr<Buffer> buffer = heap().AllocateScratch(kPage);
      if (!buffer.ok()) break;
      found = found || buffer->offset == page.offset;
      taken.push_back(*buffer);
    }
    for (const Buffer& buffer : taken) EXPECT_EQ(heap().Free(buffer), absl::OkStatus());
    return found;
  }
  absl::Status SendFrom(const Buffer& buffer) {
    SendWork work;
    work.buffers = {&buffer, 1};
    return shard->Send(*connection, work);
  }

  ScriptedService& first = NewService();
  ScriptedService& second = NewService();
  RawPeer peer;
  Worker* worker = nullptr;
  Worker* heir = nullptr;
  Shard* shard = nullptr;
  Connection* connection = nullptr;
};

// ---------------------------------------------------------------- transactions

TEST_F(HeapTest, shouldLieBehindTheBuffersThatTheApplicationDividesUp) {
  EXPECT_EQ(worker->capacity().shard_heap_bytes, kPages * kPage);
  EXPECT_EQ(worker->buffers().size(), kBufferBytes);
  const Buffer buffer = Allocate(100);
  EXPECT_EQ(buffer.offset, kBufferBytes);
  EXPECT_EQ(buffer.length, 100u);
  uint8_t* const at = heap().At(buffer);
  EXPECT_EQ(at, worker->buffers().data() + buffer.offset);
  EXPECT_EQ(heap().BufferAt(at + 3, 7).offset, buffer.offset + 3);
}

TEST_F(HeapTest, shouldGiveTheSuccessorWhatWasCommitted) {
  const Buffer committed = Allocate(5000);
  const Buffer freed = Allocate(64);
  const Buffer kept = AllocateScratch(3 * kPage);
  ASSERT_EQ(heap().Keep(kept), absl::OkStatus());
  heap().At(committed)[4999] = 42;
  ASSERT_NO_FATAL_FAILURE(Commit());
  ASSERT_NO_FATAL_FAILURE(FreeAndCommit(freed));
  ASSERT_NO_FATAL_FAILURE(Succeed());
  std::set<uint64_t> found;
  for (const auto& [offset, is_kept] : All()) {
    EXPECT_TRUE(is_kept);
    found.insert(offset);
  }
  EXPECT_EQ(found, (std::set<uint64_t>{committed.offset, kept.offset}));
  EXPECT_EQ(heap().At(committed)[4999], 42);
  EXPECT_EQ(heap().Free(freed).code(), absl::StatusCode::kInvalidArgument);
  ASSERT_NO_FATAL_FAILURE(FreeAndCommit(committed));
}

TEST_F(HeapTest, shouldTakeBackWhatWasNotCommitted) {
  const Buffer stays = Allocate(kPage);
  ASSERT_NO_FATAL_FAILURE(Commit());
  Allocate(kPage);
  ASSERT_EQ(heap().Keep(AllocateScratch(kPage)), absl::OkStatus());
  ASSERT_EQ(heap().Free(stays), absl::OkStatus());
  ASSERT_NO_FATAL_FAILURE(Succeed());
  EXPECT_THAT(All(), ElementsAre(std::pair(stays.offset, true)));
  EXPECT_EQ(Statistics().kept, kPage);
  EXPECT_EQ(Statistics().free, (kPages - 1) * kPage);
}

TEST_F(HeapTest, shouldEndScratchMemoryWithItsOwner) {
  AllocateScratch(8 * kPage);
  const Buffer kept = Allocate(64);
  AllocateScratch(64);  // in the same block
  ASSERT_NO_FATAL_FAILURE(Commit());
  ASSERT_NO_FATAL_FAILURE(Succeed());
  EXPECT_THAT(All(), ElementsAre(std::pair(kept.offset, true)));
  EXPECT_EQ(Statistics().scratch, 0u);
  EXPECT_EQ(Statistics().held, 0u);
}

TEST_F(HeapTest, shouldUndoWhatIsAbandonedInEveryOrder) {
  const Buffer kept = Allocate(64);
  ASSERT_NO_FATAL_FAILURE(Commit());
  const Buffer scratch = AllocateScratch(kPage);
  const Allocated before = All();
  const auto expect_undone = [&] {
    shard->Abandon();
    EXPECT_EQ(All(), before);
    EXPECT_EQ(Statistics().kept, 64u);
    EXPECT_EQ(Statistics().scratch, kPage);
  };
  // Allocated, and allocated and freed.
  const Buffer other = Allocate(64);
  EXPECT_EQ(heap().Free(Allocate(64)), absl::OkStatus());
  expect_undone();
  EXPECT_EQ(heap().Free(other).code(), absl::StatusCode::kInvalidArgument);
  // Kept, and kept and freed.
  EXPECT_EQ(heap().Keep(scratch), absl::OkStatus());
  expect_undone();
  EXPECT_EQ(heap().Keep(scratch), absl::OkStatus());
  EXPECT_EQ(heap().Free(scratch), absl::OkStatus());
  expect_undone();
  // Freed, with the others around it.
  Allocate(64);
  EXPECT_EQ(heap().Free(kept), absl::OkStatus());
  EXPECT_EQ(heap().Keep(scratch), absl::OkStatus());
  EXPECT_EQ(heap().Free(scratch), absl::OkStatus());
  Allocate(3 * kPage);
  expect_undone();
  // Nothing of it was committed, and both can be freed.
  EXPECT_EQ(heap().Free(scratch), absl::OkStatus());
  ASSERT_NO_FATAL_FAILURE(FreeAndCommit(kept));
  EXPECT_THAT(All(), IsEmpty());
}

TEST_F(HeapTest, shouldKeepWhatWasKeptWhateverIsAbandoned) {
  std::mt19937 random(1);
  for (const uint64_t bytes : {uint64_t{64}, kPage, uint64_t{300}, 2 * kPage}) Allocate(bytes);
  ASSERT_NO_FATAL_FAILURE(Commit());
  const Allocated before = All();
  for (int round = 0; round < 200; ++round) {
    for (int step = 0; step < 8; ++step) {
      const Allocated all = All();
      if (random() % 2 == 0) {
        (void)heap().Allocate(1 + random() % 5000);
      } else if (!all.empty()) {
        EXPECT_EQ(heap().Free({all[random() % all.size()].first, 0}), absl::OkStatus());
      }
    }
    shard->Abandon();
    ASSERT_EQ(All(), before) << "round " << round;
  }
  ASSERT_NO_FATAL_FAILURE(Succeed());
  EXPECT_EQ(All(), before);
}

TEST_F(HeapTest, shouldTellOperatorsWhatIsTaken) {
  Allocate(kPage);
  AllocateScratch(2 * kPage);
  ASSERT_NO_FATAL_FAILURE(Commit());
  const arena::Arena& arena = keeper.engine().arena();
  const arena::BankHeader& bank = arena.bank(0, shard->epoch());
  EXPECT_EQ(arena::LoadRelaxed(bank.heap_kept), kPage);
  EXPECT_EQ(arena::LoadRelaxed(bank.heap_scratch), 2 * kPage);
  EXPECT_EQ(arena::LoadRelaxed(bank.heap_held), 0u);
  EXPECT_EQ(arena::LoadRelaxed(bank.heap_largest), (kPages - 3) * kPage);
  EXPECT_EQ(arena::LoadRelaxed(bank.heap_free), (kPages - 3) * kPage);
  EXPECT_EQ(arena::LoadRelaxed(bank.heap_rest), 0u);
  Allocate(40 * 64);  // 25 such objects have room in 16 pages
  ASSERT_NO_FATAL_FAILURE(Commit());
  EXPECT_EQ(arena::LoadRelaxed(bank.heap_rest), 24u * 64);
  EXPECT_EQ(arena::LoadRelaxed(bank.heap_free), (kPages - 3) * kPage - (40 + 24) * 64);
}

// A service whose messages are in scratch memory keeps nothing.
TEST_F(HeapTest, shouldTellOperatorsOfScratchMemoryWithAnyCommit) {
  const arena::BankHeader& bank = keeper.engine().arena().bank(0, shard->epoch());
  const auto told = [](const uint64_t& bytes) { return arena::LoadRelaxed(bytes); };
  const uint64_t published = arena::LoadRelaxed(bank.tail);
  const Buffer scratch = AllocateScratch(2 * kPage);
  ASSERT_NO_FATAL_FAILURE(Commit());
  EXPECT_EQ(told(bank.heap_scratch), 2 * kPage);
  EXPECT_EQ(told(bank.heap_free), (kPages - 2) * kPage);
  EXPECT_EQ(arena::LoadRelaxed(bank.tail), published);  // no transaction was made for it
  ASSERT_EQ(heap().Free(scratch), absl::OkStatus());
  const uint8_t state = 1;
  ASSERT_EQ(shard->SetShardState({&state, 1}, 1), absl::OkStatus());
  ASSERT_NO_FATAL_FAILURE(Commit());
  EXPECT_EQ(told(bank.heap_scratch), 0u);
  EXPECT_EQ(told(bank.heap_held), 2 * kPage);
  // An abandoned transaction changes them, too.
  Allocate(3 * kPage);
  shard->Abandon();
  ASSERT_NO_FATAL_FAILURE(Commit());
  EXPECT_EQ(told(bank.heap_kept), 0u);
  EXPECT_EQ(told(bank.heap_held), 5 * kPage);
}

class LargeHeapTest : public HeapTest {
 protected:
  // All of a transaction's entries but those that are reserved, three changes in each.
  static constexpr size_t kChanges = size_t{256 - 8} * 3;

  void SetUp() override { ASSERT_NO_FATAL_FAILURE(Serve(800)); }

  // Allocates pages until the transaction is full.
  void Fill() {
    absl::Status status;
    size_t pages = 0;
    while (true) {
      status = heap().Allocate(kPage).status();
      if (!status.ok()) break;
      ++pages;
    }
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(status.message()), HasSubstr("commit log"));
    EXPECT_EQ(pages, kChanges);
    EXPECT_EQ(Statistics().kept, kChanges * kPage);
  }
};

TEST_F(LargeHeapTest, shouldSayWhenATransactionIsFullAndAbandonIt) {
  for (int round = 0; round < 3; ++round) {
    ASSERT_NO_FATAL_FAILURE(Fill());
    shard->Abandon();
    EXPECT_EQ(Statistics().kept, 0u);
  }
  ASSERT_NO_FATAL_FAILURE(Succeed());
  EXPECT_THAT(All(), IsEmpty());
}

TEST_F(LargeHeapTest, shouldSayWhenATransactionIsFullAndCommitIt) {
  ASSERT_NO_FATAL_FAILURE(Fill());
  ASSERT_NO_FATAL_FAILURE(Commit());
  ASSERT_NO_FATAL_FAILURE(Succeed());
  const Allocated all = All();
  EXPECT_EQ(all.size(), kChanges);
  // The same with what is freed.
  for (const auto& [offset, kept] : all) ASSERT_EQ(heap().Free({offset, 1}), absl::OkStatus());
  const Buffer more = AllocateScratch(kPage);
  EXPECT_EQ(heap().Keep(more).code(), absl::StatusCode::kResourceExhausted);
  ASSERT_NO_FATAL_FAILURE(Commit());
  EXPECT_THAT(All(), ElementsAre(std::pair(more.offset, false)));
}

// Objects of a block share its entry, so the log has room for many more.
TEST_F(LargeHeapTest, shouldBoundWhatATransactionAllocatesAndFrees) {
  constexpr size_t kMost = Heap::kMaxTransactionSteps - 1;
  const auto allocate = [&] {
    std::vector<Buffer> all;
    absl::StatusOr<Buffer> buffer = heap().Allocate(64);
    for (; buffer.ok(); buffer = heap().Allocate(64)) all.push_back(*buffer);
    EXPECT_EQ(buffer.status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(buffer.status().message()), HasSubstr("commit"));
    return all;
  };
  EXPECT_EQ(allocate().size(), kMost);
  shard->Abandon();
  EXPECT_THAT(All(), IsEmpty());
  const std::vector<Buffer> all = allocate();
  ASSERT_EQ(all.size(), kMost);
  // There is room for a free of what was allocated last, and for no other.
  EXPECT_EQ(heap().Free(all.back()), absl::OkStatus());
  EXPECT_EQ(heap().Free(all.front()).code(), absl::StatusCode::kResourceExhausted);
  ASSERT_NO_FATAL_FAILURE(Commit());
  EXPECT_EQ(Statistics().kept, (kMost - 1) * 64);
  ASSERT_NO_FATAL_FAILURE(FreeAndCommit(all.front()));
  ASSERT_NO_FATAL_FAILURE(Succeed());
  EXPECT_EQ(All().size(), kMost - 2);
}

class BatchHeapTest : public HeapTest {
 protected:
  void SetUp() override {
    Start([](v1::ServiceConfig* service) {
      service->set_buffer_bytes(kBufferBytes);
      service->set_shard_heap_bytes(kLargeHeapPages * kPage);
      service->set_receive_queue_depth(64);
    });
  }
  static constexpr uint64_t kLargeHeapPages = 256;
};

// Nobody would tell an application that was refused when to try again.
TEST_F(BatchHeapTest, shouldDeliverACompletionOnlyWhenTheHeapHasRoomInTheTransaction) {
  constexpr int kMessages = 32, kPairs = 100;
  static_assert(2 * kPairs * kMessages > Heap::kMaxTransactionSteps);
  static_assert(2 * kPairs <= Heap::kStepsPerCompletion);
  int received = 0, refused = 0;
  first.on_completion = [&](Shard& owned, const Completion& completion) {
    AcceptWith(owned, completion, kMessages);
    if (completion.kind != Kind::kReceive) return;
    ++received;
    for (int i = 0; i < kPairs; ++i) {
      const absl::StatusOr<Buffer> buffer = owned.heap().Allocate(64);
      if (!buffer.ok() || !owned.heap().Free(*buffer).ok()) ++refused;
    }
  };
  worker = Add(&first, CommitMode::kAfterEachBatch);
  Establish(peer, *worker);
  ASSERT_TRUE(Until([&] { return first.Count(Kind::kEstablished) == 1; }));
  // They come in one batch.
  const uint64_t before = CompletionsInLog();
  for (int i = 0; i < kMessages; ++i) peer.Send("request");
  ASSERT_TRUE(UntilWithoutWorkers([&] { return CompletionsInLog() >= before + kMessages; }));
  EXPECT_EQ(received, 0);
  EXPECT_TRUE(Until([&] { return received == kMessages; }));
  EXPECT_EQ(refused, 0);
  shard = first.shards.at(0);
  EXPECT_EQ(Statistics().kept, 0u);
}

// ---------------------------------------------------------------- in use

TEST_F(HeapTest, shouldNotGiveOutWhatAReceiveRefersTo) {
  ASSERT_NO_FATAL_FAILURE(Connect());
  const Buffer page = Allocate(kPage);
  ASSERT_EQ(shard->Receive(*connection, {&page, 1}), absl::OkStatus());
  ASSERT_NO_FATAL_FAILURE(Commit());
  ASSERT_NO_FATAL_FAILURE(FreeAndCommit(page));
  EXPECT_FALSE(CanHave(page));
  ASSERT_NO_FATAL_FAILURE(Succeed());
  EXPECT_FALSE(CanHave(page));
  peer.Send("hello");
  ASSERT_TRUE(Until([&] { return second.Count(Kind::kReceive) == 1; }));
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(heap().At(page)), 5), "hello");
  EXPECT_FALSE(CanHave(page));  // it is not acknowledged
  ASSERT_NO_FATAL_FAILURE(Commit());
  EXPECT_TRUE(CanHave(page));
}

TEST_F(HeapTest, shouldNotGiveOutScratchMemoryOfADeadOwnerThatAReceiveRefersTo) {
  ASSERT_NO_FATAL_FAILURE(Connect());
  const Buffer page = AllocateScratch(kPage);
  const Buffer part = {page.offset + 100, 50};
  ASSERT_EQ(shard->Receive(*connection, {&part, 1}), absl::OkStatus());
  ASSERT_NO_FATAL_FAILURE(Commit());
  ASSERT_NO_FATAL_FAILURE(Succeed());
  EXPECT_THAT(All(), IsEmpty());
  EXPECT_EQ(Statistics().held, kPage);
  EXPECT_FALSE(CanHave(page));
  peer.Send("hello");
  ASSERT_TRUE(Until([&] { return second.Count(Kind::kReceive) == 1; }));
  ASSERT_NO_FATAL_FAILURE(Commit());
  EXPECT_TRUE(CanHave(page));
}

TEST_F(HeapTest, shouldNotGiveOutWhatASendOfTheSameTransactionRefersTo) {
  ASSERT_NO_FATAL_FAILURE(Connect());
  const Buffer page = Allocate(kPage);
  ASSERT_NO_FATAL_FAILURE(Commit());
  peer.Receive();
  heap().At(page)[0] = 'x';
  const Buffer text = {page.offset, 1};
  ASSERT_EQ(SendFrom(text), absl::OkStatus());
  ASSERT_NO_FATAL_FAILURE(FreeAndCommit(page));
  EXPECT_FALSE(CanHave(page));
  ASSERT_TRUE(Until([&] { return first.Count(Kind::kSend) == 1 && peer.received.size() == 1; }));
  EXPECT_THAT(peer.received, ElementsAre("x"));
  EXPECT_FALSE(CanHave(page));
  ASSERT_NO_FATAL_FAILURE(Commit());
  EXPECT_TRUE(CanHave(page));
}

TEST_F(HeapTest, shouldNotGiveOutWhatAStagedSendRefersTo) {
  ASSERT_NO_FATAL_FAILURE(Connect());
  const Buffer page = AllocateScratch(kPage);
  ASSERT_EQ(SendFrom({page.offset + 5, 1}), absl::OkStatus());
  ASSERT_EQ(heap().Free(page), absl::OkStatus());
  EXPECT_FALSE(CanHave(page));
  shard->Abandon();
  EXPECT_TRUE(CanHave(page));
}

TEST_F(HeapTest, shouldNotGiveOutWhatASendOfItsPredecessorRefersTo) {
  ASSERT_NO_FATAL_FAILURE(Connect());
  const Buffer page = Allocate(kPage);
  peer.Receive();
  ASSERT_EQ(SendFrom({page.offset, 8}), absl::OkStatus());
  ASSERT_NO_FATAL_FAILURE(FreeAndCommit(page));
  ASSERT_NO_FATAL_FAILURE(Succeed());
  EXPECT_FALSE(CanHave(page));
  ASSERT_TRUE(Until([&] { return second.Count(Kind::kSend) == 1; }));
  ASSERT_NO_FATAL_FAILURE(Commit());
  EXPECT_TRUE(CanHave(page));
}

// A successor is given the message again.
TEST_F(HeapTest, shouldNotGiveOutWhatAConnectionThatHasEndedReceivedLast) {
  ASSERT_NO_FATAL_FAILURE(Connect());
  const Buffer page = AllocateScratch(kPage);
  ASSERT_EQ(shard->Receive(*connection, {&page, 1}), absl::OkStatus());
  ASSERT_NO_FATAL_FAILURE(Commit());
  peer.Send("last words");
  ASSERT_TRUE(Until([&] { return first.Count(Kind::kReceive) == 1; }));
  peer.Disconnect();
  ASSERT_TRUE(Until([&] { return first.Count(Kind::kDisconnected) == 1; }));
  ASSERT_EQ(heap().Free(page), absl::OkStatus());
  EXPECT_FALSE(CanHave(page));
  ASSERT_NO_FATAL_FAILURE(Succeed());
  ASSERT_TRUE(Until([&] { return second.Count(Kind::kDisconnected) == 1; }));
  EXPECT_EQ(second.Count(Kind::kReceive), 1);
  EXPECT_FALSE(CanHave(page));
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(heap().At(page)), 10), "last words");
  ASSERT_NO_FATAL_FAILURE(Commit());
  EXPECT_TRUE(Until([&] { return CanHave(page); }));
}

TEST_F(HeapTest, shouldNotGiveOutWhatAGrantRefersTo) {
  const Buffer page = Allocate(kPage);
  ASSERT_NO_FATAL_FAILURE(Commit());
  const auto grant = worker->GrantRemoteAccess(page.offset + 100, 8, verbs::kRemoteRead);
  ASSERT_TRUE(grant.ok()) << grant.status();
  ASSERT_NO_FATAL_FAILURE(FreeAndCommit(page));
  EXPECT_FALSE(CanHave(page));
  EXPECT_THAT(std::string(heap().Allocate(kPages * kPage).status().message()),
              HasSubstr("grants use 4096 that were freed"));
  ASSERT_NO_FATAL_FAILURE(Succeed());
  EXPECT_FALSE(CanHave(page));
  ASSERT_EQ(heir->RevokeGrant(grant->id), absl::OkStatus());
  EXPECT_TRUE(CanHave(page));
}

class SharedReceiveHeapTest : public HeapTest {
 protected:
  void SetUp() override {
    Start([](v1::ServiceConfig* service) {
      service->set_shared_receive_queue_depth(8);
      service->set_buffer_bytes(kBufferBytes);
      service->set_shard_heap_bytes(4 * kPage);
    });
    worker = Add(&first, CommitMode::kManual);
    ASSERT_TRUE(Until([&] { return first.shards.size() == 1; }));
    shard = first.shards.at(0);
  }
};

TEST_F(SharedReceiveHeapTest, shouldNotGiveOutWhatASharedReceiveRefersTo) {
  const Buffer page = Allocate(kPage);
  ASSERT_EQ(shard->ReceiveShared({&page, 1}), absl::OkStatus());
  ASSERT_NO_FATAL_FAILURE(Commit());
  ASSERT_NO_FATAL_FAILURE(FreeAndCommit(page));
  EXPECT_FALSE(CanHave(page));
  ASSERT_NO_FATAL_FAILURE(Succeed());
  EXPECT_FALSE(CanHave(page));
}

// ---------------------------------------------------------------- what is refused

class TwoShardHeapTest : public HeapTest {
 protected:
  void SetUp() override {
    Start([](v1::ServiceConfig* service) {
      service->set_shards(2);
      service->set_buffer_bytes(kBufferBytes);
      service->set_shard_heap_bytes(kPages * kPage);
    });
    first.on_completion = [](Shard& owner, const Completion& completion) {
      if (completion.kind != Kind::kConnectRequest) return;
      AcceptWith(owner, completion, 0);
      EXPECT_EQ(owner.Commit(), absl::OkStatus());
    };
    worker = Add(&first, CommitMode::kManual);
    ASSERT_TRUE(Until([&] { return first.shards.size() == 2; }));
    ASSERT_NO_FATAL_FAILURE(Establish(peer, *worker));
    ASSERT_TRUE(Until([&] { return first.Count(Kind::kEstablished) == 1; }));
    connection = first.completions.back().connection;
    shard = &connection->shard();
  }
};

TEST_F(TwoShardHeapTest, shouldBeNamedByTheRequestsOfItsShardAlone) {
  const Buffer own = Allocate(64);
  const Buffer other = first.shards.at(1 - shard->index())->heap().Allocate(64).value();
  const Buffer into_a_heap = {kBufferBytes - 8, 16};
  // The first requests of the connection in a transaction, and others.
  for (int i = 0; i < 2; ++i) {
    for (const absl::Status& refused :
         {SendFrom(other), shard->Receive(*connection, {&other, 1}), SendFrom(into_a_heap),
          SendFrom({own.offset, (kPages + 1) * kPage})}) {
      EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
      EXPECT_THAT(std::string(refused.message()), HasSubstr("buffers[0]: "));
    }
    EXPECT_THAT(std::string(SendFrom(other).message()), HasSubstr("the heap of no other shard"));
    EXPECT_EQ(connection->next_send(), static_cast<uint64_t>(i));
    EXPECT_EQ(SendFrom(own), absl::OkStatus());
    EXPECT_EQ(shard->Receive(*connection, {&own, 1}), absl::OkStatus());
  }
  const std::array<Buffer, 2> both = {own, other};
  EXPECT_THAT(std::string(shard->Receive(*connection, both).message()), HasSubstr("buffers[1]: "));
  shard->Abandon();
}

TEST_F(HeapTest, shouldRefuseAnotherThread) {
  const Buffer buffer = Allocate(64);
  std::array<absl::Status, 4> statuses;
  std::thread([&] {
    statuses = {heap().Allocate(64).status(), heap().AllocateScratch(64).status(),
                heap().Free(buffer), heap().statistics().status()};
  }).join();
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("thread"));
  }
}

TEST_F(HeapTest, shouldRefuseWhatThisWorkerDoesNotOwn) {
  const Buffer buffer = Allocate(64);
  ASSERT_NO_FATAL_FAILURE(Commit());
  Heap& of_the_first = heap();
  ASSERT_NO_FATAL_FAILURE(Succeed());
  for (const absl::Status& status :
       {of_the_first.Allocate(64).status(), of_the_first.AllocateScratch(64).status(),
        of_the_first.Keep(buffer), of_the_first.Free(buffer), of_the_first.statistics().status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
  }
  EXPECT_EQ(heap().Free(buffer), absl::OkStatus());
}

TEST_F(HeapTest, shouldNameTheFieldThatIsWrong) {
  const auto message = [](const absl::Status& status) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(message(heap().Allocate(0).status()), HasSubstr("bytes: 0"));
  EXPECT_THAT(message(heap().Allocate(uint64_t{1} << 32).status()), HasSubstr("bytes: "));
  for (const uint32_t alignment : {0u, 3u, 8192u}) {
    EXPECT_THAT(message(heap().AllocateScratch(64, alignment).status()), HasSubstr("alignment: "));
  }
  const Buffer kept = Allocate(1000);
  const Buffer scratch = AllocateScratch(kPage);
  for (const Buffer& buffer :
       {Buffer{0, 8}, Buffer{kBufferBytes - 64, 8}, Buffer{kBufferBytes + kPages * kPage, 8},
        Buffer{~uint64_t{0}, 8}, Buffer{kept.offset + 1, 8}, Buffer{kept.offset + 64, 8},
        Buffer{kept.offset, 1025}, Buffer{kBufferBytes + (kPages - 1) * kPage, 1}}) {
    EXPECT_THAT(message(heap().Free(buffer)), HasSubstr("buffer: "));
    EXPECT_THAT(message(heap().Keep(buffer)), HasSubstr("buffer: "));
  }
  EXPECT_THAT(message(heap().Keep(kept)), HasSubstr("no scratch memory"));
  ASSERT_EQ(heap().Free(kept), absl::OkStatus());
  EXPECT_THAT(message(heap().Free(kept)), HasSubstr("free already"));
  ASSERT_NO_FATAL_FAILURE(Commit());
  EXPECT_THAT(message(heap().Free(kept)), HasSubstr("buffer: "));
  ASSERT_EQ(heap().Free(scratch), absl::OkStatus());
  EXPECT_THAT(message(heap().Free(scratch)), HasSubstr("buffer: "));
  EXPECT_THAT(message(heap().Keep(scratch)), HasSubstr("buffer: "));
}

TEST_F(HeapTest, shouldSayWhatToDoWhenItIsFull) {
  const absl::Status too_long = heap().Allocate((kPages + 1) * kPage).status();
  EXPECT_EQ(too_long.code(), absl::StatusCode::kResourceExhausted);
  Allocate((kPages - 6) * kPage);
  AllocateScratch(4 * kPage);
  const absl::Status full = heap().Allocate(3 * kPage).status();
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(full.message()), HasSubstr("shard_heap_bytes"));
  Allocate(2 * kPage);
  EXPECT_EQ(Statistics().free, 0u);
  EXPECT_EQ(Statistics().fragmentation(), 0);
}

TEST_F(HeapTest, shouldMeasureFragmentation) {
  std::vector<Buffer> pages;
  for (uint64_t i = 0; i < kPages; ++i) pages.push_back(AllocateScratch(kPage));
  for (size_t i = 0; i < kPages; i += 2) ASSERT_EQ(heap().Free(pages[i]), absl::OkStatus());
  AllocateScratch(kPage);
  EXPECT_EQ(Statistics().free, (kPages / 2 - 1) * kPage);
  EXPECT_EQ(Statistics().largest_free, kPage);
  EXPECT_DOUBLE_EQ(Statistics().fragmentation(), 30.0 / 31);
}

TEST_F(HeapTest, shouldRefuseADamagedTable) {
  const Buffer kept = Allocate(2 * kPage);
  ASSERT_NO_FATAL_FAILURE(Commit());
  ASSERT_NO_FATAL_FAILURE(Succeed());
  // Another native worker has written it, before the first use in this epoch.
  arena::HeapBlock* const table = keeper.engine().arena().heap(0);
  table[1] = {1, 0, 1};
  const std::array<absl::Status, 4> statuses = {
      heap().Allocate(64).status(), heap().Free(kept), heap().statistics().status(),
      heap().ForEachAllocated([](const Buffer&, bool) {})};
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  }
  // The shard can be served without.
  EXPECT_EQ(shard->SetShardState(std::array<uint8_t, 1>{7}, 1), absl::OkStatus());
  EXPECT_EQ(shard->Commit(), absl::OkStatus());
}

// ---------------------------------------------------------------- containers

TEST_F(HeapTest, shouldHoldContainers) {
  HeapResource resource(shard);
  {
    std::pmr::vector<uint64_t> numbers(&resource);
    for (uint64_t i = 0; i < 1000; ++i) numbers.push_back(i);
    EXPECT_EQ(numbers[999], 999u);
    const Buffer buffer = heap().BufferAt(numbers.data(), 8000);
    EXPECT_GE(buffer.offset, kBufferBytes);
    EXPECT_LE(buffer.offset + buffer.length, kBufferBytes + kPages * kPage);
    EXPECT_GE(Statistics().scratch, 8000u);
    EXPECT_THROW(numbers.resize(1 << 20), std::bad_alloc);
    EXPECT_EQ(numbers.size(), 1000u);
  }
  EXPECT_EQ(Statistics().scratch, 0u);
  EXPECT_FALSE(resource.is_equal(*std::pmr::new_delete_resource()));
}

TEST_F(HeapTest, shouldHoldContainersAndTheirCopies) {
  HeapResource resource(shard);
  using Numbers = std::vector<uint64_t, HeapAllocator<uint64_t>>;
  using Names = std::map<int, Numbers, std::less<>, HeapAllocator<std::pair<const int, Numbers>>>;
  const auto is_in_the_heap = [&](const void* memory) {
    const uint64_t offset = heap().BufferAt(memory, 1).offset;
    return offset >= kBufferBytes && offset < kBufferBytes + kPages * kPage;
  };
  {
    Numbers numbers(100, 7, &resource);
    Numbers copy = numbers;
    EXPECT_TRUE(is_in_the_heap(numbers.data()));
    EXPECT_TRUE(is_in_the_heap(copy.data()));
    EXPECT_NE(copy.data(), numbers.data());
    const uint64_t* const elements = copy.data();
    numbers = std::move(copy);
    EXPECT_EQ(numbers.data(), elements);
    Names names(&resource);
    names.emplace(1, numbers);
    EXPECT_TRUE(is_in_the_heap(&*names.begin()));
    EXPECT_EQ(names.at(1), numbers);
    EXPECT_THROW(numbers.resize(1 << 20), std::bad_alloc);
    EXPECT_THROW(HeapAllocator<uint64_t>(&resource).allocate(SIZE_MAX / 4), std::bad_alloc);
  }
  EXPECT_EQ(Statistics().scratch, 0u);
  HeapResource other(shard);
  EXPECT_EQ(HeapAllocator<int>(&resource), HeapAllocator<char>(&resource));
  EXPECT_NE(HeapAllocator<int>(&resource), HeapAllocator<int>(&other));
}

TEST_F(HeapTest, shouldFreeNothingOfTheNextOwnerWithAContainerThatOutlivesItsEpoch) {
  {
    HeapResource resource(shard);
    std::pmr::vector<uint64_t> numbers(100, 1, &resource);
    const Buffer of_numbers = heap().BufferAt(numbers.data(), 800);
    Shard* const own = shard;
    ASSERT_NO_FATAL_FAILURE(Succeed());
    EXPECT_THROW(numbers.resize(1000), std::bad_alloc);
    ASSERT_EQ(Handoff(*worker), absl::OkStatus());
    shard = first.shards.at(0);
    ASSERT_EQ(shard, own);
    EXPECT_EQ(AllocateScratch(800).offset, of_numbers.offset);
    EXPECT_THROW(numbers.resize(1000), std::bad_alloc);
  }
  EXPECT_EQ(All().size(), 1u);
}

}  // namespace
}  // namespace baton
