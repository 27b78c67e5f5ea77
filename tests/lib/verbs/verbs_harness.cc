#include "tests/lib/verbs/verbs_harness.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstring>

#include "lib/base/check.h"
#include "lib/base/clock.h"
#include "lib/base/file_descriptor.h"
#include "tests/harness/wait_until.h"

namespace baton::verbs::testing {
namespace {

constexpr std::chrono::nanoseconds kDeadline = std::chrono::seconds(15);

}  // namespace

Side::Side(std::unique_ptr<Device> owned, uint32_t entries) : device(std::move(owned)) {
  queue = device->CreateCompletionQueue(entries).value();
  queue_pair = MakeQueuePair();
}

Side::~Side() {
  events.clear();
  id.reset();
  queue_pair.reset();
  queue.reset();
}

std::unique_ptr<QueuePair> Side::MakeQueuePair(uint32_t sends, uint32_t receives, uint32_t sges,
                                               uint32_t inline_bytes) {
  QueuePairOptions options;
  options.send_queue = options.receive_queue = queue.get();
  options.max_send_requests = sends;
  options.max_receive_requests = receives;
  options.max_scatter_gather = sges;
  options.max_inline_data = inline_bytes;
  return device->CreateQueuePair(options).value();
}

void Side::Turn() {
  device->Progress();
  CmEvent event;
  while (device->NextEvent(&event)) {
    events.push_back(std::move(event));
    event = CmEvent();
  }
  DeviceEvent told;
  while (device->NextDeviceEvent(&told)) device_events.push_back(std::move(told));
  Completion taken[16];
  const absl::StatusOr<int> count = queue->Poll(absl::MakeSpan(taken));
  if (!count.ok()) poll_status = count.status();
  for (int i = 0; count.ok() && i < *count; ++i) completions.push_back(taken[i]);
}

Buffer::Buffer(Device* device, size_t size, uint32_t access) : size_(size) {
  const FileDescriptor file(memfd_create("buffer", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  BATON_CHECK(file && ftruncate(file.get(), static_cast<off_t>(size)) == 0);
  BATON_CHECK(fcntl(file.get(), F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK) == 0);
  void* mapped = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  BATON_CHECK(mapped != MAP_FAILED);
  data_ = static_cast<uint8_t*>(mapped);
  BATON_CHECK(device->NameMemory(mapped, size, file.get()).ok());
  region = device->RegisterMemory(mapped, size, access).value();
}

Buffer::~Buffer() {
  region.reset();
  munmap(data_, size_);
}

void Buffer::Fill(size_t offset, std::string_view text) {
  std::memcpy(data_ + offset, text.data(), text.size());
}

std::string Buffer::Text(size_t offset, size_t length) const {
  return std::string(reinterpret_cast<const char*>(data_) + offset, length);
}

bool Pump(Side& a, Side& b, const std::function<bool()>& done) {
  const uint64_t deadline = MonotonicNanoseconds() + harness::Patient(kDeadline).count();
  int idle = 0;
  while (!done()) {
    a.Turn();
    b.Turn();
    if (done()) return true;
    if (MonotonicNanoseconds() > deadline) return false;
    if (++idle < 16) continue;
    // Sleeps as a driver would: notification, one more poll, then the event descriptors. The
    // timeout serves what `done` watches and no descriptor tells.
    a.queue->RequestNotification().IgnoreError();
    b.queue->RequestNotification().IgnoreError();
    a.Turn();
    b.Turn();
    pollfd fds[] = {{a.device->event_fd(), POLLIN, 0}, {b.device->event_fd(), POLLIN, 0}};
    // `done` may take what it looks for, so it is not asked again once it has said so.
    if (done()) return true;
    poll(fds, 2, 50);
  }
  return true;
}

bool AwaitEvent(Side& side, Side& other, CmEventType type, CmEvent* event) {
  if (!Pump(side, other, [&] { return !side.events.empty(); })) return false;
  *event = std::move(side.events.front());
  side.events.pop_front();
  EXPECT_EQ(static_cast<int>(event->type), static_cast<int>(type)) << event->status;
  return event->type == type;
}

Completion AwaitCompletion(Side& side, Side& other) {
  Completion completion;
  completion.wr_id = ~0ull;
  if (!Pump(side, other, [&] { return !side.completions.empty(); })) return completion;
  completion = side.completions.front();
  side.completions.pop_front();
  return completion;
}

void Connect(Side& client, Side& server, const ConnectOptions& options) {
  const std::unique_ptr<Listener> listener = server.device->Listen({options.host, 0}, 8).value();
  client.id = client.device
                  ->Connect({options.host, listener->address().port}, client.queue_pair.get(),
                            options.client)
                  .value();
  CmEvent request;
  ASSERT_TRUE(AwaitEvent(server, client, CmEventType::kConnectRequest, &request));
  server.id = std::move(request.new_id);
  ASSERT_TRUE(server.id->Accept(server.queue_pair.get(), options.server).ok());
  CmEvent established;
  ASSERT_TRUE(AwaitEvent(client, server, CmEventType::kEstablished, &established));
  ASSERT_TRUE(AwaitEvent(server, client, CmEventType::kEstablished, &established));
  ASSERT_EQ(client.queue_pair->state(), QueuePairState::kReadyToSend);
  ASSERT_EQ(server.queue_pair->state(), QueuePairState::kReadyToSend);
}

SendRequest Request(Opcode opcode, uint64_t wr_id) {
  SendRequest request;
  request.opcode = opcode;
  request.wr_id = wr_id;
  return request;
}

SendRequest RemoteRequest(Opcode opcode, uint64_t wr_id, uint64_t remote_address, uint32_t rkey) {
  SendRequest request = Request(opcode, wr_id);
  request.remote_address = remote_address;
  request.rkey = rkey;
  return request;
}

absl::Status PostReceive(QueuePair& queue_pair, uint64_t wr_id,
                         const std::vector<ScatterGather>& sges) {
  ReceiveRequest request;
  request.wr_id = wr_id;
  request.sges = sges;
  size_t posted = 0;
  return queue_pair.PostReceive(absl::MakeConstSpan(&request, 1), &posted);
}

absl::Status PostSend(QueuePair& queue_pair, SendRequest request,
                      const std::vector<ScatterGather>& sges) {
  request.sges = sges;
  size_t posted = 0;
  return queue_pair.PostSend(absl::MakeConstSpan(&request, 1), &posted);
}

}  // namespace baton::verbs::testing
