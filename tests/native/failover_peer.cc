// failover-peer ADDRESS CONNECTIONS AT_ONCE YIELD_US: the peer of the failover bar, on libibverbs
// and librdmacm alone. AT_ONCE of its connections have a message under way, one each, in turn: the
// next one's is sent as soon as one is answered. When the first is answered by a successor, all
// that are left are asked at once.
//
// Lines of its input:
//   connect PORT    connects all, and says "connected" when each was answered
//   kill PORT       asks, kills the process that answers at some moment, goes on until each
//                   connection was answered by another process, and tells of it:
//       first US    from the kill (a timestamp right before it) to the first such reply
//       all US      likewise, until each connection had one
//       last US     to the killed one's last reply; negative: it came before the kill
//       began US    as the first successor to answer tells: it had the shard, or was asked to
//       connect received US and took the request that it answered first quiet US    the longest
//       that a message had waited for its reply before the kill
//   PORT: where a connection that breaks is made anew; 0: none may break.
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/native/raw_device.h"

namespace baton::native {
namespace {

constexpr int kResolveMs = 2000;
constexpr uint64_t kRetryNs = 1'000'000;
// With more, requests are lost in the connection manager's queue pair, and come again seconds
// later.
constexpr size_t kConnectingAtOnce = 16;
constexpr uint64_t kReceive = 1;
// The device has memory of so many messages for a connection: those that are received, and the one
// that is sent.
constexpr uint32_t kMessages = kFailoverReceives + 1;

struct Link {
  rdma_cm_id* id = nullptr;
  uint32_t incarnation = 0;
  bool established = false;
  bool wanted = false;  // to be connected, from then on:
  uint64_t retry_ns = 0;
  uint64_t sequence = 0;
  bool asked = false;
  uint64_t asked_ns = 0;
  bool answered = false;
  bool succeeded = false;  // by another process than the killed one
};

double Microseconds(uint64_t from, uint64_t to) {
  return static_cast<double>(static_cast<int64_t>(to - from)) / 1000;
}

class Peer {
 public:
  Peer(std::string host, uint32_t connections, uint32_t at_once, uint32_t yield_us)
      : device_(connections * kMessages, connections * 16),
        host_(std::move(host)),
        at_once_(at_once),
        yield_us_(yield_us),
        links_(connections) {}

  void Connect(uint16_t port) {
    port_ = port;
    for (Link& link : links_) Want(link, 0);
    RunUntil([this] {
      return std::all_of(links_.begin(), links_.end(),
                         [](const Link& link) { return link.answered; });
    });
    Rest();
    std::puts("connected");
  }

  void Kill(uint16_t port) {
    port_ = port;
    victim_ = server_;
    kill_ns_.store(0);
    succeeded_ = 0;
    first_.reset();
    last_ns_ = quiet_ns_ = 0;
    asking_ = true;
    asked_all_ = false;
    for (Link& link : links_) link.succeeded = false;
    for (uint32_t i = 0; i < at_once_; ++i) AskNext();
    // At any moment of the loops of both.
    std::uniform_int_distribution<int> pause_us(20'000, 40'000);
    std::thread killer([this, pause = pause_us(random_)] {
      usleep(static_cast<useconds_t>(pause));
      kill_ns_.store(FailoverClock());
      Need(kill(static_cast<pid_t>(victim_), SIGKILL) == 0, "kill");
      // Not in the way of who dies: it ends when all is measured.
      eventfd_t ended = 0;
      Need(eventfd_read(ended_, &ended) == 0, "eventfd_read");
    });
    RunUntil([this] { return succeeded_ == links_.size(); });
    const uint64_t all_ns = FailoverClock();
    Rest();
    const uint64_t began = kill_ns_.exchange(0);
    Need(eventfd_write(ended_, 1) == 0, "eventfd_write");
    killer.join();
    std::printf("first %.1f all %.1f last %.1f began %.1f received %.1f quiet %.1f\n",
                Microseconds(began, first_->answered), Microseconds(began, all_ns),
                Microseconds(began, last_ns_), Microseconds(began, first_->message.began_ns),
                Microseconds(began, first_->message.received_ns), Microseconds(0, quiet_ns_));
    for (rdma_cm_id* id : broken_) Destroy(id);
    broken_.clear();
  }

