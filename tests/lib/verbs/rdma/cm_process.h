// A process that a test executes and gives orders to (cm_message.h).
#ifndef TESTS_LIB_VERBS_RDMA_CM_PROCESS_H_
#define TESTS_LIB_VERBS_RDMA_CM_PROCESS_H_

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/lib/verbs/rdma/cm_message.h"

namespace baton::verbs::rdma {

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

}  // namespace baton::verbs::rdma

#endif  // TESTS_LIB_VERBS_RDMA_CM_PROCESS_H_
