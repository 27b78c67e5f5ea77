// connecting-peer ADDRESS PORT: whom connecting_service.cc connects to, on libibverbs and librdmacm
// alone. Accepts, or rejects what is to be rejected; answers the one message of each connection,
// and waits for its end. It says "listening PORT" when it does, and for each line of its input what
// there was (AskCount).
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <unordered_map>
#include <vector>

#include "tests/native/connecting_asks.h"
#include "tests/native/raw_device.h"

namespace baton::native {
namespace {

constexpr uint32_t kLinks = 128;  // at a time
constexpr uint64_t kReceive = 1;

struct Link {
  uint64_t ask = 0;
  rdma_cm_id* id = nullptr;
  uint32_t place = 0;  // of its two messages
  bool used = false;
};

class Peer {
 public:
  Peer() : device_(2 * kLinks, 8 * kLinks) {
    for (uint32_t i = 0; i < kLinks; ++i) free_.push_back(i);
  }

  void Listen(const std::string& host, uint16_t port) {
    Need(rdma_create_id(device_.channel(), &listener_, nullptr, RDMA_PS_TCP) == 0,
         "rdma_create_id");
    sockaddr_in address = RawAddress(host, port);
    Need(rdma_bind_addr(listener_, reinterpret_cast<sockaddr*>(&address)) == 0, "rdma_bind_addr");
    Need(rdma_listen(listener_, kLinks) == 0, "rdma_listen");
  }

  // One turn.
  void Turn() {
    if (AnswerAll() || HandleEvent()) return;
    device_.Wait(0, 0, /*timeout_ms=*/50, STDIN_FILENO);
  }

  void Tell() const { count_.Print(links_.size()); }

 private:
  bool HandleEvent() {
    rdma_cm_event* const event = device_.NextEvent();
    if (event == nullptr) return false;
    const rdma_cm_event_type type = event->event;
    rdma_cm_id* const id = event->id;
    uint64_t ask = 0;
    if (type == RDMA_CM_EVENT_CONNECT_REQUEST) {
      std::memcpy(&ask, event->param.conn.private_data, sizeof(ask));
    }
    rdma_ack_cm_event(event);  // before its id is destroyed
    switch (type) {
      case RDMA_CM_EVENT_CONNECT_REQUEST:
        OnRequest(id, ask);
        break;
      case RDMA_CM_EVENT_DISCONNECTED:
      case RDMA_CM_EVENT_CONNECT_ERROR:
      case RDMA_CM_EVENT_UNREACHABLE:
      case RDMA_CM_EVENT_REJECTED:
        OnEnd(id);
        break;
      default:
        break;
    }
    return true;
  }

  void OnRequest(rdma_cm_id* id, uint64_t ask) {
    count_.Begin(ask);
    if (AskOf(ask) == Ask::kRejected) {
      ++(rdma_reject(id, "no", 2) == 0 ? count_.rejected : count_.withdrawn);
      Need(rdma_destroy_id(id) == 0, "rdma_destroy_id");
      return;
    }
    if (free_.empty()) Die("more connections than there can be");
    const uint64_t serial = ++serials_;
    id->context = reinterpret_cast<void*>(serial);
    Link& link = links_[serial];
    link = {ask, id, free_.back(), false};
    free_.pop_back();
    if (Accept(serial, link)) {
      ++count_.accepted;
    } else {
      ++count_.withdrawn;
      Forget(serial);
    }
  }

  bool Accept(uint64_t serial, const Link& link) {
    ibv_qp_init_attr options = device_.QueuePairOptions();
    if (rdma_create_qp(link.id, device_.domain(), &options) != 0) return false;
    device_.PostReceive(link.id->qp, serial << 1 | kReceive, 2 * link.place);
    rdma_conn_param parameters = RawParameters();
    return rdma_accept(link.id, &parameters) == 0;
  }

  void OnEnd(rdma_cm_id* id) {
    const auto found = links_.find(reinterpret_cast<uint64_t>(id->context));
    if (found == links_.end()) return;
    (void)rdma_disconnect(id);
    if (!found->second.used) ++count_.unused;
    Forget(found->first);
  }

  void Forget(uint64_t serial) {
    const Link link = links_[serial];
    links_.erase(serial);
    free_.push_back(link.place);
    if (link.id->qp != nullptr) rdma_destroy_qp(link.id);
    Need(rdma_destroy_id(link.id) == 0, "rdma_destroy_id");
  }

  bool AnswerAll() {
    std::array<ibv_wc, 16> done;
    const int count = device_.Poll(done.data(), static_cast<int>(done.size()));
    for (int i = 0; i < count; ++i) {
      const auto found = links_.find(done[i].wr_id >> 1);
      const bool received = (done[i].wr_id & kReceive) != 0 && done[i].status == IBV_WC_SUCCESS;
      if (received && found != links_.end()) Answer(found->first, found->second);
    }
    return count > 0;
  }

  void Answer(uint64_t serial, Link& link) {
    const FailoverMessage message = device_.message(2 * link.place);
    count_.Use(link.ask, link.used, message);
    link.used = true;
    device_.message(2 * link.place + 1) = message;
    device_.PostReceive(link.id->qp, serial << 1 | kReceive, 2 * link.place);
    device_.PostSend(link.id->qp, serial << 1, 2 * link.place + 1);
  }

  RawDevice device_;
  rdma_cm_id* listener_ = nullptr;
  std::vector<uint32_t> free_;  // places
  std::unordered_map<uint64_t, Link> links_;
  uint64_t serials_ = 0;
  AskCount count_;
};

}  // namespace
}  // namespace baton::native

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  baton::native::Peer peer;
  peer.Listen(argv[1], static_cast<uint16_t>(std::atoi(argv[2])));
  std::printf("listening %s\n", argv[2]);
  std::fflush(stdout);
  baton::native::ServeAsks(peer);
}
