#include "tests/bench/service_bytes.h"

#include <malloc.h>
#include <sys/stat.h>

#include <array>
#include <bit>
#include <cerrno>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/arena/arena.h"
#include "lib/arena/layout.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/driver/device_needs.h"
#include "lib/verbs/mlx5/queue_layout.h"
#include "lib/verbs/verbs.h"
#include "proto/baton/v1/config.pb.h"
#include "supervisor/config/config.h"
#include "supervisor/config/shape.h"
#include "worker/examples/common/device_factory.h"
#include "worker/examples/common/shared_memory.h"

namespace baton::bench {

LayoutBytes BytesOf(const arena::Shape& shape) {
  const arena::WorkerMemoryMap worker(shape);
  const arena::DriverMemoryMap driver(shape);
  const arena::RecoveryMemoryMap recovery(shape);
  LayoutBytes bytes;
  bytes.work_request_logs = static_cast<double>(
      shape.connections * (worker.send_log_bytes + worker.receive_log_bytes) +
      shape.shards * (worker.shared_receive_bytes + driver.shared_receive_bytes));
  bytes.completion_logs = static_cast<double>(shape.shards * driver.completion_log_bytes);
  bytes.state = 2.0 * (static_cast<double>(shape.connections) * shape.connection_state_bytes +
                       static_cast<double>(shape.shards) * shape.shard_state_bytes);
  bytes.buffers = static_cast<double>(shape.buffer_bytes);
  bytes.metadata = static_cast<double>(worker.total + driver.total + recovery.total) -
                   bytes.work_request_logs - bytes.completion_logs - bytes.state;
  return bytes;
}

LayoutBytes Difference(const LayoutBytes& more, const LayoutBytes& less, double count) {
  LayoutBytes each;
  each.metadata = (more.metadata - less.metadata) / count;
  each.work_request_logs = (more.work_request_logs - less.work_request_logs) / count;
  each.completion_logs = (more.completion_logs - less.completion_logs) / count;
  each.state = (more.state - less.state) / count;
  each.buffers = (more.buffers - less.buffers) / count;
  return each;
}

absl::StatusOr<arena::Shape> DefaultShape() {
  v1::Config config;
  config.set_state_dir("/");
  v1::ServiceConfig& service = *config.add_services();
  service.set_name("default");
  service.mutable_device()->mutable_soft();
  BATON_RETURN_IF_ERROR(CompleteConfig(config));
  return ShapeOf(config.services(0));
}

arena::Shape WithConnections(arena::Shape shape, uint32_t connections) {
  shape.connections = connections;
  shape.completion_log_entries = static_cast<uint32_t>(arena::RequiredCompletionEntries(shape));
  return shape;
}

arena::Shape WithShards(arena::Shape shape, uint32_t shards) {
  shape.shards = shards;
  return shape;
}

absl::StatusOr<arena::Shape> ShapeOfSharing(const SharingService& service) {
  constexpr uint32_t kSharedReceives = 1024;
  v1::Config config;
  config.set_state_dir("/");
  v1::ServiceConfig& its = *config.add_services();
  its.set_name("sharing");
  its.mutable_device()->mutable_soft();
  its.set_max_connections(service.connections);
  its.set_send_queue_depth(service.send_queue_depth);
  its.set_shared_receive_queue_depth(kSharedReceives);
  if (service.native) {
    its.set_mode(v1::NATIVE);
    its.mutable_native()->set_object("/service.so");
  }
  BATON_RETURN_IF_ERROR(CompleteConfig(config));
  return ShapeOf(config.services(0));
}

IdleBytes IdleBytesOf(const arena::Shape& shape) {
  const driver::DeviceNeeds needs = driver::NeedsOf(shape);
  verbs::mlx5::QueuePairLayout layout =
      verbs::mlx5::LayOut(driver::QueuePairOptionsFor(needs, nullptr)).value();
  if (arena::HasSharedReceives(shape)) layout.receive_slots = 0;
  const uint64_t queue_pairs =
      arena::IsNative(shape) ? shape.shards * shape.pooled_queue_pairs : shape.connections;
  const verbs::mlx5::CompletionQueueLayout completions = {
      static_cast<uint32_t>(std::bit_ceil(needs.completion_queue_entries))};
  const LayoutBytes bytes = BytesOf(shape);
  IdleBytes idle;
  idle.arena = (bytes.Total() - bytes.buffers) / shape.connections;
  idle.queues =
      static_cast<double>(queue_pairs * layout.bytes() + shape.shards * completions.bytes()) /
      shape.connections;
  return idle;
}

absl::StatusOr<double> FileBytes(const arena::Shape& shape) {
  BATON_ASSIGN_OR_RETURN(const arena::Arena arena, arena::Arena::Create(shape, "size"));
  double bytes = 0;
  for (const int fd :
       {arena.worker_log_fd(), arena.driver_log_fd(), arena.buffers_fd(), arena.recovery_fd()}) {
    struct stat status = {};
    if (fstat(fd, &status) != 0) return ErrnoStatus(errno, "fstat of a memory of an arena");
    bytes += static_cast<double>(status.st_blocks) * 512;  // stat(2)
  }
  return bytes;
}

namespace {

constexpr uint64_t kLimitNanoseconds = 60'000'000'000;
constexpr uint32_t kMessageBytes = 64;
// Connections are made in batches, because a listener's queue has room for only few at a time.
constexpr uint32_t kBatch = 64;

double HeapBytes() {
  const struct mallinfo2 heap = mallinfo2();
  return static_cast<double>(heap.uordblks + heap.hblkhd);
}

// One device with its side of all connections, made as a keeper makes them.
class Side {
 public:
  static absl::StatusOr<std::unique_ptr<Side>> Create(uint32_t connections, uint32_t depth) {
    auto side = std::make_unique<Side>();
    BATON_ASSIGN_OR_RETURN(side->device_, examples::OpenDevice("soft"));
    BATON_ASSIGN_OR_RETURN(auto memory, examples::SharedMemory::Allocate(arena::kPageBytes));
    side->memory_ = std::make_unique<examples::SharedMemory>(std::move(memory));
    BATON_ASSIGN_OR_RETURN(
        side->region_, side->device_->RegisterMemory(side->memory_->base(), side->memory_->bytes(),
                                                     verbs::kLocalWrite));
    arena::Shape shape = {};
    shape.shards = 1;
    shape.connections = connections;
    shape.send_queue_depth = shape.receive_queue_depth = depth;
    side->needs_ = driver::NeedsOf(shape);
    side->depth_ = depth;
    BATON_ASSIGN_OR_RETURN(side->queue_, side->device_->CreateCompletionQueue(static_cast<uint32_t>(
                                             side->needs_.completion_queue_entries)));
    return side;
  }

