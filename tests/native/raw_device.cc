#include "tests/native/raw_device.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace baton::native {
namespace {

constexpr uint32_t kQueueDepth = 4;
// Baton asks for as many retries on its connections.
constexpr uint8_t kRetries = 7;

void DoNotBlock(int fd) { Need(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) == 0, "fcntl"); }

}  // namespace

void Die(const std::string& what) {
  std::fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, what.c_str(),
               std::strerror(errno));
  std::exit(1);
}

sockaddr_in RawAddress(const std::string& host, uint16_t port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  Need(inet_pton(AF_INET, host.c_str(), &address.sin_addr) == 1, host.c_str());
  return address;
}

rdma_conn_param RawParameters() {
  rdma_conn_param parameters = {};
  parameters.responder_resources = 1;
  parameters.initiator_depth = 1;
  parameters.retry_count = kRetries;
  parameters.rnr_retry_count = kRetries;
  return parameters;
}

RawDevice::RawDevice(uint32_t messages, uint32_t entries) {
  channel_ = rdma_create_event_channel();
  Need(channel_ != nullptr, "rdma_create_event_channel");
  DoNotBlock(channel_->fd);
  int count = 0;
  // Those of librdmacm, which its ids are of, too.
  ibv_context** const contexts = rdma_get_devices(&count);
  Need(contexts != nullptr && count > 0, "rdma_get_devices");
  ibv_context* const context = contexts[0];
  domain_ = ibv_alloc_pd(context);
  Need(domain_ != nullptr, "ibv_alloc_pd");
  const size_t bytes = messages * sizeof(FailoverMessage);
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  Need(memory != MAP_FAILED, "mmap");
  memory_ = static_cast<FailoverMessage*>(memory);
  region_ = ibv_reg_mr(domain_, memory, bytes, IBV_ACCESS_LOCAL_WRITE);
  Need(region_ != nullptr, "ibv_reg_mr");
  completion_channel_ = ibv_create_comp_channel(context);
  Need(completion_channel_ != nullptr, "ibv_create_comp_channel");
  DoNotBlock(completion_channel_->fd);
  queue_ = ibv_create_cq(context, static_cast<int>(entries), nullptr, completion_channel_, 0);
  Need(queue_ != nullptr, "ibv_create_cq");
}

ibv_qp_init_attr RawDevice::QueuePairOptions() const {
  ibv_qp_init_attr options = {};
  options.send_cq = options.recv_cq = queue_;
  options.qp_type = IBV_QPT_RC;
  options.sq_sig_all = 1;
  options.cap = {kQueueDepth, kQueueDepth, 1, 1, 0};
  return options;
}

ibv_sge RawDevice::BufferOf(uint32_t message) const {
  return {reinterpret_cast<uint64_t>(&memory_[message]), sizeof(FailoverMessage), region_->lkey};
}

void RawDevice::PostReceive(ibv_qp* queue_pair, uint64_t wr_id, uint32_t message) const {
  ibv_sge buffer = BufferOf(message);
  ibv_recv_wr request = {wr_id, nullptr, &buffer, 1};
  ibv_recv_wr* refused = nullptr;
  Need(ibv_post_recv(queue_pair, &request, &refused) == 0, "ibv_post_recv");
}

void RawDevice::PostSend(ibv_qp* queue_pair, uint64_t wr_id, uint32_t message) const {
  ibv_sge buffer = BufferOf(message);
  ibv_send_wr request = {};
  request.wr_id = wr_id;
  request.sg_list = &buffer;
  request.num_sge = 1;
  request.opcode = IBV_WR_SEND;
  ibv_send_wr* refused = nullptr;
  Need(ibv_post_send(queue_pair, &request, &refused) == 0, "ibv_post_send");
}

int RawDevice::Poll(ibv_wc* completions, int count) const {
  const int taken = ibv_poll_cq(queue_, count, completions);
  Need(taken >= 0, "ibv_poll_cq");
  return taken;
}

rdma_cm_event* RawDevice::NextEvent() const {
  rdma_cm_event* event = nullptr;
  return rdma_get_cm_event(channel_, &event) == 0 ? event : nullptr;
}

void RawDevice::Wait(uint64_t idle_since_ns, uint32_t yield_us, int timeout_ms, int fd) {
  if (FailoverClock() - idle_since_ns < yield_us * uint64_t{1000}) {
    sched_yield();
    return;
  }
  // Then a last look of the caller's, and then sleep.
  if (!armed_) {
    Need(ibv_req_notify_cq(queue_, 0) == 0, "ibv_req_notify_cq");
    armed_ = true;
    return;
  }
  pollfd waited[] = {
      {completion_channel_->fd, POLLIN, 0}, {channel_->fd, POLLIN, 0}, {fd, POLLIN, 0}};
  Need(poll(waited, 3, timeout_ms) >= 0 || errno == EINTR, "poll");
  if ((waited[0].revents & POLLIN) == 0) return;
  armed_ = false;
  ibv_cq* queue = nullptr;
  void* context = nullptr;
  if (ibv_get_cq_event(completion_channel_, &queue, &context) == 0) ibv_ack_cq_events(queue, 1);
}

}  // namespace baton::native
