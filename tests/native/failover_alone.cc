// failover-alone ADDRESS PORT CONNECTIONS YIELD_US: what the failover of a native service is
// compared with. It is a service on libibverbs and librdmacm alone, which answers each message. Its
// connections die with it.
//
// It is as warm as such a process can be. Before it says so ("warm PID") it listens, its memory is
// registered and touched, and for each connection to come there is a queue pair with its receives
// posted. What is left to do is to accept.
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/native/raw_device.h"

namespace baton::native {
namespace {

constexpr uint64_t kReceive = 1;

class Alone {
 public:
  Alone(uint32_t connections, uint32_t yield_us)
      : device_(connections * 2 * kFailoverReceives, connections * 4 * kFailoverReceives),
        yield_us_(yield_us) {
    for (uint32_t i = 0; i < connections; ++i) MakeQueuePair(i);
  }

  void Listen(const std::string& host, uint16_t port) {
    Need(rdma_create_id(device_.channel(), &listener_, nullptr, RDMA_PS_TCP) == 0,
         "rdma_create_id");
    sockaddr_in address = RawAddress(host, port);
    Need(rdma_bind_addr(listener_, reinterpret_cast<sockaddr*>(&address)) == 0, "rdma_bind_addr");
    Need(rdma_listen(listener_, 4096) == 0, "rdma_listen");
  }

  [[noreturn]] void Run() {
    uint64_t idle_since_ns = FailoverClock();
    for (;;) {
      const bool answered = AnswerAll();
      if (rdma_cm_event* const event = answered ? nullptr : device_.NextEvent()) {
        if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST) Accept(*event);
        rdma_ack_cm_event(event);
      } else if (!answered) {
        device_.Wait(idle_since_ns, yield_us_, -1);
        continue;
      }
      idle_since_ns = FailoverClock();
    }
  }

 private:
  void MakeQueuePair(uint32_t index) {
    ibv_qp_init_attr options = device_.QueuePairOptions();
    ibv_qp* const queue_pair = ibv_create_qp(device_.domain(), &options);
    Need(queue_pair != nullptr, "ibv_create_qp");
    ibv_qp_attr attributes = {};
    attributes.qp_state = IBV_QPS_INIT;
    attributes.port_num = 1;
    attributes.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
    Need(ibv_modify_qp(queue_pair, &attributes,
                       IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0,
         "ibv_modify_qp to INIT");
    queue_pairs_.push_back(queue_pair);
    for (uint32_t slot = 0; slot < kFailoverReceives; ++slot) Receive(index, slot);
  }

  static void Advance(rdma_cm_id* id, ibv_qp* queue_pair, ibv_qp_state state) {
    ibv_qp_attr attributes = {};
    attributes.qp_state = state;
    int mask = 0;
    Need(rdma_init_qp_attr(id, &attributes, &mask) == 0, "rdma_init_qp_attr");
    Need(ibv_modify_qp(queue_pair, &attributes, mask) == 0, "ibv_modify_qp");
  }

  void Accept(const rdma_cm_event& event) {
    if (began_ns_ == 0) began_ns_ = FailoverClock();
    if (used_ == queue_pairs_.size()) Die("more connections than were told of");
    ibv_qp* const queue_pair = queue_pairs_[used_++];
    Advance(event.id, queue_pair, IBV_QPS_RTR);
    Advance(event.id, queue_pair, IBV_QPS_RTS);
    rdma_conn_param parameters = RawParameters();
    parameters.qp_num = queue_pair->qp_num;
    Need(rdma_accept(event.id, &parameters) == 0, "rdma_accept");
  }

  void Receive(uint32_t index, uint32_t slot) {
    device_.PostReceive(queue_pairs_[index], Number(index, slot) << 1 | kReceive,
                        Number(index, slot));
  }
  static uint32_t Number(uint32_t index, uint32_t slot) {
    return index * 2 * kFailoverReceives + slot;
  }

  bool AnswerAll() {
    std::array<ibv_wc, 64> done;
    const int count = device_.Poll(done.data(), static_cast<int>(done.size()));
    for (int i = 0; i < count; ++i) {
      // What has failed belongs to a connection that has ended.
      if (done[i].status != IBV_WC_SUCCESS || (done[i].wr_id & kReceive) == 0) continue;
      const auto received = static_cast<uint32_t>(done[i].wr_id >> 1);
      const uint32_t index = received / (2 * kFailoverReceives);
      const uint32_t slot = received % (2 * kFailoverReceives);
      const uint32_t reply = received + kFailoverReceives;
      device_.message(reply) = {device_.message(received).sequence,
                                static_cast<uint64_t>(getpid()),
                                began_ns_,
                                FailoverClock(),
                                {}};
      Receive(index, slot);
      device_.PostSend(queue_pairs_[index], uint64_t{reply} << 1, reply);
    }
    return count > 0;
  }

  RawDevice device_;
  const uint32_t yield_us_;
  rdma_cm_id* listener_ = nullptr;
  std::vector<ibv_qp*> queue_pairs_;
  size_t used_ = 0;
  uint64_t began_ns_ = 0;
};

}  // namespace
}  // namespace baton::native

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  baton::native::Alone alone(static_cast<uint32_t>(std::atoi(argv[3])),
                             static_cast<uint32_t>(std::atoi(argv[4])));
  alone.Listen(argv[1], static_cast<uint16_t>(std::atoi(argv[2])));
  std::printf("warm %d\n", getpid());
  std::fflush(stdout);
  alone.Run();
}