  absl::StatusOr<verbs::Address> Listen() {
    BATON_ASSIGN_OR_RETURN(listener_, device_->Listen({"127.0.0.1", 0}, kBatch));
    return listener_->address();
  }

  absl::Status Connect(const verbs::Address& address) {
    Connection& connection = connections_.emplace_back();
    BATON_RETURN_IF_ERROR(MakeQueuePair(&connection));
    BATON_ASSIGN_OR_RETURN(connection.id,
                           device_->Connect(address, connection.queue_pair.get(), {}));
    connection.id->context = connection.queue_pair.get();
    return absl::OkStatus();
  }

  // One turn of its loop.
  absl::Status Turn() {
    device_->Progress();
    for (verbs::CmEvent event; device_->NextEvent(&event);) {
      BATON_RETURN_IF_ERROR(OnEvent(&event));
    }
    std::array<verbs::Completion, 64> completions;
    BATON_ASSIGN_OR_RETURN(const int count, queue_->Poll(absl::MakeSpan(completions)));
    for (int i = 0; i < count; ++i) {
      if (completions[i].status != verbs::CompletionStatus::kSuccess) {
        return absl::InternalError("a message of the soft device failed");
      }
      if (completions[i].opcode != verbs::CompletionOpcode::kReceive) continue;
      BATON_RETURN_IF_ERROR(
          PostReceive(connections_[completions[i].wr_id].queue_pair.get(), completions[i].wr_id));
      ++received_;
    }
    return absl::OkStatus();
  }
  uint32_t received() const { return received_; }

