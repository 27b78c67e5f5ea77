#include "tests/supervisor/keeper/forked_child.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/base/check.h"

namespace baton::keeper::testing {

ForkedChild::ForkedChild(const std::function<void(const Parent&)>& body) {
  int to_child[2], to_parent[2];
  BATON_CHECK(pipe2(to_child, O_CLOEXEC) == 0 && pipe2(to_parent, O_CLOEXEC) == 0);
  pid_ = fork();
  BATON_CHECK(pid_ >= 0);
  if (pid_ == 0) {
    close(to_child[1]);
    close(to_parent[0]);
    {
      Parent parent;
      parent.in_.Reset(to_child[0]);
      parent.out_.Reset(to_parent[1]);
      body(parent);
    }
    _exit(0);
  }
  close(to_child[0]);
  close(to_parent[1]);
  out_.Reset(to_child[1]);
  in_.Reset(to_parent[0]);
}

ForkedChild ForkedChild::InPidNamespace(const std::function<void(const Parent&)>& body) {
  return ForkedChild([&](const Parent& parent) {
    if (unshare(CLONE_NEWPID) != 0) return parent.Tell("no right");
    const pid_t first = fork();
    if (first == 0) {
      body(parent);
      _exit(0);
    }
    waitpid(first, nullptr, 0);
  });
}

ForkedChild::~ForkedChild() {
  if (reaped_) return;
  kill(pid_, SIGKILL);
  Wait();
}

int ForkedChild::Wait() {
  if (!reaped_) {
    BATON_CHECK(waitpid(pid_, &status_, 0) == pid_);
    reaped_ = true;
  }
  return status_;
}

void ForkedChild::Go() const { BATON_CHECK(write(out_.get(), "g", 1) == 1); }

std::string ForkedChild::Hear() const {
  std::string line;
  char byte;
  while (read(in_.get(), &byte, 1) == 1 && byte != '\n') line.push_back(byte);
  return line;
}

bool ForkedChild::Parent::Await() const {
  char byte;
  return read(in_.get(), &byte, 1) == 1;
}

void ForkedChild::Parent::Tell(const std::string& line) const {
  const std::string whole = line + "\n";
  BATON_CHECK(write(out_.get(), whole.data(), whole.size()) == static_cast<ssize_t>(whole.size()));
}

}  // namespace baton::keeper::testing
