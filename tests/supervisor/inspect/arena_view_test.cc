#include "supervisor/inspect/arena_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "google/protobuf/text_format.h"
#include "google/protobuf/util/message_differencer.h"
#include "lib/arena/atomic_access.h"
#include "lib/base/status.h"
#include "tests/supervisor/inspect/known_arena.h"

namespace baton::inspect {
namespace {

using ::testing::ElementsAre;
using testing::FilesOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::KnownArena;

class ArenaViewTest : public ::testing::Test {
 protected:
  v1::Inspection Look(const Selection& selection) {
    const auto view = ArenaView::Open(FilesOf(arena_), "kv");
    EXPECT_TRUE(view.ok()) << view.status();
    auto inspection = Inspect(*view, selection, arena_.header().created_ns + 1'500'000'000);
    EXPECT_TRUE(inspection.ok()) << inspection.status();
    return *std::move(inspection);
  }
  v1::InspectedConnection Connection(const Selection& more = {}) {
    Selection selection = more;
    selection.connection = 2;
    return Look(selection).connections(0);
  }

  arena::Arena arena_ = KnownArena();
};

template <typename Message>
Message Parse(const std::string& text) {
  Message message;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &message)) << text;
  return message;
}

// Expects that `message` is what `text` says, field by field.
template <typename Message>
void ExpectIs(const Message& message, const std::string& text) {
  const auto wanted = Parse<Message>(text);
  std::string difference;
  google::protobuf::util::MessageDifferencer differencer;
  differencer.ReportDifferencesToString(&difference);
  EXPECT_TRUE(differencer.Compare(wanted, message)) << difference << message.DebugString();
}

TEST_F(ArenaViewTest, shouldSumUpTheArena) {
  const v1::Inspection all = Look({});
  EXPECT_EQ(all.service(), "kv");
  EXPECT_EQ(all.layout_version(), 2u);
  EXPECT_EQ(all.oldest_reader(), 1u);
  EXPECT_FALSE(all.native());
  EXPECT_DOUBLE_EQ(all.age_seconds(), 1.5);
  ExpectIs(all.source(), R"(kind: "process" pid: 4711 program: "baton-keeper" buffers: true)");
  ExpectIs(all.totals(), R"(shards_owned: 1 connections: 2 transactions: 33 completions: 21
                            completions_unacknowledged: 4)");
  ExpectIs(all.shape(), R"(shards: 2 connections: 8 send_queue_depth: 8 receive_queue_depth: 8
                           completion_log_entries: 512 connection_state_bytes: 64
                           shard_state_bytes: 128 workers: 4 buffer_bytes: 65536)");
  EXPECT_THAT(all.connections(), IsEmpty());
  EXPECT_THAT(all.invalid(), IsEmpty());
}

TEST_F(ArenaViewTest, shouldShowShardsAndWorkers) {
  const v1::Inspection all = Look({});
  ASSERT_EQ(all.shards_size(), 2);
  ExpectIs(all.shards(0), R"(
    epoch: 3 owner_slot: 1 owner_worker_id: 7 heir_worker_id: 9 heir_slot: -1 cut_epoch: 2
    cut_tail: 11 entries_published: 42 entries_applied: 40 completions: 21 acknowledged: 17
    read_cursor: 20 handling: 19 connections: 2 transactions: 33
    state { version: 4 length: 5 slot: 1 })");
  ExpectIs(all.shards(1), "index: 1 epoch: 1 owner_slot: -1 heir_slot: -1 state {}");
  ASSERT_EQ(all.workers_size(), 1);
  ExpectIs(all.workers(0), "slot: 1 heartbeat: 99 sleeping: true lock_holders: 1234 dead_locks: 1");
}

TEST_F(ArenaViewTest, shouldShowAConnection) {
  ExpectIs(Connection(), R"(
    index: 2 generation: 6 shard: 0 state: "established" qp_number: 77
    local_address: "10.0.0.1:7471" peer_address: "10.0.0.2:4000" listener_port: 7471 tag: 55
    send { committed: 105 posted: 103 attempted: 104 completed: 102 acknowledged: 100 }
    receive { committed: 12 posted: 12 attempted: 12 completed: 10 acknowledged: 10 }
    bytes_received: 640 poison: "none" answered: true was_established: true initiator_depth: 16
    responder_resources: 1 private_data: "hi" application_state { version: 1 length: 4 })");
}

TEST_F(ArenaViewTest, shouldDecodeWhatIsOutstanding) {
  const v1::InspectedConnection one = Connection({.work_requests = true});
  ASSERT_EQ(one.work_requests_size(), 7);
  ExpectIs(one.work_requests(0), R"(queue: "send" sequence: 100 state: "completed" opcode: "SEND"
                                    buffers { length: 64 } tag: 1)");
  ExpectIs(one.work_requests(1), R"(queue: "send" sequence: 101 state: "completed" opcode: "SEND"
                                    buffers { offset: 64 length: 64 } tag: 2)");
  ExpectIs(one.work_requests(2), R"(
    queue: "send" sequence: 102 state: "posted" opcode: "WRITE_WITH_IMM" flags: "fence"
    flags: "solicited" buffers { offset: 128 length: 32 } buffers { offset: 4096 length: 8 } tag: 3
    immediate: 0xabcd remote_address: 0x7f0000001000 rkey: 0x1234)");
  ExpectIs(one.work_requests(3), R"(
    queue: "send" sequence: 103 state: "maybe posted" opcode: "COMPARE_AND_SWAP"
    buffers { offset: 256 length: 8 } tag: 4 remote_address: 0x1000 rkey: 0x99 compare_add: 5
    swap: 6)");
  ExpectIs(one.work_requests(4), R"(queue: "send" sequence: 104 state: "committed"
                                    opcode: "SEND_WITH_INV" buffers {} tag: 5
                                    invalidate_rkey: 0x77)");
  ExpectIs(one.work_requests(5), R"(queue: "receive" sequence: 10 state: "posted" tag: 8
                                    opcode: "RECEIVE" buffers { offset: 1024 length: 512 })");
  ExpectIs(one.work_requests(6), R"(queue: "receive" sequence: 11 state: "posted" tag: 9
                                    opcode: "RECEIVE" buffers { offset: 1536 length: 512 })");
}

TEST_F(ArenaViewTest, shouldShowBothSlotsOfState) {
  const v1::InspectedState state = Connection({.state = true}).application_state();
  ASSERT_EQ(state.slots_size(), 2);
  ExpectIs(state.slots(0), R"(slot: 0 committed: true content: "acct")");
  EXPECT_EQ(state.slots(1).content(), std::string(64, '\0'));
  EXPECT_FALSE(state.slots(1).committed());
  const v1::InspectedState of_shard = Look({.shard = 0, .state = true}).shards(0).state();
  EXPECT_EQ(of_shard.slots(0).content().substr(0, 7), std::string("before\0", 7));
  EXPECT_EQ(of_shard.slots(1).content(), "after");
  EXPECT_FALSE(of_shard.changing());
}

TEST_F(ArenaViewTest, shouldAskTheDecoder) {
  std::vector<std::string> asked;
  const auto decode = [&](const CommittedState& state) -> absl::StatusOr<std::string> {
    asked.push_back(absl::StrCat(state.of_shard ? "shard " : "connection ", state.index, " v",
                                 state.version, " ",
                                 std::string(state.bytes.begin(), state.bytes.end())));
    if (state.of_shard) return absl::InternalError("cannot");
    return std::string("total 7\n");
  };
  const v1::Inspection all =
      Look({.shard = 0, .connections = true, .state = true, .decode = decode});
  EXPECT_THAT(asked, ElementsAre("shard 0 v4 after", "connection 2 v1 acct"));
  EXPECT_EQ(all.shards(0).state().decoder_error(), "cannot");
  EXPECT_EQ(all.connections(0).application_state().decoded(), "total 7\n");
}

TEST_F(ArenaViewTest, shouldListInPages) {
  const v1::Inspection first = Look({.connections = true, .limit = 1});
  ASSERT_EQ(first.connections_size(), 1);
  EXPECT_EQ(first.connections(0).index(), 2u);
  EXPECT_EQ(first.next_connection(), 5u);
  EXPECT_EQ(first.connections_left_out(), 1u);
  const v1::Inspection second = Look({.connections = true, .first_connection = 5, .limit = 1});
  ASSERT_EQ(second.connections_size(), 1);
  EXPECT_EQ(second.connections(0).state(), "closed");
  EXPECT_EQ(second.connections(0).last_status(), "flushed");
  EXPECT_EQ(second.connections(0).poison(), "silent");
  EXPECT_EQ(second.next_connection(), 0u);
  EXPECT_THAT(Look({.shard = 1, .connections = true}).connections(), IsEmpty());
}

// The driver log ends soon after the beginning of the first record that is not shown.
TEST_F(ArenaViewTest, shouldReadOnlyWhatItShows) {
  const uint64_t end = arena_.driver_map().Connection(5) + 16;
  const int copy = memfd_create("driver log", MFD_CLOEXEC);
  ASSERT_EQ(write(copy, &arena_.header(), end), static_cast<ssize_t>(end));
  ArenaFiles files = FilesOf(arena_);
  files.memories[arena::kDriverLogMemory] =
      Memory(std::make_shared<FileDescriptor>(copy), 0, files.driver_log().size(),
             files.driver_log().name());
  const auto view = ArenaView::Open(std::move(files), "kv");
  ASSERT_TRUE(view.ok()) << view.status();
  Selection selection = {.shard = 0, .limit = 1, .work_requests = true, .state = true};
  selection.connections = true;
  const auto first = Inspect(*view, selection, 0);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->connections_size(), 1);
  selection.limit = 2;
  EXPECT_EQ(Inspect(*view, selection, 0).status().code(), absl::StatusCode::kOutOfRange);
}

