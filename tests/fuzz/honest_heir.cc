#include "tests/fuzz/honest_heir.h"

#include <sys/socket.h>

#include <memory>
#include <numeric>
#include <utility>

#include "lib/base/check.h"

namespace baton::fuzz {
namespace {

WorkerOptions Options() {
  WorkerOptions options;
  options.service = "attacked";
  options.control_stream = false;
  return options;
}

// Every byte is there to be read.
void Read(absl::Span<const uint8_t> bytes) {
  volatile uint32_t sum = std::accumulate(bytes.begin(), bytes.end(), 0u);
  (void)sum;
}

}  // namespace

HonestHeir::HonestHeir(const arena::Arena* arena, FileDescriptor wake, uint64_t id, uint32_t slot)
    : worker_(Options(), this) {
  int pair[2];
  BATON_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
  keeper_.Reset(pair[0]);
  worker_.Connected(FileDescriptor(pair[1]));
  const std::shared_ptr<const arena::Arena> shared(std::shared_ptr<void>(), arena);
  BATON_CHECK(worker_.Start(shared, std::move(wake), id, slot).ok());
}

HonestHeir::~HonestHeir() { worker_.Die(); }

void HonestHeir::Turn() {
  (void)worker_.Poll();
  for (Shard* shard : std::vector<Shard*>(shards_)) {
    for (Connection* connection : shard->connections()) {
      Look(*shard, *connection);
      shard->Disconnect(*connection).IgnoreError();
    }
    shard->Commit().IgnoreError();
  }
}

absl::Status HonestHeir::OnAdopt(Shard& shard) {
  std::erase(shards_, &shard);
  shards_.push_back(&shard);
  Read(shard.state());
  for (Connection* connection : shard.connections()) Look(shard, *connection);
  return absl::OkStatus();
}

void HonestHeir::OnCompletion(Shard& shard, const Completion& completion) {
  BATON_CHECK(completion.connection != nullptr);
  Look(shard, *completion.connection);
  if (completion.kind != Completion::Kind::kConnectRequest) return;
  shard.Reject(*completion.connection, "not now").IgnoreError();
}

void HonestHeir::OnLost(Shard& shard) { std::erase(shards_, &shard); }

void HonestHeir::Look(Shard& shard, Connection& connection) {
  Read(connection.state());
  BATON_CHECK(connection.private_data().size() <= arena::kPrivateDataBytes);
  const uint64_t total = worker_.buffers().size();
  uint64_t in_use = 0;
  shard.ForEachBufferInUse(connection, [&](const Buffer& buffer, bool) {
    BATON_CHECK(buffer.offset <= total && buffer.length <= total - buffer.offset);
    ++in_use;
  });
  const Capacity& capacity = worker_.capacity();
  BATON_CHECK(in_use <= 2 * arena::kMaxSges *
                            (uint64_t{capacity.send_queue_depth} + capacity.receive_queue_depth));
}

}  // namespace baton::fuzz
