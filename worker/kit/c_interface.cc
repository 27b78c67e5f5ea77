// The C interface, on top of worker/worker.h.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "lib/base/version.h"
#include "worker/heap.h"
#include "worker/kit/c_layer.h"
#include "worker/kit/include/baton/baton.h"
#include "worker/worker.h"

namespace {

using baton::Buffer;
using baton::Connection;
using baton::Shard;
using baton::kit::Buffers;
using baton::kit::BytesOf;
using baton::kit::CheckHeap;
using baton::kit::CheckSize;
using baton::kit::CopyOf;
using baton::kit::CopyTo;
using baton::kit::FromC;
using baton::kit::Give;
using baton::kit::Hand;
using baton::kit::Handle;
using baton::kit::kTooMany;
using baton::kit::Membership;
using baton::kit::Of;
using baton::kit::Report;
using baton::kit::ToC;
using baton::kit::WorkerOf;
using baton::kit::Wrong;

static_assert(BATON_OP_SEND_WITH_INVALIDATE ==
              static_cast<int>(baton::verbs::Opcode::kSendWithInvalidate));
static_assert(BATON_COMMIT_MANUAL == static_cast<int>(baton::CommitMode::kManual));
static_assert(BATON_REMOTE_ATOMIC == static_cast<int>(baton::verbs::kRemoteAtomic));
static_assert(BATON_REMOTE_READ == static_cast<int>(baton::verbs::kRemoteRead));
static_assert(BATON_REMOTE_WRITE == static_cast<int>(baton::verbs::kRemoteWrite));

std::string Text(const char* text) { return text == nullptr ? std::string() : std::string(text); }
std::string_view Bytes(const void* data, size_t length) {
  return {static_cast<const char*>(data), length};
}

// Calls `call` with the shard's heap.
template <typename Call>  // (baton::Heap&) -> absl::Status
int WithHeap(baton_shard* shard, const Call& call) {
  const absl::Status has_heap = CheckHeap(*Of(shard));
  return Report(has_heap.ok() ? call(Of(shard)->heap()) : has_heap);
}

// Gives the caller what was allocated.
absl::Status Give(const absl::StatusOr<Buffer>& allocated, baton_buffer* buffer) {
  if (allocated.ok()) *buffer = ToC(*allocated);
  return allocated.status();
}

uint32_t AlignmentOf(uint32_t given) { return given == 0 ? baton::Heap::kAlignment : given; }

baton_region RegionOf(const baton::Worker::Region& region) {
  return {sizeof(baton_region), region.id,     region.access,         region.length,
          region.descriptor,    region.offset, region.remote_address, region.rkey};
}

}  // namespace

