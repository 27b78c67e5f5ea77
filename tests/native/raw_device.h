// The device as libibverbs and librdmacm give it, for the programs of the failover bar that have
// nothing of Baton in them. What fails ends the program.
//
// Thread-compatible.
#ifndef TESTS_NATIVE_RAW_DEVICE_H_
#define TESTS_NATIVE_RAW_DEVICE_H_

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "tests/native/message.h"

namespace baton::native {

[[noreturn]] void Die(const std::string& what);
// errno says why.
inline void Need(bool holds, const char* what) {
  if (!holds) Die(what);
}

sockaddr_in RawAddress(const std::string& host, uint16_t port);
rdma_conn_param RawParameters();

class RawDevice {
 public:
  // Memory for so many messages, and a completion queue of so many entries.
  RawDevice(uint32_t messages, uint32_t entries);
  ~RawDevice() = default;  // the program ends with it

  ibv_pd* domain() const { return domain_; }
  rdma_event_channel* channel() const { return channel_; }
  FailoverMessage& message(uint32_t index) const { return memory_[index]; }
  ibv_qp_init_attr QueuePairOptions() const;

  void PostReceive(ibv_qp* queue_pair, uint64_t wr_id, uint32_t message) const;
  void PostSend(ibv_qp* queue_pair, uint64_t wr_id, uint32_t message) const;

  int Poll(ibv_wc* completions, int count) const;
  // Null: there is none. To be acknowledged.
  rdma_cm_event* NextEvent() const;
  // Until there may be a completion, an event, or input on `fd`; at most so long (-1: for ever). To
  // be called again and again while Poll finds nothing: it yields for `yield_us` before it sleeps.
  void Wait(uint64_t idle_since_ns, uint32_t yield_us, int timeout_ms, int fd = -1);

 private:
  ibv_sge BufferOf(uint32_t message) const;

  rdma_event_channel* channel_ = nullptr;
  ibv_pd* domain_ = nullptr;
  ibv_comp_channel* completion_channel_ = nullptr;
  ibv_cq* queue_ = nullptr;
  ibv_mr* region_ = nullptr;
  FailoverMessage* memory_ = nullptr;
  bool armed_ = false;
};

}  // namespace baton::native

#endif  // TESTS_NATIVE_RAW_DEVICE_H_