 private:
  struct First {
    FailoverMessage message;
    uint64_t answered;
  };

  template <typename Condition>
  void RunUntil(const Condition& holds) {
    uint64_t idle_since_ns = FailoverClock();
    for (uint32_t turn = 0; !holds(); ++turn) {
      if (TakeReplies()) {
        idle_since_ns = FailoverClock();
        continue;
      }
      // While nothing is wrong, the events are asked for now and then only: that is a system call.
      if ((established_ != links_.size() || turn % 16 == 0) && HandleEvent()) continue;
      StartWanted();
      device_.Wait(idle_since_ns, yield_us_, established_ != links_.size() ? 1 : -1);
    }
  }
  // What is under way is answered, and no more is asked.
  void Rest() {
    asking_ = false;
    while (std::any_of(links_.begin(), links_.end(), [](const Link& link) { return link.asked; })) {
      if (!TakeReplies()) device_.Wait(0, 0, -1);
    }
  }

  // ---------------------------------------------------------------- messages

  uint32_t IndexOf(const Link& link) const { return static_cast<uint32_t>(&link - links_.data()); }
  uint64_t IdOf(const Link& link, uint32_t message) const {
    return uint64_t{link.incarnation} << 32 | message << 1;
  }

  void Ask(Link& link) {
    if (!link.established || link.asked) return;
    const uint32_t message = IndexOf(link) * kMessages + kFailoverReceives;
    device_.message(message) = {.sequence = ++link.sequence};
    link.asked = true;
    link.asked_ns = FailoverClock();
    device_.PostSend(link.id->qp, IdOf(link, message), message);
  }

  // In turn.
  void AskNext() {
    Ask(links_[next_]);
    next_ = (next_ + 1) % links_.size();
  }
  void AskAllLeft() {
    if (std::exchange(asked_all_, true)) return;
    for (Link& link : links_) {
      if (!link.succeeded) Ask(link);
    }
  }

  void Receive(Link& link, uint32_t message) {
    device_.PostReceive(link.id->qp, IdOf(link, message) | kReceive, message);
  }

  bool TakeReplies() {
    std::array<ibv_wc, 64> done;
    const int count = device_.Poll(done.data(), static_cast<int>(done.size()));
    for (int i = 0; i < count; ++i) {
      const auto message = static_cast<uint32_t>(done[i].wr_id) >> 1;
      Link& link = links_[message / kMessages];
      if (link.incarnation != done[i].wr_id >> 32) continue;  // of a connection that broke
      if (done[i].status != IBV_WC_SUCCESS) {
        OnBroken(link, ibv_wc_status_str(done[i].status));
      } else if ((done[i].wr_id & kReceive) != 0) {
        OnReply(link, message);
      }
    }
    return count > 0;
  }

  void OnReply(Link& link, uint32_t message) {
    const FailoverMessage reply = device_.message(message);
    const uint64_t now = FailoverClock();
    if (!link.asked || reply.sequence != link.sequence) Die("a reply to something else");
    link.asked = false;
    const uint64_t kill_ns = kill_ns_.load();
    if (reply.server != victim_ && !link.succeeded) {
      link.succeeded = true;
      ++succeeded_;
      if (!first_) first_ = First{reply, now};
    } else if (reply.server == victim_) {
      last_ns_ = now;
      if (kill_ns == 0) quiet_ns_ = std::max(quiet_ns_, now - link.asked_ns);
    }
    link.answered = true;
    server_ = reply.server;
    Receive(link, message);
    // A connection that the successor has answered rests: the others are to have the machine.
    if (asking_) first_ ? AskAllLeft() : AskNext();
  }

  // ---------------------------------------------------------------- connections

  void Want(Link& link, uint64_t delay_ns) {
    link.wanted = true;
    link.retry_ns = FailoverClock() + delay_ns;
  }

