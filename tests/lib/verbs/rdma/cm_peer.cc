#include "tests/lib/verbs/rdma/cm_peer.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "gtest/gtest.h"
#include "lib/verbs/socket_address.h"
#include "tests/harness/wait_until.h"

namespace baton::verbs::rdma {
namespace {

constexpr char kSocketNumber[] = "3";
constexpr int kSocket = 3;

constexpr int kTimeoutMs = 2000;

std::chrono::milliseconds Limit() { return harness::Patient(std::chrono::milliseconds(2000)); }

}  // namespace

CmProcess::CmProcess(const std::string& program) {
  const char* const directory = std::getenv("BATON_BIN");
  const std::string path = std::string(directory == nullptr ? "." : directory) + "/" + program;
  int sockets[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets), 0);
  socket_.Reset(sockets[0]);
  FileDescriptor theirs(sockets[1]);
  char* const arguments[] = {const_cast<char*>(path.c_str()), const_cast<char*>(kSocketNumber),
                             nullptr};
  pid_ = fork();
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    // A descriptor that dup2 makes stays open on execution. It makes none where the number is the
    // same.
    if (theirs.get() == kSocket) _exit(126);
    if (dup2(theirs.get(), kSocket) == kSocket) execve(path.c_str(), arguments, environ);
    _exit(127);
  }
  EXPECT_GT(pid_, 0);
}

CmProcess::~CmProcess() {
  if (pid_ > 0) Kill();
}

bool CmProcess::Tell(const CmMessage& order, const std::vector<int>& files) {
  return SendMessage(socket_.get(), order, files);
}

bool CmProcess::Hear(CmMessage* answer, int timeout_ms) {
  return ReceiveMessage(socket_.get(), answer, nullptr, timeout_ms);
}

CmMessage CmProcess::Call(const CmMessage& order, const std::vector<int>& files,
                          std::vector<FileDescriptor>* answered) {
  const auto limit = harness::Patient(std::chrono::milliseconds(5000));
  CmMessage answer;
  answer.error = -1;
  const bool done = Tell(order, files) && ReceiveMessage(socket_.get(), &answer, answered,
                                                         static_cast<int>(limit.count()));
  EXPECT_TRUE(done) << "order " << static_cast<uint32_t>(order.order) << " has no answer";
  return answer;
}