TEST_F(ArenaViewTest, shouldRefuseShardsAndConnectionsThatThereAreNot) {
  const auto view = ArenaView::Open(FilesOf(arena_), "kv");
  ASSERT_TRUE(view.ok()) << view.status();
  absl::Status status = Inspect(*view, {.shard = 2}, 0).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(MessageOf(status), "shard 2: the service has 2, from 0");
  status = Inspect(*view, {.connection = 8}, 0).status();
  EXPECT_EQ(MessageOf(status), "connection 8: the service has room for 8, from 0");
}

// ---------------------------------------------------------------- what cannot be so

TEST_F(ArenaViewTest, shouldSayWhatIsImpossibleInARecord) {
  arena::ConnectionRecord& one = arena_.connection(2);
  one.state = 77;
  one.poison = 9;
  one.last_status = 200;
  one.shard = 64;
  one.state_slot = 3;
  one.private_data_length = 257;
  one.send = {5, 6, 7, 8};
  one.receive = {1000, 10, 10, 10};
  const v1::InspectedConnection shown = Connection({.work_requests = true, .state = true});
  EXPECT_EQ(shown.state(), "invalid: 77");
  EXPECT_THAT(shown.invalid(),
              ElementsAre("send queue: acknowledged 8, completed 7, posted 6, attempted 104, "
                          "committed 5: not in that order",
                          "receive queue: 990 outstanding, and 0 not acknowledged, are more than a "
                          "depth of 8 allows",
                          "private data: 257 bytes", "shard: 64 of 2", "state: 77", "poison: 9",
                          "last status: 200", "state: 4 of 64 bytes in slot 3 of 2"));
  EXPECT_THAT(shown.work_requests(), IsEmpty());
  EXPECT_THAT(shown.application_state().slots(), IsEmpty());
}