 private:
  struct Connection {
    std::unique_ptr<verbs::QueuePair> queue_pair;
    std::unique_ptr<verbs::ConnectionId> id;  // after the queue pair: it goes first
  };

  absl::Status MakeQueuePair(Connection* connection) {
    BATON_ASSIGN_OR_RETURN(
        connection->queue_pair,
        device_->CreateQueuePair(driver::QueuePairOptionsFor(needs_, queue_.get())));
    for (uint32_t i = 0; i < depth_; ++i) {
      BATON_RETURN_IF_ERROR(PostReceive(connection->queue_pair.get(), connections_.size() - 1));
    }
    return absl::OkStatus();
  }

  absl::Status OnEvent(verbs::CmEvent* event) {
    if (event->type == verbs::CmEventType::kConnectRequest) {
      Connection& connection = connections_.emplace_back();
      BATON_RETURN_IF_ERROR(MakeQueuePair(&connection));
      connection.id = std::move(event->new_id);
      connection.id->context = connection.queue_pair.get();
      return connection.id->Accept(connection.queue_pair.get(), {});
    }
    if (event->type != verbs::CmEventType::kEstablished) {
      return absl::InternalError(
          absl::StrCat("a connection of the soft device was not made: ", event->status.message()));
    }
    verbs::SendRequest request;
    const verbs::ScatterGather sge = Buffer();
    request.sges = {&sge, 1};
    size_t posted = 0;
    return static_cast<verbs::QueuePair*>(event->id->context)->PostSend({&request, 1}, &posted);
  }

  absl::Status PostReceive(verbs::QueuePair* queue_pair, uint64_t connection) {
    const verbs::ScatterGather sge = Buffer();
    const verbs::ReceiveRequest request{connection, {&sge, 1}};
    size_t posted = 0;
    return queue_pair->PostReceive({&request, 1}, &posted);
  }

  verbs::ScatterGather Buffer() const {
    return {reinterpret_cast<uint64_t>(memory_->base()), kMessageBytes, region_->lkey()};
  }

  // Devices outlive what is made from them, queues their queue pairs.
  std::unique_ptr<verbs::Device> device_;
  std::unique_ptr<examples::SharedMemory> memory_;
  std::unique_ptr<verbs::MemoryRegion> region_;
  std::unique_ptr<verbs::CompletionQueue> queue_;
  std::unique_ptr<verbs::Listener> listener_;
  std::vector<Connection> connections_;
  driver::DeviceNeeds needs_;
  uint32_t depth_ = 0;
  uint32_t received_ = 0;
};

}  // namespace

absl::StatusOr<double> SoftBytesPerConnection(uint32_t connections, uint32_t depth) {
  BATON_ASSIGN_OR_RETURN(const auto server, Side::Create(connections, depth));
  BATON_ASSIGN_OR_RETURN(const auto client, Side::Create(connections, depth));
  BATON_ASSIGN_OR_RETURN(const verbs::Address address, server->Listen());
  const double before = HeapBytes();
  const uint64_t deadline = MonotonicNanoseconds() + kLimitNanoseconds;
  for (uint32_t made = 0; made < connections;) {
    for (uint32_t i = 0; i < kBatch && made < connections; ++i, ++made) {
      BATON_RETURN_IF_ERROR(client->Connect(address));
    }
    while (server->received() < made || client->received() < made) {
      BATON_RETURN_IF_ERROR(server->Turn());
      BATON_RETURN_IF_ERROR(client->Turn());
      if (MonotonicNanoseconds() > deadline) {
        return absl::DeadlineExceededError("connections of the soft device took too long");
      }
    }
  }
  return (HeapBytes() - before) / 2 / connections;
}

}  // namespace baton::bench