extern "C" {

const char* baton_error(void) { return baton::kit::LastError(); }
const char* baton_release(void) { return baton::kRelease; }

// ---------------------------------------------------------------- workers

int baton_attach(const baton_worker_options* options, const baton_service* service,
                 baton_worker** worker) {
  if (worker == nullptr) return Wrong("worker", "is NULL");
  *worker = nullptr;
  if (const int code = CheckSize(options, "options")) return code;
  if (const int code = CheckSize(service, "service")) return code;
  if (CopyOf(*service).on_completion == nullptr) return Wrong("on_completion", "is NULL");
  const baton_worker_options given = CopyOf(*options);
  if (given.commit_mode > BATON_COMMIT_MANUAL) return Wrong("commit_mode", "is none");
  baton::WorkerOptions wanted;
  wanted.socket = Text(given.socket);
  wanted.service = Text(given.service);
  wanted.name = Text(given.name);
  wanted.version = Text(given.version);
  wanted.reads_state_version_min = given.reads_state_version_min;
  wanted.reads_state_version_max = given.reads_state_version_max;
  wanted.writes_state_version = given.writes_state_version;
  wanted.commit_mode = static_cast<baton::CommitMode>(given.commit_mode);
  wanted.realtime_priority = given.realtime_priority;
  wanted.control_stream = !given.no_control_stream;
  wanted.yield_microseconds = given.yield_microseconds;
  wanted.take_over = given.take_over;
  auto attached = std::make_unique<Membership>(*service);
  auto result = baton::Worker::Attach(wanted, &attached->application);
  if (!result.ok()) return Report(result.status());
  attached->worker = *std::move(result);
  return Hand(std::move(attached), worker);
}

void baton_detach(baton_worker* worker) { delete Of(worker); }

int baton_ready(baton_worker* worker) { return Report(WorkerOf(worker).Ready()); }

int baton_take_over(baton_worker* worker, const uint32_t* shards, size_t shard_count) {
  if (shards == nullptr && shard_count != 0) return Wrong("shards", "is NULL");
  return Report(WorkerOf(worker).TakeOver({shards, shard_count}));
}

int baton_poll(baton_worker* worker, int* delivered) {
  const absl::StatusOr<int> count = WorkerOf(worker).Poll();
  if (delivered != nullptr) *delivered = count.ok() ? *count : 0;
  return Report(count.status());
}

int baton_event_fd(const baton_worker* worker) { return WorkerOf(worker).event_fd(); }
bool baton_arm_event(baton_worker* worker) { return WorkerOf(worker).ArmEvent(); }
int baton_wait(baton_worker* worker, int timeout_ms) {
  return Report(WorkerOf(worker).Wait(timeout_ms));
}
int baton_run(baton_worker* worker) { return Report(WorkerOf(worker).Run()); }
void baton_stop(baton_worker* worker) { WorkerOf(worker).Stop(); }
void baton_wake(baton_worker* worker) { WorkerOf(worker).Wake(); }

int baton_listen(baton_worker* worker, const char* host, uint16_t port, uint16_t* bound) {
  return Report(WorkerOf(worker).Listen(Text(host), port), bound);
}

void baton_get_capacity(const baton_worker* worker, baton_capacity* capacity) {
  const baton::Capacity& ours = WorkerOf(worker).capacity();
  const baton_capacity all = {
      sizeof(baton_capacity),      ours.connections,         ours.shards,
      ours.send_queue_depth,       ours.receive_queue_depth, ours.shared_receive_queue_depth,
      ours.connection_state_bytes, ours.shard_state_bytes,   ours.outside_effects,
      ours.shard_heap_bytes};
  CopyTo(all, capacity);
}

uint8_t* baton_buffers(const baton_worker* worker, size_t* length) {
  const absl::Span<uint8_t> buffers = WorkerOf(worker).buffers();
  *length = buffers.size();
  return buffers.data();
}

int baton_grant(baton_worker* worker, uint64_t offset, uint64_t length, uint32_t access,
                baton_remote_grant* grant) {
  if (const int code = CheckSize(grant, "grant")) return code;
  const auto granted = WorkerOf(worker).GrantRemoteAccess(offset, length, access);
  if (granted.ok()) {
    CopyTo(baton_remote_grant{sizeof(baton_remote_grant), granted->id, granted->rkey,
                              granted->remote_address},
           grant);
  }
  return Report(granted.status());
}
int baton_revoke_grant(baton_worker* worker, uint32_t id) {
  return Report(WorkerOf(worker).RevokeGrant(id));
}

void baton_report_health(baton_worker* worker, bool healthy, const char* detail) {
  WorkerOf(worker).ReportHealth(healthy, Text(detail));
}
uint64_t baton_worker_id(const baton_worker* worker) { return WorkerOf(worker).id(); }

// ---------------------------------------------------------------- shards

uint32_t baton_shard_index(const baton_shard* shard) { return Of(shard)->index(); }
uint64_t baton_shard_epoch(const baton_shard* shard) { return Of(shard)->epoch(); }
const uint8_t* baton_shard_state(const baton_shard* shard, size_t* length) {
  return Give(Of(shard)->state(), length);
}
uint32_t baton_shard_state_version(const baton_shard* shard) { return Of(shard)->state_version(); }

void baton_for_each_connection(baton_shard* shard,
                               void (*visit)(void* context, baton_connection* connection),
                               void* context) {
  for (Connection* const one : Of(shard)->connections()) visit(context, Handle(one));
}

int baton_receive(baton_shard* shard, baton_connection* connection, const baton_buffer* buffers,
                  uint32_t buffer_count, uint64_t tag) {
  const Buffers all(buffers, buffer_count);
  if (!all.fit()) return Wrong("buffer_count", kTooMany);
  return Report(Of(shard)->Receive(*Of(connection), all.span(), tag));
}
int baton_receive_shared(baton_shard* shard, const baton_buffer* buffers, uint32_t buffer_count,
                         uint64_t tag) {
  const Buffers all(buffers, buffer_count);
  if (!all.fit()) return Wrong("buffer_count", kTooMany);
  return Report(Of(shard)->ReceiveShared(all.span(), tag));
}

int baton_send(baton_shard* shard, baton_connection* connection, const baton_send_work* work) {
  if (const int code = CheckSize(work, "work")) return code;
  const baton_send_work given = CopyOf(*work);
  const Buffers all(given.buffers, given.buffer_count);
  if (!all.fit()) return Wrong("buffer_count", kTooMany);
  if (given.opcode > BATON_OP_SEND_WITH_INVALIDATE) return Wrong("opcode", "unknown");
  return Report(
      Of(shard)->Send(*Of(connection), {.opcode = static_cast<baton::verbs::Opcode>(given.opcode),
                                        .buffers = all.span(),
                                        .tag = given.tag,
                                        .immediate = given.immediate,
                                        .remote_address = given.remote_address,
                                        .rkey = given.rkey,
                                        .invalidate_rkey = given.invalidate_rkey,
                                        .compare_add = given.compare_add,
                                        .swap = given.swap,
                                        .fence = given.fence,
                                        .solicited = given.solicited}));
}

int baton_set_state(baton_shard* shard, baton_connection* connection, const void* state,
                    size_t length, uint32_t version) {
  return Report(Of(shard)->SetState(*Of(connection), BytesOf(state, length), version));
}
int baton_set_shard_state(baton_shard* shard, const void* state, size_t length, uint32_t version) {
  return Report(Of(shard)->SetShardState(BytesOf(state, length), version));
}

int baton_accept(baton_shard* shard, baton_connection* connection, baton_shard* target,
                 const void* private_data, size_t length) {
  Shard* const from = Of(shard);
  Shard& to = target == nullptr ? *from : *Of(target);
  return Report(from->Accept(*Of(connection), to, Bytes(private_data, length)));
}
int baton_reject(baton_shard* shard, baton_connection* connection, const void* private_data,
                 size_t length) {
  return Report(Of(shard)->Reject(*Of(connection), Bytes(private_data, length)));
}
int baton_disconnect(baton_shard* shard, baton_connection* connection) {
  return Report(Of(shard)->Disconnect(*Of(connection)));
}

int baton_commit(baton_shard* shard) { return Report(Of(shard)->Commit()); }
void baton_abandon(baton_shard* shard) { Of(shard)->Abandon(); }

uint32_t baton_shared_receive_room(const baton_shard* shard) {
  return Of(shard)->shared_receive_room();
}
uint32_t baton_shared_receives_outstanding(const baton_shard* shard) {
  return Of(shard)->shared_receives_outstanding();
}
uint32_t baton_next_shared_receive(const baton_shard* shard) {
  return Of(shard)->next_shared_receive();
}

// ---------------------------------------------------------------- heaps

int baton_allocate(baton_shard* shard, uint64_t bytes, uint32_t alignment, baton_buffer* buffer) {
  return WithHeap(shard, [&](baton::Heap& heap) {
    return Give(heap.Allocate(bytes, AlignmentOf(alignment)), buffer);
  });
}
int baton_allocate_scratch(baton_shard* shard, uint64_t bytes, uint32_t alignment,
                           baton_buffer* buffer) {
  return WithHeap(shard, [&](baton::Heap& heap) {
    return Give(heap.AllocateScratch(bytes, AlignmentOf(alignment)), buffer);
  });
}
int baton_keep(baton_shard* shard, const baton_buffer* buffer) {
  return WithHeap(shard, [&](baton::Heap& heap) { return heap.Keep(FromC(*buffer)); });
}
int baton_free(baton_shard* shard, const baton_buffer* buffer) {
  return WithHeap(shard, [&](baton::Heap& heap) { return heap.Free(FromC(*buffer)); });
}

int baton_for_each_allocated(baton_shard* shard,
                             void (*visit)(void* context, const baton_buffer* buffer, bool kept),
                             void* context) {
  return WithHeap(shard, [&](baton::Heap& heap) {
    return heap.ForEachAllocated([&](const Buffer& buffer, bool kept) {
      const baton_buffer range = ToC(buffer);
      visit(context, &range, kept);
    });
  });
}

int baton_get_heap_statistics(baton_shard* shard, baton_heap_statistics* statistics) {
  if (const int code = CheckSize(statistics, "statistics")) return code;
  return WithHeap(shard, [&](baton::Heap& heap) {
    const absl::StatusOr<baton::Heap::Statistics> now = heap.statistics();
    if (now.ok()) {
      CopyTo(baton_heap_statistics{sizeof(baton_heap_statistics), now->bytes, now->kept,
                                   now->scratch, now->held, now->free, now->largest_free},
             statistics);
    }
    return now.status();
  });
}

// ---------------------------------------------------------------- the application's own memory

int baton_register_memory(baton_worker* worker, uint64_t descriptor, uint64_t offset,
                          uint64_t length, uint32_t access, baton_region* region) {
  if (const int code = CheckSize(region, "region")) return code;
  const auto registered = WorkerOf(worker).RegisterMemory(descriptor, offset, length, access);
  if (registered.ok()) CopyTo(RegionOf(*registered), region);
  return Report(registered.status());
}
int baton_unregister_memory(baton_worker* worker, uint32_t id) {
  return Report(WorkerOf(worker).UnregisterMemory(id));
}
void baton_for_each_region(const baton_worker* worker,
                           void (*visit)(void* context, const baton_region* region),
                           void* context) {
  for (const baton::Worker::Region& one : WorkerOf(worker).Regions()) {
    const baton_region region = RegionOf(one);
    visit(context, &region);
  }
}
baton_buffer baton_region_buffer(uint32_t id, uint64_t from, uint32_t bytes) {
  // It would be a range of the buffers, or of another region.
  if (id == 0 || id > UINT16_MAX || from >> 48 != 0) return {UINT64_MAX, bytes};
  baton::Worker::Region region;
  region.id = id;
  return ToC(region.At(from, bytes));
}

// ---------------------------------------------------------------- connections

int baton_connect(baton_shard* shard, const char* host, uint16_t port, const void* private_data,
                  size_t length, uint64_t tag, baton_connection** connection) {
  const absl::StatusOr<Connection*> begun =
      Of(shard)->worker().Connect(*Of(shard), Text(host), port, Bytes(private_data, length), tag);
  if (begun.ok() && connection != nullptr) *connection = Handle(*begun);
  return Report(begun.status());
}

uint32_t baton_connection_index(const baton_connection* connection) {
  return Of(connection)->index();
}
uint32_t baton_connection_generation(const baton_connection* connection) {
  return Of(connection)->generation();
}
baton_shard* baton_connection_shard(const baton_connection* connection) {
  return Handle(&Of(connection)->shard());
}
bool baton_connection_established(const baton_connection* connection) {
  return Of(connection)->established();
}
const char* baton_connection_peer_address(const baton_connection* connection, size_t* length) {
  const std::string_view address = Of(connection)->peer_address();
  *length = address.size();
  return address.data();
}
const uint8_t* baton_connection_private_data(const baton_connection* connection, size_t* length) {
  const std::string_view data = Of(connection)->private_data();
  *length = data.size();
  return reinterpret_cast<const uint8_t*>(data.data());
}
const uint8_t* baton_connection_state(const baton_connection* connection, size_t* length) {
  return Give(Of(connection)->state(), length);
}
uint32_t baton_connection_state_version(const baton_connection* connection) {
  return Of(connection)->state_version();
}
uint64_t baton_connection_next_send(const baton_connection* connection) {
  return Of(connection)->next_send();
}
uint64_t baton_connection_next_receive(const baton_connection* connection) {
  return Of(connection)->next_receive();
}
uint32_t baton_connection_send_room(const baton_connection* connection) {
  return Of(connection)->send_room();
}
uint32_t baton_connection_receive_room(const baton_connection* connection) {
  return Of(connection)->receive_room();
}
void baton_connection_set_context(baton_connection* connection, void* context) {
  Of(connection)->context = context;
}
void* baton_connection_context(const baton_connection* connection) {
  return Of(connection)->context;
}

void baton_for_each_buffer_in_use(baton_shard* shard, baton_connection* connection,
                                  void (*visit)(void* context, const baton_buffer* buffer,
                                                bool send),
                                  void* context) {
  Of(shard)->ForEachBufferInUse(*Of(connection), [&](const Buffer& buffer, bool send) {
    const baton_buffer range = ToC(buffer);
    visit(context, &range, send);
  });
}
void baton_for_each_shared_buffer_in_use(baton_shard* shard,
                                         void (*visit)(void* context, const baton_buffer* buffer,
                                                       uint64_t tag),
                                         void* context) {
  Of(shard)->ForEachSharedBufferInUse([&](const Buffer& buffer, uint64_t tag) {
    const baton_buffer range = ToC(buffer);
    visit(context, &range, tag);
  });
}

// ---------------------------------------------------------------- descriptors

int baton_watch(baton_worker* worker, int fd, void (*callback)(void* context), void* context) {
  if (callback == nullptr) return Wrong("callback", "is NULL");
  return Report(WorkerOf(worker).Watch(fd, [callback, context] { callback(context); }));
}
void baton_unwatch(baton_worker* worker, int fd) { WorkerOf(worker).Unwatch(fd); }

int baton_hold_descriptor(baton_worker* worker, int fd, uint64_t tag, uint64_t* number) {
  return Report(WorkerOf(worker).HoldDescriptor(fd, tag), number);
}
int baton_take_descriptor(baton_worker* worker, uint64_t number, int* fd) {
  return Report(WorkerOf(worker).TakeDescriptor(number), fd);
}
int baton_drop_descriptor(baton_worker* worker, uint64_t number) {
  return Report(WorkerOf(worker).DropDescriptor(number));
}
int baton_for_each_held_descriptor(baton_worker* worker, uint64_t tag,
                                   void (*visit)(void* context, uint64_t number), void* context) {
  const absl::StatusOr<std::vector<uint64_t>> held = WorkerOf(worker).HeldDescriptors(tag);
  if (!held.ok()) return Report(held.status());
  for (const uint64_t number : *held) visit(context, number);
  return BATON_OK;
}

}  // extern "C"