bool CmProcess::Kill() {
  kill(pid_, SIGKILL);
  int status = 0;
  EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
  pid_ = -1;
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

CmPeer::CmPeer()
    : channel_(rdma_create_event_channel()),
      memory_(static_cast<char*>(
          mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {
  EXPECT_NE(memory_, MAP_FAILED);
  EXPECT_NE(channel_, nullptr);
  EXPECT_EQ(fcntl(channel_->fd, F_SETFL, O_NONBLOCK), 0);
}

CmPeer::~CmPeer() {
  if (id_ != nullptr && id_->qp != nullptr) rdma_destroy_qp(id_);
  if (region_ != nullptr) ibv_dereg_mr(region_);
  if (id_ != nullptr) rdma_destroy_id(id_);
  if (listener_ != nullptr) rdma_destroy_id(listener_);
  rdma_destroy_event_channel(channel_);
  munmap(memory_, kBytes);
}

bool CmPeer::HasEvent() const {
  pollfd readable = {channel_->fd, POLLIN, 0};
  return poll(&readable, 1, 0) == 1;
}

// Null: it was another one, or none came.
rdma_cm_event* CmPeer::Take(rdma_cm_event_type expected) {
  pollfd readable = {channel_->fd, POLLIN, 0};
  rdma_cm_event* event = nullptr;
  if (poll(&readable, 1, static_cast<int>(Limit().count())) != 1 ||
      rdma_get_cm_event(channel_, &event) != 0) {
    ADD_FAILURE() << "no event, but " << rdma_event_str(expected) << " is expected";
    return nullptr;
  }
  if (event->event == expected) return event;
  ADD_FAILURE() << rdma_event_str(event->event) << ", not " << rdma_event_str(expected);
  rdma_ack_cm_event(event);
  return nullptr;
}

std::string CmPeer::NextEvent() {
  pollfd readable = {channel_->fd, POLLIN, 0};
  rdma_cm_event* event = nullptr;
  if (poll(&readable, 1, static_cast<int>(Limit().count())) != 1) return "none";
  if (rdma_get_cm_event(channel_, &event) != 0) return std::strerror(errno);
  std::string text =
      std::string(rdma_event_str(event->event)) + " status " + std::to_string(event->status);
  rdma_ack_cm_event(event);
  return text;
}

void CmPeer::MakeQueuePair() {
  ibv_qp_init_attr initial = {};
  initial.qp_type = IBV_QPT_RC;
  initial.sq_sig_all = 1;
  initial.cap = {kReceives, kReceives, 1, 1, 0};
  ASSERT_EQ(rdma_create_qp(id_, nullptr, &initial), 0) << std::strerror(errno);
  region_ = ibv_reg_mr(id_->pd, memory_, kBytes, IBV_ACCESS_LOCAL_WRITE);
  ASSERT_NE(region_, nullptr);
  for (uint64_t slot = 0; slot < kReceives; ++slot) PostReceive(slot);
}

void CmPeer::Connect(const std::string& host, uint16_t port, const std::string& private_data) {
  ASSERT_EQ(rdma_create_id(channel_, &id_, nullptr, RDMA_PS_TCP), 0);
  SocketAddress address = ToSocketAddress({host, port}).value();
  ASSERT_EQ(rdma_resolve_addr(id_, nullptr, address.get(), kTimeoutMs), 0);
  rdma_cm_event* event = Take(RDMA_CM_EVENT_ADDR_RESOLVED);
  ASSERT_NE(event, nullptr);
  rdma_ack_cm_event(event);
  ASSERT_EQ(rdma_resolve_route(id_, kTimeoutMs), 0);
  event = Take(RDMA_CM_EVENT_ROUTE_RESOLVED);
  ASSERT_NE(event, nullptr);
  rdma_ack_cm_event(event);
  ASSERT_NO_FATAL_FAILURE(MakeQueuePair());
  rdma_conn_param parameters = {};
  parameters.private_data = private_data.data();
  parameters.private_data_len = static_cast<uint8_t>(private_data.size());
  parameters.responder_resources = parameters.initiator_depth = 1;
  parameters.retry_count = 6;
  parameters.rnr_retry_count = 7;
  ASSERT_EQ(rdma_connect(id_, &parameters), 0) << std::strerror(errno);
}

uint16_t CmPeer::Listen(const std::string& host) {
  EXPECT_EQ(rdma_create_id(channel_, &listener_, nullptr, RDMA_PS_TCP), 0);
  SocketAddress address = ToSocketAddress({host, 0}).value();
  EXPECT_EQ(rdma_bind_addr(listener_, address.get()), 0);
  EXPECT_EQ(rdma_listen(listener_, 1), 0);
  return ntohs(rdma_get_src_port(listener_));
}

std::string CmPeer::AcceptFirst() {
  rdma_cm_event* const event = Take(RDMA_CM_EVENT_CONNECT_REQUEST);
  if (event == nullptr) return "";
  id_ = event->id;
  std::string private_data = static_cast<const char*>(event->param.conn.private_data);
  rdma_ack_cm_event(event);
  MakeQueuePair();
  rdma_conn_param parameters = {};
  parameters.responder_resources = parameters.initiator_depth = 1;
  parameters.rnr_retry_count = 7;
  EXPECT_EQ(rdma_accept(id_, &parameters), 0) << std::strerror(errno);
  return private_data;
}

void CmPeer::Disconnect() { EXPECT_EQ(rdma_disconnect(id_), 0) << std::strerror(errno); }

void CmPeer::PostReceive(uint64_t slot) {
  ibv_sge place = {reinterpret_cast<uintptr_t>(memory_ + slot * kSlotBytes), kSlotBytes,
                   region_->lkey};
  ibv_recv_wr request = {}, *bad = nullptr;
  request.wr_id = slot;
  request.sg_list = &place;
  request.num_sge = 1;
  ASSERT_EQ(ibv_post_recv(id_->qp, &request, &bad), 0);
}

ibv_wc CmPeer::Poll(ibv_cq* queue) {
  const auto deadline = std::chrono::steady_clock::now() + Limit();
  ibv_wc completion = {};
  completion.status = IBV_WC_GENERAL_ERR;
  while (std::chrono::steady_clock::now() < deadline) {
    if (ibv_poll_cq(queue, 1, &completion) == 1) return completion;
    sched_yield();
  }
  ADD_FAILURE() << "no completion";
  return completion;
}

ibv_wc_status CmPeer::Post(ibv_send_wr* request, const std::string& text) {
  char* const memory = memory_ + kReceives * kSlotBytes;
  std::memset(memory, 0, kSlotBytes);
  text.copy(memory, kSlotBytes - 1);
  ibv_sge place = {reinterpret_cast<uintptr_t>(memory), kSlotBytes, region_->lkey};
  request->sg_list = &place;
  request->num_sge = 1;
  ibv_send_wr* bad = nullptr;
  EXPECT_EQ(ibv_post_send(id_->qp, request, &bad), 0);
  return Poll(id_->send_cq).status;
}

void CmPeer::Send(const std::string& text) {
  ibv_send_wr request = {};
  request.opcode = IBV_WR_SEND;
  EXPECT_EQ(Post(&request, text), IBV_WC_SUCCESS);
}

ibv_wc_status CmPeer::Write(uint64_t address, uint32_t key, const std::string& text) {
  ibv_send_wr request = {};
  request.opcode = IBV_WR_RDMA_WRITE;
  request.wr.rdma.remote_addr = address;
  request.wr.rdma.rkey = key;
  return Post(&request, text);
}

std::string CmPeer::Receive() {
  const ibv_wc completion = Poll(id_->recv_cq);
  if (completion.status != IBV_WC_SUCCESS) return ibv_wc_status_str(completion.status);
  std::string text = memory_ + completion.wr_id * kSlotBytes;
  PostReceive(completion.wr_id);
  return text;
}

}  // namespace baton::verbs::rdma