TEST_F(ArenaViewTest, shouldShowTheBufferThatTheDriverReads) {
  arena::WorkRequest& request = arena_.send_request(2, 100);
  request.sge_count = 1;
  request.one_line = 1;
  request.only = {4096, 17, 0};
  request.sges[0] = {1, 2, 0};
  const v1::InspectedConnection one = Connection({.work_requests = true});
  ASSERT_EQ(one.work_requests(0).buffers_size(), 1);
  EXPECT_EQ(one.work_requests(0).buffers(0).offset(), 4096u);
  EXPECT_EQ(one.work_requests(0).buffers(0).length(), 17u);
  EXPECT_THAT(one.work_requests(0).invalid(), IsEmpty());
}

TEST_F(ArenaViewTest, shouldKnowWhatARequestMayNameInARegion) {
  arena_.region(3).length = 100;
  arena::WorkRequest& send = arena_.send_request(2, 102);
  send.opcode = static_cast<uint8_t>(verbs::Opcode::kWrite);
  send.flags = 0;
  send.sge_count = 3;
  send.one_line = 0;
  send.sges[0] = {arena::RegionOffset(3) + 90, 10, 0};
  send.sges[1] = {arena::RegionOffset(3) + 90, 11, 0};
  send.sges[2] = {arena::RegionOffset(4), 1, 0};
  // It has completed, and its regions may have been unregistered since.
  arena_.send_request(2, 100) = send;
  arena::WorkRequest& receive = arena_.receive_request(2, 10);
  receive.sge_count = 1;
  receive.one_line = 0;
  receive.sges[0] = {arena::RegionOffset(3), 1, 0};
  const v1::InspectedConnection one = Connection({.work_requests = true});
  EXPECT_THAT(one.work_requests(0).invalid(), IsEmpty());
  EXPECT_THAT(one.work_requests(2).invalid(),
              ElementsAre("scatter-gather entry 1: 11 bytes at 90 of 100 in region 3",
                          "scatter-gather entry 2: 1 bytes at 0 of 0 in region 4"));
  EXPECT_THAT(one.work_requests(5).invalid(),
              ElementsAre("scatter-gather entry 0: region 3, which is for sends"));
}

