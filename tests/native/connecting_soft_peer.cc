// connecting-soft-peer ADDRESS PORT: as connecting_peer.cc, on the soft device. PORT 0 is a free
// one.
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lib/base/check.h"
#include "lib/verbs/soft/soft_device.h"
#include "tests/native/connecting_asks.h"

namespace baton::native {
namespace {

constexpr uint32_t kLinks = 128;  // at a time
constexpr size_t kBytes = 2 * kLinks * sizeof(FailoverMessage);
constexpr uint64_t kReceive = 1;
constexpr int kLookMs = 50;

// The id is destroyed before its queue pair.
struct Link {
  uint64_t ask = 0;
  uint32_t place = 0;  // of its two messages
  bool used = false;
  std::unique_ptr<verbs::QueuePair> queue_pair;
  std::unique_ptr<verbs::ConnectionId> id;
};

class SoftPeer {
 public:
  SoftPeer() : device_(verbs::soft::CreateSoftDevice({}).value()) {
    void* const mapped =
        mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    BATON_CHECK(mapped != MAP_FAILED);
    memory_ = static_cast<FailoverMessage*>(mapped);
    region_ = device_->RegisterMemory(memory_, kBytes, verbs::kLocalWrite).value();
    queue_ = device_->CreateCompletionQueue(8 * kLinks).value();
    for (uint32_t i = 0; i < kLinks; ++i) free_.push_back(i);
  }
  ~SoftPeer() = default;  // the program ends with it

  uint16_t Listen(const std::string& host, uint16_t port) {
    listener_ = device_->Listen({host, port}, kLinks).value();
    return listener_->address().port;
  }

  // One turn.
  void Turn() {
    if (Look()) return;
    BATON_CHECK(queue_->RequestNotification().ok());
    if (Look()) return;
    pollfd waited[] = {{device_->event_fd(), POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}};
    (void)poll(waited, 2, kLookMs);
  }

  void Tell() const { count_.Print(links_.size()); }

 private:
  // Returns whether there was something.
  bool Look() {
    device_->Progress();
    bool found = AnswerAll();
    verbs::CmEvent event;
    while (device_->NextEvent(&event)) {
      found = true;
      OnEvent(std::exchange(event, {}));
    }
    return found;
  }

  void OnEvent(verbs::CmEvent event) {
    switch (event.type) {
      case verbs::CmEventType::kConnectRequest:
        OnRequest(std::move(event));
        break;
      case verbs::CmEventType::kEstablished:
        break;
      case verbs::CmEventType::kDisconnected:
      case verbs::CmEventType::kRejected:
      case verbs::CmEventType::kUnreachable:
        OnEnd(reinterpret_cast<uint64_t>(event.id->context));
        break;
    }
  }

  void OnRequest(verbs::CmEvent event) {
    uint64_t ask = 0;
    BATON_CHECK(event.private_data.size() >= sizeof(ask));
    std::memcpy(&ask, event.private_data.data(), sizeof(ask));
    count_.Begin(ask);
    if (AskOf(ask) == Ask::kRejected) {
      ++(event.new_id->Reject("no").ok() ? count_.rejected : count_.withdrawn);
      return;
    }
    BATON_CHECK(!free_.empty());
    const uint64_t serial = ++serials_;
    event.new_id->context = reinterpret_cast<void*>(serial);
    Link& link = links_[serial];
    link.ask = ask;
    link.place = free_.back();
    free_.pop_back();
    link.id = std::move(event.new_id);
    link.queue_pair =
        device_->CreateQueuePair({queue_.get(), queue_.get(), kDepth, kDepth, 1}).value();
    PostReceive(serial, link);
    if (link.id->Accept(link.queue_pair.get(), {}).ok()) {
      ++count_.accepted;
    } else {
      ++count_.withdrawn;
      Forget(serial);
    }
  }

  void OnEnd(uint64_t serial) {
    const auto found = links_.find(serial);
    if (found == links_.end()) return;
    if (!found->second.used) ++count_.unused;
    Forget(serial);
  }

  void Forget(uint64_t serial) {
    free_.push_back(links_.at(serial).place);
    links_.erase(serial);
  }

  bool AnswerAll() {
    std::array<verbs::Completion, 16> done;
    const int count = queue_->Poll(absl::MakeSpan(done)).value();
    for (int i = 0; i < count; ++i) {
      const auto found = links_.find(done[i].wr_id >> 1);
      const bool received =
          (done[i].wr_id & kReceive) != 0 && done[i].status == verbs::CompletionStatus::kSuccess;
      if (received && found != links_.end()) Answer(found->first, found->second);
    }
    return count > 0;
  }

  void Answer(uint64_t serial, Link& link) {
    const FailoverMessage message = memory_[2 * link.place];
    count_.Use(link.ask, link.used, message);
    link.used = true;
    memory_[2 * link.place + 1] = message;
    PostReceive(serial, link);
    const verbs::ScatterGather sge = BufferOf(2 * link.place + 1);
    verbs::SendRequest request;
    request.wr_id = serial << 1;
    request.sges = {&sge, 1};
    size_t posted = 0;
    BATON_CHECK(link.queue_pair->PostSend({&request, 1}, &posted).ok());
  }

  void PostReceive(uint64_t serial, Link& link) {
    const verbs::ScatterGather sge = BufferOf(2 * link.place);
    const verbs::ReceiveRequest request = {serial << 1 | kReceive, {&sge, 1}};
    size_t posted = 0;
    BATON_CHECK(link.queue_pair->PostReceive({&request, 1}, &posted).ok());
  }

  verbs::ScatterGather BufferOf(uint32_t message) const {
    return {reinterpret_cast<uint64_t>(&memory_[message]), sizeof(FailoverMessage),
            region_->lkey()};
  }

  static constexpr uint32_t kDepth = 4;

  const std::unique_ptr<verbs::Device> device_;
  FailoverMessage* memory_ = nullptr;
  std::unique_ptr<verbs::MemoryRegion> region_;
  std::unique_ptr<verbs::CompletionQueue> queue_;
  std::unique_ptr<verbs::Listener> listener_;
  std::vector<uint32_t> free_;  // places
  std::unordered_map<uint64_t, Link> links_;
  uint64_t serials_ = 0;
  AskCount count_;
};

}  // namespace
}  // namespace baton::native

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  baton::native::SoftPeer peer;
  std::printf("listening %u\n", peer.Listen(argv[1], static_cast<uint16_t>(std::atoi(argv[2]))));
  std::fflush(stdout);
  baton::native::ServeAsks(peer);
}
