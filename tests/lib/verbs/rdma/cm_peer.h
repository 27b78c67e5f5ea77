// A test gives orders to these processes and peers. Whatever waits fails the test when nothing
// comes in the time that a test has.
#ifndef TESTS_LIB_VERBS_RDMA_CM_PEER_H_
#define TESTS_LIB_VERBS_RDMA_CM_PEER_H_

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/lib/verbs/rdma/cm_message.h"

namespace baton::verbs::rdma {

// A process that a test executes and gives orders to (cm_message.h). Thread-compatible.
class CmProcess {
 public:
  // `program` is one of $BATON_BIN.
  explicit CmProcess(const std::string& program);
  ~CmProcess();
  CmProcess(const CmProcess&) = delete;
  CmProcess& operator=(const CmProcess&) = delete;

  // Gives an order and returns the answer, with the files that come with it. Fails the test if
  // there is none in the time that a test has.
  CmMessage Call(const CmMessage& order, const std::vector<int>& files = {},
                 std::vector<FileDescriptor>* answered = nullptr);
  bool Tell(const CmMessage& order, const std::vector<int>& files = {});
  // An answer that is there already, or comes within `timeout_ms`.
  bool Hear(CmMessage* answer, int timeout_ms);
  int socket() const { return socket_.get(); }
  pid_t pid() const { return pid_; }

  // SIGKILL. Returns when the process is gone. False: it had ended by itself.
  bool Kill();

 private:
  FileDescriptor socket_;
  pid_t pid_ = -1;
};

// A peer that is nothing of Baton's: one connection by librdmacm, with a queue pair that librdmacm
// makes ready. Thread-compatible.
class CmPeer {
 public:
  CmPeer();
  ~CmPeer();
  CmPeer(const CmPeer&) = delete;
  CmPeer& operator=(const CmPeer&) = delete;

  // Asks for a connection. Its answer is the next event.
  void Connect(const std::string& host, uint16_t port, const std::string& private_data);
  // Listens at a port of the kernel's choice, accepts the first request and returns its private
  // data.
  uint16_t Listen(const std::string& host);
  std::string AcceptFirst();
  void Disconnect();

  // The next event, as "RDMA_CM_EVENT_ESTABLISHED status 0".
  std::string NextEvent();
  bool HasEvent() const;

  void Send(const std::string& text);  // and waits for its completion
  std::string Receive();
  // Returns the status of an RDMA WRITE.
  ibv_wc_status Write(uint64_t address, uint32_t key, const std::string& text);

 private:
  static constexpr int kReceives = 4;
  static constexpr size_t kSlotBytes = 256;
  static constexpr size_t kBytes = (kReceives + 1) * kSlotBytes;

  rdma_cm_event* Take(rdma_cm_event_type expected);
  void MakeQueuePair();
  void PostReceive(uint64_t slot);
  ibv_wc_status Post(ibv_send_wr* request, const std::string& text);
  static ibv_wc Poll(ibv_cq* queue);

  rdma_event_channel* const channel_;
  rdma_cm_id* listener_ = nullptr;
  rdma_cm_id* id_ = nullptr;
  ibv_mr* region_ = nullptr;
  char* const memory_;  // shared: the test forks
};

}  // namespace baton::verbs::rdma

#endif  // TESTS_LIB_VERBS_RDMA_CM_PEER_H_