TEST_F(ArenaViewTest, shouldSayWhatIsImpossibleInAWorkRequest) {
  arena::WorkRequest& request = arena_.send_request(2, 100);
  request.opcode = 8;
  request.flags = 0xf0;
  request.sge_count = 200;
  request.sges[0] = {uint64_t{1} << 63, 1, 0};
  request.sges[1] = {65536, 0, 0};
  request.sges[2] = {65535, 2, 0};
  arena_.receive_request(2, 10).opcode = 1;
  arena_.receive_request(2, 11).one_line = 2;
  arena_.receive_request(2, 11).sge_count = 1;
  const v1::InspectedConnection one = Connection({.work_requests = true});
  EXPECT_EQ(one.work_requests(0).opcode(), "invalid: 8");
  EXPECT_THAT(one.work_requests(0).invalid(),
              ElementsAre("opcode: 8", "flags: 240", "scatter-gather entries: 200",
                          "scatter-gather entry 0: 1 bytes at 9223372036854775808 of 65536",
                          "scatter-gather entry 2: 2 bytes at 65535 of 65536"));
  EXPECT_EQ(one.work_requests(0).buffers_size(), 4);
  EXPECT_THAT(one.work_requests(5).invalid(), ElementsAre("opcode: 1"));
  EXPECT_THAT(one.work_requests(6).invalid(),
              ElementsAre("one line: 2 with 1 scatter-gather entries"));
}

TEST_F(ArenaViewTest, shouldSayWhatIsImpossibleInAShard) {
  arena::ShardRecord& shard = arena_.shard(0);
  shard.owner.ownership = arena::PackOwnership(3, 40);
  shard.owner.cut_epoch = 9;
  shard.acknowledged = 22;
  shard.connections = 9;
  shard.state_length = 129;
  arena_.bank(0, 3).tail = arena::PackCursor(3, 5000);
  arena_.bank(1, 1).tail = arena::PackCursor(2, 0);
  arena_.worker(1).sleeping = 7;
  const v1::Inspection all = Look({});
  EXPECT_THAT(all.shards(0).invalid(),
              ElementsAre("owner: worker slot 40 of 4", "cut: of epoch 9, which has not begun",
                          "completion log: 22 acknowledged of 21",
                          "commit log: 40 entries applied of 5000 published", "connections: 9 of 8",
                          "state: 129 of 128 bytes in slot 1 of 2"));
  EXPECT_FALSE(all.shards(0).has_handling());
  EXPECT_THAT(all.shards(1).invalid(),
              ElementsAre("commit log: its tail is of another epoch than 1"));
  EXPECT_EQ(all.totals().completions_unacknowledged(), 0u);
  EXPECT_THAT(all.workers(0).invalid(), ElementsAre("sleeping: 7"));
}

// The memories in a file are of different moments.
TEST_F(ArenaViewTest, shouldNotCallInvalidWhatAFileCannotTell) {
  arena_.bank(0, 3).tail = arena::PackCursor(3, 5000);
  arena_.bank(1, 1).tail = arena::PackCursor(2, 0);
  ArenaFiles files = FilesOf(arena_);
  files.file = "kv.snapshot";
  const auto view = ArenaView::Open(std::move(files), "kv");
  ASSERT_TRUE(view.ok()) << view.status();
  const auto all = Inspect(*view, {}, 0);
  ASSERT_TRUE(all.ok()) << all.status();
  for (const v1::InspectedShard& shard : all->shards()) {
    EXPECT_TRUE(shard.changing());
    EXPECT_THAT(shard.invalid(), IsEmpty());
  }
}

TEST_F(ArenaViewTest, shouldReadTextWithoutAnEnd) {
  std::fill_n(arena_.connection(2).peer_address, arena::kAddressBytes, '\xff');
  EXPECT_EQ(Connection().peer_address(), std::string(arena::kAddressBytes, '?'));
}

// ---------------------------------------------------------------- other arenas