  void StartWanted() {
    if (established_ == links_.size()) return;
    const uint64_t now = FailoverClock();
    for (Link& link : links_) {
      if (connecting_ == kConnectingAtOnce) return;
      if (link.wanted && now >= link.retry_ns) Start(link);
    }
  }

  void Start(Link& link) {
    link.wanted = false;
    ++connecting_;
    Need(rdma_create_id(device_.channel(), &link.id, &link, RDMA_PS_TCP) == 0, "rdma_create_id");
    sockaddr_in address = RawAddress(host_, port_);
    Need(
        rdma_resolve_addr(link.id, nullptr, reinterpret_cast<sockaddr*>(&address), kResolveMs) == 0,
        "rdma_resolve_addr");
  }

  bool HandleEvent() {
    rdma_cm_event* const event = device_.NextEvent();
    if (event == nullptr) return false;
    Link& link = *static_cast<Link*>(event->id->context);
    rdma_cm_id* const id = event->id;
    const rdma_cm_event_type type = event->event;
    rdma_ack_cm_event(event);
    if (id == link.id) OnEvent(link, type);
    return true;
  }

  void OnEvent(Link& link, rdma_cm_event_type type) {
    switch (type) {
      case RDMA_CM_EVENT_ADDR_RESOLVED:
        return Need(rdma_resolve_route(link.id, kResolveMs) == 0, "rdma_resolve_route");
      case RDMA_CM_EVENT_ROUTE_RESOLVED:
        return AskToConnect(link);
      case RDMA_CM_EVENT_ESTABLISHED:
        link.established = true;
        ++established_;
        --connecting_;
        return Ask(link);
      case RDMA_CM_EVENT_TIMEWAIT_EXIT:
        return;
      default:
        return OnBroken(link, rdma_event_str(type));
    }
  }

  void AskToConnect(Link& link) {
    ibv_qp_init_attr options = device_.QueuePairOptions();
    Need(rdma_create_qp(link.id, device_.domain(), &options) == 0, "rdma_create_qp");
    for (uint32_t i = 0; i < kFailoverReceives; ++i) Receive(link, IndexOf(link) * kMessages + i);
    rdma_conn_param parameters = RawParameters();
    Need(rdma_connect(link.id, &parameters) == 0, "rdma_connect");
  }

  // Again at once, and when that is refused a little later.
  void OnBroken(Link& link, const char* why) {
    if (port_ == 0) {
      errno = 0;
      Die(std::string("a connection broke: ") + why);
    }
    const bool was = std::exchange(link.established, false);
    --(was ? established_ : connecting_);
    link.asked = false;
    ++link.incarnation;
    broken_.push_back(std::exchange(link.id, nullptr));
    Want(link, was ? 0 : kRetryNs);
  }

  static void Destroy(rdma_cm_id* id) {
    if (id->qp != nullptr) rdma_destroy_qp(id);
    rdma_destroy_id(id);
  }

  RawDevice device_;
  const std::string host_;
  const uint32_t at_once_;
  const uint32_t yield_us_;
  std::minstd_rand random_{std::random_device()()};
  std::vector<Link> links_;
  std::vector<rdma_cm_id*> broken_;  // to be destroyed when nothing is measured
  uint16_t port_ = 0;
  size_t established_ = 0;
  size_t connecting_ = 0;
  bool asking_ = false;
  uint64_t server_ = 0;  // who has answered last
  uint64_t victim_ = 0;
  std::atomic<uint64_t> kill_ns_ = 0;
  const int ended_ = eventfd(0, EFD_CLOEXEC);
  size_t succeeded_ = 0;
  std::optional<First> first_;
  uint64_t last_ns_ = 0, quiet_ns_ = 0;
  size_t next_ = 0;  // to be asked
  bool asked_all_ = false;
};

void Run(Peer& peer) {
  std::string command;
  uint16_t port = 0;
  while (std::cin >> command >> port) {
    command == "connect" ? peer.Connect(port) : peer.Kill(port);
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace baton::native

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  const auto number = [argv](int i) { return static_cast<uint32_t>(std::atoi(argv[i])); };
  baton::native::Peer peer(argv[1], number(2), number(3), number(4));
  baton::native::Run(peer);
}
