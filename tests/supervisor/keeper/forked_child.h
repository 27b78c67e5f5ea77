// A process that a test forks before it has any thread, for what has to happen in another process.
#ifndef TESTS_SUPERVISOR_KEEPER_FORKED_CHILD_H_
#define TESTS_SUPERVISOR_KEEPER_FORKED_CHILD_H_

#include <sys/types.h>

#include <functional>
#include <string>

#include "lib/base/file_descriptor.h"

namespace baton::keeper::testing {

class ForkedChild {
 public:
  // The child's side. Its body runs in the child; the child ends when it returns.
  class Parent {
   public:
    bool Await() const;  // until the test says Go; false when the test is over
    void Tell(const std::string& line) const;

   private:
    friend class ForkedChild;
    FileDescriptor in_, out_;
  };

  explicit ForkedChild(const std::function<void(const Parent&)>& body);
  // The child tells "no right" if it may not make a pid namespace; else `body` runs in the first
  // process of a new one, as in a container.
  static ForkedChild InPidNamespace(const std::function<void(const Parent&)>& body);
  ~ForkedChild();  // kills it

  void Go() const;
  std::string Hear() const;  // what the child told next; "" when it has ended
  int Wait();                // until it has ended; its wait status
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
  int status_ = -1;
  bool reaped_ = false;
  FileDescriptor in_, out_;
};

}  // namespace baton::keeper::testing

#endif  // TESTS_SUPERVISOR_KEEPER_FORKED_CHILD_H_