TEST_F(ArenaViewTest, shouldRefuseWhatIsNoArena) {
  const auto refused = [&](const char* why) {
    const absl::Status status = ArenaView::Open(FilesOf(arena_), "kv").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
  };
  arena::DriverMemoryHeader& header = arena_.header();
  EXPECT_THAT(std::string(ArenaView::Open(FilesOf(arena_), "nvme").status().message()),
              HasSubstr("is of service \"kv\", not of \"nvme\""));
  header.shape.connections = 65536;
  header.shape.completion_log_entries = 1 << 22;
  refused("worker log memory has");
  header.shape.connections = 0;
  refused("shape is not possible: connections");
  header.oldest_reader = 3;
  header.layout_version = 4;
  refused("has layout version 4, readable from version 3; this baton reads versions 1 to 2");
  header.oldest_reader = 0;
  refused("not ready");
  header.magic = 0;
  refused("not Baton's");
}

TEST(SharedReceiveViewTest, shouldShowTheSlotsOfAShard) {
  arena::Shape shape = driver::testing::TestShape(1, 4, 8);
  shape.shared_receive_queue_depth = 4;
  shape.completion_log_entries = static_cast<uint32_t>(arena::RequiredCompletionEntries(shape));
  const arena::Arena arena = arena::Arena::Create(shape, "kv").value();
  using arena::SharedReceiveState;
  const auto set = [&](uint32_t slot, SharedReceiveState state) {
    arena.shared_receive(0, slot).word = arena::PackSharedReceiveState(state, 3);
    arena.shared_receive_request(0, slot) = testing::Request(slot, slot * 64, 64);
  };
  set(1, SharedReceiveState::kPosted);
  set(4, SharedReceiveState::kAttempted);
  set(7, SharedReceiveState::kCompleted);
  arena.shard(0).shared_receives_posted = 1;
  const auto view = ArenaView::Open(FilesOf(arena), "");
  ASSERT_TRUE(view.ok()) << view.status();
  const auto all = Inspect(*view, {.work_requests = true}, 0);
  ASSERT_TRUE(all.ok()) << all.status();
  ASSERT_EQ(all->shards(0).shared_receives_size(), 3);
  ExpectIs(all->shards(0).shared_receives(0),
           R"(queue: "shared receive" sequence: 1 state: "posted" opcode: "RECEIVE"
              buffers { offset: 64 length: 64 } tag: 1)");
  EXPECT_EQ(all->shards(0).shared_receives(1).state(), "maybe posted");
  EXPECT_EQ(all->shards(0).shared_receives(2).state(), "completed");
  EXPECT_THAT(all->invalid(), ElementsAre("the arena was made after it was looked at"));
}

TEST(NativeViewTest, shouldShowWhatANativeShardHasBesides) {
  arena::Shape shape = driver::testing::TestShape(1, 4, 8);
  shape.pooled_queue_pairs = 3;
  const arena::Arena arena = arena::Arena::Create(shape, "kv").value();
  arena.shard(0).owner.ownership = arena::PackOwnership(4, 2 | arena::kClaim, 5);
  arena.succession(0).heir = 1;
  arena.notices(0).tail = 5;
  arena.notices(0).head = 3;
  arena.orders(0).tail = 1000;
  arena.pooled(0, 1).state = static_cast<uint32_t>(arena::PooledState::kLent);
  arena.pooled(0, 2) = {66, 8};
  const auto view = ArenaView::Open(FilesOf(arena), "kv");
  ASSERT_TRUE(view.ok()) << view.status();
  const auto all = Inspect(*view, {.shard = 0}, arena.header().created_ns);
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_TRUE(all->native());
  const v1::InspectedShard& shard = all->shards(0);
  EXPECT_EQ(shard.epoch(), 4u);
  EXPECT_TRUE(shard.claimed());
  EXPECT_EQ(shard.owner_slot(), 2);
  EXPECT_EQ(shard.heir_slot(), 0);
  ExpectIs(shard.notices(), "told: 5 done: 3");
  ExpectIs(shard.pool(), "free: 1 lent: 1");
  EXPECT_THAT(shard.invalid(), ElementsAre("orders: 0 done of 1000", "queue pair 66: invalid: 8"));
}

// ---------------------------------------------------------------- heaps

