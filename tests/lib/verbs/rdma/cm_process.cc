#include "tests/lib/verbs/rdma/cm_process.h"

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>

#include "tests/harness/patience.h"

namespace baton::verbs::rdma {
namespace {

constexpr char kSocketNumber[] = "3";
constexpr int kSocket = 3;

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

}  // namespace baton::verbs::rdma
