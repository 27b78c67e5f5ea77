// Literals on purpose: whoever moves a byte has to change this test, and with it kLayoutVersion.
#include "lib/arena/layout.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>

namespace baton::arena {
namespace {

// A shape with no two fields alike, so that a mix-up moves something.
constexpr Shape kShape = {.shards = 3,
                          .connections = 5,
                          .send_queue_depth = 16,
                          .receive_queue_depth = 32,
                          .completion_log_entries = 512,
                          .connection_state_bytes = 192,
                          .shard_state_bytes = 4160,
                          .workers = 7,
                          .buffer_bytes = 0x30000,
                          .shared_receive_queue_depth = 0,
                          .max_inline_bytes = 96,
                          .pooled_queue_pairs = 0,
                          .dump_buffers = 0,
                          .heap_pages = 0,
                          .brokered_queue_pairs = 0};

constexpr Shape SharedShape() {
  Shape shape = kShape;
  shape.shared_receive_queue_depth = 64;
  return shape;
}

constexpr Shape HeapShape(Shape shape) {
  shape.heap_pages = 5;
  return shape;
}

TEST(Layout, shouldHaveTheVersionThatItsBytesWereReleasedWith) {
  EXPECT_EQ(kLayoutVersion, 2u);
  EXPECT_EQ(kOldestLayoutVersion, 1u);
  EXPECT_EQ(OldestReader(kShape), 1u);
  EXPECT_EQ(OldestReader(SharedShape()), 2u);
  EXPECT_EQ(kMagic, 0x314e414e4f544142u);
}

TEST(Layout, shouldKeepOlderWorkersFromArenasWithHeaps) {
  Shape shape = kShape;
  shape.heap_pages = 1;
  EXPECT_EQ(OldestReader(shape), 2u);
}

TEST(Layout, shouldKeepItsLimits) {
  EXPECT_EQ(kPageBytes, 4096u);
  EXPECT_EQ(kLineBytes, 64u);
  EXPECT_EQ(kMaxSges, 4u);
  EXPECT_EQ(kMaxTransactionEntries, 256u);
  EXPECT_EQ(kCommitBanks, 4u);
  EXPECT_EQ(kCommitLogEntries, 1024u);
  EXPECT_EQ(kThreadLocks, 8u);
  EXPECT_EQ(kPrivateDataBytes, 256u);
  EXPECT_EQ(kAddressBytes, 56u);
  EXPECT_EQ(kServiceNameBytes, 64u);
  EXPECT_EQ(kGrants, 256u);
  EXPECT_EQ(kRegions, 64u);
  EXPECT_EQ(kMaxInlineBytes, 4096u);
  EXPECT_EQ(kEventsPerConnection, 4u);
  EXPECT_EQ(kNobody, 0xffffu);
  EXPECT_EQ(kKeepState, 0xffu);
  EXPECT_EQ(kCommitLast, 1u);
  EXPECT_EQ(kCommitAcknowledges, 2u);
  EXPECT_EQ(kRequestFence, 1u);
  EXPECT_EQ(kRequestSolicited, 2u);
  EXPECT_EQ(kCompletionHasImmediate, 1u);
  EXPECT_EQ(kCompletionHasInvalidate, 2u);
  EXPECT_EQ(kCompletionPoisoned, 4u);
  EXPECT_EQ(kCompletionVoid, 8u);
  EXPECT_EQ(kVoidGeneration, 0x8000'0000u);
  EXPECT_EQ(kHandlingNotTold, 0xffff'ffff'ffff'ffffu);
  EXPECT_EQ(kInvalidWrId, 0xffff'ffff'ffff'ffffu);
}

TEST(Layout, shouldKeepShape) {
  EXPECT_EQ(sizeof(Shape), 64u);
  EXPECT_EQ(offsetof(Shape, shards), 0u);
  EXPECT_EQ(offsetof(Shape, connections), 4u);
  EXPECT_EQ(offsetof(Shape, send_queue_depth), 8u);
  EXPECT_EQ(offsetof(Shape, receive_queue_depth), 12u);
  EXPECT_EQ(offsetof(Shape, completion_log_entries), 16u);
  EXPECT_EQ(offsetof(Shape, connection_state_bytes), 20u);
  EXPECT_EQ(offsetof(Shape, shard_state_bytes), 24u);
  EXPECT_EQ(offsetof(Shape, workers), 28u);
  EXPECT_EQ(offsetof(Shape, buffer_bytes), 32u);
  EXPECT_EQ(offsetof(Shape, shared_receive_queue_depth), 40u);
  EXPECT_EQ(offsetof(Shape, max_inline_bytes), 44u);
  EXPECT_EQ(offsetof(Shape, pooled_queue_pairs), 48u);
  EXPECT_EQ(offsetof(Shape, dump_buffers), 52u);
  EXPECT_EQ(offsetof(Shape, heap_pages), 56u);
  EXPECT_EQ(offsetof(Shape, brokered_queue_pairs), 60u);
}

TEST(Layout, shouldKeepWorkerMemoryHeaderAndSlots) {
  EXPECT_EQ(sizeof(WorkerMemoryHeader), 16u);
  EXPECT_EQ(offsetof(WorkerMemoryHeader, magic), 0u);
  EXPECT_EQ(offsetof(WorkerMemoryHeader, oldest_reader), 8u);
  EXPECT_EQ(sizeof(ThreadLock), 64u);
  EXPECT_EQ(offsetof(ThreadLock, futex), 0u);
  EXPECT_EQ(sizeof(WorkerSlot), 640u);
  EXPECT_EQ(offsetof(WorkerSlot, heartbeat), 0u);
  EXPECT_EQ(offsetof(WorkerSlot, unhealthy), 8u);
  EXPECT_EQ(offsetof(WorkerSlot, sleeping), 64u);
  EXPECT_EQ(offsetof(WorkerSlot, thread_locks), 128u);
}

TEST(Layout, shouldKeepCommitLog) {
  EXPECT_EQ(sizeof(BankHeader), 128u);
  EXPECT_EQ(offsetof(BankHeader, tail), 0u);
  EXPECT_EQ(offsetof(BankHeader, read_cursor), 64u);
  EXPECT_EQ(offsetof(BankHeader, handling), 72u);
  EXPECT_EQ(offsetof(BankHeader, heap_kept), 80u);
  EXPECT_EQ(offsetof(BankHeader, heap_scratch), 88u);
  EXPECT_EQ(offsetof(BankHeader, heap_held), 96u);
  EXPECT_EQ(offsetof(BankHeader, heap_largest), 104u);
  EXPECT_EQ(offsetof(BankHeader, heap_free), 112u);
  EXPECT_EQ(offsetof(BankHeader, heap_rest), 120u);
  EXPECT_EQ(sizeof(CommitEntry), 64u);
  EXPECT_EQ(offsetof(CommitEntry, kind), 0u);
  EXPECT_EQ(offsetof(CommitEntry, flags), 1u);
  EXPECT_EQ(offsetof(CommitEntry, connection), 4u);
  EXPECT_EQ(offsetof(CommitEntry, generation), 8u);
  EXPECT_EQ(offsetof(CommitEntry, state_slot), 12u);
  EXPECT_EQ(offsetof(CommitEntry, send_end), 16u);
  EXPECT_EQ(offsetof(CommitEntry, receive_end), 24u);
  EXPECT_EQ(offsetof(CommitEntry, state_length), 32u);
  EXPECT_EQ(offsetof(CommitEntry, state_version), 36u);
  EXPECT_EQ(offsetof(CommitEntry, acknowledged), 40u);
  EXPECT_EQ(offsetof(CommitEntry, target_shard), 48u);
  EXPECT_EQ(offsetof(CommitEntry, private_data_length), 52u);
  EXPECT_EQ(offsetof(CommitEntry, reserved1), 56u);
}

TEST(Layout, shouldKeepWorkRequests) {
  EXPECT_EQ(sizeof(BufferRange), 16u);
  EXPECT_EQ(offsetof(BufferRange, offset), 0u);
  EXPECT_EQ(offsetof(BufferRange, length), 8u);
  EXPECT_EQ(sizeof(WorkRequest), 128u);
  EXPECT_EQ(offsetof(WorkRequest, opcode), 0u);
  EXPECT_EQ(offsetof(WorkRequest, flags), 1u);
  EXPECT_EQ(offsetof(WorkRequest, sge_count), 2u);
  EXPECT_EQ(offsetof(WorkRequest, one_line), 3u);
  EXPECT_EQ(offsetof(WorkRequest, immediate), 4u);
  EXPECT_EQ(offsetof(WorkRequest, tag), 8u);
  EXPECT_EQ(offsetof(WorkRequest, remote_address), 16u);
  EXPECT_EQ(offsetof(WorkRequest, rkey), 24u);
  EXPECT_EQ(offsetof(WorkRequest, invalidate_rkey), 28u);
  EXPECT_EQ(offsetof(WorkRequest, compare_add), 32u);
  EXPECT_EQ(offsetof(WorkRequest, swap), 40u);
  EXPECT_EQ(offsetof(WorkRequest, only), 48u);
  EXPECT_EQ(offsetof(WorkRequest, sges), 64u);
}

TEST(Layout, shouldKeepDriverMemoryHeader) {
  EXPECT_EQ(sizeof(DriverMemoryHeader), 384u);
  EXPECT_EQ(offsetof(DriverMemoryHeader, magic), 0u);
  EXPECT_EQ(offsetof(DriverMemoryHeader, oldest_reader), 8u);
  EXPECT_EQ(offsetof(DriverMemoryHeader, layout_version), 12u);
  EXPECT_EQ(offsetof(DriverMemoryHeader, shape), 16u);
  EXPECT_EQ(offsetof(DriverMemoryHeader, service), 80u);
  EXPECT_EQ(offsetof(DriverMemoryHeader, created_ns), 144u);
  EXPECT_EQ(offsetof(DriverMemoryHeader, max_message_bytes), 152u);
  EXPECT_EQ(offsetof(DriverMemoryHeader, missing_opcodes), 160u);
  EXPECT_EQ(offsetof(DriverMemoryHeader, tells_depths), 164u);
  EXPECT_EQ(offsetof(DriverMemoryHeader, regions), 168u);
  EXPECT_EQ(offsetof(DriverMemoryHeader, driver_sleeping), 192u);
  EXPECT_EQ(offsetof(DriverMemoryHeader, ownership_changes), 256u);
  EXPECT_EQ(offsetof(DriverMemoryHeader, stop_requested), 320u);
}

TEST(Layout, shouldKeepOwnershipAndShardRecords) {
  EXPECT_EQ(sizeof(OwnershipRecord), 64u);
  EXPECT_EQ(offsetof(OwnershipRecord, ownership), 0u);
  EXPECT_EQ(offsetof(OwnershipRecord, owner_worker_id), 8u);
  EXPECT_EQ(offsetof(OwnershipRecord, heir_worker_id), 16u);
  EXPECT_EQ(offsetof(OwnershipRecord, release_requested), 24u);
  EXPECT_EQ(offsetof(OwnershipRecord, cut_epoch), 32u);
  EXPECT_EQ(offsetof(OwnershipRecord, cut_tail), 40u);
  EXPECT_EQ(sizeof(ShardRecord), 256u);
  EXPECT_EQ(offsetof(ShardRecord, owner), 0u);
  EXPECT_EQ(offsetof(ShardRecord, commit_head), 64u);
  EXPECT_EQ(offsetof(ShardRecord, apply_begun), 72u);
  EXPECT_EQ(offsetof(ShardRecord, released_epoch), 80u);
  EXPECT_EQ(offsetof(ShardRecord, completion_tail), 128u);
  EXPECT_EQ(offsetof(ShardRecord, acknowledged), 192u);
  EXPECT_EQ(offsetof(ShardRecord, state_slot), 200u);
  EXPECT_EQ(offsetof(ShardRecord, state_length), 204u);
  EXPECT_EQ(offsetof(ShardRecord, state_version), 208u);
  EXPECT_EQ(offsetof(ShardRecord, connections), 212u);
  EXPECT_EQ(offsetof(ShardRecord, transactions), 216u);
  EXPECT_EQ(offsetof(ShardRecord, shared_receives_posted), 224u);
  EXPECT_EQ(offsetof(ShardRecord, shared_receives_unsure), 228u);
  EXPECT_EQ(offsetof(ShardRecord, shared_receives_refused), 232u);
  EXPECT_EQ(offsetof(ShardRecord, bytes_sent), 240u);
}

TEST(Layout, shouldKeepCompletionEntry) {
  EXPECT_EQ(sizeof(CompletionEntry), 64u);
  EXPECT_EQ(offsetof(CompletionEntry, wr_id), 0u);
  EXPECT_EQ(offsetof(CompletionEntry, tag), 8u);
  EXPECT_EQ(offsetof(CompletionEntry, kind), 16u);
  EXPECT_EQ(offsetof(CompletionEntry, status), 17u);
  EXPECT_EQ(offsetof(CompletionEntry, opcode), 18u);
  EXPECT_EQ(offsetof(CompletionEntry, flags), 19u);
  EXPECT_EQ(offsetof(CompletionEntry, byte_len), 20u);
  EXPECT_EQ(offsetof(CompletionEntry, immediate), 24u);
  EXPECT_EQ(offsetof(CompletionEntry, vendor_error), 28u);
  EXPECT_EQ(offsetof(CompletionEntry, connection), 32u);
  EXPECT_EQ(offsetof(CompletionEntry, generation), 36u);
  EXPECT_EQ(offsetof(CompletionEntry, sequence), 40u);
  EXPECT_EQ(offsetof(CompletionEntry, reserved), 48u);
}

TEST(Layout, shouldKeepConnectionAndGrantRecords) {
  EXPECT_EQ(sizeof(QueueCursors), 32u);
  EXPECT_EQ(offsetof(QueueCursors, committed), 0u);
  EXPECT_EQ(offsetof(QueueCursors, posted), 8u);
  EXPECT_EQ(offsetof(QueueCursors, completed), 16u);
  EXPECT_EQ(offsetof(QueueCursors, acknowledged), 24u);
  EXPECT_EQ(sizeof(ConnectionRecord), 512u);
  EXPECT_EQ(offsetof(ConnectionRecord, state), 0u);
  EXPECT_EQ(offsetof(ConnectionRecord, generation), 4u);
  EXPECT_EQ(offsetof(ConnectionRecord, shard), 8u);
  EXPECT_EQ(offsetof(ConnectionRecord, qp_number), 12u);
  EXPECT_EQ(offsetof(ConnectionRecord, send), 16u);
  EXPECT_EQ(offsetof(ConnectionRecord, receive), 48u);
  EXPECT_EQ(offsetof(ConnectionRecord, state_slot), 80u);
  EXPECT_EQ(offsetof(ConnectionRecord, state_length), 84u);
  EXPECT_EQ(offsetof(ConnectionRecord, state_version), 88u);
  EXPECT_EQ(offsetof(ConnectionRecord, last_status), 92u);
  EXPECT_EQ(offsetof(ConnectionRecord, tag), 96u);
  EXPECT_EQ(offsetof(ConnectionRecord, bytes_received), 104u);
  EXPECT_EQ(offsetof(ConnectionRecord, private_data_length), 112u);
  EXPECT_EQ(offsetof(ConnectionRecord, listener_port), 116u);
  EXPECT_EQ(offsetof(ConnectionRecord, send_attempted), 120u);
  EXPECT_EQ(offsetof(ConnectionRecord, receive_attempted), 124u);
  EXPECT_EQ(offsetof(ConnectionRecord, local_address), 128u);
  EXPECT_EQ(offsetof(ConnectionRecord, peer_address), 184u);
  EXPECT_EQ(offsetof(ConnectionRecord, private_data), 240u);
  EXPECT_EQ(offsetof(ConnectionRecord, poison), 496u);
  EXPECT_EQ(offsetof(ConnectionRecord, answered), 500u);
  EXPECT_EQ(offsetof(ConnectionRecord, was_established), 501u);
  EXPECT_EQ(offsetof(ConnectionRecord, send_markers), 502u);
  EXPECT_EQ(offsetof(ConnectionRecord, receive_markers), 505u);
  EXPECT_EQ(offsetof(ConnectionRecord, abandoned), 508u);
  EXPECT_EQ(offsetof(ConnectionRecord, arriving), 509u);
  EXPECT_EQ(sizeof(MarkerCursors), 3u);
  EXPECT_EQ(offsetof(MarkerCursors, begun), 0u);
  EXPECT_EQ(offsetof(MarkerCursors, confirmed), 1u);
  EXPECT_EQ(offsetof(MarkerCursors, completed), 2u);
  EXPECT_EQ(sizeof(GrantRecord), 32u);
  EXPECT_EQ(offsetof(GrantRecord, offset), 0u);
  EXPECT_EQ(offsetof(GrantRecord, length), 8u);
  EXPECT_EQ(offsetof(GrantRecord, rkey), 16u);
  EXPECT_EQ(offsetof(GrantRecord, access), 20u);
  EXPECT_EQ(sizeof(RegionRecord), 48u);
  EXPECT_EQ(offsetof(RegionRecord, length), 0u);
  EXPECT_EQ(offsetof(RegionRecord, address), 8u);
  EXPECT_EQ(offsetof(RegionRecord, lkey), 16u);
  EXPECT_EQ(offsetof(RegionRecord, rkey), 20u);
  EXPECT_EQ(offsetof(RegionRecord, access), 24u);
  EXPECT_EQ(offsetof(RegionRecord, descriptor), 32u);
  EXPECT_EQ(offsetof(RegionRecord, offset), 40u);
}

TEST(Layout, shouldPlaceRegionsBehindAnyBuffers) {
  EXPECT_EQ(RegionOffset(1), 0x0001'0000'0000'0000u);
  EXPECT_EQ(RegionOffset(64), 0x0040'0000'0000'0000u);
  EXPECT_EQ(RegionOf(RegionOffset(1)), 1u);
  EXPECT_EQ(RegionOf(RegionOffset(64) + kMaxBufferBytes), 64u);
  for (const uint64_t none :
       {uint64_t{0}, kMaxBufferBytes, RegionOffset(1) - 1, RegionOffset(65), ~uint64_t{0}}) {
    EXPECT_EQ(RegionOf(none), 0u) << none;
  }
}

TEST(Layout, shouldNumberRegionsBehindGrants) {
  EXPECT_EQ(GrantOfRegion(1), 256u);
  EXPECT_EQ(GrantOfRegion(64), 319u);
  EXPECT_EQ(RegionOfGrant(256), 1u);
  EXPECT_EQ(RegionOfGrant(319), 64u);
  for (const uint32_t none : {0u, 255u, 320u, ~0u}) EXPECT_EQ(RegionOfGrant(none), 0u) << none;
}

TEST(Layout, shouldKeepRecoveryMemory) {
  EXPECT_EQ(kPollSlots, 128u);
  EXPECT_EQ(kSpares, 16u);
  EXPECT_EQ(kSpareBytes, 65536u);
  EXPECT_EQ(kMarkers, 8u);
  EXPECT_EQ(kShardMarkers, 64u);
  EXPECT_EQ(kEventSequence, 0xff'ffff'ffffu);
  EXPECT_EQ(kMarkerSequence, 0xff'ffff'0000u);
  EXPECT_EQ(kSpareSequence, 0xff'ffff'1000u);
  EXPECT_EQ(sizeof(PollSlot), 48u);
  EXPECT_EQ(offsetof(PollSlot, wr_id), 0u);
  EXPECT_EQ(sizeof(SpareRecord), 64u);
  EXPECT_EQ(offsetof(SpareRecord, owner), 0u);
  EXPECT_EQ(offsetof(SpareRecord, generation), 4u);
  EXPECT_EQ(offsetof(SpareRecord, state), 8u);
  EXPECT_EQ(offsetof(SpareRecord, order), 12u);
  EXPECT_EQ(offsetof(SpareRecord, stands_for), 16u);
  EXPECT_EQ(offsetof(SpareRecord, opcode), 24u);
  EXPECT_EQ(offsetof(SpareRecord, flags), 25u);
  EXPECT_EQ(offsetof(SpareRecord, byte_len), 28u);
  EXPECT_EQ(offsetof(SpareRecord, immediate), 32u);
  EXPECT_EQ(static_cast<int>(SpareState::kBegun), 1);
  EXPECT_EQ(static_cast<int>(SpareState::kConfirmed), 2);
  EXPECT_EQ(static_cast<int>(SpareState::kFilled), 3);
}

TEST(Layout, shouldKeepTheNumbersOfItsEnumerations) {
  EXPECT_EQ(static_cast<int>(CommitKind::kConnection), 1);
  EXPECT_EQ(static_cast<int>(CommitKind::kAcknowledge), 2);
  EXPECT_EQ(static_cast<int>(CommitKind::kShardState), 3);
  EXPECT_EQ(static_cast<int>(CommitKind::kAccept), 4);
  EXPECT_EQ(static_cast<int>(CommitKind::kReject), 5);
  EXPECT_EQ(static_cast<int>(CommitKind::kDisconnect), 6);
  EXPECT_EQ(static_cast<int>(CommitKind::kRelease), 7);
  EXPECT_EQ(static_cast<int>(CommitKind::kSharedReceives), 8);
  EXPECT_EQ(static_cast<int>(CommitKind::kHeap), 9);
  EXPECT_EQ(static_cast<int>(SharedReceiveState::kFree), 0);
  EXPECT_EQ(static_cast<int>(SharedReceiveState::kAttempted), 1);
  EXPECT_EQ(static_cast<int>(SharedReceiveState::kPosted), 2);
  EXPECT_EQ(static_cast<int>(SharedReceiveState::kCompleted), 3);
  EXPECT_EQ(static_cast<int>(CompletionKind::kSend), 1);
  EXPECT_EQ(static_cast<int>(CompletionKind::kReceive), 2);
  EXPECT_EQ(static_cast<int>(CompletionKind::kConnectRequest), 3);
  EXPECT_EQ(static_cast<int>(CompletionKind::kEstablished), 4);
  EXPECT_EQ(static_cast<int>(CompletionKind::kDisconnected), 5);
  EXPECT_EQ(static_cast<int>(CompletionKind::kConnectFailed), 6);
  EXPECT_EQ(static_cast<int>(PoisonLevel::kNone), 0);
  EXPECT_EQ(static_cast<int>(PoisonLevel::kFlushed), 1);
  EXPECT_EQ(static_cast<int>(PoisonLevel::kSilent), 2);
  EXPECT_EQ(static_cast<int>(PoisonLevel::kVoid), 3);
  EXPECT_EQ(static_cast<int>(ConnectionState::kFree), 0);
  EXPECT_EQ(static_cast<int>(ConnectionState::kRequested), 1);
  EXPECT_EQ(static_cast<int>(ConnectionState::kConnecting), 2);
  EXPECT_EQ(static_cast<int>(ConnectionState::kEstablished), 3);
  EXPECT_EQ(static_cast<int>(ConnectionState::kDraining), 4);
  EXPECT_EQ(static_cast<int>(ConnectionState::kClosed), 5);
}

TEST(Layout, shouldPlaceEverythingInWorkerMemoryAsReleased) {
  const WorkerMemoryMap map(kShape);
  EXPECT_EQ(map.workers, 4096u);
  EXPECT_EQ(map.Worker(1), 4736u);
  EXPECT_EQ(map.shards, 12288u);        // 4096 + 7 x 640, to a page
  EXPECT_EQ(map.bank_bytes, 65664u);    // 128 + 1024 x 64
  EXPECT_EQ(map.shard_bytes, 274432u);  // 4 x 65664 + 2 x 4160, to a page
  EXPECT_EQ(map.Bank(0, 0), 12288u);
  EXPECT_EQ(map.Bank(0, 1), 77952u);
  EXPECT_EQ(map.Bank(0, 4), 12288u);
  EXPECT_EQ(map.Bank(1, 6), 418048u);  // 12288 + 274432 + 2 x 65664
  EXPECT_EQ(map.BankEntries(0, 1), 78080u);
  EXPECT_EQ(map.ShardState(0, 0), 274944u);
  EXPECT_EQ(map.ShardState(0, 1), 279104u);
  EXPECT_EQ(map.connections, 835584u);      // 12288 + 3 x 274432
  EXPECT_EQ(map.connection_bytes, 12928u);  // 4096 + 8192 + 2 x 192 + 256
  EXPECT_EQ(map.SendLog(0), 835584u);
  EXPECT_EQ(map.ReceiveLog(0), 839680u);
  EXPECT_EQ(map.ConnectionState(0, 0), 847872u);
  EXPECT_EQ(map.ConnectionState(0, 1), 848064u);
  EXPECT_EQ(map.PrivateData(0), 848256u);
  EXPECT_EQ(map.SendLog(1), 848512u);
  EXPECT_EQ(map.total, 901120u);  // 835584 + 5 x 12928, to a page
}

TEST(Layout, shouldPlaceEverythingInDriverMemoryAsReleased) {
  const DriverMemoryMap map(kShape);
  EXPECT_EQ(map.shards, 4096u);
  EXPECT_EQ(map.Shard(2), 4608u);
  EXPECT_EQ(map.grants, 8192u);
  EXPECT_EQ(map.Grant(255), 16352u);
  EXPECT_EQ(DriverMemoryMap::Region(1), 1024u);
  EXPECT_EQ(DriverMemoryMap::Region(64), 4048u);
  EXPECT_EQ(map.connections, 16384u);
  EXPECT_EQ(map.Connection(4), 18432u);
  EXPECT_EQ(map.completion_logs, 20480u);
  EXPECT_EQ(map.completion_log_bytes, 32768u);
  EXPECT_EQ(map.CompletionLog(2), 86016u);
  EXPECT_EQ(map.total, 118784u);
}

TEST(Layout, shouldKeepEntriesOfSharedReceives) {
  EXPECT_EQ(kSharedReceivesPerEntry, 30u);
  EXPECT_EQ(sizeof(SharedReceivesEntry), 64u);
  EXPECT_EQ(offsetof(SharedReceivesEntry, kind), 0u);
  EXPECT_EQ(offsetof(SharedReceivesEntry, flags), 1u);
  EXPECT_EQ(offsetof(SharedReceivesEntry, count), 2u);
  EXPECT_EQ(offsetof(SharedReceivesEntry, slots), 4u);
  EXPECT_EQ(sizeof(SharedReceive), 2u);
  EXPECT_EQ(PackSharedReceiveState(SharedReceiveState::kPosted, 0x85), 0x0502u);
  EXPECT_EQ(StateOf(SharedReceive{0x7f03}), SharedReceiveState::kCompleted);
  EXPECT_EQ(GenerationOf(SharedReceive{0x7f03}), 0x7fu);
}

// A log and queue of the shard in the place of those of its connections.
TEST(Layout, shouldPlaceSharedReceives) {
  const WorkerMemoryMap worker(SharedShape());
  EXPECT_EQ(worker.shared_receive_bytes, 16384u);  // 2 x 64 x 128
  EXPECT_EQ(worker.shard_bytes, 290816u);          // 4 x 65664 + 2 x 4160 + 16384, to a page
  EXPECT_EQ(worker.SharedReceives(0), 283264u);
  EXPECT_EQ(worker.SharedReceives(1), 574080u);
  EXPECT_EQ(worker.connection_bytes, 4736u);  // 4096 + 0 + 2 x 192 + 256
  EXPECT_EQ(worker.ConnectionState(0, 0), worker.SendLog(0) + 4096);
  const DriverMemoryMap driver(SharedShape());
  EXPECT_EQ(driver.SharedReceives(0), 118784u);
  EXPECT_EQ(driver.SharedReceives(2), 119296u);  // 2 x 128 x 2 behind
  EXPECT_EQ(driver.total, 122880u);
  EXPECT_EQ(DriverMemoryMap(kShape).shared_receives, DriverMemoryMap(kShape).total);
}

TEST(Layout, shouldKeepBlocksOfHeaps) {
  EXPECT_EQ(kHeapUnitBytes, 64u);
  EXPECT_EQ(kMaxHeapBytes, 68'719'476'736u);
  EXPECT_EQ(sizeof(HeapBlock), 16u);
  EXPECT_EQ(offsetof(HeapBlock, pages), 0u);
  EXPECT_EQ(offsetof(HeapBlock, units), 4u);
  EXPECT_EQ(offsetof(HeapBlock, kept), 8u);
  EXPECT_EQ(ObjectsOf({7, 0, 0}), 1u);
  EXPECT_EQ(ObjectsOf({1, 1, 0}), 64u);
  EXPECT_EQ(ObjectsOf({2, 1, 0}), 64u);
  EXPECT_EQ(ObjectsOf({16, 20, 0}), 51u);
  EXPECT_EQ(ObjectsOf({1, 65, 0}), 0u);
  EXPECT_TRUE(IsHeapBlock({0, 0, 0}, 3, 4));
  EXPECT_FALSE(IsHeapBlock({0, 0, 0}, 4, 4));
  EXPECT_FALSE(IsHeapBlock({0, 1, 0}, 3, 4));
  EXPECT_TRUE(IsHeapBlock({4, 0, 1}, 0, 4));
  EXPECT_FALSE(IsHeapBlock({4, 0, 1}, 1, 4));
  EXPECT_FALSE(IsHeapBlock({4, 0, 2}, 0, 4));
  EXPECT_TRUE(IsHeapBlock({1, 1, ~uint64_t{0}}, 3, 4));
  EXPECT_TRUE(IsHeapBlock({1, 20, 7}, 3, 4));
  EXPECT_FALSE(IsHeapBlock({1, 20, 8}, 3, 4));
}

TEST(Layout, shouldKeepEntriesOfHeaps) {
  EXPECT_EQ(kHeapChangesPerEntry, 3u);
  EXPECT_EQ(sizeof(HeapChange), 20u);
  EXPECT_EQ(offsetof(HeapChange, page), 0u);
  EXPECT_EQ(offsetof(HeapChange, pages), 4u);
  EXPECT_EQ(offsetof(HeapChange, units), 8u);
  EXPECT_EQ(offsetof(HeapChange, kept_low), 12u);
  EXPECT_EQ(offsetof(HeapChange, kept_high), 16u);
  EXPECT_EQ(sizeof(HeapEntry), 64u);
  EXPECT_EQ(offsetof(HeapEntry, kind), 0u);
  EXPECT_EQ(offsetof(HeapEntry, flags), 1u);
  EXPECT_EQ(offsetof(HeapEntry, count), 2u);
  EXPECT_EQ(offsetof(HeapEntry, changes), 4u);
  const HeapChange change = ChangeOf(9, {3, 7, 0x1234'5678'9abc'def0});
  EXPECT_EQ(change.page, 9u);
  EXPECT_EQ(change.pages, 3u);
  EXPECT_EQ(change.units, 7u);
  EXPECT_EQ(change.kept_low, 0x9abc'def0u);
  EXPECT_EQ(change.kept_high, 0x1234'5678u);
  EXPECT_EQ(BlockOf(change).pages, 3u);
  EXPECT_EQ(BlockOf(change).units, 7u);
  EXPECT_EQ(BlockOf(change).kept, 0x1234'5678'9abc'def0u);
}

// The heaps at the end of the buffers, their blocks at the end of the driver's memory.
TEST(Layout, shouldPlaceHeaps) {
  const Shape shape = HeapShape(kShape);
  EXPECT_EQ(HeapBytes(shape), 20480u);
  EXPECT_EQ(HeapOffset(shape, 0), 135168u);  // 0x30000 - 3 x 20480
  EXPECT_EQ(HeapOffset(shape, 2), 176128u);
  EXPECT_EQ(HeapOffset(kShape, 0), 0x30000u);
  const DriverMemoryMap map(shape);
  EXPECT_EQ(map.heap_bytes, 80u);
  EXPECT_EQ(map.heaps, 118784u);
  EXPECT_EQ(map.Heap(0), 118784u);
  EXPECT_EQ(map.Heap(2), 118944u);
  EXPECT_EQ(map.total, 122880u);
  const DriverMemoryMap shared(HeapShape(SharedShape()));
  EXPECT_EQ(shared.SharedReceives(0), 118784u);
  EXPECT_EQ(shared.Heap(0), 122880u);  // 3 x 256 behind, to a page
  EXPECT_EQ(shared.total, 126976u);
}

TEST(Layout, shouldPlaceEverythingInRecoveryMemoryAsReleased) {
  const RecoveryMemoryMap map(kShape);
  EXPECT_EQ(map.PollSlots(0), 0u);
  EXPECT_EQ(map.PollSlots(2), 12288u);
  EXPECT_EQ(map.Spare(0, 0), 18432u);  // 3 x 128 x 48
  EXPECT_EQ(map.Spare(0, 15), 19392u);
  EXPECT_EQ(map.Spare(2, 0), 20480u);        // 2 x 16 x 64 behind
  EXPECT_EQ(map.SpareBuffer(0, 0), 24576u);  // 18432 + 3 x 16 x 64, to a page
  EXPECT_EQ(map.SpareBuffer(0, 1), 90112u);
  EXPECT_EQ(map.SpareBuffer(1, 0), 1073152u);
  EXPECT_EQ(map.spare_buffers_bytes, 3145728u);
  EXPECT_EQ(map.total, 3170304u);
}

TEST(Layout, shouldKeepWhatNativeOwnersAndBatonDriverShare) {
  EXPECT_EQ(kClaim, 0x8000u);
  EXPECT_TRUE(IsClaim(kClaim | 5));
  EXPECT_FALSE(IsClaim(5));
  EXPECT_FALSE(IsClaim(kNobody));
  EXPECT_EQ(ClaimantOrOwner(kClaim | 5), 5u);
  EXPECT_EQ(ClaimantOrOwner(5), 5u);
  EXPECT_EQ(ClaimantOrOwner(kNobody), kNobody);
  EXPECT_EQ(static_cast<int>(NoticeKind::kRequested), 1);
  EXPECT_EQ(static_cast<int>(NoticeKind::kHoldsNoReceive), 4);
  EXPECT_EQ(static_cast<int>(NoticeKind::kRejected), 6);
  EXPECT_EQ(static_cast<int>(NoticeKind::kQueuePairFailed), 7);
  EXPECT_EQ(static_cast<int>(OrderKind::kAccept), 1);
  EXPECT_EQ(static_cast<int>(OrderKind::kFree), 4);
  EXPECT_EQ(sizeof(MailEntry), 16u);
  EXPECT_EQ(offsetof(MailEntry, kind), 0u);
  EXPECT_EQ(offsetof(MailEntry, status), 1u);
  EXPECT_EQ(offsetof(MailEntry, connection), 4u);
  EXPECT_EQ(offsetof(MailEntry, generation), 8u);
  EXPECT_EQ(sizeof(MailCursors), 128u);
  EXPECT_EQ(offsetof(MailCursors, tail), 0u);
  EXPECT_EQ(offsetof(MailCursors, head), 64u);
  EXPECT_EQ(kNotices, 256u);
  EXPECT_EQ(sizeof(PooledQueuePair), 8u);
  EXPECT_EQ(offsetof(PooledQueuePair, number), 0u);
  EXPECT_EQ(offsetof(PooledQueuePair, state), 4u);
  EXPECT_EQ(static_cast<int>(PooledState::kSpent), 2);
  EXPECT_EQ(static_cast<int>(PooledState::kLent), 3);
  EXPECT_EQ(sizeof(SuccessionRecord), 128u);
  EXPECT_EQ(offsetof(SuccessionRecord, heir), 0u);
  EXPECT_EQ(offsetof(SuccessionRecord, reserved), 8u);
  EXPECT_EQ(offsetof(SuccessionRecord, writers), 24u);
  EXPECT_EQ(offsetof(SuccessionRecord, served_cause), 56u);
  EXPECT_EQ(offsetof(SuccessionRecord, change_begun_ns), 64u);
  EXPECT_EQ(offsetof(SuccessionRecord, change_epoch), 72u);
  EXPECT_EQ(offsetof(SuccessionRecord, blackout_ns), 80u);
  EXPECT_EQ(offsetof(SuccessionRecord, served_epoch), 88u);
  EXPECT_EQ(offsetof(SuccessionRecord, cause), 96u);
  EXPECT_EQ(offsetof(SuccessionRecord, former_worker_id), 104u);
  EXPECT_EQ(offsetof(SuccessionRecord, recovered), 112u);
  EXPECT_EQ(offsetof(SuccessionRecord, logged), 120u);
  EXPECT_EQ(static_cast<int>(ChangeCause::kRelease), 2);
  EXPECT_EQ(sizeof(ManagedConnection), 144u);
  EXPECT_EQ(offsetof(ManagedConnection, end_reason), 0u);
  EXPECT_EQ(offsetof(ManagedConnection, initiator_depth), 128u);
  EXPECT_EQ(offsetof(ManagedConnection, responder_resources), 129u);
  EXPECT_EQ(offsetof(ManagedConnection, freed_generation), 132u);
  EXPECT_EQ(offsetof(ManagedConnection, answer_length), 136u);
  EXPECT_EQ(offsetof(ManagedConnection, handled_generation), 140u);
  EXPECT_EQ(sizeof(WorkerRecord), 128u);
  EXPECT_EQ(offsetof(WorkerRecord, id), 0u);
  EXPECT_EQ(offsetof(WorkerRecord, ended_id), 8u);
  EXPECT_EQ(offsetof(WorkerRecord, dead_id), 16u);
  EXPECT_EQ(offsetof(WorkerRecord, pardoned_id), 24u);
  EXPECT_EQ(offsetof(WorkerRecord, fenced_id), 64u);
  EXPECT_EQ(offsetof(WorkerRecord, left_id), 72u);
  EXPECT_EQ(offsetof(WorkerRecord, buried_id), 80u);
}

TEST(Layout, shouldKeepWhatIsToldOfTheDeathsOfNativeOwners) {
  EXPECT_EQ(sizeof(DeathsRecord), 384u);
  EXPECT_EQ(offsetof(DeathsRecord, version), 0u);
  EXPECT_EQ(offsetof(DeathsRecord, counted_epoch), 8u);
  EXPECT_EQ(offsetof(DeathsRecord, acknowledged), 16u);
  EXPECT_EQ(offsetof(DeathsRecord, logged), 24u);
  EXPECT_EQ(offsetof(DeathsRecord, suspect), 32u);
  EXPECT_EQ(offsetof(DeathsRecord, blamed), 40u);
  EXPECT_EQ(offsetof(DeathsRecord, deaths), 48u);
  EXPECT_EQ(offsetof(DeathsRecord, run), 52u);
  EXPECT_EQ(offsetof(DeathsRecord, poisoned), 56u);
  EXPECT_EQ(offsetof(DeathsRecord, blamed_level), 64u);
  EXPECT_EQ(offsetof(DeathsRecord, guessed), 65u);
  EXPECT_EQ(offsetof(DeathsRecord, remembered), 68u);
  EXPECT_EQ(offsetof(DeathsRecord, last), 128u);
  EXPECT_EQ(sizeof(RememberedDeath), 16u);
  EXPECT_EQ(kRememberedDeaths, 16u);
  EXPECT_EQ(kDeathsCopies, 2u);
}

TEST(Layout, shouldKeepTheReportsOfNativeOwners) {
  EXPECT_EQ(sizeof(ReportRecord), 4352u);
  EXPECT_EQ(offsetof(ReportRecord, version), 0u);
  EXPECT_EQ(offsetof(ReportRecord, head.epoch), 8u);
  EXPECT_EQ(offsetof(ReportRecord, head.former_worker_id), 16u);
  EXPECT_EQ(offsetof(ReportRecord, head.successor_worker_id), 24u);
  EXPECT_EQ(offsetof(ReportRecord, head.recovered), 32u);
  EXPECT_EQ(offsetof(ReportRecord, head.unix_micros), 40u);
  EXPECT_EQ(offsetof(ReportRecord, head.never_submitted), 48u);
  EXPECT_EQ(offsetof(ReportRecord, head.in_flight), 56u);
  EXPECT_EQ(offsetof(ReportRecord, head.completed_undelivered), 64u);
  EXPECT_EQ(offsetof(ReportRecord, head.delivered_uncommitted), 72u);
  EXPECT_EQ(offsetof(ReportRecord, head.ambiguous), 80u);
  EXPECT_EQ(offsetof(ReportRecord, cause), 88u);
  EXPECT_EQ(offsetof(ReportRecord, listed), 92u);
  EXPECT_EQ(offsetof(ReportRecord, poison_deaths), 96u);
  EXPECT_EQ(offsetof(ReportRecord, poisoned_connection), 100u);
  EXPECT_EQ(offsetof(ReportRecord, poisoned_generation), 104u);
  EXPECT_EQ(offsetof(ReportRecord, poisoned_kind), 108u);
  EXPECT_EQ(offsetof(ReportRecord, poison_guessed), 109u);
  EXPECT_EQ(offsetof(ReportRecord, poison_remembered), 110u);
  EXPECT_EQ(offsetof(ReportRecord, poisoned_completion), 112u);
  EXPECT_EQ(offsetof(ReportRecord, poisoned_sequence), 120u);
  EXPECT_EQ(offsetof(ReportRecord, poisoned_workers), 128u);
  EXPECT_EQ(offsetof(ReportRecord, requests), 256u);
  EXPECT_EQ(sizeof(ReportedRequest), 16u);
  EXPECT_EQ(offsetof(ReportedRequest, connection), 0u);
  EXPECT_EQ(offsetof(ReportedRequest, send), 4u);
  EXPECT_EQ(offsetof(ReportedRequest, opcode), 5u);
  EXPECT_EQ(offsetof(ReportedRequest, outcome), 6u);
  EXPECT_EQ(offsetof(ReportedRequest, sequence), 8u);
  EXPECT_EQ(static_cast<int>(RequestOutcome::kNeverSubmitted), 0);
  EXPECT_EQ(static_cast<int>(RequestOutcome::kAmbiguous), 5);
  EXPECT_EQ(kReportedRequests, 256u);
  EXPECT_EQ(kReports, 4u);
}

TEST(Layout, shouldPlaceWhatNativeOwnersAndBatonDriverShare) {
  Shape shape = kShape;  // 3 shards, 5 connections
  shape.pooled_queue_pairs = 9;
  EXPECT_TRUE(IsNative(shape));
  EXPECT_FALSE(IsNative(kShape));
  const RecoveryMemoryMap map(shape);
  EXPECT_EQ(map.shards, RecoveryMemoryMap(kShape).total);
  EXPECT_EQ(map.SuccessionOf(0), 3170304u);
  EXPECT_EQ(map.DeathsOf(0), 3170432u);
  EXPECT_EQ(map.Reports(0), 3171200u);       // 2 x 384 behind
  EXPECT_EQ(map.Notices(0), 3188608u);       // 4 x 4352 behind
  EXPECT_EQ(map.Orders(0), 3192832u);        // 128 + 256 x 16 behind
  EXPECT_EQ(map.Pool(0), 3193472u);          // 128 + 32 x 16 behind
  EXPECT_EQ(map.SuccessionOf(1), 3193600u);  // 9 x 8 behind, to a line
  EXPECT_EQ(map.ManagedConnectionOf(0), 3244032u);
  EXPECT_EQ(map.ManagedConnectionOf(4), 3244608u);
  EXPECT_EQ(map.WorkerRecordOf(0), 3248128u);
  EXPECT_EQ(map.WorkerRecordOf(1), 3248256u);
  EXPECT_EQ(map.total, 3252224u);
}

TEST(Layout, shouldPlaceTheSameForTheEngineOfABrokeredService) {
  const Shape shape = WithPools(kShape);
  EXPECT_EQ(shape.brokered_queue_pairs, 5u);  // each shard can have all connections
  EXPECT_FALSE(IsNative(shape));
  Shape native = kShape;
  native.pooled_queue_pairs = 5;
  EXPECT_EQ(WithPools(native).brokered_queue_pairs, 0u);
  EXPECT_EQ(RecoveryMemoryMap(shape).total, RecoveryMemoryMap(native).total);
  EXPECT_EQ(RecoveryMemoryMap(shape).ManagedConnectionOf(4),
            RecoveryMemoryMap(native).ManagedConnectionOf(4));
}

TEST(Layout, shouldRequireRoomForEverythingThatCanBeOutstanding) {
  // 5 connections x (2 x (16 + 32) + 4 events) + 1
  EXPECT_EQ(RequiredCompletionEntries(kShape), 512u);
  Shape exact = kShape;
  exact.connections = 1;
  exact.send_queue_depth = exact.receive_queue_depth = 1;
  EXPECT_EQ(RequiredCompletionEntries(exact), 16u);  // 9 and no fewer
  // 5 connections x (2 x 16 + 4 events) + 2 x 64 + 1; then 1 x (2 + 4) + 2 x 2 + 1
  EXPECT_EQ(RequiredCompletionEntries(SharedShape()), 512u);
  exact.shared_receive_queue_depth = 2;
  EXPECT_EQ(RequiredCompletionEntries(exact), 16u);
  exact.shared_receive_queue_depth = 8;  // 6 + 16 + 1
  EXPECT_EQ(RequiredCompletionEntries(exact), 32u);
}

TEST(Layout, shouldPackCursorsOwnershipAndRequestIdentifiersReversibly) {
  const uint64_t cursor = PackCursor(0x1'0005, 0xffff'ffff'ffff);
  EXPECT_EQ(cursor, 0x0005'ffff'ffff'ffffu);
  EXPECT_EQ(CursorIndex(cursor), 0xffff'ffff'ffffu);
  EXPECT_TRUE(CursorIsOf(cursor, 5));
  EXPECT_TRUE(CursorIsOf(cursor, 0x1'0005));
  EXPECT_FALSE(CursorIsOf(cursor, 6));
  const uint64_t ownership = PackOwnership(0x4'5678'9abc, kNobody);
  EXPECT_EQ(ownership, 0x0004'5678'9abc'ffffu);
  EXPECT_EQ(OwnershipEpoch(ownership), 0x4'5678'9abcu);
  EXPECT_EQ(OwnershipSlot(ownership), kNobody);
  EXPECT_EQ(OwnershipSequence(ownership), 0u);
  const uint64_t claim = PackOwnership(0xf'5678'9abc, kClaim | 5, 0x1'f12);
  EXPECT_EQ(claim, 0xf12f'5678'9abc'8005u);
  EXPECT_EQ(OwnershipEpoch(claim), 0xf'5678'9abcu);
  EXPECT_EQ(OwnershipSlot(claim), kClaim | 5);
  EXPECT_EQ(OwnershipSequence(claim), 0xf12u);
  const uint64_t wr_id = PackWrId(65535, 0x1ff, Direction::kReceive, 0x12'3456'789a);
  EXPECT_EQ(wr_id, 0xffff'bf12'3456'789au);
  EXPECT_EQ(WrIdConnection(wr_id), 65535u);
  EXPECT_EQ(WrIdDirection(wr_id), Direction::kReceive);
  EXPECT_EQ(WrIdGeneration(wr_id), 0x3fu);
  EXPECT_EQ(WrIdSequence(wr_id), 0x12'3456'789au);
  EXPECT_EQ(WrIdDirection(PackWrId(1, 1, Direction::kSend, 1)), Direction::kSend);
  const uint64_t highest = PackWrId(kMaxConnections - 1, 0x45, Direction::kSend, 7);
  EXPECT_EQ(highest, 0xffff'4500'0000'0007u);
  EXPECT_EQ(WrIdConnection(highest), 131'071u);
  EXPECT_EQ(WrIdDirection(highest), Direction::kSend);
  EXPECT_EQ(WrIdGeneration(highest), 5u);
  EXPECT_EQ(WrIdConnection(PackWrId(0x1'0005, 1, Direction::kReceive, 0)), 0x1'0005u);
  const uint64_t shared = PackSharedReceive(8191, 0x85);
  EXPECT_EQ(shared, 0x0000'85ff'ffff'3fffu);
  EXPECT_TRUE(IsSharedReceive(shared));
  EXPECT_EQ(SharedReceiveSlot(shared), 8191u);
  EXPECT_EQ(WrIdGeneration(shared), 5u);
  for (const uint64_t other : {kEventSequence, kMarkerSequence, kSpareSequence, uint64_t{0}}) {
    EXPECT_FALSE(IsSharedReceive(PackWrId(0, 1, Direction::kReceive, other)));
  }
  EXPECT_FALSE(IsSharedReceive(PackWrId(0, 1, Direction::kSend, kSharedReceiveSequence)));
}

}  // namespace
}  // namespace baton::arena