class HeapViewTest : public ::testing::Test {
 protected:
  v1::Inspection Look(const std::string& file = "") {
    ArenaFiles files = FilesOf(arena_);
    files.file = file;
    const auto view = ArenaView::Open(std::move(files), "kv");
    EXPECT_TRUE(view.ok()) << view.status();
    auto inspection = Inspect(*view, {}, arena_.header().created_ns);
    EXPECT_TRUE(inspection.ok()) << inspection.status();
    return *std::move(inspection);
  }
  // Expects that the heap of shard 0 is damaged, and nothing of it is counted.
  void ExpectDamage(const std::string& damage) {
    const v1::InspectedShard shard = Look().shards(0);
    EXPECT_EQ(shard.heap().damage(), damage);
    EXPECT_EQ(shard.heap().kept() + shard.heap().free(), 0u);
    EXPECT_FALSE(shard.heap().changing());
    EXPECT_THAT(shard.invalid(), ElementsAre("heap: " + damage));
    EXPECT_TRUE(shard.heap().has_owner());
  }

  const arena::Arena arena_ = testing::ArenaWithHeaps();
};

// 59 of 64 pages are in no block, 52 of them behind the last; 4 objects of 28 units fit in 2 pages.
TEST_F(HeapViewTest, shouldCountWhatIsCommittedAndShowWhatTheOwnerSays) {
  const v1::Inspection all = Look();
  EXPECT_EQ(all.shape().buffer_bytes(), 65536u);
  EXPECT_EQ(all.shape().shard_heap_bytes(), 64u * 4096);
  const v1::InspectedHeap& heap = all.shards(0).heap();
  EXPECT_EQ(heap.bytes(), 64u * 4096);
  EXPECT_EQ(heap.allocations(), 3u);
  EXPECT_EQ(heap.kept(), 3u * 4096 + 2 * 28 * 64);
  EXPECT_EQ(heap.free(), 59u * 4096 + 2 * 28 * 64);
  EXPECT_EQ(heap.largest_free(), 52u * 4096);
  EXPECT_DOUBLE_EQ(heap.fragmentation(), 1 - 52.0 * 4096 / (59 * 4096 + 2 * 28 * 64));
  ExpectIs(heap.owner(),
           "kept: 15872 scratch: 4096 held: 262144 largest_free: 217088 free: 228864 rest: 1024");
  ExpectIs(all.shards(1).heap(), "bytes: 262144 free: 262144 largest_free: 262144");
  EXPECT_THAT(all.shards(0).invalid(), IsEmpty());
}

TEST_F(HeapViewTest, shouldShowNoHeapWhereShardsHaveNone) {
  const arena::Arena arena = KnownArena();
  const auto view = ArenaView::Open(FilesOf(arena), "kv");
  ASSERT_TRUE(view.ok()) << view.status();
  const auto all = Inspect(*view, {}, arena.header().created_ns);
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_FALSE(all->shards(0).has_heap());
}

TEST_F(HeapViewTest, shouldSayThatBlocksOverlap) {
  arena_.heap(0)[4] = {1, 0, 1};
  ExpectDamage("damaged at page 4: a block of 1 pages, objects of 0 units, begins there");
}

TEST_F(HeapViewTest, shouldSayThatABlockCannotBe) {
  arena_.heap(0)[63] = {2, 0, 1};
  ExpectDamage("damaged at page 63: a block of 2 pages, objects of 0 units, begins there");
  arena_.heap(0)[63] = {0, 0, 1};
  ExpectDamage("damaged at page 63: a block of 0 pages, objects of 0 units, begins there");
  arena_.heap(0)[63] = {1, 16, 0b10000};
  ExpectDamage("damaged at page 63: a block of 1 pages, objects of 16 units, begins there");
  arena_.heap(0)[63] = {~0u, ~0u, ~uint64_t{0}};
  ExpectDamage(
      "damaged at page 63: a block of 4294967295 pages, objects of 4294967295 units, begins there");
}

TEST_F(HeapViewTest, shouldNotCallInvalidWhatMayBeOfSeveralMoments) {
  arena_.heap(0)[4] = {1, 0, 1};
  v1::InspectedShard shard = Look("kv.snapshot").shards(0);
  EXPECT_TRUE(shard.heap().changing());
  EXPECT_THAT(shard.heap().damage(), HasSubstr("page 4"));
  EXPECT_THAT(shard.invalid(), IsEmpty());
  // A transaction that is begun may have changed a part of it.
  arena_.shard(0).apply_begun = arena_.shard(0).commit_head;
  shard = Look().shards(0);
  EXPECT_TRUE(shard.heap().changing());
  EXPECT_THAT(shard.invalid(), IsEmpty());
}

}  // namespace
}  // namespace baton::inspect
